//! Chooses a bit width for each layer, so that the model meets a size or an SQNR.

mod activations;
mod frontier;
mod goal;
mod result;
mod rungs;

use std::collections::HashMap;

use quantize_rs_onnx::Model;

use crate::analysis::compare::compare_outputs;
use crate::analysis::outputs::needs_float_output;
use crate::analysis::{SliceSamples, all_of};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::calibrate::{Control, Progress, StagedProgress};
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::report::worst_sqnr;
use crate::util::text::size;
use crate::{
    Accuracy, CompareOptions, Config, MetricHandle, OutputRow, PreprocessedModel, QuantizeError,
    Report,
};
use activations::ActivationSolver;
use frontier::{Choice, WidthOption, frontier};
use goal::Goal;
use rungs::Layer;

pub use result::{ActivationWidth, LayerWidth, MixedPrecision};

/// The choices whose outputs are compared, of those that meet a size: how far they come after the
/// largest.
const MEASURED: [usize; 6] = [0, 1, 2, 4, 8, 16];

/// The search for the smallest model that meets a criterion ends where two differ by less than this
/// part of the float weights.
const RESOLUTION: u64 = 1024;

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

/// Chooses a bit width for each layer. For a size, it is the choice with the least noise that fits,
/// where the noise of all layers adds up; with samples, it is the most accurate of six such
/// choices, each a little smaller than the last, or of up to six in which one layer has more bits
/// than in that one. For an SQNR or a metric, it is the smallest choice that meets it, of those
/// with the least noise for their size. The noise of a layer is what
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
        if matches!(goal, Goal::Sqnr(_)) {
            needs_float_output(model)?;
        }
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
        if let Goal::Sqnr(least) = goal {
            drop_inaccurate_widths(&mut layers, least)?;
        }
        let choices = frontier(&layers);
        let choice = match &goal {
            Goal::Bytes(most) => solver.of_size(&layers, &choices, *most)?,
            Goal::Sqnr(least) => {
                let wanted = |found: &Measured| found.sqnr_db().is_some_and(|db| db >= *least);
                let (found, missed) = solver.smallest(&layers, &choices, &wanted)?;
                // A width met the SQNR when the layer was measured alone, by a small margin.
                found.ok_or_else(|| {
                    unreachable(*least, first(&layers, &choices).zip(missed.sqnr_db()))
                })?
            }
            Goal::Drop(most) => {
                let wanted = |found: &Measured| found.drop().is_some_and(|drop| drop <= *most);
                let (found, missed) = solver.smallest(&layers, &choices, &wanted)?;
                found.ok_or_else(|| too_much_lost(*most, &missed))?
            }
        };
        Ok(MixedPrecision { notes, ..solver.result(&layers, &choice, &goal)? })
    })
}

/// What was measured of a model.
#[derive(Default)]
struct Measured {
    outputs: Vec<OutputRow>,
    accuracy: Option<Accuracy>,
    engine: Option<String>,
}

/// How accurate a model is: less lost in the metric, then a higher SQNR.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Accurate(f64, f64);

impl Accurate {
    const LEAST: Accurate = Accurate(f64::NEG_INFINITY, f64::NEG_INFINITY);

    fn of(found: &Measured) -> Accurate {
        // Outputs that are all 0 have no SQNR.
        let sqnr = found.sqnr_db().unwrap_or(f64::INFINITY);
        Accurate(found.drop().map_or(0.0, |drop| -drop), sqnr)
    }
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

/// A layer with a bit width in the most accurate choice that has one.
fn first(layers: &[Layer], choices: &[Choice]) -> Option<LayerBits> {
    let mut widths = chosen(layers, choices.get(1)?).into_iter();
    widths.find_map(|(Layer { name, .. }, width)| {
        Some(LayerBits { name: name.clone(), bits: width.bits? })
    })
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

    /// The most accurate of the largest choices that meet the size: noise of one layer may cancel
    /// out that of another, so a smaller model may be more accurate.
    fn of_size(
        &mut self,
        layers: &[Layer],
        choices: &[Choice],
        most: u64,
    ) -> Result<Choice, QuantizeError> {
        let largest = self.largest(layers, choices, most)?;
        if self.engine.is_none() {
            return Ok(choices[largest].clone());
        }
        let near = MEASURED.map(|after| largest + after).into_iter();
        let near = near.filter_map(|at| choices.get(at)).cloned().collect();
        let (mut best, mut found) = (choices[largest].clone(), Accurate::LEAST);
        self.try_all(layers, near, most, (&mut best, &mut found))?;
        // A smaller choice may leave room.
        let room = most.saturating_sub(self.made(layers, &best)?.report().bytes_after);
        let wider = wider(layers, &best, room);
        self.try_all(layers, wider, most, (&mut best, &mut found))?;
        Ok(best)
    }

    /// Replaces the best choice, and how accurate it is, by the best of these that meet the size.
    fn try_all(
        &mut self,
        layers: &[Layer],
        tried: Vec<Choice>,
        most: u64,
        (best, found): (&mut Choice, &mut Accurate),
    ) -> Result<(), QuantizeError> {
        for choice in tried.into_iter().take(MEASURED.len()) {
            let made = self.made(layers, &choice)?;
            if made.report().bytes_after > most {
                continue;
            }
            let accurate = Accurate::of(&self.measured(&made)?);
            if accurate > *found {
                (*best, *found) = (choice, accurate);
            }
        }
        Ok(())
    }

    /// The position of the first choice whose model meets the size.
    fn largest(
        &self,
        layers: &[Layer],
        choices: &[Choice],
        most: u64,
    ) -> Result<usize, QuantizeError> {
        let bytes =
            |at: usize| self.made(layers, &choices[at]).map(|made| made.report().bytes_after);
        let mut found = choices.len() - 1;
        let mut taken = bytes(found)?;
        if taken > most {
            let what = format!(
                "is {most} bytes, but the model takes {taken} with the fewest bits for all \
                 layers: allow fewer bits, or use fewer scales"
            );
            return Err(QuantizeError::option("target_size", what));
        }
        let of_weights = |bytes: u64| choices.partition_point(|choice| choice.bytes > bytes);
        let mut tried = of_weights(choices[found].bytes + (most - taken));
        while tried < found {
            let needed = bytes(tried)?;
            // Nodes and names take bytes, too, and as many as layers are quantized.
            if needed <= most {
                (found, taken) = (tried, needed);
                tried = of_weights(choices[found].bytes + (most - taken));
            } else {
                let smaller = choices[tried].bytes.saturating_sub(needed - most);
                tried = of_weights(smaller).max(tried + 1);
            }
        }
        Ok(found)
    }

    /// The smallest choice that is wanted, for smaller ones have more noise, and what was measured
    /// of the next one; `None` if all layers have to stay float.
    fn smallest(
        &mut self,
        layers: &[Layer],
        choices: &[Choice],
        is_wanted: &dyn Fn(&Measured) -> bool,
    ) -> Result<(Option<Choice>, Measured), QuantizeError> {
        let resolution = choices[0].bytes / RESOLUTION;
        let (mut holds, mut above) = (0, choices.len());
        let mut missed = Measured::default();
        while above - holds > 1 {
            let next = choices.get(above).map_or(0, |choice| choice.bytes);
            if holds > 0 && choices[holds].bytes - next < resolution {
                break;
            }
            let middle = usize::midpoint(holds, above);
            let made = self.made(layers, &choices[middle])?;
            let found = self.measured(&made)?;
            if is_wanted(&found) {
                holds = middle;
            } else {
                (above, missed) = (middle, found);
            }
        }
        let found = &choices[holds];
        let is_float = chosen(layers, found).iter().all(|(_, width)| width.bits.is_none());
        Ok(((!is_float).then(|| found.clone()), missed))
    }

    /// The model with these widths.
    fn made(&self, layers: &[Layer], choice: &Choice) -> Result<Quantized, QuantizeError> {
        let chosen = chosen(layers, choice);
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
        let found = self
            .stages
            .next(|control| compare_outputs(model, made, engine, given, &options, control))?;
        let (outputs, accuracy, engine) = (found.outputs, found.accuracy, Some(found.engine));
        Ok(Measured { outputs, accuracy, engine })
    }

    fn result(
        &mut self,
        layers: &[Layer],
        choice: &Choice,
        goal: &Goal,
    ) -> Result<MixedPrecision, QuantizeError> {
        let made = self.made(layers, choice)?;
        let Measured { outputs, accuracy, engine } = self.measured(&made)?;
        Ok(MixedPrecision {
            layers: widths(layers, choice, goal, made.report()),
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

/// The choices in which one layer has more bits and the weights take at most `room` bytes more,
/// those first that take away the most noise.
fn wider(layers: &[Layer], choice: &Choice, room: u64) -> Vec<Choice> {
    let mut found: Vec<(f64, Choice)> = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let now = layer.rungs[choice.widths[at]];
        for (width, rung) in layer.rungs.iter().enumerate() {
            let (gain, more) = (now.noise() - rung.noise(), rung.bytes.saturating_sub(now.bytes));
            if gain > 0.0 && more <= room {
                let mut other = choice.clone();
                (other.bytes, other.widths[at]) = (choice.bytes - now.bytes + rung.bytes, width);
                found.push((gain, other));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, choice)| choice).collect()
}

/// Each layer with its width.
fn chosen<'a>(layers: &'a [Layer], choice: &Choice) -> Vec<(&'a Layer, WidthOption)> {
    layers.iter().zip(&choice.widths).map(|(layer, at)| (layer, layer.rungs[*at])).collect()
}

/// The rows of the layers with their widths, which made the model of `report`.
fn widths(layers: &[Layer], choice: &Choice, goal: &Goal, report: &Report) -> Vec<LayerWidth> {
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
    chosen(layers, choice).into_iter().flat_map(rows).collect()
}

/// Why a layer has this width: float is a choice, too.
fn why(layer: &Layer, width: WidthOption, goal: &Goal) -> String {
    let smaller = layer.rungs.iter().any(|rung| rung.bits.is_some() && rung.bytes < width.bytes);
    match (width.bits, goal) {
        (Some(_), Goal::Bytes(_)) => {
            "among the widths with the least noise for the size".to_owned()
        }
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
