//! The sensitivity of each layer: bars and a table.

#![allow(clippy::cast_precision_loss)] // numbers of elements, shown

use maud::{Markup, html};

use super::Page;
use super::bars::{Scale, chart, decibel_row, legend, measured};
use super::frame::ran;
use super::numbers::{name, node};
use super::table::{Cell, Row, sortable};
use crate::{LayerRow, Metric, Sensitivity};

const COLUMNS: [(&str, bool); 7] = [
    ("layer", false),
    ("score", true),
    ("SQNR of the weight", true),
    ("operator", false),
    ("type after", false),
    ("elements", true),
    ("nodes", false),
];

impl Sensitivity {
    /// One page of HTML, by itself; [`Page`] puts it on that of a report.
    pub fn html(&self) -> String {
        Page { sensitivity: Some(self), ..Page::default() }.html()
    }
}

pub(super) fn section(found: &Sensitivity) -> Markup {
    let metric = found.metric;
    let how = match (metric, found.all_but_one) {
        (Metric::Weight, _) => "",
        (_, true) => ", with all other layers quantized",
        (_, false) => ", with only this layer quantized",
    };
    let title = format!("Sensitivity: {}{how}, the worst first", found.ranked_by());
    let scores: Vec<f64> = found.layers.iter().map(|layer| layer.score).collect();
    let table = found.layers.iter().map(|layer| row(metric, layer));
    html! {
        @if metric.is_in_decibels() {
            (chart(&title, Scale::Decibels, scores.len(), found.layers.iter().map(|layer| {
                decibel_row(name(&layer.name), layer.score)
            })))
            (legend())
        } @else {
            @let bars = found.layers.iter().zip(measured(&scores, "integer"));
            (chart(&title, Scale::Own, scores.len(), bars.map(|(layer, bar)| {
                (name(&layer.name), bar, metric.shown(layer.score))
            })))
        }
        (ran(&found.notes))
        (sortable("All layers", &COLUMNS, scores.len(), table, "filter, for example: conv"))
    }
}

fn row(metric: Metric, layer: &LayerRow) -> Row {
    let LayerRow { elements, score, .. } = layer;
    // The score may be the error of the weight, which is then shown once.
    let weight = layer.weight_error.map(|error| error.sqnr_db).filter(|_| metric != Metric::Weight);
    let nodes: Vec<&str> = layer.nodes.iter().map(|label| node(label)).collect();
    let score = if metric.is_in_decibels() {
        Cell::decibels(Some(*score))
    } else {
        Cell::number(Some(*score), metric.shown(*score))
    };
    let cells = vec![
        Cell::text("name", &*layer.name),
        score,
        Cell::decibels(weight),
        Cell::text("", &*layer.op_type),
        Cell::text("", &*layer.kind),
        Cell::number(Some(*elements as f64), elements.to_string()),
        Cell::text("nodes", nodes.join(", ")),
    ];
    (true, cells)
}
