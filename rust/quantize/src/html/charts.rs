//! Charts of a report: sizes, weights, and the calibrated values of activations.

// Lengths on a screen need no full precision.
#![allow(clippy::cast_precision_loss)]

use maud::{Markup, html};

use super::bars::{Part, Scale, chart, decibel_row, legend, row};
use super::numbers::{end, name, percent};
use crate::util::text::size;
use crate::{Histogram, QuantizedRow, Report, ReportRow, Role, Sizes};

/// The number of histograms that are shown, and of those that are folded away.
const SHOWN: usize = 6;
const HISTOGRAMS: usize = 60;

/// A waterfall chart from the size before to the size after.
pub(super) fn sizes(report: &Report) -> Markup {
    let Sizes { before, after, floats, integers, scales, kept, rest_before, rest_after } =
        report.sizes();
    let float = |bytes: u64| bytes as f64;
    let left = float(before) - float(floats);
    let other = float(rest_after) - float(rest_before);
    let end = left + float(integers) + float(scales);
    let whole = float(before.max(after)).max(end).max(1.0);
    let stack = |parts: &[(u64, &'static str)]| -> Vec<Part> {
        let mut at = 0.0;
        let stacked = parts.iter().map(|&(bytes, class)| {
            let from = at;
            at += float(bytes) / whole;
            (from, at, class)
        });
        stacked.collect()
    };
    let step =
        |from: f64, to: f64, class| vec![(from.min(to) / whole, from.max(to) / whole, class)];
    let signed = |bytes: f64| {
        let sign = if bytes < 0.0 { "−" } else { "+" };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a size of a file
        let bytes = bytes.abs() as u64;
        format!("{sign}{}", size(bytes))
    };
    let with_integers = left + float(integers);
    let rows: [(&str, Vec<Part>, String); 6] = [
        (
            "Before",
            stack(&[(floats, "float"), (kept, "kept"), (rest_before, "rest")]),
            size(before),
        ),
        ("Floats that were quantized", step(float(before), left, "float"), signed(-float(floats))),
        ("Integers", step(left, with_integers, "integer"), signed(float(integers))),
        ("Scales and zero points", step(with_integers, end, "scale"), signed(float(scales))),
        ("Everything else", step(end, end + other, "rest"), signed(other)),
        (
            "After",
            stack(&[
                (integers, "integer"),
                (scales, "scale"),
                (kept, "kept"),
                (rest_after, "rest"),
            ]),
            size(after),
        ),
    ];
    html! {
        section {
            h2 { "Size" }
            div.bars.waterfall {
                @for (label, parts, value) in &rows {
                    (row(&html! { (label) }, Scale::Own, parts, value))
                }
            }
            p.legend {
                @for (class, what) in [
                    ("float", "floats that were quantized"),
                    ("integer", "integers"),
                    ("scale", "scales and zero points"),
                    ("kept", "floats that were kept"),
                    ("rest", "graph, names, everything else"),
                ] { span { i class=(class) {} (what) } " " }
            }
        }
    }
}

/// Weights before and after, the largest first.
pub(super) fn largest_weights(report: &Report) -> Markup {
    let weights = report.values.iter().filter(|row| row.role == Role::Weight);
    let mut weights: Vec<(&ReportRow, u64)> =
        weights.filter_map(|row| Some((row, row.bytes_before?))).collect();
    weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let whole = weights.first().map_or(1, |(_, bytes)| (*bytes).max(1)) as f64;
    let bar = |row: &ReportRow, before: u64| {
        let stored = row.quantized.as_ref().and_then(|how| how.bytes);
        let before = before as f64 / whole;
        match stored {
            None => vec![(0.0, before, "kept")],
            Some(bytes) => {
                let integers = bytes.elements as f64 / whole;
                let after = integers + bytes.scales as f64 / whole;
                vec![(0.0, before, "float"), (0.0, integers, "integer"), (integers, after, "scale")]
            }
        }
    };
    let value =
        |row: &ReportRow, before: u64| match row.quantized.as_ref().and_then(|how| how.bytes) {
            Some(bytes) => format!("{} → {}", size(before), size(bytes.elements + bytes.scales)),
            None => size(before),
        };
    let rows = weights
        .iter()
        .map(|(row, before)| (name(&row.name), bar(row, *before), value(row, *before)));
    chart("Weights by size", Scale::Own, weights.len(), rows)
}

/// The SQNR of weights, the worst first.
pub(super) fn worst_weights(report: &Report) -> Markup {
    let quantized = report.quantized().filter(|(row, _)| row.role == Role::Weight);
    let mut weights: Vec<(&ReportRow, f64)> =
        quantized.filter_map(|(row, how)| Some((row, how.error?.sqnr_db))).collect();
    weights.sort_by(|one, other| one.1.total_cmp(&other.1));
    let rows = weights.iter().map(|(row, db)| decibel_row(name(&row.name), *db));
    let title = "Weights by their own error (SQNR), the worst first";
    html! {
        (chart(title, Scale::Decibels, weights.len(), rows))
        @if !weights.is_empty() { (legend()) }
    }
}

/// Histograms of the values in calibration, with the chosen range; those with the most clipped
/// values first.
pub(super) fn activations(report: &Report) -> Markup {
    let seen = |how: &'_ QuantizedRow| how.histogram.clone();
    let mut found: Vec<(&ReportRow, &QuantizedRow, Histogram)> =
        report.quantized().filter_map(|(row, how)| Some((row, how, seen(how)?))).collect();
    // The sort is stable: values without clipping keep the order of the model.
    found.sort_by(|one, other| other.2.outside.total_cmp(&one.2.outside));
    html! {
        @if !found.is_empty() {
            section {
                h2 { "Activations and their ranges" }
                p.note {
                    "How often each value occurred in calibration (logarithmic), and the chosen \
                        range; "
                    "activations with the most values outside their range first."
                }
                div.histograms {
                    @for (row, how, seen) in found.iter().take(SHOWN) {
                        (histogram(row, how, seen))
                    }
                }
                @if found.len() > SHOWN {
                    details {
                        summary { (found.len() - SHOWN) " more" }
                        div.histograms {
                            @for (row, how, seen) in found.iter().take(HISTOGRAMS).skip(SHOWN) {
                                (histogram(row, how, seen))
                            }
                        }
                    }
                }
                @if found.len() > HISTOGRAMS {
                    p.note { "The table below has all " (found.len()) "." }
                }
            }
        }
    }
}

/// Height and width of a histogram in its own units.
const HEIGHT: f64 = 100.0;
const WIDTH: f64 = 480.0;

fn histogram(row: &ReportRow, how: &QuantizedRow, seen: &Histogram) -> Markup {
    let chosen = how.range.filter(|range| !range.is_empty());
    let (low, high) =
        chosen.map_or((seen.from, seen.to), |range| (range.min.into(), range.max.into()));
    let (from, to) = (seen.from.min(low), seen.to.max(high));
    let place = |value: f64| (value - from) / (to - from) * WIDTH;
    let highest = seen.counts.iter().copied().max().unwrap_or(0);
    let logarithm = |count: u64| (count as f64).ln_1p();
    let width = (seen.to - seen.from) / seen.counts.len().max(1) as f64;
    let bars = seen.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let bars = bars.map(|(bin, count)| {
        let left = seen.from + width * bin as f64;
        let height = HEIGHT * logarithm(*count) / logarithm(highest);
        (place(left), place(left + width), height)
    });
    let method = how.method.as_ref().map(|method| format!(", {method}")).unwrap_or_default();
    let outside = match seen.outside {
        0.0 => String::new(),
        part => format!(", {} outside", percent(part)),
    };
    let two = |value: f64| format!("{value:.2}");
    html! {
        figure {
            figcaption { (name(&row.name)) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none"
                aria-hidden="true"
            {
                rect class="chosen" x=(two(place(low))) width=(two(place(high) - place(low)))
                    height=(HEIGHT) {}
                @for (left, right, height) in bars {
                    rect class="seen" x=(two(left)) y=(two(HEIGHT - height))
                        width=(two(right - left)) height=(two(height)) {}
                }
                @for at in [low, high] {
                    line x1=(two(place(at))) x2=(two(place(at))) y1="0" y2=(HEIGHT) {}
                }
            }
            p { (end(low)) " to " (end(high)) " as " (how.qtype) (method) (outside) }
            @if [seen.from, seen.to].map(end) != [low, high].map(end) {
                p.note { "observed " (end(seen.from)) " to " (end(seen.to)) }
            }
        }
    }
}
