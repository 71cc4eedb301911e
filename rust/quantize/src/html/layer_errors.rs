//! Where accuracy is lost: layer errors and accumulated errors by depth, and a table.

#![allow(clippy::cast_precision_loss)] // places on a screen

use maud::{Markup, html};

use super::Page;
use super::bars::{chart, measured};
use super::frame::ran;
use super::numbers::{decibels, error, name, visible};
use super::table::{ROWS, number, sortable};
use crate::{LayerError, LayerErrors};

const COLUMNS: [(&str, bool); 7] = [
    ("value", false),
    ("operator", false),
    ("node", false),
    ("quantized", false),
    ("layer error (dB)", true),
    ("accumulated error (dB)", true),
    ("max error", true),
];

/// Errors with this SQNR in decibels, or a higher one, have the palest color.
const GOOD_DB: f64 = 50.0;

/// The number of values in the chart of the worst.
const WORST: usize = 12;

impl LayerErrors {
    /// One page of HTML, by itself; [`Page`] puts it on that of a report.
    pub fn html(&self) -> String {
        Page { layer_errors: Some(self), ..Page::default() }.html()
    }
}

pub(super) fn section(errors: &LayerErrors) -> Markup {
    let values = &errors.values;
    let worst = errors.worst();
    let worst = &worst[..WORST.min(worst.len())];
    let own: Vec<f64> = worst.iter().map(|value| value.own.sqnr_db).collect();
    let bars = worst.iter().zip(measured(&own, "error"));
    let bars = bars.map(|(value, bar)| (name(&value.name), bar, decibels(value.own.sqnr_db)));
    html! {
        section {
            h2 { "Errors by depth" }
            p.note {
                "Each value that both models have, from the input on the left to the output on the "
                "right. Layer error: added between the preceding values and this one. Accumulated "
                "error: added since the inputs of the model."
            }
            (strip("layer", values, |value| value.own.sqnr_db))
            (strip("accumulated", values, |value| value.accumulated.sqnr_db))
            (legend())
            (ran(errors.samples, &errors.engine, &errors.notes))
        }
        (chart("Values by layer error (SQNR), the worst first", worst.len(), bars))
        (sortable(
            "Errors of all values",
            &COLUMNS,
            values.len(),
            values.iter().map(row),
            "filter, for example: conv",
        ))
    }
}

/// A cell for each value; its color is stronger for a larger error.
fn strip(label: &str, values: &[LayerError], db: impl Fn(&LayerError) -> f64) -> Markup {
    let shown = &values[..ROWS.min(values.len())];
    let width = 100.0 / shown.len().max(1) as f64;
    html! {
        div.heat {
            span.label { (label) }
            svg role="img" aria-label={ (label) " errors; the table below has the numbers" } {
                @for (place, value) in shown.iter().enumerate() {
                    rect.lost x={ (format!("{:.3}", width * place as f64)) "%" }
                        width={ (format!("{width:.3}")) "%" } height="100%"
                        fill-opacity=(opacity(db(value)))
                    {
                        title { (visible(&value.name)) ": " (decibels(db(value))) }
                    }
                }
            }
        }
    }
}

fn opacity(db: f64) -> String {
    // NaN counts as a complete loss.
    let lost = if db.is_nan() { 1.0 } else { 1.0 - (db / GOOD_DB).clamp(0.0, 1.0) };
    format!("{lost:.2}")
}

fn legend() -> Markup {
    html! {
        p.legend {
            @for db in [0.0, 10.0, 20.0, 30.0, 40.0, GOOD_DB] {
                span {
                    svg.swatch aria-hidden="true" {
                        rect.lost width="100%" height="100%" fill-opacity=(opacity(db)) {}
                    }
                    (db) " dB" @if db >= GOOD_DB { " and more" }
                }
                " "
            }
        }
    }
}

fn row(value: &LayerError) -> Markup {
    let (own, accumulated) = (value.own.sqnr_db, value.accumulated.sqnr_db);
    let largest = value.accumulated.max_abs;
    html! {
        tr.quantized {
            td.name { (name(&value.name)) }
            td { (name(&value.op_type)) }
            td.nodes { (name(&value.node)) }
            td { @if value.quantized { "yes" } }
            (number(Some(own), &decibels(own)))
            (number(Some(accumulated), &decibels(accumulated)))
            (number(Some(largest), &error(largest)))
        }
    }
}
