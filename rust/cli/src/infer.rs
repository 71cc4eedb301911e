//! `infer-shapes`: a model that says of what type and shape its values are.

use quantize_rs::{Model, infer_shapes};

use crate::args::InferArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::{file, interrupt, text};

pub(crate) fn run(args: &InferArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    file::check(&args.output)?;
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
