//! `recommend`: recommends how to quantize a model, with reasons.

use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::recommend::ALL;
use quantize_rs::{Model, Request, SampleSource, Target, recommend};

use crate::console::Console;
use crate::failure::Failure;
use crate::{options, samples};

/// Arguments of `recommend`.
#[derive(Debug, Args)]
#[command(after_help = rules())]
pub(crate) struct RecommendArguments {
    /// The model
    model: PathBuf,
    /// The path of samples, as for `calibrate`; the printed command names it, and it is not read
    #[arg(
        id = "calibration_data",
        long = "calibration-data",
        visible_alias = "data",
        value_name = "PATH"
    )]
    data: Option<PathBuf>,
    /// The runtime that the model is made for [default: x86]
    #[arg(long, value_name = "NAME", value_parser = options::choice::<Target>("target"))]
    target: Option<Target>,
}

/// The list of rules, with their conditions.
fn rules() -> String {
    let rows = ALL
        .iter()
        .map(|rule| format!("  {:<18}{:<8}  {}\n", rule.name, rule.choice.way.name(), rule.about));
    format!("Rules; the first that applies decides:\n{}", rows.collect::<String>())
}

/// Whether a path names something; a pattern may match nothing yet.
fn exists(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '[']) || path.exists()
}

pub(crate) fn run(args: &RecommendArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    // Random numbers are not samples of real inputs.
    let samples = args.data.as_ref().filter(|path| !samples::is_random(path));
    if let Some(path) = samples.filter(|path| !exists(path)) {
        let message =
            format!("--calibration-data: there is no file or folder `{}`", path.display());
        return Err(Failure::Refused(message));
    }
    let samples = samples.map(|path| path.display().to_string());
    let samples = samples.as_deref().map(SampleSource::File);
    let wanted = Request { target: args.target, samples };
    let found = recommend(&Model::open(&args.model)?, wanted)?;
    console.result(|| found.to_json(), || found.to_string())
}
