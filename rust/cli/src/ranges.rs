//! `ranges`: shows, merges, compares and converts files of ranges.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use quantize_rs::{Model, Ranges, tensorrt};

use crate::console::Console;
use crate::failure::{Failure, said};
use crate::{ascii_histogram, output_path, text};

/// What is to be done with ranges.
#[derive(Debug, Subcommand)]
pub(crate) enum RangesCommand {
    /// Show the range of each value
    Show(ShowArguments),
    /// Merge files into one, as if one calibration had run on all samples
    Merge(MergeArguments),
    /// Show the differences between two files
    Diff(DiffArguments),
    /// Convert ranges to a TensorRT calibration cache, or a cache to ranges
    Convert(ConvertArguments),
}

/// Arguments of `ranges show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// The ranges
    pub(crate) file: PathBuf,
}

/// Arguments of `ranges merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    /// The ranges: two files or more
    #[arg(required = true, num_args = 2..)]
    pub(crate) files: Vec<PathBuf>,
    /// The path of the merged ranges; may be one of the files
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `ranges diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// The ranges
    pub(crate) first: PathBuf,
    /// The ranges to compare them with
    pub(crate) second: PathBuf,
}

/// Arguments of `ranges convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    /// Ranges, or a TensorRT calibration cache
    pub(crate) file: PathBuf,
    /// The model of the ranges
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// The path of the result
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The TensorRT version in the first line of a cache
    #[arg(long, value_name = "N", default_value = tensorrt::VERSION)]
    pub(crate) tensorrt_version: String,
}

pub(crate) fn run(command: &RangesCommand, console: &mut Console<'_>) -> Result<(), Failure> {
    match command {
        RangesCommand::Show(args) => show(args, console),
        RangesCommand::Merge(args) => merge(args, console),
        RangesCommand::Diff(args) => diff(args, console),
        RangesCommand::Convert(args) => convert(args, console),
    }
}

/// The ranges in a file.
pub(crate) fn read(path: &Path) -> Result<Ranges, Failure> {
    Ok(Ranges::load(path)?)
}

fn show(args: &ShowArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let ranges = read(&args.file)?;
    let draws = console.draws();
    console.result(|| ranges.to_json(), || describe(&ranges, draws))
}

fn merge(args: &MergeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    output_path::check(&args.output)?;
    output_path::check_no_model("--output", &args.output)?;
    let mut merged: Option<Ranges> = None;
    for path in &args.files {
        let ranges = read(path)?;
        merged = Some(match merged {
            None => ranges,
            Some(merged) => merged
                .merge(&ranges)
                .map_err(|error| Failure::from(error).while_doing(&path.display().to_string()))?,
        });
    }
    let mut seen = HashSet::new();
    if let Some(twice) = args.files.iter().find(|path| !seen.insert(output_path::place(path))) {
        let message =
            format!("`{}` is given twice: its samples would count twice", twice.display());
        return Err(Failure::Refused(message));
    }
    // clap requires two files.
    let Some(merged) = merged else { return Ok(()) };
    // All parts have to be there.
    let merged = Ranges::merge_all(&[merged])?;
    output_path::write_ranges(&args.output, &merged)?;
    summary(&merged, &args.output, console)
}

fn diff(args: &DiffArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let diff = read(&args.first)?.diff(&read(&args.second)?);
    console.result(|| text::json(&diff), || diff.to_string())
}

fn convert(args: &ConvertArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    output_path::check(&args.output)?;
    output_path::check_no_model("--output", &args.output)?;
    output_path::check_apart("--output", &args.output, &[&args.file, &args.model])?;
    let model = Model::open(&args.model)?;
    output_path::check_data("--output", &args.output, &[&model])?;
    let ranges = if is_cache(&args.file)? {
        let ranges = Ranges::from_tensorrt(&contents(&args.file)?, &model);
        let ranges = ranges
            .map_err(|error| Failure::from(error).while_doing(&args.file.display().to_string()))?;
        output_path::write_ranges(&args.output, &ranges)?;
        ranges
    } else {
        let ranges = read(&args.file)?;
        ranges.check_model(&model)?;
        output_path::write(&args.output, &ranges.to_tensorrt(&args.tensorrt_version))?;
        ranges
    };
    summary(&ranges, &args.output, console)
}

/// Whether a file begins as a calibration cache does.
fn is_cache(path: &Path) -> Result<bool, Failure> {
    const MARK: &[u8] = b"TRT-";
    let mut first = Vec::new();
    let file = fs::File::open(path);
    let read = file.and_then(|file| file.take(MARK.len() as u64).read_to_end(&mut first));
    read.map_err(|error| unreadable(path, &error))?;
    Ok(first == MARK)
}

fn contents(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!("{}: {}", path.display(), said(error)))
}

/// Prints what was written, and where.
pub(crate) fn summary(
    ranges: &Ranges,
    output: &Path,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let output = output.display().to_string();
    let json = serde_json::json!({
        "output": output,
        "method": ranges.method,
        "samples": ranges.samples,
        "values": ranges.values.len(),
    });
    console.summary(
        || json.to_string(),
        || {
            text::table([
                ("Values", ranges.values.len().to_string()),
                ("Samples", ranges.samples.to_string()),
                ("Method", ranges.method.clone()),
                ("Written to", output.clone()),
            ])
        },
    )
}

/// The ranges as text; with `draws`, a histogram of each value.
fn describe(ranges: &Ranges, draws: bool) -> String {
    let values: Vec<String> = ranges
        .values
        .iter()
        .map(|(name, range)| {
            let chosen = ranges.chosen.get(name).map_or(String::new(), |name| format!(" {name}"));
            let seen = ranges.histogram(name).filter(|_| draws);
            let seen = seen.map_or(String::new(), |seen| {
                format!("  {}", ascii_histogram::histogram(&seen, *range))
            });
            format!("{name}: [{}, {}]{chosen}{seen}", range.min, range.max)
        })
        .collect();
    let mut rows = vec![
        ("Method", ranges.method.clone()),
        ("Engine", ranges.engine.clone()),
        ("Samples", ranges.samples.to_string()),
        ("Values", values.join("\n")),
    ];
    let notes = [ranges.said(), ranges.warnings.clone()].concat();
    if !notes.is_empty() {
        rows.push(("Notes", notes.join("\n")));
    }
    text::table(rows)
}
