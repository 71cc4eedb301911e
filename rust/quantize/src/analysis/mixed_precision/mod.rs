//! Chooses a bit width for each layer, so that the model meets a size or an SQNR.

mod greedy;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quantize_rs_onnx::Model;
use serde::Serialize;

use crate::analysis::{SliceSamples, all_of};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::calibrate::{Control, Progress, StagedProgress};
use crate::error::QuantizeErrorKind;
use crate::options::config;
use crate::report::worst_sqnr;
use crate::util::text::size;
use crate::{
    CompareOptions, Config, Format, OutputRow, PreprocessedModel, QuantizeError, Role,
    SensitivityOptions, compare, sensitivity,
};
use greedy::{Step, WidthOption, greedy_steps};

/// The goal and the bit widths. Set one of `target_size` and `min_sqnr`.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedOptions {
    /// The maximum size of the model in bytes; up to 1, a fraction of the size of the float model.
    pub target_size: Option<f64>,
    /// The minimum SQNR of its worst output on the samples, in decibels.
    pub min_sqnr: Option<f64>,
    /// The bit widths to choose from, in addition to float.
    pub bits: Vec<u8>,
}

impl Default for MixedOptions {
    fn default() -> MixedOptions {
        MixedOptions { target_size: None, min_sqnr: None, bits: vec![8, 4, 2] }
    }
}

/// A bit width for each layer of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MixedPrecision {
    /// One row for each layer that can be quantized, in the order of the model.
    pub layers: Vec<LayerWidth>,
    /// The size of the float model in bytes, including external data.
    pub bytes_before: u64,
    /// The size of the model with these widths, in bytes.
    pub bytes_after: u64,
    /// The error of each output; empty without samples.
    pub outputs: Vec<OutputRow>,
    /// The number of samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: Option<String>,
}

/// The bit width of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerWidth {
    /// The name of the weight.
    pub name: String,
    /// Its bit width; `None` for float.
    pub bits: Option<u8>,
    /// Its size in the model in bytes, including scales.
    pub bytes: u64,
    /// The SQNR if only this layer is quantized, in decibels: of the worst output, or without
    /// samples of the weight itself.
    pub sqnr_db: Option<f64>,
}

/// Chooses a bit width for each layer. It starts with float and always takes the step with the
/// least noise for the bytes that it saves, until the size is met, or as long as the SQNR is. The
/// noise of a step is what [`sensitivity`](crate::sensitivity()) measures for the layer alone with
/// this width or, without samples, the error of its weight. Widths with which a layer alone misses
/// the SQNR are left out, since noise adds up. The resulting model is quantized, and its size and,
/// with samples, its SQNR are measured.
///
/// Only weights are quantized. Use the result with [`MixedPrecision::config`], which sets
/// [`Config::layer_bits`] and [`Config::layer_float`].
///
/// # Errors
/// Not exactly one of `target_size` and `min_sqnr`, an SQNR without samples, a bit width that the
/// format of `config` does not support, a size that the fewest bits for all layers do not meet, or
/// an SQNR that no layer alone meets.
pub fn mixed_precision(
    model: &Model,
    config: &Config,
    options: &MixedOptions,
    data: Option<(&dyn Engine, &mut dyn Samples)>,
    control: Control<'_>,
) -> Result<MixedPrecision, QuantizeError> {
    let goal = options.goal(model, config, data.is_some())?;
    let (engine, samples) = match data {
        Some((engine, samples)) => (Some(engine), all_of(samples)?),
        None => (None, Vec::new()),
    };
    let Control { threads, progress } = control;
    // The number of models that are tried is not known in advance.
    let mut counted = |Progress { done, .. }| progress(Progress { done, total: None });
    let stages = StagedProgress::new(Control { threads, progress: &mut counted });
    let mut solver = WidthSolver { model, config, engine, samples, stages };
    let mut layers = solver.rungs(&options.bits)?;
    let steps = match goal {
        Goal::Bytes(most) => solver.steps_for_size(&layers, greedy_steps(&layers), most)?,
        Goal::Sqnr(least) => {
            drop_inaccurate_widths(&mut layers, least)?;
            solver.steps_for_sqnr(&layers, greedy_steps(&layers), least)?
        }
    };
    solver.result(&layers, &steps)
}

/// The goal.
enum Goal {
    Bytes(u64),
    Sqnr(f64),
}

impl MixedOptions {
    fn goal(&self, model: &Model, config: &Config, data: bool) -> Result<Goal, QuantizeError> {
        let refused = |option: &str, what: &str| Err(QuantizeError::option(option, what));
        if config.activations.is_some() {
            return refused("activations", "is set, but bit widths are chosen for weights only");
        }
        let named = !config.layer_bits.is_empty() || !config.layer_types.is_empty();
        if named || !config.layer_float.is_empty() {
            return refused("layer_bits", "is the result of this function: omit it");
        }
        if self.bits.is_empty() {
            return refused("bits", "is empty, expected some of 2, 4, 8 and 16");
        }
        self.bits.iter().try_for_each(|bits| writable(*bits, config.output_format))?;
        match (self.target_size, self.min_sqnr) {
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
            _ => refused("target_size", "or min_sqnr is required, but not both"),
        }
    }
}

/// Rejects bit widths that a format has no type for.
fn writable(bits: u8, format: Format) -> Result<(), QuantizeError> {
    let qtype = config::signed("bits", bits)?;
    let Some(known) = format.row().weights.filter(|known| !known.contains(&qtype)) else {
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
    let (bar, expected) = ("min_sqnr".to_owned(), Some(least));
    let measured = best.map(|(_, found)| found);
    QuantizeError::new(QuantizeErrorKind::BelowCriteria { bar, measured, expected, what })
}

/// The product, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn part(bytes: u64, times: f64) -> u64 {
    (bytes as f64 * times) as u64
}

/// A layer, and the widths that it may get, float first.
struct Layer {
    name: String,
    rungs: Vec<WidthOption>,
}

struct WidthSolver<'a> {
    model: &'a Model,
    config: &'a Config,
    engine: Option<&'a dyn Engine>,
    samples: Vec<Sample>,
    stages: StagedProgress<'a>,
}

impl WidthSolver<'_> {
    /// The size and the SQNR of each layer with each bit width.
    fn rungs(&mut self, bits: &[u8]) -> Result<Vec<Layer>, QuantizeError> {
        let mut layers: Vec<Layer> = Vec::new();
        let mut bits = bits.to_vec();
        bits.sort_unstable_by(|a, b| b.cmp(a));
        bits.dedup();
        for bits in bits {
            let weights = config::signed("bits", bits)?.into();
            let prepared =
                PreprocessedModel::of(self.model, Config { weights, ..self.config.clone() })?;
            let plan = prepared.plan();
            let made = plan.apply_cached(&prepared.model, None, None)?;
            let noise = match self.engine {
                None => BTreeMap::new(),
                Some(engine) => {
                    let (given, options) =
                        (&mut SliceSamples(self.samples.iter()), SensitivityOptions::default());
                    let (model, plan) = (&prepared.model, &plan);
                    let found = self.stages.next(|control| {
                        sensitivity(model, plan, None, engine, given, &options, control)
                    })?;
                    let rows = found.layers.into_iter();
                    rows.map(|row| (row.name, worst_sqnr(&row.outputs))).collect()
                }
            };
            for (row, how) in made.report().quantized() {
                let (Some(float), Some(stored)) = (row.bytes_before, how.bytes) else { continue };
                let own = how.error.map(|error| error.sqnr_db);
                let cost =
                    if self.engine.is_some() { noise.get(&row.name).copied() } else { Some(own) };
                let Some(sqnr_db) = cost.filter(|_| row.role == Role::Weight) else { continue };
                let bytes = stored.elements + stored.scales;
                let rung = WidthOption { bits: Some(bits), bytes, sqnr_db };
                if let Some(layer) = layers.iter_mut().find(|layer| layer.name == row.name) {
                    layer.rungs.push(rung);
                } else {
                    let float = WidthOption { bits: None, bytes: float, sqnr_db: None };
                    layers.push(Layer { name: row.name.clone(), rungs: vec![float, rung] });
                }
            }
        }
        Ok(layers)
    }

    /// As few steps as meet the size.
    fn steps_for_size(
        &mut self,
        layers: &[Layer],
        mut steps: Vec<Step>,
        most: u64,
    ) -> Result<Vec<Step>, QuantizeError> {
        let least = self.made(layers, &steps)?.report().bytes_after;
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
        steps.truncate(enough);
        Ok(steps)
    }

    /// As many steps as meet the SQNR: each step adds noise.
    fn steps_for_sqnr(
        &mut self,
        layers: &[Layer],
        mut steps: Vec<Step>,
        least: f64,
    ) -> Result<Vec<Step>, QuantizeError> {
        let (mut holds, mut above) = (0, steps.len() + 1);
        let mut best = None;
        while above - holds > 1 {
            let count = usize::midpoint(holds, above);
            let made = self.made(layers, &steps[..count])?;
            let found = worst_sqnr(&self.measured(&made)?.0);
            if found.is_some_and(|found| found >= least) {
                holds = count;
            } else {
                (above, best) = (count, found);
            }
        }
        if holds == 0 {
            // The first step met the SQNR when it was measured alone, by a small margin.
            let first = steps.first().and_then(|step| {
                let Layer { name, rungs } = &layers[step.layer];
                Some(LayerBits { name: name.clone(), bits: rungs[step.rung].bits? })
            });
            return Err(unreachable(least, first.zip(best)));
        }
        steps.truncate(holds);
        Ok(steps)
    }

    /// The model after some steps.
    fn made(&self, layers: &[Layer], steps: &[Step]) -> Result<Quantized, QuantizeError> {
        let config = with(self.config, &widths(layers, steps));
        let prepared = PreprocessedModel::of(self.model, config)?;
        prepared.plan().apply_cached(&prepared.model, None, None)
    }

    /// The errors of the outputs, and the engine.
    fn measured(
        &mut self,
        made: &Quantized,
    ) -> Result<(Vec<OutputRow>, Option<String>), QuantizeError> {
        let Some(engine) = self.engine else { return Ok((Vec::new(), None)) };
        let (given, options) = (&mut SliceSamples(self.samples.iter()), CompareOptions::default());
        let (model, made) = (self.model, made.model());
        let found =
            self.stages.next(|control| compare(model, made, engine, given, &options, control))?;
        Ok((found.outputs, Some(found.engine)))
    }

    fn result(
        &mut self,
        layers: &[Layer],
        steps: &[Step],
    ) -> Result<MixedPrecision, QuantizeError> {
        let made = self.made(layers, steps)?;
        let (outputs, engine) = self.measured(&made)?;
        Ok(MixedPrecision {
            layers: widths(layers, steps),
            bytes_before: made.report().bytes_before,
            bytes_after: made.report().bytes_after,
            outputs,
            samples: self.samples.len(),
            engine,
        })
    }
}

/// The widths of the layers after some steps.
fn widths(layers: &[Layer], steps: &[Step]) -> Vec<LayerWidth> {
    let mut at = vec![0; layers.len()];
    for step in steps {
        at[step.layer] = step.rung;
    }
    let rungs = layers.iter().zip(at);
    rungs
        .map(|(layer, at)| {
            let WidthOption { bits, bytes, sqnr_db } = layer.rungs[at];
            LayerWidth { name: layer.name.clone(), bits, bytes, sqnr_db }
        })
        .collect()
}

fn with(config: &Config, layers: &[LayerWidth]) -> Config {
    let mut config = config.clone();
    for layer in layers {
        match layer.bits {
            Some(bits) => drop(config.layer_bits.insert(layer.name.clone(), bits)),
            None => drop(config.layer_float.insert(layer.name.clone())),
        }
    }
    config
}

impl MixedPrecision {
    /// The options with these bit widths.
    #[must_use]
    pub fn config(&self, config: &Config) -> Config {
        with(config, &self.layers)
    }

    /// The SQNR of the worst output, in decibels; `None` without samples.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// The size of the float model divided by that of the result.
    #[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
    pub fn ratio(&self) -> f64 {
        self.bytes_before as f64 / self.bytes_after.max(1) as f64
    }

    /// The result as JSON, with `layer_bits`, `ratio` and `sqnr_db`; non-finite numbers are null.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }

    /// What [`MixedPrecision::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<> {
        // Names and numbers, no maps with odd keys: this cannot fail.
        let mut document = serde_json::to_value(self).unwrap_or_default();
        let width = |layer: &LayerWidth| match layer.bits {
            Some(bits) => serde_json::Value::from(bits),
            None => config::FLOAT32[0].into(),
        };
        let layers = self.layers.iter().map(|layer| (layer.name.clone(), width(layer)));
        document["layer_bits"] = serde_json::Value::Object(layers.collect());
        document["ratio"] = self.ratio().into();
        document["sqnr_db"] = self.sqnr_db().into();
        document
    }
}

impl fmt::Display for MixedPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.layers.iter().map(|layer| layer.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("layer".len());
        writeln!(f, "{:<width$}  {:>7}  {:>10}  {:>8}", "layer", "bits", "size", "alone dB")?;
        for LayerWidth { name, bits, bytes, sqnr_db } in &self.layers {
            let bits = bits.map_or_else(|| "float32".to_owned(), |bits| bits.to_string());
            let alone = sqnr_db.map_or_else(|| "-".to_owned(), |db| format!("{db:.2}"));
            writeln!(f, "{name:<width$}  {bits:>7}  {:>10}  {alone:>8}", size(*bytes))?;
        }
        let (before, after) = (self.bytes_before, self.bytes_after);
        writeln!(f, "{before} -> {after} bytes, {:.2} times smaller", self.ratio())?;
        if let (Some(db), Some(engine)) = (self.sqnr_db(), &self.engine) {
            let plural = if self.samples == 1 { "" } else { "s" };
            writeln!(f, "SQNR {db:.2} dB on {} sample{plural} ({engine})", self.samples)?;
        }
        Ok(())
    }
}
