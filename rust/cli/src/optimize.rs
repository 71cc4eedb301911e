//! `optimize`: a simpler model that computes the same.

use quantize_rs::{Model, Optimization, optimize};

use crate::args::OptimizeArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::{file, interrupt, text};

pub(crate) fn run(args: &OptimizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    file::check(&args.output)?;
    let optimized = optimize(&model, args.passes.as_deref(), &args.skip)?;
    let report = interrupt::finishing(|| {
        optimized
            .save(&args.output)
            .map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    let verbose = console.verbose();
    console.summary(|| report.to_json(), || describe(&report, verbose))
}

fn describe(report: &Optimization, verbose: bool) -> String {
    let mut rows = vec![
        ("Original size", text::size(report.bytes_before)),
        ("New size", text::size(report.bytes_after)),
        ("Nodes", format!("{} -> {}", report.nodes_before, report.nodes_after)),
    ];
    let steps: Vec<String> = report.steps.iter().map(ToString::to_string).collect();
    let did = if steps.is_empty() { "nothing to do".to_owned() } else { steps.join("; ") };
    rows.push(("Passes", did));
    rows.extend(report.output.iter().map(|path| ("Written to", path.clone())));
    if verbose {
        let lines: Vec<&str> =
            report.steps.iter().flat_map(|step| &step.did).map(String::as_str).collect();
        rows.push(("Changes", lines.join("\n")));
    }
    text::table(rows)
}
