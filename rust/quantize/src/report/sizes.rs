//! What the bytes of a model are used for, before and after.

use serde::Serialize;

use super::Report;

/// What the bytes of a model are used for. `before` is `floats + kept + rest_before`, and `after`
/// is `integers + scales + kept + rest_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// The float model, including external data.
    pub before: u64,
    /// The result, including external data.
    pub after: u64,
    /// Floats that were quantized.
    pub floats: u64,
    /// Their integers.
    pub integers: u64,
    /// Their scales and zero points.
    pub scales: u64,
    /// Floats that were kept.
    pub kept: u64,
    /// Everything else in the float model: nodes, names, constants that were integers.
    pub rest_before: u64,
    /// Everything else in the result, including the added nodes and the scales of activations.
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
