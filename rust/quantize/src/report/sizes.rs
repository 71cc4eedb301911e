//! What the bytes of a model are for, before and after.

use serde::Serialize;

use super::Report;

/// What the bytes of a model are for. `before` is `floats + kept + rest_before`, and `after` is
/// `integers + scales + kept + rest_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// The model before, with the data beside it.
    pub before: u64,
    /// The model after, with the data beside it.
    pub after: u64,
    /// Floats that became integers.
    pub floats: u64,
    /// The integers that they became.
    pub integers: u64,
    /// The scales and zero points of these.
    pub scales: u64,
    /// Floats that stayed.
    pub kept: u64,
    /// All else in the model before: nodes, names, integers it always had.
    pub rest_before: u64,
    /// All else in the model after: quantizing nodes and scales of activations too.
    pub rest_after: u64,
}

impl Sizes {
    pub(super) fn of(report: &Report) -> Sizes {
        let stored = || report.quantized().filter_map(|(row, how)| Some((row, how.bytes?)));
        let (before, after) = (report.bytes_before, report.bytes_after);
        let floats: u64 = stored().filter_map(|(row, _)| row.bytes_before).sum();
        let integers: u64 = stored().map(|(_, bytes)| bytes.elements).sum();
        let scales: u64 = stored().map(|(_, bytes)| bytes.scales).sum();
        let stayed = report.values.iter().filter(|row| row.stayed_float());
        let kept: u64 = stayed.filter_map(|row| row.bytes_before).sum();
        Sizes {
            before,
            after,
            floats,
            integers,
            scales,
            kept,
            rest_before: before.saturating_sub(floats + kept),
            rest_after: after.saturating_sub(integers + scales + kept),
        }
    }
}
