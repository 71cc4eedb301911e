//! `infer-shapes`: writes the types and shapes of values into a model.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, infer_shapes};

use crate::console::Console;
use crate::failure::Failure;
use crate::output_file::{self, OutputFile};
use crate::{interrupt, text};

/// What the default name of the result says.
const DONE: &str = "inferred";

/// Arguments of `infer-shapes`.
#[derive(Debug, Args)]
#[command(mut_arg("output", |output| output.help(output_file::help(DONE))))]
pub(crate) struct InferArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
}

pub(crate) fn run(args: &InferArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let output = args.output.checked(&args.model, DONE)?;
    let (model, inference) = infer_shapes(&Model::open(&args.model)?)?;
    interrupt::finishing(|| {
        let saved = model.save(&output).map(|_| ());
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
            rows.push(("Written to", output.display().to_string()));
            text::table(rows)
        },
    )
}
