//! Axes of tensors.

/// Resolves an axis of a tensor with `rank` axes that may be negative.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then(|| usize::try_from(axis).ok()).flatten()
}
