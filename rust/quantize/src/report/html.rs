//! The report as one page of HTML that needs nothing else.
//!
//! Names come out of files and are not to be trusted: `maud` escapes all that is not said to be
//! HTML, nothing but our own style and script is, and the page's policy runs no other script.

mod charts;
mod numbers;
mod table;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use self::numbers::{count_of, name};
use super::Report;
use crate::text::size;
use crate::{Config, Role};

const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");

/// Nothing is loaded, and no script runs but [`SCRIPT`], whose SHA-256 this is.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                      script-src 'sha256-qBxHzREj0IoSJKM6Ng4ALV3D5gO1kHZz0n60Z71R0rQ='";

pub(super) fn page(report: &Report) -> String {
    let model = model(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (name(model)) " quantized" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(report, model))
                main {
                    (said(report))
                    (charts::sizes(report))
                    div.pair {
                        (charts::largest_weights(report))
                        (charts::worst_weights(report))
                    }
                    (charts::activations(report))
                    (table::values(report))
                    (run(report))
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// The file's name, without its folder.
fn model(report: &Report) -> &str {
    let path = report.input.as_deref().unwrap_or("model in memory");
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn header(report: &Report, model: &str) -> Markup {
    let engine = report.engine.as_deref();
    html! {
        header {
            h1 { (name(model)) }
            p.where {
                @match &report.output {
                    Some(path) => { "written to " (name(path)) }
                    None => "held in memory",
                }
            }
            dl.tiles {
                (tile("Before", &size(report.bytes_before)))
                (tile("After", &size(report.bytes_after)))
                (tile("Smaller", &format!("{:.2}×", report.ratio())))
                (tile("Weights", &count_of(report, &[Role::Weight])))
                @if engine.is_some() {
                    (tile("Activations", &count_of(report, &[Role::Input, Role::Activation])))
                    (tile("Samples", &report.samples.to_string()))
                }
            }
        }
    }
}

fn tile(label: &str, value: &str) -> Markup {
    html! { div { dt { (label) } dd { (value) } } }
}

/// Warnings, and what could be tried.
fn said(report: &Report) -> Markup {
    let suggestions = report.suggestions();
    html! {
        (list("Warnings", "warnings", &report.warnings))
        (list("Suggestions", "suggestions", &suggestions))
    }
}

fn list(title: &str, class: &str, lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            section class=(class) {
                h2 { (title) }
                ul { @for line in lines { li { (name(line)) } } }
            }
        }
    }
}

/// How it was made: options, steps, notes and seconds.
fn run(report: &Report) -> Markup {
    let seconds = report.seconds;
    let stages =
        [("calibrate", seconds.calibrate), ("apply", seconds.apply), ("save", seconds.save)];
    let took = stages.iter().filter(|(_, seconds)| *seconds > 0.0);
    let took: Vec<String> = took.map(|(stage, s)| format!("{stage} {s:.2}")).collect();
    html! {
        section {
            h2 { "How it was made" }
            dl.facts {
                @if let Some(path) = &report.input { dt { "model" } dd { (name(path)) } }
                @for (option, value) in options(&report.config) {
                    dt { (option) } dd { (name(&value)) }
                }
                @if let Some(engine) = &report.engine { dt { "engine" } dd { (name(engine)) } }
                @if let Some(method) = &report.method { dt { "method" } dd { (name(method)) } }
                @if report.corrected_biases > 0 {
                    dt { "biases corrected" } dd { (report.corrected_biases) }
                }
                @for step in &report.steps { dt { "prepared" } dd { (name(&step.to_string())) } }
                @if !took.is_empty() { dt { "seconds" } dd { (took.join(", ")) } }
                @for note in &report.notes { dt { "note" } dd { (name(note)) } }
            }
        }
    }
}

/// The options that matter: the types, and what is not as it usually is.
fn options(config: &Config) -> Vec<(String, String)> {
    let written = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (asked, usual) = (written(config), written(&Config::default()));
    let Value::Object(asked) = asked else { return Vec::new() };
    let matters = |option: &str, value: &Value| option == "weights" || usual[option] != *value;
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let options = asked.iter().filter(|(option, value)| matters(option, value));
    options.map(|(option, value)| (option.clone(), shown(value))).collect()
}
