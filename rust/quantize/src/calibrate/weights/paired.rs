//! Collects the second moments of the inputs of layers in two models at once: the one with the
//! weights that are quantized so far, and the float one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ndarray::{Array2, s};
use quantize_rs_math::SecondMoments;

use super::collect::{HOLD_BACK_ONE_OF, reader};
use super::layers::LayerInput;
use super::rows::Rows;
use crate::CalibrationError;
use crate::calibrate::engine::{Sample, ValueSink};
use crate::calibrate::padding::PaddingMask;
use crate::calibrate::run::ValueObserver;
use crate::ranges::MAX_HELD_BACK;

/// How many times as many rows of a sample count as when weights are rounded once: the samples are
/// fewer, and a correction has as many numbers to find as the moments have entries.
const MORE_ROWS: usize = 4;

/// What was collected of one input of layers in both models.
pub(super) struct PairedMoments {
    /// Of each group of channels and each span: moments of rows that hold the span of the quantized
    /// model, then that of the float model.
    groups: Vec<Vec<SecondMoments>>,
    /// Rows of the samples held back, of each group, by the content of the sample: the row of the
    /// quantized model, then that of the float model.
    held_back: BTreeMap<u64, Vec<Vec<f32>>>,
    /// Whether there were too many samples for the moments to be added exactly.
    too_many: bool,
}

impl PairedMoments {
    pub(super) fn of(input: &LayerInput) -> PairedMoments {
        let moments = input.spans().map(|span| SecondMoments::new(2 * span.len())).collect();
        let groups = vec![moments; input.groups];
        PairedMoments { groups, held_back: BTreeMap::new(), too_many: false }
    }

    /// The rows of a group that are held back.
    pub(super) fn held_back(&self, group: usize) -> impl Iterator<Item = f32> {
        self.held_back.values().flat_map(move |groups| groups[group].iter().copied())
    }
}

/// The mean moments of a span of the inputs of a weight: those of the quantized model, and the
/// products of its rows with those of the float model. `None` if nothing is known.
pub(super) fn moments(
    inputs: &[&PairedMoments],
    group: usize,
    span: usize,
) -> Option<[Array2<f64>; 2]> {
    let mut each = inputs.iter().map(|input| (!input.too_many).then(|| &input.groups[group][span]));
    let mut all = each.next()??.clone();
    for more in each {
        all.merge(more?).ok()?;
    }
    if all.rows() == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a number of rows")]
    let rows = all.rows() as f64;
    let length = all.size() / 2;
    let matrix = all.matrix() / rows;
    let own = matrix.slice(s![..length, ..length]).to_owned();
    Some([own, matrix.slice(s![..length, length..]).to_owned()])
}

/// Collects both models' values of a sample, and adds their rows to the moments that all threads
/// share.
pub(super) struct PairedObserver<'a> {
    /// The inputs, and the position of the value of each among the observed ones.
    inputs: &'a [(&'a LayerInput, usize)],
    shared: &'a [Mutex<PairedMoments>],
    /// The shape and the elements of each value of the float model, then of the quantized one.
    shown: Vec<(Vec<usize>, Vec<f32>)>,
    current: (u64, Option<PaddingMask>),
}

impl<'a> PairedObserver<'a> {
    pub(super) fn new(
        values: usize,
        inputs: &'a [(&'a LayerInput, usize)],
        shared: &'a [Mutex<PairedMoments>],
    ) -> PairedObserver<'a> {
        let shown = vec![(Vec::new(), Vec::new()); 2 * values];
        PairedObserver { inputs, shared, shown, current: (0, None) }
    }

    /// Adds the rows of an input.
    fn add(&self, at: usize) {
        let (input, value) = self.inputs[at];
        let (float, own) = (&self.shown[value], &self.shown[self.shown.len() / 2 + value]);
        let (key, mask) = &self.current;
        let holding = key.is_multiple_of(HOLD_BACK_ONE_OF);
        let mut rows = reader(input, holding, *key, mask.as_ref());
        rows.limit *= MORE_ROWS;
        let Some(places) = rows.places(&float.0, &float.1) else { return };
        if float.0 != own.0 || float.1.len() != own.1.len() {
            return;
        }
        let depth = input.depth;
        let both = |group: usize| {
            let (mut quantized, mut rows) = (Vec::new(), Vec::new());
            places.gather(&own.1, group, &mut quantized);
            places.gather(&float.1, group, &mut rows);
            let factors = input.rows.factors(&rows, depth);
            for rows in [&mut quantized, &mut rows] {
                Rows::scale(rows, depth, factors.as_deref());
            }
            let finite = quantized.iter().chain(&rows).all(|x| x.is_finite());
            finite.then_some([quantized, rows])
        };
        let together = |[own, float]: &[Vec<f32>; 2], span: std::ops::Range<usize>| {
            let mut all = Vec::with_capacity(2 * own.len());
            for (own, float) in own.chunks(depth).zip(float.chunks(depth)) {
                all.extend_from_slice(&own[span.clone()]);
                all.extend_from_slice(&float[span.clone()]);
            }
            all
        };
        let mut shared = self.shared[at].lock().unwrap_or_else(PoisonError::into_inner);
        if holding {
            let rows: Option<Vec<Vec<f32>>> =
                (0..input.groups).map(|group| Some(together(&both(group)?, 0..depth))).collect();
            shared.held_back.extend(rows.map(|rows| (*key, rows)));
            if shared.held_back.len() > MAX_HELD_BACK {
                shared.held_back.pop_last();
            }
            return;
        }
        let mut too_many = false;
        for (group, spans) in shared.groups.iter_mut().enumerate() {
            let Some(rows) = both(group) else { continue };
            for (moments, span) in spans.iter_mut().zip(input.spans()) {
                too_many |= moments.add(&together(&rows, span)).is_err();
            }
        }
        shared.too_many |= too_many;
    }
}

impl ValueSink for PairedObserver<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        if let Some(shown) = self.shown.get_mut(index) {
            *shown = (shape.to_vec(), values.to_vec());
        }
    }
}

impl ValueObserver for PairedObserver<'_> {
    fn begin(&mut self, _: usize, sample: &Sample) {
        self.current = (sample.key(), PaddingMask::of(sample));
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        (0..self.inputs.len()).for_each(|at| self.add(at));
        Ok(())
    }
}
