//! Chooses a bit width for each layer, so that the model meets a size or an SQNR.

mod activations;
mod greedy;
mod result;
mod rungs;

use std::collections::{BTreeSet, HashMap};

use quantize_rs_onnx::Model;

use crate::analysis::{SliceSamples, all_of};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::calibrate::{Control, Progress, StagedProgress};
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::options::config;
use crate::report::worst_sqnr;
use crate::util::text::size;
use crate::{
    Accuracy, CompareOptions, Config, Format, MetricHandle, OutputRow, PreprocessedModel,
    QuantizeError, Report, compare,
};
use activations::ActivationSolver;
use greedy::{Step, WidthOption, greedy_steps, places, raising_steps};
use rungs::Layer;

pub use result::{ActivationWidth, LayerWidth, MixedPrecision};

/// The number of models that meet a size whose outputs are compared.
const MEASURED: usize = 3;

/// The goal and the bit widths. Set one of `target_size`, `min_sqnr` and `max_accuracy_drop`.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedOptions {
    /// The maximum size of the model in bytes; up to 1, a fraction of the size of the float model.
    pub target_size: Option<f64>,
    /// The minimum SQNR of its worst output on the samples, in decibels.
    pub min_sqnr: Option<f64>,
    /// How much worse the result may be in `metric`.
    pub max_accuracy_drop: Option<f64>,
    /// A metric of the outputs. Of the models that meet a size, the best in it is chosen.
    pub metric: Option<MetricHandle>,
    /// The bit widths to choose from, in addition to float, which a layer keeps where that meets
    /// the goal with less noise. They have no effect on a choice of activations.
    pub bits: Vec<u8>,
}

impl Default for MixedOptions {
    fn default() -> MixedOptions {
        MixedOptions {
            target_size: None,
            min_sqnr: None,
            max_accuracy_drop: None,
            metric: None,
            bits: vec![8, 4, 2],
        }
    }
}

/// Chooses a bit width for each layer. It starts with float and always takes the step with the
/// least noise for the bytes that it saves, until the size is met, or as long as the SQNR or the
/// metric is. What a step leaves of the size goes to layers that fit in with more bits, first to
/// those that lose the most noise for the bytes. With samples, the most accurate of the first three
/// models that meet the size is chosen, before or after that. The noise of a step is what
/// [`sensitivity`](crate::sensitivity()) measures for the layer alone with this width or, without
/// samples, the error of its weight. Widths with which a layer alone misses the SQNR are left out,
/// since noise adds up, and so are widths with which the engine does not run the model. The
/// resulting model is quantized, and its size and, with samples, its SQNR are measured.
///
/// Without activations in `config`, only weights are quantized. Use the result with
/// [`MixedPrecision::config`], which sets [`Config::layer_bits`] and [`Config::layer_float`].
///
/// If `config` has activations of 8 bits, it chooses which of them get 16 instead, as few as the
/// SQNR or the metric needs: those come first with which, alone in 16 bits, the outputs of the
/// quantized model are the most accurate. Weights are quantized as `config` says, and the result
/// sets [`Config::activation_types`].
///
/// # Errors
/// Not exactly one goal; an SQNR, a metric or activations without samples; a size for activations;
/// a goal that 16 bits for activations do not meet; a bit width that the format of `config` does
/// not support; a size that the fewest bits for all layers do not meet; an SQNR that no layer
/// alone meets; or a model in which nothing can be quantized, which does not meet the goal.
pub fn mixed_precision(
    model: &Model,
    config: &Config,
    options: &MixedOptions,
    data: Option<(&dyn Engine, &mut dyn Samples)>,
    control: Control<'_>,
) -> Result<MixedPrecision, QuantizeError> {
    while_unchanged(&[model], || {
        let goal = options.goal(model, config, data.is_some())?;
        let (engine, samples) = match data {
            Some((engine, samples)) => (Some(engine), all_of(samples)?),
            None => (None, Vec::new()),
        };
        let Control { threads, progress } = control;
        // The number of models that are tried is not known in advance.
        let mut counted = |now: Progress| progress(Progress { total: None, ..now });
        let stages = StagedProgress::new(Control { threads, progress: &mut counted });
        let metric = options.metric.clone();
        if let (Some(_), Some(engine)) = (config.activations, engine) {
            let (samples, mut stages, metric) = (&samples[..], stages, metric.as_ref());
            let stages = &mut stages;
            return ActivationSolver { model, config, engine, samples, stages, metric }
                .solve(&goal);
        }
        let mut solver = WidthSolver { model, config, engine, samples, stages, metric };
        let (mut layers, notes) = solver.rungs(&options.bits)?;
        let is_met = matches!(goal, Goal::Bytes(most) if model.byte_len() <= most);
        if layers.is_empty() && !is_met {
            solver.refuse_nothing()?;
        }
        let steps = match &goal {
            Goal::Bytes(most) => {
                let all = greedy_steps(&layers);
                let enough = solver.steps_for_size(&layers, &all, *most)?;
                solver.most_accurate(&layers, &all, enough, *most)?
            }
            Goal::Sqnr(least) => {
                drop_inaccurate_widths(&mut layers, *least)?;
                let wanted = |found: &Measured| found.sqnr_db().is_some_and(|db| db >= *least);
                let (steps, missed) = solver.most_steps(&layers, greedy_steps(&layers), &wanted)?;
                if steps.is_empty() {
                    // The first step met the SQNR when it was measured alone, by a small margin.
                    return Err(unreachable(*least, first(&layers).zip(missed.sqnr_db())));
                }
                steps
            }
            Goal::Drop(most) => {
                let wanted = |found: &Measured| found.drop().is_some_and(|drop| drop <= *most);
                let (steps, missed) = solver.most_steps(&layers, greedy_steps(&layers), &wanted)?;
                if steps.is_empty() {
                    return Err(too_much_lost(*most, &missed));
                }
                steps
            }
        };
        Ok(MixedPrecision { notes, ..solver.result(&layers, &steps, &goal)? })
    })
}

/// The goal.
enum Goal {
    Bytes(u64),
    Sqnr(f64),
    Drop(f64),
}

/// What was measured of a model.
#[derive(Default)]
struct Measured {
    outputs: Vec<OutputRow>,
    accuracy: Option<Accuracy>,
    engine: Option<String>,
}

impl Measured {
    fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// How much worse it is than the float model, in the metric of the caller.
    fn drop(&self) -> Option<f64> {
        self.accuracy.as_ref().map(|found| found.drop)
    }
}

impl MixedOptions {
    fn goal(&self, model: &Model, config: &Config, data: bool) -> Result<Goal, QuantizeError> {
        let refused = |option: &str, what: &str| Err(QuantizeError::option(option, what));
        if config.activations.is_some() {
            return self.activations_goal(config, data);
        }
        let named = !config.layer_bits.is_empty() || !config.layer_types.is_empty();
        if named || !config.layer_float.is_empty() {
            return refused("layer_bits", "is the result of this function: omit it");
        }
        if self.bits.is_empty() {
            return refused("bits", "is empty, expected some of 2, 4, 8 and 16");
        }
        self.bits.iter().try_for_each(|bits| writable(*bits, config.output_format))?;
        if self.metric.is_some() && !data {
            return refused("metric", "needs data to compute the outputs on");
        }
        match (self.target_size, self.min_sqnr) {
            (None, None) if self.max_accuracy_drop.is_some() => self.drop(),
            _ if self.max_accuracy_drop.is_some() => {
                refused("max_accuracy_drop", "is a goal of its own: omit target_size and min_sqnr")
            }
            (Some(target), None) if target > 0.0 && target.is_finite() => {
                let whole = model.byte_len();
                Ok(Goal::Bytes(if target <= 1.0 { part(whole, target) } else { part(1, target) }))
            }
            (Some(target), None) => {
                let what =
                    format!("is {target}, expected a number of bytes, or a fraction up to 1");
                refused("target_size", &what)
            }
            (None, Some(least)) if !least.is_finite() => {
                refused("min_sqnr", &format!("is {least}, expected a number of decibels"))
            }
            (None, Some(_)) if !data => refused("min_sqnr", "needs data to compare the outputs on"),
            (None, Some(least)) => Ok(Goal::Sqnr(least)),
            _ => {
                refused("target_size", "or min_sqnr or max_accuracy_drop is required, but not two")
            }
        }
    }

    /// The goal of a choice of activations.
    fn activations_goal(&self, config: &Config, data: bool) -> Result<Goal, QuantizeError> {
        let refused = |option: &str, what: &str| Err(QuantizeError::option(option, what));
        if !data {
            return refused("activations", "need data to find their ranges on");
        }
        if self.target_size.is_some() {
            let what = "has no effect on activations: give min_sqnr, or max_accuracy_drop";
            return refused("target_size", what);
        }
        if !config.activation_types.is_empty() {
            return refused("activation_types", "is the result of this function: omit it");
        }
        match (self.min_sqnr, self.max_accuracy_drop) {
            (Some(least), None) if least.is_finite() => Ok(Goal::Sqnr(least)),
            (Some(least), None) => {
                refused("min_sqnr", &format!("is {least}, expected a number of decibels"))
            }
            (None, Some(_)) => self.drop(),
            _ => refused("min_sqnr", "or max_accuracy_drop is required, but not both"),
        }
    }

    fn drop(&self) -> Result<Goal, QuantizeError> {
        let refused = |what: String| Err(QuantizeError::option("max_accuracy_drop", what));
        match self.max_accuracy_drop {
            Some(most) if !(most >= 0.0 && most.is_finite()) => {
                refused(format!("is {most}, expected a number from 0 on"))
            }
            Some(most) if self.metric.is_some() => Ok(Goal::Drop(most)),
            _ => refused("needs a metric".to_owned()),
        }
    }
}

/// Rejects bit widths that a format has no type for.
fn writable(bits: u8, format: Format) -> Result<(), QuantizeError> {
    let qtype = config::signed("bits", bits)?.qtype();
    let Some(known) = format.row().weights.types().filter(|known| !known.contains(&qtype)) else {
        return Ok(());
    };
    let known: BTreeSet<u32> = known.iter().map(|qtype| qtype.bits()).collect();
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    let known = known.join(", ");
    let what = format!("has {bits}, but output_format {format} supports weights of {known} bits");
    Err(QuantizeError::option("bits", what))
}

/// Leaves out widths with which a layer alone misses the SQNR: the noise of several layers adds up.
fn drop_inaccurate_widths(layers: &mut [Layer], least: f64) -> Result<(), QuantizeError> {
    let best = layers
        .iter()
        .flat_map(|layer| layer.rungs.iter().map(move |rung| (layer, rung)))
        .filter_map(|(layer, rung)| Some((layer.name.clone(), rung.bits?, rung.sqnr_db?)))
        .filter(|(.., found)| !found.is_nan())
        .max_by(|(.., one), (.., other)| one.total_cmp(other));
    for layer in &mut *layers {
        layer.rungs.retain(|rung| rung.sqnr_db.is_none_or(|found| found >= least));
    }
    if layers.iter().any(|layer| layer.rungs.len() > 1) {
        return Ok(());
    }
    Err(unreachable(least, best.map(|(name, bits, found)| (LayerBits { name, bits }, found))))
}

/// A layer with a bit width.
struct LayerBits {
    name: String,
    bits: u8,
}

/// The error if no width meets the SQNR. `best` is the layer and the width with the highest
/// SQNR.
fn unreachable(least: f64, best: Option<(LayerBits, f64)>) -> QuantizeError {
    let found = best.as_ref().map_or_else(String::new, |(LayerBits { name, bits }, found)| {
        format!(": `{name}` alone in {bits} bits leaves {found:.2} dB")
    });
    let what = format!(
        "below the accuracy criterion: min_sqnr is {least} dB, and no layer can be quantized with \
         these bit widths{found}; more bits, or scales for channels or blocks, are more accurate"
    );
    let (criterion, expected) = ("min_sqnr".to_owned(), Some(least));
    let measured = best.map(|(_, found)| found);
    QuantizeError::new(QuantizeErrorKind::BelowCriteria { criterion, measured, expected, what })
}

/// The error if a single layer with the most bits loses too much.
fn too_much_lost(most: f64, found: &Measured) -> QuantizeError {
    let measured = found.drop();
    let metric = found.accuracy.as_ref().and_then(|found| found.metric.as_deref());
    let (metric, lost) = (metric.unwrap_or("the metric"), measured.unwrap_or(f64::NAN));
    let what = format!(
        "below the accuracy criterion: max_accuracy_drop is {most}, and with one layer quantized \
         {metric} is {lost:.5} worse; more bits, or scales for channels or blocks, are more \
         accurate"
    );
    let (criterion, expected) = ("max_accuracy_drop".to_owned(), Some(most));
    QuantizeError::new(QuantizeErrorKind::BelowCriteria { criterion, measured, expected, what })
}

/// The layer and the width of the first step.
fn first(layers: &[Layer]) -> Option<LayerBits> {
    let step = greedy_steps(layers).into_iter().next()?;
    let Layer { name, rungs, .. } = &layers[step.layer];
    Some(LayerBits { name: name.clone(), bits: rungs[step.rung].bits? })
}

/// The product, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn part(bytes: u64, times: f64) -> u64 {
    (bytes as f64 * times) as u64
}

struct WidthSolver<'a> {
    model: &'a Model,
    config: &'a Config,
    engine: Option<&'a dyn Engine>,
    samples: Vec<Sample>,
    stages: StagedProgress<'a>,
    metric: Option<MetricHandle>,
}

impl WidthSolver<'_> {
    /// An error with the reasons if no layer can be quantized.
    fn refuse_nothing(&self) -> Result<(), QuantizeError> {
        PreprocessedModel::of(self.model, self.config.clone())?.plan().refuse_nothing()
    }

    /// The least number of steps that meets the size.
    fn steps_for_size(
        &mut self,
        layers: &[Layer],
        steps: &[Step],
        most: u64,
    ) -> Result<usize, QuantizeError> {
        let least = self.made(layers, steps)?.report().bytes_after;
        if least > most {
            let what = format!(
                "is {most} bytes, but the model takes {least} with the fewest bits for all \
                 layers: allow fewer bits, or use fewer scales"
            );
            return Err(QuantizeError::option("target_size", what));
        }
        let (mut below, mut enough) = (0, steps.len());
        while below < enough {
            let count = usize::midpoint(below, enough);
            if self.made(layers, &steps[..count])?.report().bytes_after <= most {
                enough = count;
            } else {
                below = count + 1;
            }
        }
        Ok(enough)
    }

    /// The first steps, `enough` of them or a few more, and steps to more bits that still meet the
    /// size: noise of one layer may cancel out that of another, so a smaller model may be more
    /// accurate.
    fn most_accurate(
        &mut self,
        layers: &[Layer],
        steps: &[Step],
        enough: usize,
        most: u64,
    ) -> Result<Vec<Step>, QuantizeError> {
        if self.engine.is_none() {
            return self.filled(layers, &steps[..enough], most);
        }
        let (mut best, mut least) = (Vec::new(), (f64::NEG_INFINITY, f64::NEG_INFINITY));
        for count in (enough..=steps.len()).take(MEASURED) {
            let lowered = steps[..count].to_vec();
            let filled = self.filled(layers, &lowered, most)?;
            let filled = (filled != lowered).then_some(filled);
            for tried in std::iter::once(lowered).chain(filled) {
                let made = self.made(layers, &tried)?;
                // Equal outputs have no SQNR.
                let found = self.measured(&made)?;
                let sqnr = found.sqnr_db().unwrap_or(f64::INFINITY);
                let found = (found.drop().map_or(0.0, |drop| -drop), sqnr);
                if best.is_empty() || found > least {
                    (best, least) = (tried, found);
                }
            }
        }
        Ok(best)
    }

    /// The steps, and steps to more bits as long as the model meets the size.
    fn filled(
        &self,
        layers: &[Layer],
        steps: &[Step],
        most: u64,
    ) -> Result<Vec<Step>, QuantizeError> {
        let mut filled = steps.to_vec();
        let mut room = most.saturating_sub(self.made(layers, &filled)?.report().bytes_after);
        loop {
            let more = raising_steps(layers, &filled, room);
            if more.is_empty() {
                return Ok(filled);
            }
            let all = [&filled[..], &more].concat();
            let bytes = self.made(layers, &all)?.report().bytes_after;
            if let Some(left) = most.checked_sub(bytes) {
                (filled, room) = (all, left);
            } else {
                // Nodes and names take bytes, too.
                let added = stored(layers, &all).saturating_sub(stored(layers, &filled));
                room = added.saturating_sub(bytes - most);
            }
        }
    }

    /// As many steps as are wanted, for each step adds noise; and what was measured of the model
    /// with the fewest steps that is not.
    fn most_steps(
        &mut self,
        layers: &[Layer],
        mut steps: Vec<Step>,
        is_wanted: &dyn Fn(&Measured) -> bool,
    ) -> Result<(Vec<Step>, Measured), QuantizeError> {
        let (mut holds, mut above) = (0, steps.len() + 1);
        let mut missed = Measured::default();
        while above - holds > 1 {
            let count = usize::midpoint(holds, above);
            let made = self.made(layers, &steps[..count])?;
            let found = self.measured(&made)?;
            if is_wanted(&found) {
                holds = count;
            } else {
                (above, missed) = (count, found);
            }
        }
        steps.truncate(holds);
        Ok((steps, missed))
    }

    /// The model after some steps.
    fn made(&self, layers: &[Layer], steps: &[Step]) -> Result<Quantized, QuantizeError> {
        let chosen = chosen(layers, steps);
        let widths = chosen
            .iter()
            .flat_map(|(layer, width)| layer.weights().map(|name| (name.as_str(), width.bits)));
        let config = with(self.config, widths);
        let prepared = PreprocessedModel::of(self.model, config)?;
        prepared.plan().apply_cached(&prepared.model, None, None)
    }

    fn measured(&mut self, made: &Quantized) -> Result<Measured, QuantizeError> {
        let Some(engine) = self.engine else { return Ok(Measured::default()) };
        let given = &mut SliceSamples(self.samples.iter());
        let options = CompareOptions { metric: self.metric.clone(), ..CompareOptions::default() };
        let (model, made) = (self.model, made.model());
        let found =
            self.stages.next(|control| compare(model, made, engine, given, &options, control))?;
        let (outputs, accuracy, engine) = (found.outputs, found.accuracy, Some(found.engine));
        Ok(Measured { outputs, accuracy, engine })
    }

    fn result(
        &mut self,
        layers: &[Layer],
        steps: &[Step],
        goal: &Goal,
    ) -> Result<MixedPrecision, QuantizeError> {
        let made = self.made(layers, steps)?;
        let Measured { outputs, accuracy, engine } = self.measured(&made)?;
        Ok(MixedPrecision {
            layers: widths(layers, steps, goal, made.report()),
            activations: Vec::new(),
            bytes_before: made.report().bytes_before,
            bytes_after: made.report().bytes_after,
            outputs,
            accuracy,
            samples: self.samples.len(),
            engine,
            notes: Vec::new(),
        })
    }
}

/// Each layer with its width after some steps.
fn chosen<'a>(layers: &'a [Layer], steps: &[Step]) -> Vec<(&'a Layer, WidthOption)> {
    let at = places(layers, steps);
    layers.iter().zip(at).map(|(layer, at)| (layer, layer.rungs[at])).collect()
}

/// The bytes of the layers after some steps.
fn stored(layers: &[Layer], steps: &[Step]) -> u64 {
    chosen(layers, steps).iter().map(|(_, width)| width.bytes).sum()
}

/// The rows of the layers after some steps, which made the model of `report`.
fn widths(layers: &[Layer], steps: &[Step], goal: &Goal, report: &Report) -> Vec<LayerWidth> {
    let sizes: HashMap<&str, u64> = report
        .values
        .iter()
        .filter_map(|row| {
            let stored = row.quantized.as_ref().and_then(|how| how.bytes);
            let bytes = stored.map(|stored| stored.elements + stored.scales);
            Some((row.name.as_str(), bytes.or(row.bytes_before)?))
        })
        .collect();
    let rows = |(layer, width): (&Layer, WidthOption)| {
        let WidthOption { bits, bytes, sqnr_db } = width;
        let why = why(layer, width, goal);
        let row = |name: &String| {
            let bytes = sizes.get(name.as_str()).copied().unwrap_or(bytes);
            LayerWidth { name: name.clone(), bits, bytes, sqnr_db, why: why.clone() }
        };
        layer.weights().map(row).collect::<Vec<_>>()
    };
    chosen(layers, steps).into_iter().flat_map(rows).collect()
}

/// Why a layer has this width: float is a choice, too.
fn why(layer: &Layer, width: WidthOption, goal: &Goal) -> String {
    let smaller = layer.rungs.iter().any(|rung| rung.bits.is_some() && rung.bytes < width.bytes);
    match (width.bits, goal) {
        (Some(_), Goal::Bytes(_)) => "the least noise for the bytes that it saves".to_owned(),
        (Some(_), Goal::Sqnr(least)) => format!("saves bytes, and {least} dB are left"),
        (Some(_), Goal::Drop(most)) => format!("saves bytes, and no more than {most} is lost"),
        (None, Goal::Sqnr(least)) if layer.rungs.len() == 1 => {
            format!("stays float: none of the bit widths leaves {least} dB for this layer alone")
        }
        (None, _) if !smaller => "stays float: quantized it is not smaller".to_owned(),
        (None, Goal::Bytes(most)) => {
            format!("stays float: {} are met without it", size(*most))
        }
        (None, Goal::Sqnr(least)) => format!("stays float: less than {least} dB would be left"),
        (None, Goal::Drop(most)) => format!("stays float: more than {most} would be lost"),
    }
}

fn with<'a>(config: &Config, layers: impl Iterator<Item = (&'a str, Option<u8>)>) -> Config {
    let mut config = config.clone();
    for (name, bits) in layers {
        match bits {
            Some(bits) => drop(config.layer_bits.insert(name.to_owned(), bits)),
            None => drop(config.layer_float.insert(name.to_owned())),
        }
    }
    config
}
