//! Runs the float model once, then for each layer the nodes that depend on it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::Arc;

use quantize_rs_onnx::{Model, topological};

use super::changed::Unchanged;
use super::layers::{Layer, separable_layers, with_only};
use super::lending::{RecordingEngine, candidates};
use super::measure::{FloatPass, Reference, Steps, Trial, Work, float_pass};
use super::pieces::{Piece, Pieces};
use super::resume::Journal;
use super::{LayerRow, Sensitivity, SensitivityOptions};
use crate::analysis::compare::CompareOptions;
use crate::analysis::outputs::{outputs, scored};
use crate::analysis::recorded::Sizes;
use crate::calibrate::Control;
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::graph::fingerprint::fingerprint;
use crate::graph::{Graph, Producer, ValueId};
use crate::plan::float32;
use crate::report::Origin;
use crate::transform::extract;
use crate::util::fnv::Fnv;
use crate::{CalibrationError, Plan, QuantizeError, Ranges, encode, rewrite};

/// The maximum memory for values of the float model: those recorded during calibration, and those
/// of layers that are measured together. A single layer may need more.
const CACHE_BYTES: usize = 512 << 20;

/// A model, and how it is quantized.
pub(super) struct Subject<'a> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    pub(super) ranges: Option<&'a Ranges>,
}

/// The engine that records the outputs and the values that layers may read, as long as they fit in
/// memory. It records nothing if all layers except one are quantized, since then few values stay
/// unchanged.
pub(super) fn lending<'a>(
    model: &Model,
    plan: &Plan,
    engine: &'a dyn Engine,
    options: &SensitivityOptions,
) -> Result<RecordingEngine<'a>, QuantizeError> {
    plan.check_model(model)?;
    let mut names = BTreeSet::new();
    if !options.all_but_one {
        let graph = Graph::of(model)?;
        let order = topological(&model.graph().node)?;
        let float = float32::of(&graph, &order);
        let layers = separable_layers(&graph, plan, &order);
        names = candidates(&graph, &order, &layers, |id| can_be_kept(&graph, &float, id));
        names.extend(outputs(model, model)?.0);
    }
    Ok(RecordingEngine::new(engine, plan.model.clone(), names.into_iter().collect(), CACHE_BYTES))
}

/// Whether a value is a float value that a node computes, and not a constant.
fn can_be_kept(graph: &Graph<'_>, float: &[bool], id: ValueId) -> bool {
    let made = matches!(graph.values[id].producer, Producer::Node { .. });
    made && float[id] && graph.constant(id).is_none()
}

/// Measures each layer. The recorded values in `shown` are not computed again.
pub(super) fn run(
    subject: &Subject<'_>,
    engine: &dyn Engine,
    samples: &[Sample],
    mut shown: Option<FloatPass>,
    options: &SensitivityOptions,
    control: Control<'_>,
) -> Result<Sensitivity, QuantizeError> {
    let model = subject.model;
    let graph = Graph::of(model)?;
    let order = topological(&model.graph().node)?;
    let all = separable_layers(&graph, subject.plan, &order);
    let (observed, _) = outputs(model, model)?;
    let scored = scored(model, &observed, &CompareOptions::default())?;
    let print = print(subject, engine, samples, options);
    let mut journal = Journal::open(options.resume.as_deref(), print)?;
    let own = |at: usize| options.part.is_none_or(|part| part.holds(at));
    let own: Vec<&Layer> =
        all.iter().enumerate().filter(|(at, _)| own(*at)).map(|(_, layer)| layer).collect();
    let mut waiting: Vec<&Layer> =
        own.iter().copied().filter(|layer| !journal.knows(&layer.name)).collect();
    let mut steps = Steps::new(control, samples.len() * (1 + waiting.len()));

    let sizes = sizes(&graph, &order, engine, samples)?;
    let mut pieces = Pieces::new(&graph, &order, &all, &sizes, &observed);
    let scene =
        TrialContext { subject, graph: &graph, order: &order, sizes: &sizes, observed: &observed };
    waiting.reverse();
    let mut reference: Option<Reference> = None;
    while reference.is_none() || !waiting.is_empty() {
        let mut trials = Vec::new();
        let mut lent: BTreeSet<String> = BTreeSet::new();
        // Neighboring layers read mostly the same values: these are computed once for all of them.
        while let Some(next) = waiting.last() {
            // Preparing the parts of a large model takes long, too.
            steps.go_on()?;
            let trial = scene.trial(next, &all, options, &mut pieces)?;
            let both: BTreeSet<String> = lent.iter().chain(trial.lent()).cloned().collect();
            let bytes: usize = both.iter().map(|name| sizes[name]).sum();
            if bytes > CACHE_BYTES && !trials.is_empty() {
                break;
            }
            (lent, _) = (both, waiting.pop());
            trials.push(trial);
        }
        if reference.is_some() {
            steps.expect(samples.len());
        }
        let lent: Vec<String> = lent.into_iter().collect();
        let shown = match shown.take().filter(|shown| shown.has(&observed) && shown.has(&lent)) {
            Some(shown) => {
                steps.skip(samples.len());
                shown
            }
            None => float_pass(model, &observed, &lent, engine, samples, &mut steps)?,
        };
        journal.ran_by(&shown.engine)?;
        let (made, cache) = shown.parted(&observed, &scored, &lent, samples);
        let reference = &*reference.get_or_insert(made);
        let metric = options.custom.as_ref();
        let work = Work { engine, samples, reference, cache: &cache, trials, metric };
        work.run(&mut steps, &mut |row| journal.add(row))?;
    }
    let rows = own.iter().filter_map(|layer| journal.row(&layer.name).cloned()).collect();
    let (engine, notes) =
        reference.map_or((None, Vec::new()), |reference| (Some(reference.engine), reference.notes));
    Ok(Sensitivity {
        metric: options.metric,
        all_but_one: options.all_but_one,
        layers: rows,
        samples: samples.len(),
        engine,
        notes,
        origin: Origin::of(&[model]),
        model: subject.plan.origin.fingerprint.clone(),
    })
}

/// Collects all samples, which are run again for each layer.
pub(crate) fn all_of(samples: &mut dyn Samples) -> Result<Vec<Sample>, CalibrationError> {
    let mut all = Vec::new();
    while let Some(sample) = samples.next_sample().transpose()? {
        all.push(sample);
    }
    if all.is_empty() {
        return Err(CalibrationError::no_samples());
    }
    Ok(all)
}

/// A fingerprint of the inputs: rows of other inputs are not continued.
fn print(
    subject: &Subject<'_>,
    engine: &dyn Engine,
    samples: &[Sample],
    options: &SensitivityOptions,
) -> String {
    let mut hash = Fnv::default();
    hash.write(fingerprint(subject.model).as_bytes());
    hash.write(serde_json::to_string(subject.plan).unwrap_or_default().as_bytes());
    let ranges = subject.ranges.map(|ranges| {
        let Ranges { values, statistics, rounded, magnitudes, kv_cache, .. } = ranges;
        (values, &**statistics, &**rounded, &**magnitudes, &**kv_cache)
    });
    hash.write(serde_json::to_string(&ranges).unwrap_or_default().as_bytes());
    // What an engine that chooses chose is compared when it has run: see `Journal::ran_by`.
    hash.write(engine.name().as_bytes());
    hash.write_u8(u8::from(options.all_but_one));
    for sample in samples {
        hash.write_u64(sample.key());
    }
    format!("{:016x}", hash.finish())
}

/// Values that can be recorded, with their size for all samples in bytes.
fn sizes(
    graph: &Graph<'_>,
    order: &[usize],
    engine: &dyn Engine,
    samples: &[Sample],
) -> Result<HashMap<String, usize>, CalibrationError> {
    let Some(first) = samples.first() else { return Ok(HashMap::new()) };
    let float = float32::of(graph, order);
    let names: Vec<String> = (0..graph.values.len())
        .filter(|id| can_be_kept(graph, &float, *id))
        .map(|id| graph.values[id].name.to_owned())
        .collect();
    let elements = Sizes::of(graph.model, engine, first, &names)?.0;
    let bytes = elements.into_iter().map(|count| count * size_of::<f32>() * samples.len());
    Ok(names.into_iter().zip(bytes).collect())
}

/// The data that all trials share.
struct TrialContext<'a> {
    subject: &'a Subject<'a>,
    graph: &'a Graph<'a>,
    order: &'a [usize],
    sizes: &'a HashMap<String, usize>,
    /// The outputs of the model.
    observed: &'a [String],
}

impl TrialContext<'_> {
    /// A layer, with the parts of the model that are run for it.
    fn trial(
        &self,
        layer: &Layer,
        all: &[Layer],
        options: &SensitivityOptions,
        pieces: &mut Pieces<'_>,
    ) -> Result<Trial, QuantizeError> {
        let Subject { model, plan, ranges } = *self.subject;
        let is_on_trial = |other: &&Layer| (other.name == layer.name) != options.all_but_one;
        let on_trial: Vec<&Layer> = all.iter().filter(is_on_trial).collect();
        let only = with_only(plan, &on_trial, ranges);
        let encoded = encode(self.graph, &only, ranges)?;
        let error = encoded.weights.get(&layer.name).and_then(|tensor| tensor.metrics);
        let edits = rewrite::rewrite(self.graph, &only, &encoded);
        let Unchanged { values: unchanged, last } = Unchanged::of(self.graph, self.order, &edits);
        let mut quantized = model.clone();
        quantized.apply(edits)?;

        let is_changed = |id: &ValueId| {
            let value = &self.graph.values[*id];
            let is_made = matches!(value.producer, Producer::Node { .. });
            let is_made = is_made && self.graph.constant(*id).is_none();
            is_made && unchanged.get(value.name).is_none_or(|before| before != value.name)
        };
        let changed: HashSet<ValueId> = (0..self.graph.values.len()).filter(is_changed).collect();
        let cuts = &pieces.cuts;
        let multiplies = layer.nodes.iter().map(|node| cuts.rank(*node)).max().unwrap_or(0);
        let end = if options.all_but_one || !cuts.expect(&changed) {
            cuts.last()
        } else {
            cuts.piece_at(last.max(multiplies))
        };
        let is_output =
            |id: &ValueId| self.observed.iter().any(|own| own == self.graph.values[*id].name);
        let mut makes: Vec<ValueId> = changed
            .iter()
            .copied()
            .filter(|id| cuts.is_made_by(self.graph, end, *id))
            .filter(|id| cuts.hands_on(end, *id) || is_output(id))
            .collect();
        makes.sort_unstable();
        let mut row = LayerRow::of(self.graph, plan, layer, error);
        row.outputs.clear();
        if makes.is_empty() {
            return Ok(Trial { row, path: Vec::new() });
        }
        let handed_on = makes.iter().copied().filter(|id| cuts.hands_on(end, *id)).collect();
        let makes = makes.iter().map(|id| self.graph.values[*id].name.to_owned()).collect();
        let own = self.own_piece(&quantized, &unchanged, makes)?;
        let mut path = vec![Arc::new(own)];
        path.extend(pieces.after(end, handed_on)?);
        Ok(Trial { row, path })
    }

    /// The part of the layer itself, which computes these values of the model.
    fn own_piece(
        &self,
        quantized: &Model,
        unchanged: &HashMap<String, String>,
        makes: Vec<String>,
    ) -> Result<Piece, QuantizeError> {
        let mut cut: Vec<String> = unchanged
            .iter()
            .filter(|(_, before)| self.sizes.contains_key(*before))
            .map(|(now, _)| now.clone())
            .collect();
        cut.sort_unstable();
        let part = extract(quantized, &cut, &makes)?;
        let lent = part.inputs.iter().filter_map(|input| {
            let before = unchanged.get(input)?;
            Some((input.clone(), before.clone()))
        });
        let lent = lent.collect();
        Ok(Piece::own(part, lent, makes))
    }
}
