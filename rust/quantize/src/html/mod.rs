//! The HTML report: results as one self-contained HTML file.
//!
//! Names come from files and are not trusted. `maud` escapes everything that is not marked as HTML;
//! only our own style and script are marked. The content security policy of the file allows no
//! other script.

mod bars;
mod charts;
mod comparison;
mod frame;
mod header;
mod layer_errors;
mod numbers;
mod sensitivity;
mod table;

use maud::{Markup, html};
use serde_json::Value;

use self::numbers::name;
use crate::report::{ACTIVATIONS, Report, WEIGHTS};
use crate::{Comparison, Config, Evaluation, LayerErrors, Sensitivity};

/// The HTML report about one quantization, with the results that are given. It needs no other file
/// and no network, and follows the reader's light or dark theme.
///
/// ```
/// use quantize_rs::{Config, Model, Page, PreprocessedModel, weight_sensitivity};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let prepared = PreprocessedModel::of(&Model::open(path)?, Config::default())?;
/// let plan = prepared.plan();
/// let quantized = plan.apply(&prepared.model, None)?;
/// let ranking = weight_sensitivity(&prepared.model, &plan)?;
/// let page = Page {
///     report: Some(quantized.report()),
///     sensitivity: Some(&ranking),
///     ..Page::default()
/// };
/// assert!(page.html().contains("SQNR of the weight itself"));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Page<'a> {
    /// Sizes, errors of weights, ranges of activations, and the reason for each value.
    pub report: Option<&'a Report>,
    /// The comparison of the quantized model with the original.
    pub comparison: Option<&'a Comparison>,
    /// The sensitivity of each layer.
    pub sensitivity: Option<&'a Sensitivity>,
    /// The error of each value.
    pub layer_errors: Option<&'a LayerErrors>,
}

impl Report {
    /// The report as HTML: charts of sizes, errors and ranges, and a table of all values. It needs
    /// no other file and no network, and follows the reader's light or dark theme.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, PreprocessedModel};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let prepared = PreprocessedModel::of(&Model::open(path)?, Config::default())?;
    /// let quantized = prepared.plan().apply(&prepared.model, None)?;
    /// assert!(quantized.report().html().starts_with("<!DOCTYPE html>"));
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    pub fn html(&self) -> String {
        Page { report: Some(self), ..Page::default() }.html()
    }
}

impl Page<'_> {
    /// The HTML text.
    pub fn html(&self) -> String {
        let mut main: Vec<Markup> = Vec::new();
        main.extend(self.report.and_then(|report| report.verified.as_ref()).map(verified));
        main.extend(self.comparison.map(comparison::section));
        main.extend(self.sensitivity.map(sensitivity::section));
        main.extend(self.layer_errors.map(layer_errors::section));
        main.extend(self.report.map(drawn));
        main.extend(self.report.map(listed));
        main.push(decibel_table());
        frame::page(&header::title(self), &header::header(self), &main)
    }
}

/// What decibel values mean: SQNR, relative RMS error, and a typical case.
const DECIBELS: [(&str, &str); 7] = [
    ("exact", "equal, bit for bit"),
    ("60 dB", "RMS error 0.1 %: no visible effect"),
    ("40 dB", "RMS error 1 %: int8 weights, one scale per channel"),
    ("30 dB", "RMS error 3 %: static int8 of a whole network; rarely hurts a classifier"),
    ("20 dB", "RMS error 10 %: int4 in blocks; check your own metric"),
    ("10 dB", "RMS error 32 %: a mistake, or too few bits"),
    ("0 dB", "RMS error 100 %: the signal is lost"),
];

/// A table of decibel values.
fn decibel_table() -> Markup {
    html! {
        section {
            details {
                summary { h2 { "What decibel values mean" } }
                p.note {
                    "The signal-to-quantization-noise ratio (SQNR) compares a tensor with its \
                        quantization error; each bit adds 6 dB. The RMS error is relative to the \
                        RMS value. The SQNR of a weight is not that of the output: compare the \
                        models to measure the output."
                }
                dl.facts { @for (db, meaning) in DECIBELS { dt { (db) } dd { (meaning) } } }
            }
        }
    }
}

/// The charts of a report.
fn drawn(report: &Report) -> Markup {
    html! {
        (stays(report))
        div.pair {
            div { (charts::worst_weights(report)) }
            div { (charts::largest_weights(report)) }
        }
        (charts::activations(report))
        (charts::sizes(report))
    }
}

/// The values that stay float, by the reason.
fn stays(report: &Report) -> Markup {
    let roles = [("Weights", WEIGHTS), ("Activations", ACTIVATIONS)];
    // Where only weights are quantized, that is the reason for all activations.
    let calibrated = report.config.activations.is_some();
    let groups = roles.iter().filter(|(_, roles)| calibrated || *roles == WEIGHTS);
    let groups: Vec<_> =
        groups.map(|(label, roles)| (label, report.not_quantized(roles))).collect();
    html! {
        @if groups.iter().any(|(_, groups)| !groups.is_empty()) {
            section {
                h2 { "What is not quantized" }
                dl.facts {
                    @for (label, groups) in &groups {
                        @for (reason, names) in groups {
                            dt { (counted(names.len(), label)) }
                            dd { (name(reason)) ": " (name(&few(names))) }
                        }
                    }
                }
            }
        }
    }
}

/// `1 weight`, `3 weights`
fn counted(count: usize, label: &str) -> String {
    let label = label.to_lowercase();
    if count == 1 {
        format!("1 {}", label.trim_end_matches('s'))
    } else {
        format!("{count} {label}")
    }
}

/// The first names, and the number of the others.
fn few(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| (*name).to_owned()).collect();
    if let more @ 1.. = names.len().saturating_sub(SHOWN) {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// The tables of a report.
fn listed(report: &Report) -> Markup {
    html! {
        (table::values(report))
        (run(report))
    }
}

/// The measured accuracy, and the layers that were reverted to float for it.
fn verified(found: &Evaluation) -> Markup {
    html! {
        section {
            h2 { "Accuracy control" }
            p {
                (found.summary())
                @if let Some(required) = found.wanted() { "; required: " (required) }
            }
            ol { @for step in found.steps() { li { (name(&step)) } } }
        }
    }
}

/// Options, passes, notes and seconds.
fn run(report: &Report) -> Markup {
    let seconds = report.seconds;
    let stages = [
        ("calibrate", seconds.calibrate),
        ("apply", seconds.apply),
        ("verify", seconds.verify),
        ("save", seconds.save),
    ];
    let took = stages.iter().filter(|(_, seconds)| *seconds > 0.0);
    let took: Vec<String> = took.map(|(stage, s)| format!("{stage} {s:.2}")).collect();
    html! {
        section {
            details {
            summary { h2 { "Options and passes" } }
            dl.facts {
                @for (option, value) in options(&report.config) {
                    dt { (option) } dd { (name(&value)) }
                }
                @if let Some(engine) = &report.engine { dt { "engine" } dd { (name(engine)) } }
                @if let Some(method) = &report.method { dt { "method" } dd { (name(method)) } }
                @if report.corrected_biases > 0 {
                    dt { "biases corrected" } dd { (report.corrected_biases) }
                }
                @for step in &report.steps { dt { "pass" } dd { (name(&step.to_string())) } }
                @if !took.is_empty() { dt { "seconds" } dd { (took.join(", ")) } }
                @for note in &report.notes { dt { "note" } dd { (name(note)) } }
            }
            }
        }
    }
}

/// The options to show: the types, and every option that differs from its default.
fn options(config: &Config) -> Vec<(String, String)> {
    let written = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (asked, usual) = (written(config), written(&Config::default()));
    let Value::Object(asked) = asked else { return Vec::new() };
    let matters = |option: &str, value: &Value| option == "weights" || usual[option] != *value;
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let options = asked.iter().filter(|(option, value)| matters(option, value));
    options.map(|(option, value)| (option.clone(), shown(value))).collect()
}
