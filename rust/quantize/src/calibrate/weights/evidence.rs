//! Which of several roundings of a weight has the smallest output error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quantize_rs_math::{Algorithm, Rounded, WeightColumns, output_error, quadratic_error};

/// Rows of the samples held back, of one group.
pub(super) struct Held {
    pub(super) rows: Vec<f32>,
}

/// From this number of samples held back on, a smaller error counts however small the difference.
const ENOUGH_HELD_BACK: usize = 4;

/// What roundings are compared on.
pub(super) struct Evidence<'a> {
    pub(super) parts: &'a [WeightColumns],
    /// The number of parts of a column.
    pub(super) spans: usize,
    pub(super) held: &'a [Held],
    /// The number of samples that were held back.
    pub(super) held_samples: usize,
    /// The number of rows whose moments each group was rounded for.
    pub(super) rows: &'a [f64],
}

impl Evidence<'_> {
    /// The squared error of the output for errors of the weight, of all groups.
    fn error(&self, errors: &[Vec<f32>]) -> f64 {
        if self.held_samples == 0 {
            let rows = self.rows.iter().flat_map(|rows| std::iter::repeat_n(*rows, self.spans));
            let parts = self.parts.iter().zip(errors).zip(rows);
            return parts.map(|((part, errors), rows)| expected_error(errors, part, rows)).sum();
        }
        let groups = self.parts.chunks(self.spans).zip(errors.chunks(self.spans)).zip(self.held);
        let each = groups.map(|((parts, errors), held)| {
            let depth = parts.iter().map(|part| part.depth).sum();
            output_error(&whole_columns(parts, errors), depth, &held.rows)
        });
        each.sum()
    }

    /// By which fraction an error may be larger than another one by chance: two standard errors of
    /// the ratio of two sums of squares, if few samples are held back, and otherwise nothing.
    #[expect(clippy::cast_precision_loss, reason = "a number of outputs")]
    fn chance(&self) -> f64 {
        let rows = |(group, held): (&[WeightColumns], &Held)| {
            let depth: usize = group.iter().map(|part| part.depth).sum();
            let columns = group.first().map_or(0, WeightColumns::width);
            held.rows.len() / depth.max(1) * columns
        };
        let outputs: usize = self.parts.chunks(self.spans).zip(self.held).map(rows).sum();
        let few = (1..ENOUGH_HELD_BACK).contains(&self.held_samples);
        if few { 2.0 * (4.0 / outputs.max(1) as f64).sqrt() } else { 0.0 }
    }

    /// The squared output itself.
    fn output(&self) -> f64 {
        if self.held_samples == 0 {
            return self.parts.iter().map(|part| quadratic_error(&part.values, part)).sum();
        }
        let values: Vec<Vec<f32>> = self.parts.iter().map(|part| part.values.clone()).collect();
        self.error(&values)
    }
}

/// The squared error to expect on other rows than these. Rounding made products of inputs serve its
/// ends, so these count by `rows / (rows + depth)` when it is evaluated by the same moments.
#[expect(clippy::cast_precision_loss, reason = "the length of a row")]
fn expected_error(errors: &[f32], part: &WeightColumns, rows: f64) -> f64 {
    let squares = part.moments.diag();
    let of_column = |column: &[f32]| -> f64 {
        column.iter().zip(squares).map(|(error, square)| f64::from(*error).powi(2) * square).sum()
    };
    let alone: f64 = errors.chunks(part.depth.max(1)).map(of_column).sum();
    let trust = rows / (rows + part.depth as f64);
    trust * quadratic_error(errors, part) + (1.0 - trust) * alone
}

/// Columns that are divided into parts, put together again.
pub(super) fn whole_columns<'e>(parts: &[WeightColumns], errors: &'e [Vec<f32>]) -> Cow<'e, [f32]> {
    if let [errors] = errors {
        return Cow::Borrowed(errors);
    }
    let columns = parts.first().map_or(0, WeightColumns::width);
    let mut whole = Vec::with_capacity(errors.iter().map(Vec::len).sum());
    for column in 0..columns {
        for (part, errors) in parts.iter().zip(errors) {
            whole.extend_from_slice(&errors[column * part.depth..][..part.depth]);
        }
    }
    Cow::Owned(whole)
}

/// The rounding with the smallest output error, or `None` if none is smaller than that of
/// `nearest`, and the relative error of each. Of equal ones the simpler is taken.
pub(super) fn smallest<'r>(
    evidence: &Evidence<'_>,
    nearest: &[Vec<f32>],
    all: &'r [Rounded],
) -> (Option<&'r Rounded>, BTreeMap<String, f32>) {
    let output = evidence.output();
    // Four digits are enough to compare them, and survive a file.
    let relative = |error: f64| if output > 0.0 { (error / output) as f32 } else { 0.0 };
    let without = evidence.error(nearest);
    let mut errors = BTreeMap::new();
    errors.insert(Algorithm::Nearest.name().to_owned(), relative(without));
    let (mut least, mut best) = (without / (1.0 + evidence.chance()), None);
    for rounded in all {
        let own: Vec<Vec<f32>> =
            evidence.parts.iter().enumerate().map(|(at, part)| rounded.errors(part, at)).collect();
        let error = evidence.error(&own);
        errors.insert(rounded.algorithm.name().to_owned(), relative(error));
        if error < least {
            (least, best) = (error, Some(rounded));
        }
    }
    (best, errors)
}
