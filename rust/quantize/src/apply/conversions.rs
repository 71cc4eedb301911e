//! What becomes of a model after it was written in QDQ form.

use std::collections::BTreeMap;

use quantize_rs_math::QType;
use quantize_rs_onnx::Model;

use super::Quantized;
use crate::graph::all_names;
use crate::options::{HalfType, KvCacheType};
use crate::rewrite::{self, QOperators};
use crate::transform::half_precision::{self, HalfChanges, HalfSettings};
use crate::{Config, Format, QuantizeError, Ranges, Target};

/// The warning about operators on integers with signed activations.
const SLOW_INT8: &str = "activations are int8: on x86, ONNX Runtime runs these operators several \
    times slower than with uint8, and does not convert them as it does with output_format=qdq; \
    use activations=uint8";

impl Quantized {
    /// Converts the model that was written in QDQ form, as the options say.
    ///
    /// `original` is the float model.
    pub(super) fn convert(
        &mut self,
        ranges: Option<&Ranges>,
        original: &Model,
    ) -> Result<(), QuantizeError> {
        let Config { dedicated_qdq_pairs, output_format, kv_cache, float_type, .. } =
            self.report.config;
        self.model = rewrite::with_bias_rows(&self.model)?;
        if dedicated_qdq_pairs {
            self.model = rewrite::with_dedicated_pairs(&self.model)?;
        }
        if output_format == Format::QOperator {
            self.write_qoperators()?;
        }
        if let Some(kind) = kv_cache {
            self.quantize_cache(kind, ranges)?;
        }
        if let Some(half) = float_type {
            let found = ranges.map(|ranges| &*ranges.magnitudes);
            let found = found.filter(|found| !found.is_empty());
            let (model, notes) = narrowed(&self.model, half, found)?;
            self.report.notes.extend(notes);
            self.model = model;
        }
        if self.report.config.onnxruntime_names {
            let names = all_names(original.graph());
            self.model = rewrite::with_onnxruntime_names(&names, &self.model)?;
        }
        self.report.bytes_after = self.model.byte_len();
        Ok(())
    }

    /// Quantizes the caches of keys and values.
    fn quantize_cache(
        &mut self,
        kind: KvCacheType,
        ranges: Option<&Ranges>,
    ) -> Result<(), QuantizeError> {
        let Some(ranges) = ranges.filter(|ranges| !ranges.kv_cache.is_empty()) else {
            let what = "needs the largest keys and values, which calibration finds: give \
                        calibration_data, with an engine that runs GroupQueryAttention \
                        (onnxruntime)";
            return Err(QuantizeError::option("kv_cache", what));
        };
        let largest = &ranges.kv_cache;
        let (model, count, left) = rewrite::with_quantized_cache(&self.model, kind, largest)?;
        if count == 0 {
            let what = format!(
                "is {kind}, but the heads have an odd number of channels, or the ranges are of \
                 other caches"
            );
            return Err(QuantizeError::option("kv_cache", what));
        }
        self.report
            .notes
            .push(format!("the caches of {count} GroupQueryAttention nodes are {kind}"));
        if left > 0 {
            self.report.warnings.push(format!(
                "the caches of {left} GroupQueryAttention nodes stay float: their heads have an \
                 odd number of channels, or the ranges do not have them"
            ));
        }
        self.model = model;
        Ok(())
    }

    /// Writes nodes on quantized values as operators on integers, and adds to the notes what stays
    /// between `QuantizeLinear` and `DequantizeLinear`.
    fn write_qoperators(&mut self) -> Result<(), QuantizeError> {
        let microsoft = self.report.config.target != Some(Target::Generic);
        let (model, found) = rewrite::as_qoperators(&self.model, microsoft)?;
        let counted = |counts: &BTreeMap<String, usize>| {
            let each = counts.iter().map(|(name, count)| format!("{name} {count}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let QOperators { written, left } = &found;
        let total: usize = written.values().sum();
        match total {
            0 => self.report.warnings.push(
                "no node could be written as an operator on integers; the file is as with \
                 output_format=qdq"
                    .to_owned(),
            ),
            _ => self
                .report
                .notes
                .push(format!("{total} operators on integers: {}", counted(written))),
        }
        if !left.is_empty() {
            let others: usize = left.values().sum();
            self.report.notes.push(format!(
                "{others} other nodes compute on dequantized values, as with output_format=qdq: {}",
                counted(left)
            ));
        }
        let (activations, target) = (self.report.config.activations, self.report.config.target);
        let on_x86 = matches!(target, None | Some(Target::X86 | Target::X86Avx2));
        if activations == Some(QType::Int8) && on_x86 && total > 0 {
            self.report.warnings.push(SLOW_INT8.to_owned());
        }
        self.model = model;
        Ok(())
    }
}

/// Converts what stays float to 16 bits, and returns notes on what does not.
fn narrowed(
    model: &Model,
    half: HalfType,
    magnitudes: Option<&BTreeMap<String, f32>>,
) -> Result<(Model, Vec<String>), QuantizeError> {
    let (float, clipped) = half_precision::prepared(model, half)?;
    let settings =
        HalfSettings { half, keep_io: true, simulated: false, magnitudes, excluded: &|_| None };
    let (model, changes) = half_precision::narrowed(&float, &settings)?;
    let HalfChanges { converted, kept, casts } = changes;
    let mut notes = vec![format!(
        "{converted} nodes compute in {half}, {} stay float32, and {casts} casts were added",
        kept.len()
    )];
    for (why, count, names) in half_precision::kept_by_reason(&kept) {
        let more = if count > names.len() { ", …" } else { "" };
        notes.push(format!("float32: {}{more}: {why}", names.join(", ")));
    }
    notes.extend(clipped);
    Ok((model, notes))
}
