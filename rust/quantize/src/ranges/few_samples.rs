//! The remark about too few samples, which follows from their number alone.

use crate::graph::InputSpec;

/// With fewer distinct samples there is a warning: their ranges seldom hold for other data.
pub const MIN_SAMPLES: usize = 32;

/// The number of samples that every message asks for: from here on `auto` compares the methods, and
/// more samples seldom change a range. At most an eighth of them evaluates each method.
pub const ENOUGH_SAMPLES: usize = 128;

/// The warning about `count` samples of `rows` rows each, if there are too few.
pub fn few_samples(count: usize, rows: usize) -> Option<String> {
    if count == 0 || count.saturating_mul(rows) >= MIN_SAMPLES {
        return None;
    }
    let samples = if count == 1 { "sample" } else { "samples" };
    let each = if rows == 1 { String::new() } else { format!(" of {rows} rows") };
    Some(format!(
        "only {count} {samples}{each}: give at least {ENOUGH_SAMPLES}, as varied as production \
         inputs"
    ))
}

/// The number of rows that a model takes at once: the first dimension of its inputs, if it is fixed
/// and the same for all, or else 1.
pub fn rows_at_once(inputs: &[InputSpec]) -> usize {
    let mut lengths = inputs.iter().map(|input| *input.shape.as_deref()?.first()?);
    let first = lengths.next().flatten();
    let all_alike = lengths.all(|length| length == first);
    first.filter(|_| all_alike).unwrap_or(1).max(1)
}
