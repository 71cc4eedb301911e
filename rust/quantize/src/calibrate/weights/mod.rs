//! Rounds weights with the help of samples: collects the second moments of the inputs of layers,
//! tries the algorithms of a ladder on each weight, and keeps the one whose output error is the
//! smallest on samples that were held back.

// Counts of rows and columns, and integers of up to 8 bits.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod collect;
mod evidence;
mod few_rows;
mod layers;
mod paired;
mod rows;
mod sequential;
mod state_file;
mod stored;
mod work;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::mem::replace;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ndarray::Array2;
use quantize_rs_math::{
    Algorithm, Effort, Layout, QSpec, Rounded, ScaleBounds, WeightColumns, improve_columns,
    round_columns,
};
use quantize_rs_onnx::{DataType, Model, Span};
use rayon::prelude::*;

use crate::encode::{WeightTask, bias, scale_type};
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::uses::float_type;
use crate::options::{RoundedFor, RoundingEffort};
use crate::plan::Plan;
use crate::ranges::{InputMoments, RoundedWeight, RoundedWeights, RoundingEvidence, hash};
use crate::util::text::size;
use crate::{CalibrationError, Format, QuantizeError, Ranges};

use super::run::Control;
pub(crate) use collect::MomentCollector;
use evidence::{Held, smallest};
pub(crate) use layers::Layers;
use layers::{ColumnMap, LayerWeight};
pub(crate) use sequential::Again;
use sequential::Sequence;
use state_file::Key;
pub(crate) use state_file::StateFile;
pub use stored::round_weights;
pub(crate) use stored::with_rounded_weights;
use work::Work;

/// The note of a calibration with too many samples for their moments to be added exactly.
const TOO_MANY_SAMPLES: &str =
    "weights are rounded as without samples: moments of more than 65,536 cannot be added exactly";

/// A warning where the options ask for rounding with samples, and no weight is rounded so.
pub(crate) fn nothing_to_round(plan: &Plan, layers: &Layers) -> Option<String> {
    (layers.weights.is_empty() && plan.config.asks_for_rounding()).then(|| {
        format!(
            "{} has no effect: no weight of these types is rounded with samples",
            RoundedFor::of(&plan.config)
        )
    })
}

/// The layers of `plan` whose weights are rounded with the help of samples.
///
/// # Errors
/// The graph is not well-formed.
pub(crate) fn layers(model: &Model, plan: &Plan) -> Result<Layers, QuantizeError> {
    if !plan.config.rounds_with_samples() {
        return Ok(Layers::default());
    }
    Ok(Layers::of(&Graph::of(model)?, plan))
}

impl Plan {
    /// What rounding with the help of samples costs: the number of weights, and the bytes of the
    /// second moments that a calibration collects for them. `None` if none is rounded so.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, PreprocessedModel};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let prepared = PreprocessedModel::of(&Model::open(path)?, Config::default())?;
    /// let cost = prepared.plan().rounding_cost(&prepared.model)?.expect("weights to round");
    /// assert_eq!((cost.weights, cost.bytes), (3, 2_517_696));
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    ///
    /// # Errors
    /// The graph is not well-formed.
    pub fn rounding_cost(&self, model: &Model) -> Result<Option<RoundingCost>, QuantizeError> {
        let layers = layers(model, self)?;
        let cost = RoundingCost { weights: layers.weights.len(), bytes: layers.bytes() };
        Ok((cost.weights > 0).then_some(cost))
    }
}

/// The cost of rounding weights with the help of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundingCost {
    /// The number of weights that are rounded.
    pub weights: usize,
    /// The bytes of the second moments of their inputs.
    pub bytes: u64,
}

impl fmt::Display for RoundingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, bytes } = *self;
        let which = if weights == 1 {
            "one weight is".to_owned()
        } else {
            format!("{weights} weights are")
        };
        write!(
            f,
            "{which} rounded with samples, if there are any: second moments of their inputs take \
             {}",
            size(bytes)
        )
    }
}

/// Rounds the weights of the layers of `plan`, and adds them to `ranges`.
///
/// `moments` returns those of an input of `layers`, and is called once for each.
///
/// # Errors
/// A weight cannot be quantized, moments cannot be read, or the caller cancels.
pub(crate) fn round(
    model: &Model,
    plan: &Plan,
    ranges: &mut Ranges,
    layers: &Layers,
    moments: &mut dyn FnMut(usize) -> Result<Option<InputMoments>, CalibrationError>,
    (again, mut state, cores): (Option<Again<'_>>, StateFile, usize),
    control: &mut Control<'_>,
) -> Result<(), QuantizeError> {
    let resolved = plan.resolve(model, Some(ranges), None)?;
    let (before, after) = (Graph::of(model)?, Graph::of(&resolved.model)?);
    let constants: HashMap<&str, _> = resolved
        .plan
        .constants(&after)
        .into_iter()
        .map(|constant| (after.values[constant.anchor].name, constant))
        .collect();
    let floors = bias::weight_floors(&after, &resolved.plan, resolved.ranges.as_ref())?;
    let planned: HashMap<&str, _> =
        resolved.plan.quantized().map(|(value, how)| (&*value.name, (&value.name, how))).collect();
    let mut uses = vec![0_usize; layers.inputs.len()];
    layers.weights.iter().flat_map(|weight| &weight.inputs).for_each(|at| uses[*at] += 1);
    let only_scales = plan.config.last_algorithm() > Algorithm::Scales && layers.diagonal;
    if only_scales {
        ranges.notes.push(format!(
            "weights are rounded by scales alone: the second moments of their inputs would take \
             more than memory_limit, {}",
            size(plan.config.memory_limit)
        ));
    }
    let mut known: Vec<Option<InputMoments>> = uses.iter().map(|_| None).collect();
    let mut read = vec![false; uses.len()];
    let task_of = |weight: &str| {
        let (name, how) = planned.get(weight)?;
        let floors = floors.get(weight).map_or(&[][..], |floors| floors);
        let (graph, plan, constant) = (&after, &resolved.plan, constants.get(weight)?);
        Some(WeightTask { graph, plan, name, how, constant, floors })
    };
    let mut work = Work::of(layers, ranges.samples, again.is_some());
    let mut found = RoundedWeights::new();
    let mut too_many = false;
    for weight in &layers.weights {
        control.go_on(work.progress())?;
        for at in weight.inputs.iter().filter(|at| !replace(&mut read[**at], true)) {
            known[*at] = moments(*at)?.and_then(|input| input.divided().ok());
            too_many |= known[*at].is_none();
        }
        if let Some(task) = task_of(&weight.name)
            && let Some(factors) = scaled_by(&before, &task, weight)?
        {
            let inputs: Vec<&InputMoments> =
                weight.inputs.iter().filter_map(|at| known[*at].as_ref()).collect();
            let spans = layers.inputs[weight.inputs[0]].spans().collect();
            let last = plan.config.last_algorithm();
            let last = if layers.diagonal { last.min(Algorithm::Scales) } else { last };
            let one = Layer { task: &task, map: weight.map, spans, inputs, factors, last };
            let _span = Span::part("round", || weight.name.clone());
            let round = || {
                control.on_thread(work.progress(), |stop| on_cores(cores, || one.round(stop)))?
            };
            if let Some(rounded) = state.once(&weight.name, || one.key(), round)? {
                found.insert(weight.name.clone(), rounded);
            }
        }
        work.finish(weight, &layers.inputs);
        for at in &weight.inputs {
            uses[*at] -= 1;
            if uses[*at] == 0 {
                known[*at] = None;
            }
        }
    }
    if too_many {
        ranges.notes.push(TOO_MANY_SAMPLES.to_owned());
    }
    if let Some(again) = again {
        let sequence =
            Sequence { model: &resolved.model, graph: &after, layers, task_of: &task_of };
        sequence.refine(&mut found, again, (&mut work, &mut state), control)?;
    }
    control.go_on(work.progress())?;
    let rounded_for = Some(RoundedFor::of(&plan.config));
    for weight in found.values_mut() {
        weight.rounded_for = rounded_for;
    }
    ranges.rounded = Arc::new(found);
    Ok(())
}

/// Runs work with at most this many threads for what it divides among them.
fn on_cores<T: Send>(cores: usize, work: impl FnOnce() -> T + Send) -> T {
    if cores >= rayon::current_num_threads() {
        return work();
    }
    // Without a pool of its own it takes those of all.
    match rayon::ThreadPoolBuilder::new().num_threads(cores).build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// The factor by which smoothing multiplied each input element of a weight; empty if the weight is
/// as it was. `None` if it changed otherwise.
fn scaled_by(
    before: &Graph<'_>,
    task: &WeightTask<'_, '_>,
    weight: &LayerWeight,
) -> Result<Option<Vec<f32>>, QuantizeError> {
    /// Rounding of a product in float32.
    const TOLERANCE: f32 = 1e-5;
    let old = before.value(&weight.name).and_then(|value| before.constant_behind(value));
    let Some(old) = old else { return Ok(None) };
    let (old, new) = (before.model.tensor(old)?, task.graph.model.tensor(task.constant.tensor)?);
    if old.data == new.data {
        return Ok(Some(Vec::new()));
    }
    let (Some(old), Some(new)) = (to_f32(&old), to_f32(&new)) else { return Ok(None) };
    let ColumnMap { groups, width, depth, .. } = weight.map;
    if groups != 1 || old.len() != new.len() {
        return Ok(None);
    }
    let factor = |element: usize| {
        let column = |column| weight.map.index(0, column, element);
        let largest = (0..width).map(column).max_by(|a, b| old[*a].abs().total_cmp(&old[*b].abs()));
        let factor = largest.map_or(1.0, |at| if old[at] == 0.0 { 1.0 } else { new[at] / old[at] });
        let same = |at: usize| (new[at] - old[at] * factor).abs() <= TOLERANCE * new[at].abs();
        (factor > 0.0 && factor.is_finite() && (0..width).map(column).all(same)).then_some(factor)
    };
    Ok((0..depth).map(factor).collect())
}

/// The least scale of each group; empty if there is none.
fn least_scales(floors: &[f32], groups: usize) -> Vec<f32> {
    let highest = floors.iter().copied().fold(0.0, f32::max);
    if highest == 0.0 {
        return Vec::new();
    }
    let each = floors.len() == groups;
    (0..groups).map(|group| if each { floors[group] } else { highest }).collect()
}

/// A weight to round, and what is known of its inputs.
struct Layer<'a> {
    task: &'a WeightTask<'a, 'a>,
    map: ColumnMap,
    /// The spans of a column that are rounded each for itself.
    spans: Vec<Range<usize>>,
    inputs: Vec<&'a InputMoments>,
    /// The factor of each input element; its moments are divided by it.
    factors: Vec<f32>,
    /// The last algorithm that is tried.
    last: Algorithm,
}

/// The elements of a weight, and how its scales are shared and bounded.
struct Floats {
    values: Vec<f32>,
    hash: u64,
    layout: Layout,
    /// The least scale of each group; empty if there is none.
    least: Vec<f32>,
    halves: bool,
}

impl Floats {
    fn bounds(&self) -> ScaleBounds<'_> {
        ScaleBounds { floors: &self.least, halves: self.halves }
    }

    /// The weight as it is rounded without samples.
    fn unrounded(&self, spec: QSpec, evidence: RoundingEvidence) -> RoundedWeight {
        RoundedWeight {
            evidence,
            spec,
            rounded_for: None,
            floats: self.hash,
            scales: Vec::new(),
            zero_points: Vec::new(),
            integers: Vec::new(),
        }
    }
}

impl Layer<'_> {
    /// The elements. `None` if some are not finite, or do not fit the layout.
    fn floats(&self) -> Result<Option<Floats>, QuantizeError> {
        let WeightTask { graph, how, constant, floors, .. } = *self.task;
        let tensor = graph.model.tensor(constant.tensor)?;
        let values = to_f32(&tensor).filter(|all| all.iter().all(|x| x.is_finite()));
        let layout = Layout::of(self.task.shape(), how.spec.granularity).ok();
        let found = values.zip(layout).map(|(values, layout)| Floats {
            values,
            hash: hash(&tensor),
            least: least_scales(floors, layout.groups()),
            layout,
            halves: match how.format {
                Format::MatMulNBits => float_type(graph, constant.anchor),
                _ => Some(scale_type(graph, constant.anchor)),
            } == Some(DataType::Float16),
        });
        Ok(found)
    }

    /// The weight as its best algorithm rounds it. Returns soon once `stop` is set.
    fn round(&self, stop: &AtomicBool) -> Result<Option<RoundedWeight>, QuantizeError> {
        let Some(weight) = self.floats()? else { return Ok(None) };
        let Floats { values: floats, layout, .. } = &weight;
        let WeightTask { plan, how, .. } = *self.task;
        let seen = |group, at| self.moments(group, at, false);
        let Some(parts) = self.parts(floats, layout, &seen) else { return Ok(None) };
        let held: Vec<Held> = (0..self.map.groups).map(|group| self.held(group)).collect();
        let bounds = weight.bounds();
        let effort = plan.config.rounding_effort.effort();
        let spec = &how.spec;
        let all = round_columns(&parts, layout.groups(), spec, bounds, self.last, effort, stop);
        let nearest = self.task.without_samples()?;
        let Some(nearest) = self.errors_of(&nearest, floats) else { return Ok(None) };
        let has_rows = held.iter().any(|held| !held.rows.is_empty());
        let held_samples = self.inputs.iter().map(|input| input.held_back.len()).max();
        let held_samples = held_samples.filter(|_| has_rows).unwrap_or(0);
        let held_back = held_samples > 0;
        let spans = self.spans.len();
        let rows: Vec<f64> = (0..self.map.groups).map(|group| self.rows(group)).collect();
        let evidence =
            evidence::Evidence { parts: &parts, spans, held: &held, held_samples, rows: &rows };
        let (best, errors) = smallest(&evidence, &nearest, &all);
        let algorithm = best.map_or(Algorithm::Nearest, |best| best.algorithm);
        let evidence = RoundingEvidence { algorithm, errors, held_back };
        let empty = weight.unrounded(how.spec, evidence);
        let improves = |best: &Rounded| {
            let once = plan.config.rounding_effort != RoundingEffort::Best;
            once && held_back && best.algorithm >= Algorithm::Descent
        };
        Ok(Some(match best {
            // Layer after layer, the rows held back are needed again.
            Some(best) if improves(best) => {
                let all = |group, at| self.moments(group, at, true);
                let Some(parts) = self.parts(floats, layout, &all) else { return Ok(None) };
                // Little is left to do, for rows that resemble those that were seen.
                let effort = Effort { rounds: 1, ..effort };
                let best = improve_columns(&parts, best.clone(), spec, bounds, effort, stop);
                self.stored(&best, empty)
            }
            Some(best) => self.stored(best, empty),
            None => empty,
        }))
    }

    /// The columns of the weight. `None` if scales are not shared by blocks of a column, or nothing
    /// is known of the inputs.
    fn parts(
        &self,
        floats: &[f32],
        layout: &Layout,
        moments: &(dyn Fn(usize, usize) -> Option<Array2<f64>> + Sync),
    ) -> Option<Vec<WeightColumns>> {
        let ColumnMap { groups, width, depth, .. } = self.map;
        let of_element = |group: usize, column: usize, element: usize| {
            layout.group_of(self.map.index(group, column, element))
        };
        let first = of_element(0, 0, 0);
        let block = (1..depth).find(|at| of_element(0, 0, *at) != first).unwrap_or(depth);
        let part = |(group, at): (usize, usize)| {
            let span = self.spans[at].clone();
            let (depth, block) = (span.len(), block.min(span.len()));
            let mut values = Vec::with_capacity(width * depth);
            let mut scales = Vec::with_capacity(width * depth.div_ceil(block));
            for column in 0..width {
                for (position, element) in span.clone().enumerate() {
                    let scale = of_element(group, column, element) as u32;
                    if position % block == 0 {
                        scales.push(scale);
                    } else if scales.last() != Some(&scale) {
                        return None;
                    }
                    values.push(floats[self.map.index(group, column, element)]);
                }
            }
            let moments = moments(group, at)?;
            Some(WeightColumns { depth, values, block, groups: scales, moments })
        };
        let each: Vec<(usize, usize)> = (0..groups)
            .flat_map(|group| (0..self.spans.len()).map(move |at| (group, at)))
            .collect();
        each.into_par_iter().map(part).collect()
    }

    /// The mean second moments of a span of the inputs of a group, with those of the rows held back
    /// if `all`, those of few rows shrunk. `None` if nothing is known.
    fn moments(&self, group: usize, at: usize, all: bool) -> Option<Array2<f64>> {
        let mut inputs = self.inputs.iter().map(|input| &input.groups[group][at]);
        let mut moments = Cow::Borrowed(inputs.next()?);
        inputs.try_for_each(|more| moments.to_mut().merge(more)).ok()?;
        for input in self.inputs.iter().filter(|_| all) {
            let rows = input.held_back(group);
            let of_span = rows.chunks(self.map.depth).flat_map(|row| &row[self.spans[at].clone()]);
            moments.to_mut().add(&of_span.copied().collect::<Vec<_>>()).ok()?;
        }
        if moments.rows() == 0 {
            return None;
        }
        // The mean over the rows, so that numbers do not depend on how many there are.
        let (rows, start) = (moments.rows() as f64, self.spans[at].start);
        let mut moments = moments.matrix();
        for ((row, column), moment) in moments.indexed_iter_mut() {
            *moment /= rows * self.factor(start + row) * self.factor(start + column);
        }
        few_rows::shrink(&mut moments, rows);
        Some(moments)
    }

    /// The number of rows of the moments of a group.
    fn rows(&self, group: usize) -> f64 {
        let spans = self.inputs.iter().filter_map(|input| input.groups[group].first());
        spans.map(|span| span.rows() as f64).sum()
    }

    /// A hash of all that rounding depends on beside the moments of other models.
    fn key_of_weight(&self) -> Key {
        let mut key = Key::default();
        let WeightTask { plan, how, constant, floors, graph, .. } = *self.task;
        key.text(env!("CARGO_PKG_VERSION"));
        key.text(&serde_json::to_string(&plan.config).unwrap_or_default());
        key.text(&format!("{how:?} {:?} {:?} {:?}", self.map, self.spans, self.last));
        // A constant that cannot be read is an error when it is rounded.
        key.word(graph.model.tensor(constant.tensor).map_or(0, |tensor| hash(&tensor)));
        key.floats(floors.iter().chain(&self.factors).copied());
        key
    }

    /// A hash of all that [`Self::round`] depends on.
    fn key(&self) -> u64 {
        let mut key = self.key_of_weight();
        for group in 0..self.map.groups {
            key.word(self.rows(group).to_bits());
            for at in 0..self.spans.len() {
                key.doubles(&self.moments(group, at, false).unwrap_or_default());
            }
            key.floats(self.inputs.iter().flat_map(|input| input.held_back(group)));
        }
        key.finish()
    }

    fn factor(&self, element: usize) -> f64 {
        self.factors.get(element).map_or(1.0, |factor| f64::from(*factor))
    }

    /// The rows held back of a group.
    fn held(&self, group: usize) -> Held {
        let mut rows: Vec<f32> =
            self.inputs.iter().flat_map(|input| input.held_back(group)).collect();
        if !self.factors.is_empty() {
            let factors = self.factors.iter().cycle();
            rows.iter_mut().zip(factors).for_each(|(x, factor)| *x /= factor);
        }
        Held { rows }
    }

    /// The errors of an encoded weight, column by column, of each part.
    fn errors_of(&self, encoded: &crate::EncodedTensor, floats: &[f32]) -> Option<Vec<Vec<f32>>> {
        let decoded = encoded.decoded(self.task.how, self.task.shape())?;
        let ColumnMap { groups, width, .. } = self.map;
        let of_part = |part: usize| {
            let (group, span) = (part / self.spans.len(), &self.spans[part % self.spans.len()]);
            let each =
                (0..width).flat_map(|column| span.clone().map(move |element| (column, element)));
            each.map(|(column, element)| {
                let at = self.map.index(group, column, element);
                decoded[at] - floats[at]
            })
            .collect()
        };
        let parts = groups * self.spans.len();
        (decoded.len() == floats.len()).then(|| (0..parts).map(of_part).collect())
    }

    /// The integers in the order of the weight.
    fn stored(&self, best: &Rounded, empty: RoundedWeight) -> RoundedWeight {
        let count: usize = best.integers.iter().map(Vec::len).sum();
        let mut integers = vec![0; count];
        for (part, found) in best.integers.iter().enumerate() {
            let (group, span) = (part / self.spans.len(), &self.spans[part % self.spans.len()]);
            for (at, integer) in found.iter().enumerate() {
                let element = span.start + at % span.len();
                integers[self.map.index(group, at / span.len(), element)] = *integer as u8;
            }
        }
        RoundedWeight {
            scales: best.params.iter().map(|params| params.scale).collect(),
            zero_points: best.params.iter().map(|params| params.zero_point).collect(),
            integers,
            ..empty
        }
    }
}
