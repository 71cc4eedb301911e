//! Which of several roundings of a weight has the smallest output error.

use std::collections::BTreeMap;

use quantize_rs_math::{Algorithm, Rounded, WeightColumns, output_error, quadratic_error};

/// Rows of the samples held back, of one group.
pub(super) struct Held {
    pub(super) rows: Vec<f32>,
}

/// What roundings are compared on.
pub(super) struct Evidence<'a> {
    pub(super) parts: &'a [WeightColumns],
    pub(super) held: &'a [Held],
    /// Whether there are rows that were held back.
    pub(super) held_back: bool,
}

impl Evidence<'_> {
    /// The squared error of the output for errors of the weight, of all groups.
    fn error(&self, errors: &[Vec<f32>]) -> f64 {
        let parts = self.parts.iter().zip(self.held).zip(errors);
        let each = parts.map(|((part, held), errors)| {
            if self.held_back {
                output_error(errors, part.depth, &held.rows)
            } else {
                quadratic_error(errors, part)
            }
        });
        each.sum()
    }

    /// The squared output itself.
    fn output(&self) -> f64 {
        let values: Vec<Vec<f32>> = self.parts.iter().map(|part| part.values.clone()).collect();
        self.error(&values)
    }
}

/// The rounding with the smallest output error, or `None` if none is smaller than that of
/// `nearest`, and the relative error of each. Of equal ones the simpler is taken.
pub(super) fn smallest<'r>(
    evidence: &Evidence<'_>,
    nearest: &[Vec<f32>],
    all: &'r [Rounded],
) -> (Option<&'r Rounded>, BTreeMap<String, f64>) {
    let output = evidence.output();
    let relative = |error: f64| if output > 0.0 { error / output } else { 0.0 };
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
