//! The summary that `quantize` and `calibrate` print.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quantize_rs::options::as_flags;
use quantize_rs::{ACTIVATIONS, Assessment, QType, Report, ReportRow, Role, WEIGHTS};

use crate::console::Console;
use crate::failure::Failure;
use crate::text;

/// The number of lines of a kind that are shown without `-v`.
const LINES_SHOWN: usize = 10;

/// Prints the report: its warnings, except one that was reported before, then the result.
pub(crate) fn show(
    report: &Report,
    reported: Option<&str>,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let new = report.warnings.iter().filter(|warning| reported != Some(warning));
    new.for_each(|warning| console.warn(warning));
    let verbose = console.verbose();
    console.summary(|| report.to_json(), || describe(report, verbose))
}

fn describe(report: &Report, verbose: bool) -> String {
    let Assessment { grade, sentence, next } = report.assessment();
    let mut rows = vec![("Evaluation", format!("{}: {sentence}", grade.name()))];
    rows.extend(lines("Next", &next));
    rows.extend([
        ("Original size", text::size(report.bytes_before)),
        ("Quantized size", text::size(report.bytes_after)),
        ("Compression", format!("{:.2}×", report.ratio())),
    ]);
    if let Some(check) = &report.output_check {
        rows.push(("Output error", check.summary()));
    }
    rows.push(("Weights", count(report, WEIGHTS)));
    if report.config.activations.is_some() {
        rows.push(("Activations", count(report, ACTIVATIONS)));
    }
    if report.engine.is_some() {
        rows.push(("Calibration", run(report)));
    }
    rows.extend(methods(report).map(|methods| ("Methods", methods)));
    if report.corrected_biases > 0 {
        rows.push(("Biases", format!("{} corrected", report.corrected_biases)));
    }
    if let Some(verified) = &report.verified {
        let lines: Vec<String> =
            std::iter::once(verified.summary()).chain(verified.steps()).collect();
        rows.push(("Verified", lines.join("\n")));
    }
    if !report.steps.is_empty() {
        let steps: Vec<String> = report.steps.iter().map(ToString::to_string).collect();
        rows.push(("Preprocessed", steps.join("; ")));
    }
    rows.extend(report.output.iter().map(|path| ("Written to", path.clone())));
    if verbose {
        rows.extend(lines("Quantized", &quantized(report)));
    }
    rows.extend(lines("Kept", &kept(report, verbose)));
    let notes = report.notes.iter().map(|note| as_flags(note)).collect();
    rows.extend(lines("Notes", &first(notes, verbose)));
    text::table(rows)
}

/// `3 of 4 quantized to int4, int8; the other 1: ...`
fn count(report: &Report, roles: &[Role]) -> String {
    let quantized = || report.quantized().filter(|(row, _)| roles.contains(&row.role));
    let types: BTreeSet<QType> = quantized().map(|(_, how)| how.qtype).collect();
    let types: Vec<&str> = types.into_iter().map(QType::name).collect();
    let to = if types.is_empty() { "" } else { " to " };
    let (count, others) = (report.count(roles), report.others(roles));
    format!("{count} quantized{to}{}{others}", types.join(", "))
}

/// `100 samples run by tract, minmax`
fn run(report: &Report) -> String {
    let (engine, method) = (&report.engine, &report.method);
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let (engine, method) = (or_unknown(engine), or_unknown(method));
    let run = ran(report.samples, &engine);
    // If only weights are quantized, the method has no effect.
    let ranges = report.quantized().any(|(row, _)| row.role != Role::Weight);
    if ranges { format!("{run}, {method}") } else { run }
}

/// `100 samples run by tract`
pub(crate) fn ran(samples: usize, engine: &str) -> String {
    let plural = if samples == 1 { "" } else { "s" };
    format!("{samples} sample{plural} run by {engine}")
}

/// `minmax for 12 values, mse for 3`: what `auto` chose.
fn methods(report: &Report) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for method in report.quantized().filter_map(|(_, how)| how.method.as_deref()) {
        *counts.entry(method).or_insert(0) += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let shown = counts.iter().map(|(method, count)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{method} for {count} value{plural}")
    });
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// Every quantized weight with its error, and every quantized activation with its range.
fn quantized(report: &Report) -> Vec<String> {
    let shown =
        report.quantized().filter(|(row, how)| row.role == Role::Weight || how.range.is_some());
    shown
        .map(|(row, how)| {
            let mut parts = vec![format!("{}: {}", row.name, how.kind())];
            parts.extend(how.error.map(|error| match error.sqnr_db {
                f64::INFINITY => "no error".to_owned(),
                db => format!("SQNR {db:.1} dB"),
            }));
            parts.extend(how.range.map(|range| format!("{} to {}", range.min, range.max)));
            parts.extend(how.method.clone());
            parts.join(", ")
        })
        .collect()
}

/// Every weight that is not quantized, with the reason.
fn kept(report: &Report, verbose: bool) -> Vec<String> {
    let is_kept = |row: &&ReportRow| row.role == Role::Weight && row.quantized.is_none();
    let kept = report.values.iter().filter(is_kept);
    first(kept.map(|row| format!("{}: {}", row.name, row.reason())).collect(), verbose)
}

/// The first lines, and the number of further lines.
fn first(mut lines: Vec<String>, verbose: bool) -> Vec<String> {
    // If one line is left, it is shown instead of the number.
    if !verbose && lines.len() > LINES_SHOWN + 1 {
        let more = lines.len() - LINES_SHOWN;
        lines.truncate(LINES_SHOWN);
        lines.push(format!("and {more} more, which -v shows"));
    }
    lines
}

/// A row of the summary with these lines, if there are any.
fn lines(label: &'static str, lines: &[String]) -> Option<(&'static str, String)> {
    (!lines.is_empty()).then(|| (label, lines.join("\n")))
}
