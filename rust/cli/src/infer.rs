//! `infer-shapes`: writes the types and shapes of values into a model.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, infer_shapes};

use crate::console::Console;
use crate::failure::Failure;
use crate::{interrupt, output_path, text};

/// Arguments of `infer-shapes`.
#[derive(Debug, Args)]
pub(crate) struct InferArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// The path of the result; may be that of the input
    #[arg(short, long, value_name = "FILE", default_value = "model_inferred.onnx")]
    pub(crate) output: PathBuf,
}

pub(crate) fn run(args: &InferArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    output_path::check(&args.output)?;
    let (model, inference) = infer_shapes(&Model::open(&args.model)?)?;
    interrupt::finishing(|| {
        let saved = model.save(&args.output).map(|_| ());
        saved.map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    console.summary(
        || text::json(&inference),
        || {
            let known = |count: usize| format!("{count} of {}", inference.values);
            let mut rows = vec![
                ("Types known", known(inference.typed)),
                ("Ranks known", known(inference.ranked)),
                ("Shapes known", known(inference.shaped)),
                ("Values written", inference.written.to_string()),
            ];
            if !inference.warnings.is_empty() {
                rows.push(("Warnings", inference.warnings.join("\n")));
            }
            rows.push(("Written to", args.output.display().to_string()));
            text::table(rows)
        },
    )
}
