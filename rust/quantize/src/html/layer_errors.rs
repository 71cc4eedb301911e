//! Where accuracy is lost: layer errors and accumulated errors by depth, and a table.

#![allow(clippy::cast_precision_loss)] // places on a screen

use maud::{Markup, html};

use super::Page;
use super::bars::{Scale, chart, decibel_row, legend};
use super::frame::ran;
use super::numbers::{band, decibels, error, name, node, visible};
use super::table::{Cell, ROWS, Row, sortable};
use crate::{LayerError, LayerErrors};

const COLUMNS: [(&str, bool); 7] = [
    ("value", false),
    ("layer", true),
    ("accumulated", true),
    ("max error", true),
    ("quantized", false),
    ("operator", false),
    ("node", false),
];

/// The number of values in the chart of the worst.
const WORST: usize = 30;

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
    let bars = worst.iter().map(|value| decibel_row(name(&value.name), value.own.sqnr_db));
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
            (ran(&errors.notes))
        }
        (chart("Values by layer error (SQNR), the worst first", Scale::Decibels, worst.len(), bars))
        (sortable(
            "Errors of all values",
            &COLUMNS,
            values.len(),
            values.iter().map(row),
            "filter, for example: conv",
        ))
    }
}

/// A cell for each value, in the colour of its band.
fn strip(label: &str, values: &[LayerError], db: impl Fn(&LayerError) -> f64) -> Markup {
    let shown = &values[..ROWS.min(values.len())];
    let width = 100.0 / shown.len().max(1) as f64;
    html! {
        div.heat {
            span.label { (label) }
            svg role="img" aria-label={ (label) " errors; the table below has the numbers" } {
                @for (place, value) in shown.iter().enumerate() {
                    rect class={ "cell " (band(db(value))) }
                        x={ (format!("{:.3}", width * place as f64)) "%" }
                        width={ (format!("{width:.3}")) "%" } height="100%"
                    {
                        title { (visible(&value.name)) ": " (decibels(db(value))) }
                    }
                }
            }
        }
    }
}

fn row(value: &LayerError) -> Row {
    let largest = value.accumulated.max_abs;
    let cells = vec![
        Cell::text("name", &*value.name),
        Cell::decibels(Some(value.own.sqnr_db)),
        Cell::decibels(Some(value.accumulated.sqnr_db)),
        Cell::number(Some(largest), error(largest)),
        Cell::text("", if value.quantized { "yes" } else { "" }),
        Cell::text("", &*value.op_type),
        Cell::text("nodes", node(&value.node)),
    ];
    (true, cells)
}
