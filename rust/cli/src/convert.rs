//! `convert`: converts a model to a newer opset.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, convert_opset};

use crate::console::Console;
use crate::failure::Failure;
use crate::output_file::{self, OutputFile};
use crate::{interrupt, text};

/// What the default name of the result says.
const DONE: &str = "converted";

/// Arguments of `convert`.
#[derive(Debug, Args)]
#[command(mut_arg("output", |output| output.help(output_file::help(DONE))))]
pub(crate) struct ConvertModelArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
    /// The opset to convert to, not older than that of the model
    #[arg(long, value_name = "N")]
    pub(crate) opset: i64,
}

pub(crate) fn run(args: &ConvertModelArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let output = args.output.checked(&args.model, DONE)?;
    let (model, conversion) = convert_opset(&Model::open(&args.model)?, args.opset)?;
    interrupt::finishing(|| {
        let saved = model.save(&output).map(|_| ());
        saved.map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    conversion.warnings.iter().for_each(|warning| console.warn(warning));
    let verbose = console.verbose();
    console.summary(
        || text::json(&conversion),
        || {
            let mut rows = vec![
                ("Converted", conversion.to_string()),
                ("Written to", output.display().to_string()),
            ];
            if verbose && !conversion.changed.is_empty() {
                rows.push(("Changed", conversion.changed.join("\n")));
            }
            text::table(rows)
        },
    )
}
