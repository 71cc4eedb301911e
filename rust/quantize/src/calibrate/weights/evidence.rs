//! Which of several roundings of a weight has the smallest output error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quantize_rs_math::{Algorithm, Rounded, WeightColumns, output_error, quadratic_error};

/// Rows of the samples held back, of one group.
pub(super) struct Held {
    pub(super) rows: Vec<f32>,
}

/// What roundings are compared on.
pub(super) struct Evidence<'a> {
    pub(super) parts: &'a [WeightColumns],
    /// The number of parts of a column.
    pub(super) spans: usize,
    pub(super) held: &'a [Held],
    /// Whether there are rows that were held back.
    pub(super) held_back: bool,
}

impl Evidence<'_> {
    /// The squared error of the output for errors of the weight, of all groups.
    fn error(&self, errors: &[Vec<f32>]) -> f64 {
        if !self.held_back {
            let parts = self.parts.iter().zip(errors);
            return parts.map(|(part, errors)| quadratic_error(errors, part)).sum();
        }
        let groups = self.parts.chunks(self.spans).zip(errors.chunks(self.spans)).zip(self.held);
        let each = groups.map(|((parts, errors), held)| {
            let depth = parts.iter().map(|part| part.depth).sum();
            output_error(&whole_columns(parts, errors), depth, &held.rows)
        });
        each.sum()
    }

    /// The squared output itself.
    fn output(&self) -> f64 {
        let values: Vec<Vec<f32>> = self.parts.iter().map(|part| part.values.clone()).collect();
        self.error(&values)
    }
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
    let mut least = evidence.error(nearest);
    let mut errors = BTreeMap::new();
    errors.insert(Algorithm::Nearest.name().to_owned(), relative(least));
    let mut best = None;
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
