//! `convert`: converts a model to a newer opset.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, convert_opset};

use crate::console::Console;
use crate::failure::Failure;
use crate::{interrupt, output_path, text};

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertModelArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// The path of the converted model; may be that of the input
    #[arg(short, long, value_name = "FILE", default_value = "model_converted.onnx")]
    pub(crate) output: PathBuf,
    /// The opset to convert to, not older than that of the model
    #[arg(long, value_name = "N")]
    pub(crate) opset: i64,
}

pub(crate) fn run(args: &ConvertModelArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    output_path::check(&args.output)?;
    let (model, conversion) = convert_opset(&Model::open(&args.model)?, args.opset)?;
    interrupt::finishing(|| {
        let saved = model.save(&args.output).map(|_| ());
        saved.map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    let verbose = console.verbose();
    console.summary(
        || text::json(&conversion),
        || {
            let mut rows = vec![
                ("Converted", conversion.to_string()),
                ("Written to", args.output.display().to_string()),
            ];
            if verbose && !conversion.changed.is_empty() {
                rows.push(("Changed", conversion.changed.join("\n")));
            }
            text::table(rows)
        },
    )
}
