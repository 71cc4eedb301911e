//! The comparison of a quantized model with the original.

#![allow(clippy::cast_precision_loss)] // sizes of files, as lengths on a screen

use maud::{Markup, html};

use super::Page;
use super::bars::{measured, row};
use super::frame::{ran, tile};
use super::numbers::{self, decibels, milliseconds, name, percent};
use super::table::{number, sortable};
use crate::util::text::size;
use crate::{Accuracy, Comparison, Kernels, OutputRow, Speed};

const COLUMNS: [(&str, bool); 6] = [
    ("output", false),
    ("SQNR", true),
    ("cosine", true),
    ("max error", true),
    ("mean squared error", true),
    ("same top-1", true),
];

impl Comparison {
    /// One page of HTML, by itself; [`Page`] puts it on that of a report.
    pub fn html(&self) -> String {
        Page { comparison: Some(self), ..Page::default() }.html()
    }
}

pub(super) fn section(found: &Comparison) -> Markup {
    html! {
        section {
            h2 { "Comparison with the original" }
            dl.tiles {
                @if let Some(db) = found.sqnr_db() { (tile("SQNR, worst output", &decibels(db))) }
                (tile("Compression", &format!("{:.2}×", found.ratio())))
                @if let Some(speed) = &found.speed {
                    (tile("Speed-up", &format!("{:.2}×", speed.speedup)))
                }
                @if let Some(part) = found.kernels.as_ref().and_then(Kernels::share) {
                    (tile("Integer matrix multiplications", &percent(part)))
                }
                @if let Some(Accuracy { original, quantized, .. }) = &found.accuracy {
                    (tile("Accuracy", &format!("{} → {}", percent(*original), percent(*quantized))))
                }
            }
        }
        div.pair {
            (sizes(found))
            @if let Some(speed) = &found.speed { (latencies(speed)) }
        }
        (ran(found.samples, &found.engine, &found.notes))
        @if let Some(kernels) = &found.kernels { (operators(kernels)) }
        (sortable(
            "All outputs",
            &COLUMNS,
            found.outputs.len(),
            found.outputs.iter().map(output),
            "filter",
        ))
        @if !found.not_compared.is_empty() {
            p.note { "not compared, because they are not float: \
                " (name(&found.not_compared.join(", "))) }
        }
    }
}

fn sizes(found: &Comparison) -> Markup {
    let bytes = [found.bytes_original, found.bytes_quantized];
    beside("Size", &bytes.map(|bytes| bytes as f64), &bytes.map(size))
}

fn latencies(speed: &Speed) -> Markup {
    let Speed { original, quantized, threads, engine, .. } = speed;
    let plural = if *threads == 1 { "" } else { "s" };
    let title = format!("Latency, median of one sample ({engine}, {threads} thread{plural})");
    let medians = [original.median_ms, quantized.median_ms];
    let texts = [original, quantized];
    let texts = texts
        .map(|one| format!("{} (p95 {})", milliseconds(one.median_ms), milliseconds(one.p95_ms)));
    beside(&title, &medians, &texts)
}

/// Bars for the original and the quantized model.
fn beside(title: &str, numbers: &[f64; 2], texts: &[String; 2]) -> Markup {
    let [original, quantized] = [measured(numbers, "float"), measured(numbers, "integer")];
    html! {
        section {
            h2 { (name(title)) }
            div.bars {
                (row(&html! { "original" }, &original[0], &texts[0]))
                (row(&html! { "quantized" }, &quantized[1], &texts[1]))
            }
        }
    }
}

fn operators(kernels: &Kernels) -> Markup {
    let ran = kernels.by_op_type.iter().map(|(op_type, count)| format!("{count} × {op_type}"));
    html! {
        p.note { "operators that ran for one sample: " (name(&ran.collect::<Vec<_>>().join(", "))) }
    }
}

fn output(row: &OutputRow) -> Markup {
    let OutputRow { name: output, error, top1_agreement: same, .. } = row;
    html! {
        tr.quantized {
            td.name { (name(output)) }
            (number(Some(error.sqnr_db), &decibels(error.sqnr_db)))
            (number(Some(error.cosine), &format!("{:.6}", error.cosine)))
            (number(Some(error.max_abs), &numbers::error(error.max_abs)))
            (number(Some(error.mse), &numbers::error(error.mse)))
            (number(*same, &same.map(percent).unwrap_or_default()))
        }
    }
}
