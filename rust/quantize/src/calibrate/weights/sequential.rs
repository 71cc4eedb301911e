//! Rounds weights again, layer after layer, with the inputs that the layers before make of
//! quantized weights: a layer then makes good a part of what those lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use quantize_rs_math::{Algorithm, WeightColumns, corrected_targets, output_error, round_columns};
use quantize_rs_onnx::{DataType, Edit, Model, Span, Tensor, TensorProto};

use super::evidence::whole_columns;
use super::layers::{LayerInput, LayerWeight, Layers};
use super::paired::{PairedMoments, PairedObserver, moments};
use super::state_file::StateFile;
use super::work::Work;
use super::{Floats, Layer};
use crate::QuantizeError;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::pair::{Pair, SliceSamples};
use crate::calibrate::run::{Control, observe};
use crate::encode::WeightTask;
use crate::graph::{Graph, InputSpec, Producer};
use crate::plan::Source;
use crate::ranges::{RoundedWeight, RoundedWeights, RoundingEvidence};
use crate::transform::extract;

/// The samples that are run again, and the engine that runs them.
#[derive(Clone, Copy)]
pub(crate) struct Again<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) samples: &'a [Sample],
}

/// How much of the correction of the targets is tried: all of it fits the samples best, and less of
/// it fits others better where there are few.
const CORRECTIONS: [f32; 3] = [1.0, 0.5, 0.0];

/// The layers of a model, one after the other.
pub(super) struct Sequence<'s, 'a> {
    /// The float model whose weights are rounded.
    pub(super) model: &'s Model,
    pub(super) graph: &'s Graph<'a>,
    pub(super) layers: &'s Layers,
    pub(super) task_of: &'s dyn Fn(&str) -> Option<WeightTask<'a, 'a>>,
}

impl Sequence<'_, '_> {
    /// Rounds the weights of `found` again; each keeps what it has unless its outputs on samples
    /// held back come nearer to those of the float model.
    pub(super) fn refine(
        &self,
        found: &mut RoundedWeights,
        again: Again<'_>,
        (work, state): (&mut Work, &mut StateFile),
        control: &mut Control<'_>,
    ) -> Result<(), QuantizeError> {
        let mut partial = self.model.clone();
        partial.apply(self.others(found))?;
        for ((_, inputs), weights) in self.stages()? {
            let (now, ask) = (work.progress(), &mut *control.progress);
            let mut shown = |_| ask(now);
            let mut running = Control { threads: control.threads, progress: &mut shown };
            let paired = self.collect(&partial, &inputs, again, &mut running)?;
            let paired: Vec<&PairedMoments> = paired.iter().collect();
            let mut edits = Vec::new();
            for weight in weights {
                control.go_on(work.progress())?;
                let Some(task) = (self.task_of)(&weight.name) else { continue };
                let spans = self.layers.inputs[inputs[0]].spans().collect();
                let (map, last) = (weight.map, task.plan.config.last_algorithm());
                let (inputs, factors) = (Vec::new(), Vec::new());
                let layer = Layer { task: &task, map, spans, inputs, factors, last };
                let now = found.get(&weight.name);
                let _span = Span::part("round again", || weight.name.clone());
                let progress = work.progress();
                let round = || {
                    control.on_thread(progress, |stop| layer.rounded_again(&paired, now, stop))?
                };
                let key = || layer.key_again(&paired, now);
                if let Some(better) = state.once(&weight.name, key, round)? {
                    found.insert(weight.name.clone(), better);
                }
                work.finish_again(weight, &self.layers.inputs);
                edits.extend(self.replaced(&task, found.get(&weight.name))?);
            }
            partial.apply(edits)?;
        }
        Ok(())
    }

    /// The weights by what they read, in the order in which that is computed.
    #[allow(clippy::type_complexity)] // used once
    fn stages(&self) -> Result<BTreeMap<(usize, Vec<usize>), Vec<&LayerWeight>>, QuantizeError> {
        let mut rank: HashMap<&str, usize> = HashMap::new();
        for (place, node) in self.graph.order()?.into_iter().enumerate() {
            let outputs = self.graph.nodes[node].output.iter();
            rank.extend(outputs.map(|output| (output.as_str(), place + 1)));
        }
        let mut stages: BTreeMap<(usize, Vec<usize>), Vec<&LayerWeight>> = BTreeMap::new();
        for weight in &self.layers.weights {
            let of_input = |at: &usize| rank.get(&*self.layers.inputs[*at].value).copied();
            let last = weight.inputs.iter().filter_map(of_input).max().unwrap_or(0);
            stages.entry((last, weight.inputs.clone())).or_default().push(weight);
        }
        Ok(stages)
    }

    /// The quantized weights that are not rounded again.
    fn others(&self, found: &RoundedWeights) -> Vec<Edit> {
        let again = |name: &str| self.layers.weights.iter().any(|weight| weight.name == name);
        let names = self.graph.values.iter().map(|value| value.name);
        let mut edits = Vec::new();
        for name in names.filter(|name| !again(name)) {
            let task = (self.task_of)(name).filter(|task| task.how.source == Source::Weights);
            if let Some(task) = task {
                // What cannot be encoded is an error when the plan is applied.
                edits.extend(self.replaced(&task, found.get(name)).ok().flatten());
            }
        }
        edits
    }

    /// Replaces a constant by what becomes of it, if it is a tensor of its own.
    fn replaced(
        &self,
        task: &WeightTask<'_, '_>,
        rounded: Option<&RoundedWeight>,
    ) -> Result<Option<Edit>, QuantizeError> {
        let anchor = &self.graph.values[task.constant.anchor];
        let own = matches!(anchor.producer, Producer::Initializer { .. });
        if !own || task.constant.dtype != Some(DataType::Float) {
            return Ok(None);
        }
        let Some(decoded) = task.decoded(rounded)? else { return Ok(None) };
        let tensor = Tensor::from_f32_vec(task.constant.shape.clone(), decoded);
        Ok(Some(Edit::ReplaceInitializer(TensorProto::new(anchor.name, &tensor))))
    }

    /// Runs both models on the samples, and collects the moments of these inputs.
    fn collect(
        &self,
        partial: &Model,
        inputs: &[usize],
        again: Again<'_>,
        control: &mut Control<'_>,
    ) -> Result<Vec<PairedMoments>, QuantizeError> {
        let inputs: Vec<&LayerInput> = inputs.iter().map(|at| &self.layers.inputs[*at]).collect();
        let mut names: Vec<String> = inputs.iter().map(|input| input.value.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let placed: Vec<(&LayerInput, usize)> = inputs
            .iter()
            .filter_map(|input| Some((*input, names.binary_search(&input.value).ok()?)))
            .collect();
        let shared: Vec<Mutex<PairedMoments>> =
            inputs.iter().map(|input| Mutex::new(PairedMoments::of(input))).collect();
        let parts = (upto(self.model, &names)?, upto(partial, &names)?);
        let (float, partial) =
            (parts.0.as_ref().unwrap_or(self.model), parts.1.as_ref().unwrap_or(partial));
        let pair = Pair { engine: again.engine, second: partial };
        let samples = &mut SliceSamples(again.samples.iter());
        let observer = || PairedObserver::new(names.len(), &placed, &shared);
        observe(float, &names, &pair, samples, control, observer)?;
        let inner = |one: Mutex<_>| one.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(shared.into_iter().map(inner).collect())
    }
}

impl Layer<'_> {
    /// A hash of all that [`Self::rounded_again`] depends on.
    fn key_again(&self, inputs: &[&PairedMoments], now: Option<&RoundedWeight>) -> u64 {
        let mut key = self.key_of_weight();
        for group in 0..self.map.groups {
            for at in 0..self.spans.len() {
                for matrix in moments(inputs, group, at).iter().flatten() {
                    key.doubles(matrix);
                }
            }
            key.floats(inputs.iter().flat_map(|input| input.held_back(group)));
        }
        if let Some(RoundedWeight { scales, zero_points, integers, .. }) = now {
            key.floats(scales.iter().copied());
            key.text(&format!("{zero_points:?}"));
            key.bytes(integers);
        }
        key.finish()
    }

    /// The weight as it is rounded for the inputs of the quantized model, if that is better than
    /// what it is now. Returns soon once `stop` is set.
    fn rounded_again(
        &self,
        inputs: &[&PairedMoments],
        now: Option<&RoundedWeight>,
        stop: &AtomicBool,
    ) -> Result<Option<RoundedWeight>, QuantizeError> {
        let Some(weight) = self.floats()? else { return Ok(None) };
        let layout = &weight.layout;
        let WeightTask { plan, how, .. } = *self.task;
        let held: Vec<Vec<f32>> = (0..self.map.groups)
            .map(|group| inputs.iter().flat_map(|input| input.held_back(group)).collect())
            .collect();
        if held.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let spans = self.spans.len();
        let Some((parts, targets)) = self.fitted(&weight, inputs, stop) else {
            return Ok(None);
        };
        // The columns of each group, one after the other.
        let whole = |values: &[Vec<f32>]| -> Vec<Vec<f32>> {
            let groups = parts.chunks(spans).zip(values.chunks(spans));
            groups.map(|(parts, values)| whole_columns(parts, values).into_owned()).collect()
        };
        let float = whole(&parts.iter().map(|part| part.values.clone()).collect::<Vec<_>>());
        let error = |columns: &[Vec<f32>]| -> f64 {
            let groups = columns.iter().zip(&float).zip(&held);
            let each = groups.map(|((own, float), held)| {
                output_error(&beside(own, float, self.map.depth), 2 * self.map.depth, held)
            });
            each.sum()
        };
        let nothing: Vec<Vec<f32>> = float.iter().map(|all| vec![0.0; all.len()]).collect();
        let output = error(&nothing);
        let as_it_is = |rounded: Option<&RoundedWeight>| -> Result<Option<f64>, QuantizeError> {
            let Some(decoded) = self.task.decoded(rounded)? else { return Ok(None) };
            let columns = (0..self.map.groups).map(|group| self.columns(group, &decoded));
            Ok(Some(error(&columns.collect::<Vec<_>>())))
        };
        let (Some(now), Some(nearest)) = (as_it_is(now)?, as_it_is(None)?) else {
            return Ok(None);
        };
        let bounds = weight.bounds();
        let effort = plan.config.rounding_effort.effort();
        let rounded = |parts: &[WeightColumns], last: Algorithm| {
            let all = round_columns(parts, layout.groups(), &how.spec, bounds, last, effort, stop);
            let errors = all.into_iter().map(|rounded| {
                let each = parts.iter().enumerate().map(|(at, part)| rounded.values(part, at));
                let decoded: Vec<Vec<f32>> = each.collect();
                (error(&whole(&decoded)), rounded)
            });
            errors.min_by(|(one, _), (other, _)| one.total_cmp(other))
        };
        // Descent takes most of the time, and changes little about which correction is the best.
        let quick = self.last.min(Algorithm::Gptq);
        let tried = CORRECTIONS.iter().filter_map(|correction| {
            let parts = towards(&parts, &targets, *correction);
            Some((rounded(&parts, quick)?.0, parts))
        });
        let Some((_, parts)) = tried.min_by(|(one, _), (other, _)| one.total_cmp(other)) else {
            return Ok(None);
        };
        let best = rounded(&parts, self.last).filter(|(error, _)| *error < now);
        let Some((least, best)) = best else { return Ok(None) };
        let relative = |error: f64| if output > 0.0 { (error / output) as f32 } else { 0.0 };
        let errors = BTreeMap::from([
            (Algorithm::Nearest.name().to_owned(), relative(nearest)),
            (best.algorithm.name().to_owned(), relative(least)),
        ]);
        let evidence = RoundingEvidence { algorithm: best.algorithm, errors, held_back: true };
        let empty = weight.unrounded(how.spec, evidence);
        Ok(Some(self.stored(&best, empty)))
    }

    /// The parts of the weight for the inputs of the quantized model, and the values that make good
    /// most of what these lost.
    fn fitted(
        &self,
        weight: &Floats,
        inputs: &[&PairedMoments],
        stop: &AtomicBool,
    ) -> Option<(Vec<WeightColumns>, Vec<Vec<f32>>)> {
        let spans = self.spans.len();
        let of_part = |at: usize| moments(inputs, at / spans, at % spans);
        let known: Vec<_> = (0..self.map.groups * spans).map(of_part).collect::<Option<_>>()?;
        let own = |group: usize, at: usize| Some(known[group * spans + at][0].clone());
        let parts = self.parts(&weight.values, &weight.layout, &own)?;
        let each = parts.iter().zip(&known);
        let each = each.map(|(part, [_, cross])| corrected_targets(part, &cross.view(), stop));
        let targets: Vec<Vec<f32>> = each.collect::<Option<_>>()?;
        Some((parts, targets))
    }

    /// The columns of a group, one after the other.
    fn columns(&self, group: usize, weight: &[f32]) -> Vec<f32> {
        let each = (0..self.map.width)
            .flat_map(|column| (0..self.map.depth).map(move |element| (column, element)));
        each.map(|(column, element)| weight[self.map.index(group, column, element)]).collect()
    }
}

/// The parts with a part of the correction of their values. Zeros stay, also those of pruned
/// weights.
fn towards(parts: &[WeightColumns], targets: &[Vec<f32>], correction: f32) -> Vec<WeightColumns> {
    let each = parts.iter().zip(targets).map(|(part, target)| {
        let both = part.values.iter().zip(target);
        let corrected = |(own, to): (&f32, &f32)| {
            if *own == 0.0 { 0.0 } else { own + correction * (to - own) }
        };
        let values = both.map(corrected).collect();
        WeightColumns { values, ..part.clone() }
    });
    each.collect()
}

/// The part of a model that computes these values. `None` if it takes fewer inputs than the model:
/// then samples of the model do not fit it.
fn upto(model: &Model, values: &[String]) -> Result<Option<Model>, QuantizeError> {
    let inputs = InputSpec::of(model);
    if values.iter().any(|value| inputs.iter().any(|input| input.name == *value)) {
        return Ok(None);
    }
    let part = extract(model, &[], values)?;
    Ok((part.inputs.len() == inputs.len()).then_some(part.model))
}

/// Columns of twice the depth, whose outputs for rows of the quantized model and then of the float
/// one are the errors of the outputs.
fn beside(own: &[f32], float: &[f32], depth: usize) -> Vec<f32> {
    let mut both = Vec::with_capacity(2 * own.len());
    for (own, float) in own.chunks(depth).zip(float.chunks(depth)) {
        both.extend_from_slice(own);
        both.extend(float.iter().map(|x| -x));
    }
    both
}
