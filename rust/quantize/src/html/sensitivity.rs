//! The sensitivity of each layer: bars and a table.

#![allow(clippy::cast_precision_loss)] // numbers of elements, shown

use maud::{Markup, html};

use super::Page;
use super::bars::{chart, measured};
use super::frame::ran;
use super::numbers::{decibels, error, name};
use super::table::{number, sortable};
use crate::{LayerRow, Metric, Sensitivity};

const COLUMNS: [(&str, bool); 7] = [
    ("layer", false),
    ("operator", false),
    ("nodes", false),
    ("type after", false),
    ("elements", true),
    ("SQNR of the weight", true),
    ("score", true),
];

impl Sensitivity {
    /// One page of HTML, by itself; [`Page`] puts it on that of a report.
    pub fn html(&self) -> String {
        Page { sensitivity: Some(self), ..Page::default() }.html()
    }
}

pub(super) fn section(found: &Sensitivity) -> Markup {
    let how = match (found.metric, found.all_but_one) {
        (Metric::Weight, _) => "",
        (_, true) => ", with all other layers quantized",
        (_, false) => ", with only this layer quantized",
    };
    let title = format!("Sensitivity: {}{how}, the worst first", what(found.metric));
    let scores: Vec<f64> = found.layers.iter().map(|layer| layer.score).collect();
    let bars = found.layers.iter().zip(measured(&scores, "integer"));
    let rows = bars.map(|(layer, bar)| (name(&layer.name), bar, score(found.metric, layer.score)));
    let table = found.layers.iter().map(|layer| row(found.metric, layer));
    html! {
        (chart(&title, scores.len(), rows))
        @match &found.engine {
            Some(engine) => (ran(found.samples, engine, &found.notes)),
            None => p.note { "weights only, without samples" },
        }
        (sortable("All layers", &COLUMNS, scores.len(), table, "filter, for example: conv"))
    }
}

fn row(metric: Metric, layer: &LayerRow) -> Markup {
    let LayerRow { elements, .. } = layer;
    let weight = layer.weight_error.map(|error| error.sqnr_db);
    html! {
        tr.quantized {
            td.name { (name(&layer.name)) }
            td { (name(&layer.op_type)) }
            td.nodes { (name(&layer.nodes.join(", "))) }
            td { (layer.kind) }
            (number(Some(*elements as f64), &elements.to_string()))
            (number(weight, &weight.map(decibels).unwrap_or_default()))
            (number(Some(layer.score), &score(metric, layer.score)))
        }
    }
}

/// The description of a metric.
fn what(metric: Metric) -> &'static str {
    match metric {
        Metric::Sqnr => "SQNR of the worst output",
        Metric::Cosine => "cosine of the worst output",
        Metric::MaxAbs => "largest error of any output",
        Metric::Mse => "mean squared error of the worst output",
        Metric::Top1 => "top-1 agreement of the worst output",
        Metric::Weight => "SQNR of the weight itself",
    }
}

fn score(metric: Metric, score: f64) -> String {
    match metric {
        Metric::Sqnr | Metric::Weight => decibels(score),
        Metric::Cosine => format!("{score:.6}"),
        Metric::Top1 => format!("{:.2} %", 100.0 * score),
        Metric::MaxAbs | Metric::Mse => error(score),
    }
}
