//! The calibration cache of `TensorRT`: a text file with one scale per value.
//!
//! The first line is `TRT-<version>-EntropyCalibration2` or `TRT-<version>-MinMaxCalibration`. Each
//! other line is `<value>: <scale>`, where the scale is a big-endian float32, `absmax / 127`, as
//! eight hexadecimal digits. `TensorRT` uses it with the *float* model (implicit quantization).

use std::collections::BTreeMap;
use std::fmt::Write;

use quantize_rs_math::{QType, Range};
use quantize_rs_onnx::Model;

use super::Unscalable;
use crate::graph::fingerprint::fingerprint;
use crate::{CalibrationError, Ranges};

/// The default version of `TensorRT`.
pub const VERSION: &str = "8601";

impl Ranges {
    /// Writes the ranges as a calibration cache of `TensorRT`, with the given version in the
    /// header. A value that carries an attention mask has no range there, so that it stays float.
    ///
    /// ```
    /// use quantize_rs::{Model, Ranges};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let model = Model::open(path)?;
    /// let cache = "TRT-8601-EntropyCalibration2\nimage: 3c010204\n"; // 1/127
    /// let ranges = Ranges::from_tensorrt(cache, &model)?;
    /// assert_eq!(ranges.values["image"].max, 1.0);
    /// assert_eq!(ranges.to_tensorrt("8601"), cache);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_tensorrt(&self, version: &str) -> String {
        let algorithm =
            if self.method == "minmax" { "MinMaxCalibration" } else { "EntropyCalibration2" };
        let mut cache = format!("TRT-{version}-{algorithm}\n");
        let masked = |name: &str| self.unscalable(name) == Some(Unscalable::AttentionMask);
        for (name, range) in self.values.iter().filter(|(name, _)| !masked(name)) {
            // Writing to a string cannot fail.
            let _ = writeln!(cache, "{name}: {:08x}", scale(*range).to_bits());
        }
        cache
    }

    /// Parses a calibration cache of `TensorRT` for `model`.
    ///
    /// The ranges are symmetric and have no statistics. They may contain values that are not in the
    /// model.
    ///
    /// # Errors
    /// The text is not a calibration cache. The message contains the line number.
    pub fn from_tensorrt(cache: &str, model: &Model) -> Result<Ranges, CalibrationError> {
        let refused = |line: usize, what: &str| {
            let what = format!("line {line} of the calibration cache {what}");
            CalibrationError::data(what)
        };
        let mut lines = cache.lines().enumerate();
        let header = lines.next().map_or("", |(_, line)| line.trim());
        if !header.starts_with("TRT-") {
            return Err(refused(1, "is not `TRT-<version>-<algorithm>`"));
        }
        let method = if header.ends_with("MinMaxCalibration") { "minmax" } else { "entropy" };
        let mut ranges =
            Ranges::of(fingerprint(model), method.to_owned(), "TensorRT", 0, BTreeMap::new());
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let expected = "is not `<value>: <8 hexadecimal digits>`";
            let (name, digits) =
                line.rsplit_once(':').ok_or_else(|| refused(index + 1, expected))?;
            let bits = u32::from_str_radix(digits.trim(), 16)
                .map_err(|error| refused(index + 1, expected).caused_by(error))?;
            let scale = f32::from_bits(bits);
            if !scale.is_finite() || scale < 0.0 {
                return Err(refused(index + 1, "has a scale that is negative or not finite"));
            }
            let absmax = scale * steps();
            ranges.values.insert(name.to_owned(), Range { min: -absmax, max: absmax });
        }
        Ok(ranges)
    }
}

/// Computes `absmax / 127`.
fn scale(range: Range) -> f32 {
    if range.is_empty() { 0.0 } else { range.absmax() / steps() }
}

/// The largest value of `int8`.
#[allow(clippy::cast_precision_loss)] // 127
fn steps() -> f32 {
    QType::Int8.max() as f32
}
