//! What rounding with the help of samples gained, in a line.

use std::collections::BTreeMap;

use quantize_rs_math::Algorithm;

use super::ReportRow;
use crate::RoundingEvidence;

impl RoundingEvidence {
    /// By how many decibels the error of the layer's output fell; 0 if the weight stayed as without
    /// samples.
    pub fn gain_db(&self) -> f64 {
        let error =
            |algorithm: Algorithm| self.errors.get(algorithm.name()).copied().map(f64::from);
        let Some((before, after)) = error(Algorithm::Nearest).zip(error(self.algorithm)) else {
            return 0.0;
        };
        if before > 0.0 && after > 0.0 { 10.0 * (before / after).log10() } else { 0.0 }
    }
}

/// Which algorithms won, for how many weights, and what that gained.
pub(super) fn note(values: &[ReportRow]) -> Option<String> {
    let evidence = || values.iter().filter_map(|row| row.quantized.as_ref()?.rounding.as_ref());
    let mut gains: Vec<f64> = evidence().map(RoundingEvidence::gain_db).collect();
    if gains.is_empty() {
        return None;
    }
    gains.sort_by(f64::total_cmp);
    let mut won: BTreeMap<Algorithm, usize> = BTreeMap::new();
    evidence().for_each(|found| *won.entry(found.algorithm).or_default() += 1);
    let won: Vec<String> =
        won.iter().rev().map(|(algorithm, count)| format!("{algorithm} {count}")).collect();
    let on = if evidence().all(|found| found.held_back) {
        "on samples held back"
    } else {
        "on the same samples, of which there are too few to hold some back"
    };
    Some(format!(
        "weights rounded with samples: {}; the output error of their layers is {:.1} dB lower in \
         the median, {on}",
        won.join(", "),
        gains[gains.len() / 2],
    ))
}
