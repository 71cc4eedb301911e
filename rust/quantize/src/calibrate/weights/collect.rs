//! Collects the second moments of the inputs of layers, and some rows to evaluate the result on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use quantize_rs_math::SecondMoments;

use super::layers::{LayerInput, Layers};
use super::rows::RowReader;
use crate::calibrate::engine::Sample;

/// One of this many samples is held back to evaluate the rounding.
const HOLD_BACK_ONE_OF: u64 = 8;

/// The most samples whose rows are kept for the evaluation, and the most rows of each.
const MAX_HELD_BACK: usize = 16;
const HELD_BACK_ROWS: usize = 32;

/// The rows that count, relative to their length: more change the moments little.
const ROWS_BY_DEPTH: usize = 6;

/// The rows of a sample that count at least.
const MIN_ROWS: usize = 64;

/// The number of samples that is assumed if it is not known beforehand.
const USUAL_SAMPLES: usize = 64;

/// What was collected of one input of a layer.
#[derive(Debug)]
pub(crate) struct InputMoments {
    /// Of each group of channels.
    pub(crate) groups: Vec<SecondMoments>,
    /// Rows of the samples held back, of each group, by the content of the sample.
    held_back: BTreeMap<u64, Vec<Vec<f32>>>,
}

impl InputMoments {
    /// The rows of a group that are held back.
    pub(crate) fn held_back(&self, group: usize) -> Vec<f32> {
        self.held_back.values().flat_map(|groups| &groups[group]).copied().collect()
    }
}

/// Collects the moments of all inputs of the layers; shared by all threads.
#[derive(Debug)]
pub(crate) struct MomentCollector<'a> {
    layers: &'a Layers,
    by_value: HashMap<&'a str, Vec<usize>>,
    /// The number of samples.
    samples: usize,
    inputs: Vec<Mutex<Option<InputMoments>>>,
}

/// The padding of a sample, as its attention mask says.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaddingMask {
    shape: Vec<usize>,
    counts: Vec<bool>,
}

impl PaddingMask {
    /// The mask of a sample, if it has one: an input called `attention_mask` with two axes.
    pub(crate) fn of(sample: &Sample) -> Option<PaddingMask> {
        let masks = |name: &str| name.to_lowercase().ends_with("attention_mask");
        let (_, tensor) = sample.inputs.iter().find(|(name, _)| masks(name))?;
        if tensor.shape.len() != 2 || tensor.elements() == 0 {
            return None;
        }
        let bytes = tensor.data.len() / tensor.elements();
        let counts: Vec<bool> = tensor
            .data
            .chunks(bytes.max(1))
            .map(|element| element.iter().any(|byte| *byte != 0))
            .collect();
        // Where nothing counts, the mask means something else.
        let any = counts.contains(&true);
        any.then(|| PaddingMask { shape: tensor.shape.clone(), counts })
    }
}

impl<'a> MomentCollector<'a> {
    /// No samples yet, of the `samples` that are expected. With `diagonal`, only the mean squares of
    /// the inputs are collected.
    pub(crate) fn new(
        layers: &'a Layers,
        diagonal: bool,
        samples: Option<usize>,
    ) -> MomentCollector<'a> {
        let mut by_value: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, input) in layers.inputs.iter().enumerate() {
            by_value.entry(&input.value).or_default().push(at);
        }
        let empty = |input: &LayerInput| {
            let moments = if diagonal {
                SecondMoments::of_diagonal(input.depth)
            } else {
                SecondMoments::new(input.depth)
            };
            let groups = vec![moments; input.groups];
            Mutex::new(Some(InputMoments { groups, held_back: BTreeMap::new() }))
        };
        let samples = samples.unwrap_or(USUAL_SAMPLES).max(1);
        let inputs = layers.inputs.iter().map(empty).collect();
        MomentCollector { layers, by_value, samples, inputs }
    }

    /// The names of the values to show.
    pub(crate) fn values(&self) -> impl Iterator<Item = &'a str> {
        self.by_value.keys().copied()
    }

    /// The most rows of a sample that count.
    fn rows_of_a_sample(&self, depth: usize) -> usize {
        MIN_ROWS.max((depth * ROWS_BY_DEPTH).div_ceil(self.samples))
    }

    /// Adds a value of the sample with this content. Returns a message if it cannot be added.
    pub(crate) fn observe(
        &self,
        value: &str,
        shape: &[usize],
        values: &[f32],
        key: u64,
        mask: Option<&PaddingMask>,
    ) -> Result<(), String> {
        let Some(inputs) = self.by_value.get(value) else { return Ok(()) };
        let holding = key.is_multiple_of(HOLD_BACK_ONE_OF);
        for at in inputs {
            let input = &self.layers.inputs[*at];
            let limit = if holding { HELD_BACK_ROWS } else { self.rows_of_a_sample(input.depth) };
            let mask = mask.map(|mask| (&mask.shape[..], &mask.counts[..]));
            let LayerInput { rows, groups, depth, .. } = input;
            let reader =
                RowReader { rows, groups: *groups, depth: *depth, limit, key: key / 8, mask };
            let read: Option<Vec<Vec<f32>>> =
                (0..*groups).map(|group| reader.read(shape, values, group)).collect();
            // A value without elements, or of another shape than the layer takes.
            let Some(read) = read else { continue };
            if read.iter().flatten().any(|x| !x.is_finite()) {
                continue;
            }
            let mut own = self.inputs[*at].lock().unwrap_or_else(PoisonError::into_inner);
            let Some(own) = own.as_mut() else { continue };
            if holding {
                own.held_back.insert(key, read);
                if own.held_back.len() > MAX_HELD_BACK {
                    own.held_back.pop_last();
                }
                continue;
            }
            for (moments, rows) in own.groups.iter_mut().zip(&read) {
                moments.add(rows).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Takes out the moments of all inputs.
    pub(crate) fn finish(self) -> Vec<Option<InputMoments>> {
        let inner = |input: Mutex<_>| input.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.inputs.into_iter().map(inner).collect()
    }
}
