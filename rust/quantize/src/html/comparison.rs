//! The comparison of a quantized model with the original.

#![allow(clippy::cast_precision_loss)] // sizes of files, as lengths on a screen

use maud::{Markup, html};

use super::Page;
use super::bars::{Scale, chart, decibel_row, legend, measured, row};
use super::frame::ran;
use super::numbers::{self, milliseconds, name, percent};
use super::table::{Cell, Row, sortable};
use crate::util::text::size;
use crate::{Comparison, Kernels, OutputRow, Speed};

const TITLE: &str = "Comparison with the original: outputs by error (SQNR)";

const COLUMNS: [(&str, bool); 5] = [
    ("output", false),
    ("SQNR", true),
    ("same top-1", true),
    ("max error", true),
    ("cosine", true),
];

impl Comparison {
    /// One page of HTML, by itself; [`Page`] puts it on that of a report.
    pub fn html(&self) -> String {
        Page { comparison: Some(self), ..Page::default() }.html()
    }
}

pub(super) fn section(found: &Comparison) -> Markup {
    let dbs = found.outputs.iter().map(|row| decibel_row(name(&row.name), row.error.sqnr_db));
    html! {
        (chart(TITLE, Scale::Decibels, found.outputs.len(), dbs))
        @if !found.outputs.is_empty() { (legend()) }
        div.pair {
            (sizes(found))
            @if let Some(speed) = &found.speed { (latencies(speed)) }
        }
        (ran(&found.notes))
        @if let Some(kernels) = &found.kernels { (operators(kernels)) }
        (sortable(
            "All outputs",
            &COLUMNS,
            found.outputs.len(),
            found.outputs.iter().map(output),
            "filter",
        ))
        @for row in &found.integer_outputs { p.note { (name(&row.text())) } }
        @if !found.not_compared.is_empty() {
            p.note { "not compared: \
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
                (row(&html! { "original" }, Scale::Own, &original[0], &texts[0]))
                (row(&html! { "quantized" }, Scale::Own, &quantized[1], &texts[1]))
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

fn output(row: &OutputRow) -> Row {
    let OutputRow { name: output, error, top1_agreement: same, .. } = row;
    let cells = vec![
        Cell::text("name", output),
        Cell::decibels(Some(error.sqnr_db)),
        Cell::number(*same, same.map(percent).unwrap_or_default()),
        Cell::number(Some(error.max_abs), numbers::error(error.max_abs)),
        Cell::number(Some(error.cosine), format!("{:.6}", error.cosine)),
    ];
    (true, cells)
}
