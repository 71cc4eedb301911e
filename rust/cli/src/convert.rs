//! `convert`: a model of newer operators.

use quantize_rs::{Model, convert_opset};

use crate::args::ConvertModelArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::{file, interrupt, text};

pub(crate) fn run(args: &ConvertModelArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    file::check(&args.output)?;
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
