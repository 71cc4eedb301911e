//! Finds outliers in weights: single elements, and output channels. One scale for the whole weight
//! is coarser because of each of them.

use std::fmt;

use quantize_rs_math::Layout;
use quantize_rs_onnx::Model;
use serde::Serialize;

use crate::QuantizeError;
use crate::error::while_unchanged;
use crate::graph::Graph;
use crate::graph::uses;
use crate::transform::{channels, finite_floats, lifted};

/// What counts as an outlier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutlierOptions {
    /// The distance of the fences from the quartiles, as a multiple of the interquartile range
    /// (Tukey); 3 by default, which one in 425 000 normally distributed numbers exceeds.
    pub fence: f64,
    /// The maximum number of elements that are listed for a weight.
    pub most: usize,
}

impl Default for OutlierOptions {
    fn default() -> OutlierOptions {
        OutlierOptions { fence: 3.0, most: 10 }
    }
}

/// The outliers of each weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outliers {
    /// The distance of the fences from the quartiles, as a multiple of the interquartile range.
    pub fence: f64,
    /// Every float weight, the one with the largest reach first.
    pub weights: Vec<WeightOutliers>,
    /// Weights that were left out, with the reason: NaN and infinity have no fences.
    pub notes: Vec<String>,
}

/// The outliers of a weight. Zeros are ignored: many zeros mean that the weight was pruned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightOutliers {
    /// The name of the weight.
    pub name: String,
    /// The operator that multiplies by it.
    pub op_type: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The number of elements.
    pub elements: usize,
    /// The fences: elements below the first or above the second are outliers.
    pub fences: (f64, f64),
    /// Its largest magnitude relative to that of the farther fence. Above 1, a scale for the whole
    /// weight is coarser by this factor than without outliers.
    pub reach: f64,
    /// The number of outliers.
    pub beyond: usize,
    /// The outliers with the largest magnitudes.
    pub furthest: Vec<OutlierElement>,
    /// The axis of its output channels; `None` if it has none, or if they are rows of several
    /// matrices.
    pub axis: Option<usize>,
    /// Output channels whose largest magnitude is an outlier among all channels, the largest first.
    pub channels: Vec<OutlierChannel>,
}

/// An element that is an outlier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutlierElement {
    /// Its index.
    pub index: Vec<usize>,
    /// Its value.
    pub value: f64,
}

/// An output channel with larger weights than the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OutlierChannel {
    /// The index of the channel.
    pub channel: usize,
    /// Its largest magnitude.
    pub largest: f64,
}

/// Finds the elements and output channels of weights that are outliers: beyond the quartiles by
/// more than a multiple of the interquartile range.
///
/// ```
/// use quantize_rs::{Model, OutlierOptions, outliers};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let found = outliers(&Model::open(path)?, &OutlierOptions::default())?;
/// assert!(found.weights.iter().all(|weight| weight.beyond * 100 < weight.elements));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// A fence that is negative or not finite, or a model that cannot be read.
pub fn outliers(model: &Model, options: &OutlierOptions) -> Result<Outliers, QuantizeError> {
    while_unchanged(&[model], || {
        let OutlierOptions { fence, most } = *options;
        if !(fence >= 0.0 && fence.is_finite()) {
            return Err(QuantizeError::option("fence", format!("is {fence}, expected 0 or more")));
        }
        let lifted = lifted(model)?;
        let graph = Graph::of(&lifted)?;
        let (mut weights, mut notes) = (Vec::new(), Vec::new());
        for constant in uses::constants(&graph).iter().filter(|constant| constant.is_weight()) {
            let name = graph.values[constant.anchor].name;
            let tensor = graph.model.tensor(constant.tensor)?;
            let values = match finite_floats(&tensor) {
                Ok(Some(values)) => values,
                Ok(None) => continue,
                Err(index) => {
                    notes.push(format!("`{name}` is left out: element {index} is not finite"));
                    continue;
                }
            };
            let (layout, axis) = channels(name, constant, true)?;
            let op_type = constant.multipliers(&graph).next().map(|node| node.op_type.clone());
            let mut found = WeightOutliers {
                name: name.to_owned(),
                op_type: op_type.unwrap_or_default(),
                shape: tensor.shape,
                elements: values.len(),
                fences: (0.0, 0.0),
                reach: 0.0,
                beyond: 0,
                furthest: Vec::new(),
                axis,
                channels: Vec::new(),
            };
            found.look_at(&values, &layout, fence, most);
            weights.push(found);
        }
        weights.sort_by(|one, other| other.reach.total_cmp(&one.reach));
        Ok(Outliers { fence, weights, notes })
    })
}

impl WeightOutliers {
    fn look_at(&mut self, values: &[f64], layout: &Layout, fence: f64, most: usize) {
        let Some((low, high)) = fences(values.iter().copied(), fence) else { return };
        self.fences = (low, high);
        let largest = values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        self.reach = largest / low.abs().max(high.abs());
        let is_beyond = |value: f64| value != 0.0 && !(low..=high).contains(&value);
        let mut beyond: Vec<usize> =
            (0..values.len()).filter(|at| is_beyond(values[*at])).collect();
        self.beyond = beyond.len();
        beyond.sort_by(|one, other| values[*other].abs().total_cmp(&values[*one].abs()));
        let element = |at: usize| OutlierElement { index: self.index(at), value: values[at] };
        self.furthest = beyond.into_iter().take(most).map(element).collect();

        let mut magnitudes = vec![0.0_f64; layout.groups()];
        for (at, value) in values.iter().enumerate() {
            let magnitude = &mut magnitudes[layout.group_of(at)];
            *magnitude = magnitude.max(value.abs());
        }
        let Some((_, most)) = fences(magnitudes.iter().copied(), fence) else { return };
        let channels = magnitudes.iter().enumerate();
        let channels =
            channels.map(|(channel, largest)| OutlierChannel { channel, largest: *largest });
        self.channels = channels.filter(|channel| channel.largest > most).collect();
        self.channels.sort_by(|one, other| other.largest.total_cmp(&one.largest));
    }

    /// The index of an element.
    fn index(&self, mut at: usize) -> Vec<usize> {
        let mut index: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|length| {
                let here = at % length;
                at /= length;
                here
            })
            .collect();
        index.reverse();
        index
    }
}

/// The fences of the numbers that are not 0, from quartiles as in `NumPy`'s `percentile`; `None` if
/// all are 0.
fn fences(values: impl Iterator<Item = f64>, fence: f64) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.filter(|value| *value != 0.0).collect();
    let (low, high) = (quantile(&mut values, 1)?, quantile(&mut values, 3)?);
    let distance = fence * (high - low);
    Some((low - distance, high + distance))
}

/// The quartile with this number, with linear interpolation.
fn quantile(values: &mut [f64], quarters: usize) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let (at, rest) = (last * quarters / 4, last * quarters % 4);
    let (_, below, above) = values.select_nth_unstable_by(at, f64::total_cmp);
    let below = *below;
    let next = above.iter().copied().min_by(f64::total_cmp).unwrap_or(below);
    #[allow(clippy::cast_precision_loss)] // up to 3
    let part = rest as f64 / 4.0;
    Some(below + (next - below) * part)
}

impl Outliers {
    /// The outliers as JSON.
    pub fn to_json(&self) -> String {
        // Names and numbers, no maps with odd keys: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The number of channels that are listed in a line.
const SHOWN: usize = 6;

impl fmt::Display for Outliers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.weights.iter().map(|row| row.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("weight".len());
        writeln!(
            f,
            "{:<width$}  {:>7}  {:>10}  {:>10}  channels",
            "weight", "reach", "beyond", "of"
        )?;
        for row in &self.weights {
            let WeightOutliers { name, reach, beyond, elements, channels, .. } = row;
            let shown = channels.iter().take(SHOWN);
            let mut shown: Vec<String> = shown.map(|found| found.channel.to_string()).collect();
            if let Some(more @ 1..) = channels.len().checked_sub(SHOWN) {
                shown.push(format!("and {more} more"));
            }
            let channels = if shown.is_empty() { "-".to_owned() } else { shown.join(", ") };
            writeln!(f, "{name:<width$}  {reach:>7.2}  {beyond:>10}  {elements:>10}  {channels}")?;
        }
        let fence = self.fence;
        writeln!(
            f,
            "beyond: elements outside the quartiles by more than {fence} times their distance"
        )?;
        writeln!(
            f,
            "reach: a scale for the whole weight is this many times coarser because of outliers"
        )?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_numpy() {
        // numpy.percentile([4, 1, 3, 2], [25, 75]) and of one more and of one.
        for (values, expected) in [
            (&[4.0, 1.0, 3.0, 2.0][..], (1.75, 3.25)),
            (&[4.0, 1.0, 3.0, 2.0, 9.0], (2.0, 4.0)),
            (&[7.0, 0.0, 0.0], (7.0, 7.0)),
        ] {
            assert_eq!(fences(values.iter().copied(), 0.0), Some(expected));
        }
        assert_eq!(fences([0.0, 0.0].into_iter(), 3.0), None);
    }
}
