//! Axes of tensors.

/// Resolves an axis of a tensor with `rank` axes that may be negative.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then(|| usize::try_from(axis).ok()).flatten()
}

/// The largest int32, which stands for the end of an axis.
const INT32_MAX: i64 = i32::MAX as i64;

/// The number of elements that a slice selects from `length` elements; `None` if runtimes differ.
pub(crate) fn span(length: i64, start: i64, end: i64, step: i64) -> Option<i64> {
    // ONNX Runtime reads such an end as the far one in the direction of the step.
    if step < 0 && matches!(end, INT32_MAX | i64::MAX) {
        return None;
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let (start, end) = (from_end(start), from_end(end));
    let (start, end) = match step {
        1.. => (start.clamp(0, length), end.clamp(0, length)),
        0 => return None,
        _ => (start.clamp(0, (length - 1).max(0)), end.clamp(-1, length - 1)),
    };
    let distance = if step > 0 { end - start } else { start - end };
    let step = i64::try_from(step.unsigned_abs()).ok()?;
    // Slices of an empty axis are empty, also with a negative step.
    let distance = if length == 0 { 0 } else { distance.max(0) };
    Some(distance / step + i64::from(distance % step > 0))
}
