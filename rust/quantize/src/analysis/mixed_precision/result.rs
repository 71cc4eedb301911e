//! The result: the bit width of each layer.

use std::fmt;

use quantize_rs_math::QType;
use serde::Serialize;

use super::with;
use crate::options::config;
use crate::report::worst_sqnr;
use crate::util::text::size;
use crate::{Accuracy, Config, OutputRow};

/// A bit width for each layer of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MixedPrecision {
    /// One row for each layer that can be quantized, in the order of the model.
    pub layers: Vec<LayerWidth>,
    /// One row for each quantized activation, if those were chosen; the first gain most from 16
    /// bits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activations: Vec<ActivationWidth>,
    /// The size of the float model in bytes, including external data.
    pub bytes_before: u64,
    /// The size of the model with these widths, in bytes.
    pub bytes_after: u64,
    /// The error of each output; empty without samples.
    pub outputs: Vec<OutputRow>,
    /// The scores in the metric of the caller, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// The number of samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: Option<String>,
    /// The bit widths that no layer gets, because the engine does not run a model with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The type of one activation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActivationWidth {
    /// The name of the value.
    pub name: String,
    /// Its type.
    pub qtype: QType,
    /// The SQNR of the worst output of the quantized model if only this activation has 16 bits, in
    /// decibels; `None` if none needs them.
    pub sqnr_db: Option<f64>,
    /// Why it has this type.
    pub why: String,
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
    /// Why it has this bit width.
    pub why: String,
}

impl MixedPrecision {
    /// The options with these bit widths.
    #[must_use]
    pub fn config(&self, config: &Config) -> Config {
        let layers = self.layers.iter().map(|layer| (layer.name.as_str(), layer.bits));
        let mut config = with(config, layers);
        config.activation_types.extend(self.wide(config.activations));
        config
    }

    /// The activations that have another type than the others.
    fn wide(&self, usual: Option<QType>) -> impl Iterator<Item = (String, QType)> {
        let other = move |value: &&ActivationWidth| Some(value.qtype) != usual;
        self.activations.iter().filter(other).map(|value| (value.name.clone(), value.qtype))
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
        let is_wide = |value: &&ActivationWidth| value.qtype.bits() > 8;
        let wide = self.activations.iter().filter(is_wide);
        let wide = wide.map(|value| (value.name.clone(), value.qtype.to_string().into()));
        document["activation_types"] = serde_json::Value::Object(wide.collect());
        document["ratio"] = self.ratio().into();
        document["sqnr_db"] = self.sqnr_db().into();
        document
    }
}

impl fmt::Display for MixedPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.activations.is_empty() {
            self.show_activations(f)?;
            return self.show_outcome(f);
        }
        let longest = self.layers.iter().map(|layer| layer.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("layer".len());
        let head = ["layer", "bits", "size", "alone dB", "why"];
        let [layer, bits, bytes, alone, why] = head;
        writeln!(f, "{layer:<width$}  {bits:>7}  {bytes:>10}  {alone:>8}  {why}")?;
        for LayerWidth { name, bits, bytes, sqnr_db, why } in &self.layers {
            let bits = bits.map_or_else(|| "float32".to_owned(), |bits| bits.to_string());
            let alone = sqnr_db.map_or_else(|| "-".to_owned(), |db| format!("{db:.2}"));
            writeln!(f, "{name:<width$}  {bits:>7}  {:>10}  {alone:>8}  {why}", size(*bytes))?;
        }
        self.show_outcome(f)
    }
}

impl MixedPrecision {
    fn show_activations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.activations.iter().map(|value| value.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("activation".len());
        writeln!(f, "{:<width$}  {:>6}  {:>12}  why", "activation", "type", "16 alone dB")?;
        for ActivationWidth { name, qtype, sqnr_db, why } in &self.activations {
            let alone = sqnr_db.map_or_else(|| "-".to_owned(), |db| format!("{db:.2}"));
            writeln!(f, "{name:<width$}  {:>6}  {alone:>12}  {why}", qtype.to_string())?;
        }
        Ok(())
    }

    fn show_outcome(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.bytes_before, self.bytes_after);
        writeln!(f, "{before} -> {after} bytes, {:.2} times smaller", self.ratio())?;
        if let (Some(db), Some(engine)) = (self.sqnr_db(), &self.engine) {
            let plural = if self.samples == 1 { "" } else { "s" };
            writeln!(f, "SQNR {db:.2} dB on {} sample{plural} ({engine})", self.samples)?;
        }
        if let Some(Accuracy { original, quantized, metric: Some(metric), .. }) = &self.accuracy {
            writeln!(f, "{metric} {original:.6} -> {quantized:.6}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
