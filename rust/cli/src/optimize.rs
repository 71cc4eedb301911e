//! `optimize`: simplifies a model without changing what it computes.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, Optimization, optimize, transform};

use crate::console::Console;
use crate::failure::Failure;
use crate::output_file::{self, OutputFile};
use crate::{interrupt, text};

/// What the default name of the result says.
const DONE: &str = "optimized";

/// Arguments of `optimize`.
#[derive(Debug, Args)]
#[command(after_help = passes(), mut_arg("output", |output| output.help(output_file::help(DONE))))]
pub(crate) struct OptimizeArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
    /// Run only these passes, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) passes: Option<Vec<String>>,
    /// Skip these passes, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
}

/// The list of passes, with descriptions.
fn passes() -> String {
    let rows = transform::ALL.iter().map(|pass| format!("  {:<25}{}\n", pass.name, pass.about));
    format!("Passes, in their order:\n{}", rows.collect::<String>())
}

pub(crate) fn run(args: &OptimizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let output = args.output.checked(&args.model, DONE)?;
    let optimized = optimize(&model, args.passes.as_deref(), &args.skip)?;
    let report = interrupt::finishing(|| {
        optimized
            .save(&output)
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
