//! Recurrent operators.

use super::{Call, SAME, Shape, ShapeRule, all};
use crate::graph::infer::dim::Dim;

pub(super) const ALL: &[ShapeRule] =
    &[all("RNN", SAME, recurrent), all("GRU", SAME, recurrent), all("LSTM", SAME, recurrent)];

/// All hidden states and the last one. An LSTM also returns its last cell state.
pub(super) fn recurrent(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let directions = match call.string("direction") {
        Some("bidirectional") => 2,
        _ => 1,
    };
    let directions = Dim::Fixed(directions);
    let batch_first = call.int("layout", 0) != 0;
    let x = call.shape(0).filter(|shape| shape.len() == 3);
    let (steps, batch) = match x {
        Some(x) if batch_first => (x[1], x[0]),
        Some(x) => (x[0], x[1]),
        None => (call.unknown(), call.unknown()),
    };
    let recurrence = call.shape(2).filter(|shape| shape.len() == 3);
    let hidden = match (call.attribute("hidden_size"), recurrence) {
        (Some(size), _) => Dim::Fixed(size.i.unwrap_or(0)),
        (None, Some(recurrence)) => recurrence[2],
        (None, None) => call.unknown(),
    };
    let (all, last) = if batch_first {
        (vec![batch, steps, directions, hidden], vec![batch, directions, hidden])
    } else {
        (vec![steps, directions, batch, hidden], vec![directions, batch, hidden])
    };
    vec![Some(all), Some(last.clone()), Some(last)]
}
