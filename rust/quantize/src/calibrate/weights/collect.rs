//! Collects the second moments of the inputs of layers, and some rows to evaluate the result on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use quantize_rs_math::SecondMoments;

use super::layers::{LayerInput, Layers};
use super::rows::{RowReader, Rows};
use crate::calibrate::padding::PaddingMask;
use crate::ranges::{InputMoments, Moments};

/// One of this many samples is held back to evaluate the rounding.
pub(super) const HOLD_BACK_ONE_OF: u64 = 8;

/// The most rows that are kept of a sample that is held back.
const HELD_BACK_ROWS: usize = 32;

/// The rows of a sample that count at most: this many, or more if rows are long. Patches of an
/// image resemble each other. The numbers cannot depend on the number of samples, which is not
/// known beforehand.
const ROWS: usize = 64;
const PATCHES: usize = 128;
const ROWS_BY_DEPTH: usize = 16;

/// Collects the moments of all inputs of the layers; shared by all threads.
#[derive(Debug)]
pub(crate) struct MomentCollector<'a> {
    layers: &'a Layers,
    by_value: BTreeMap<&'a str, Vec<usize>>,
    inputs: Vec<Mutex<Option<InputMoments>>>,
}

/// Reads the rows of an input of a sample with this content.
pub(super) fn reader<'a>(
    input: &'a LayerInput,
    holding: bool,
    key: u64,
    mask: Option<&'a PaddingMask>,
) -> RowReader<'a> {
    let limit = match (holding, &input.rows) {
        (true, _) => HELD_BACK_ROWS,
        (false, Rows::Last | Rows::SecondLast) => ROWS.max(input.depth / ROWS_BY_DEPTH),
        (false, _) => PATCHES.max(input.depth / ROWS_BY_DEPTH),
    };
    let mask = mask.map(PaddingMask::parts);
    let LayerInput { rows, groups, depth, .. } = input;
    RowReader { rows, groups: *groups, depth: *depth, limit, key: key / HOLD_BACK_ONE_OF, mask }
}

impl<'a> MomentCollector<'a> {
    /// No samples yet.
    pub(crate) fn new(layers: &'a Layers) -> MomentCollector<'a> {
        let mut by_value: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, input) in layers.inputs.iter().enumerate() {
            by_value.entry(&input.value).or_default().push(at);
        }
        let empty = |input: &LayerInput| {
            let moments = |span: Range<usize>| {
                if layers.diagonal {
                    SecondMoments::of_diagonal(span.len())
                } else {
                    SecondMoments::new(span.len())
                }
            };
            let groups = vec![input.spans().map(moments).collect(); input.groups];
            Mutex::new(Some(InputMoments::new(groups)))
        };
        MomentCollector { layers, by_value, inputs: layers.inputs.iter().map(empty).collect() }
    }

    /// The names of the values to show.
    pub(crate) fn values(&self) -> impl Iterator<Item = &'a str> {
        self.by_value.keys().copied()
    }

    /// Adds a value of the sample with this content. The moments of an input with more samples than
    /// can be added exactly are dropped.
    pub(crate) fn observe(
        &self,
        value: &str,
        shape: &[usize],
        values: &[f32],
        key: u64,
        mask: Option<&PaddingMask>,
    ) {
        let Some(inputs) = self.by_value.get(value) else { return };
        let holding = key.is_multiple_of(HOLD_BACK_ONE_OF);
        for at in inputs {
            let input = &self.layers.inputs[*at];
            let LayerInput { groups, depth, .. } = input;
            let reader = reader(input, holding, key, mask);
            // A value without elements, or of another shape than the layer takes.
            let Some(places) = reader.places(shape, values) else { continue };
            let read = |group: usize, to: &mut Vec<f32>| {
                to.clear();
                places.gather(values, group, to);
                let factors = input.rows.factors(to, *depth);
                Rows::scale(to, *depth, factors.as_deref());
                to.iter().all(|x| x.is_finite())
            };
            let mut slot = self.inputs[*at].lock().unwrap_or_else(PoisonError::into_inner);
            let Some(own) = slot.as_mut() else { continue };
            let mut rows = vec![Vec::new(); *groups];
            let mut is_finite = true;
            for (group, rows) in rows.iter_mut().enumerate() {
                if !read(group, rows) {
                    rows.clear();
                    is_finite = false;
                }
            }
            let added = match (holding, is_finite) {
                (true, true) => own.hold_back(key, rows),
                (true, false) => Ok(()),
                (false, true) => own.add(key, rows),
                // What is left of it is no sample to evaluate on.
                (false, false) => own.add_rows(&rows),
            };
            if added.is_err() {
                *slot = None;
            }
        }
    }

    /// Takes out the moments of all inputs, to be kept with ranges.
    pub(crate) fn kept(self) -> Moments {
        let layers = self.layers;
        let names = layers.inputs.iter().map(|input| input.name(layers.diagonal));
        Moments::collected(names.zip(self.finish()).collect())
    }

    /// Takes out the moments of all inputs.
    pub(crate) fn finish(self) -> Vec<Option<InputMoments>> {
        let inner = |input: Mutex<_>| input.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.inputs.into_iter().map(inner).collect()
    }
}
