//! `prune`: weights of small magnitude become 0.

use quantize_rs::{Below, Model, Prune, Pruning, prune};

use crate::args::PruneArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::{file, interrupt, text};

pub(crate) fn run(args: &PruneArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    file::check(&args.output)?;
    let below = match (args.sparsity, args.threshold) {
        (Some(part), _) => Below::Sparsity(part),
        (None, threshold) => Below::parse(&args.mode, threshold.unwrap_or_default())?,
    };
    let (per_channel, exclude) = (args.per == "channel", args.exclude.clone());
    let how = Prune { below, per_channel, exclude };
    let (model, report) = prune(&Model::open(&args.model)?, &how)?;
    interrupt::finishing(|| {
        let saved = model.save(&args.output).map(|_| ());
        saved.map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    let output = args.output.display().to_string();
    console.summary(|| text::json(&report), || describe(&report, output))
}

fn describe(report: &Pruning, output: String) -> String {
    let said = report.to_string();
    let (first, weights) = said.trim_end().split_once('\n').unwrap_or((said.trim_end(), ""));
    let weights: Vec<&str> = weights.lines().map(str::trim).collect();
    text::table(vec![
        ("Pruned", first.to_owned()),
        ("Weights", weights.join("\n")),
        ("Written to", output),
    ])
}
