//! Ranges and fake quantization of named layers, for callers that run the layers themselves.

use std::collections::BTreeMap;

use quantize_rs_math::stats::MinMax;
use quantize_rs_math::{Params, QSpec, Range, fake_quantize, params};

/// Collects the range of each named layer, batch by batch.
///
/// ```
/// use quantize_rs::{DynamicRangeCalibrator, Granularity, QSpec, QType, Range};
/// let mut calibrator = DynamicRangeCalibrator::default();
/// calibrator.collect("fc1", &[-1.0, 0.5]);
/// calibrator.collect("fc1", &[4.0]);
/// assert_eq!(calibrator.get_range("fc1"), Some(Range { min: -1.0, max: 4.0 }));
/// let spec = QSpec::new(QType::UInt8, false, Granularity::PerTensor);
/// assert_eq!(calibrator.finalize(&spec)["fc1"].zero_point, 51);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DynamicRangeCalibrator {
    layers: BTreeMap<String, (MinMax, usize)>,
}

impl DynamicRangeCalibrator {
    /// Updates the range of a layer with a batch of values. Non-finite values are ignored.
    pub fn collect(&mut self, layer: &str, values: &[f32]) {
        let (stats, batches) = self.layers.entry(layer.to_owned()).or_default();
        stats.observe(values);
        *batches += 1;
    }

    /// The minimum and maximum of a layer; `None` if no values were collected.
    pub fn get_range(&self, layer: &str) -> Option<Range> {
        self.layers.get(layer).map(|(stats, _)| stats.range())
    }

    /// The number of batches that were collected for a layer.
    pub fn num_samples(&self, layer: &str) -> usize {
        self.layers.get(layer).map_or(0, |(_, batches)| *batches)
    }

    /// Computes the scale and zero point of each layer from its range.
    pub fn finalize(&self, spec: &QSpec) -> BTreeMap<String, Params> {
        let of = |(name, (stats, _)): (&String, &(MinMax, usize))| {
            (name.clone(), params(stats.range(), spec))
        };
        self.layers.iter().map(of).collect()
    }

    /// Removes all collected ranges.
    pub fn reset(&mut self) {
        self.layers.clear();
    }
}

/// Simulates quantization of layers during training.
///
/// ```
/// use quantize_rs::{Granularity, QSpec, QType, QuantizationAwareTraining};
/// let mut training = QuantizationAwareTraining::new(true);
/// training.register_layer("fc1", QSpec::new(QType::Int8, true, Granularity::PerTensor));
/// let seen = training.fake_quantize(&[0.5, -1.0], "fc1");
/// assert!((seen[0] - 0.5).abs() <= 0.5 / 127.0);
/// assert_eq!(training.fake_quantize(&[0.3], "unknown"), [0.3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizationAwareTraining {
    simulate: bool,
    layers: BTreeMap<String, QSpec>,
}

impl QuantizationAwareTraining {
    /// Creates a registry without layers. If `simulate` is false, values pass through unchanged.
    pub fn new(simulate: bool) -> QuantizationAwareTraining {
        QuantizationAwareTraining { simulate, layers: BTreeMap::new() }
    }

    /// Registers how a layer will be quantized.
    pub fn register_layer(&mut self, layer: impl Into<String>, spec: QSpec) {
        self.layers.insert(layer.into(), spec);
    }

    /// How a layer will be quantized; `None` if it is not registered.
    pub fn get_config(&self, layer: &str) -> Option<&QSpec> {
        self.layers.get(layer)
    }

    /// The names of the registered layers, sorted.
    pub fn registered_layers(&self) -> Vec<&str> {
        self.layers.keys().map(String::as_str).collect()
    }

    /// Quantizes and dequantizes the values of a layer, with one scale computed from their range.
    pub fn fake_quantize(&self, values: &[f32], layer: &str) -> Vec<f32> {
        match self.layers.get(layer) {
            Some(spec) if self.simulate => {
                let mut stats = MinMax::default();
                stats.observe(values);
                fake_quantize(values, params(stats.range(), spec), spec)
            }
            _ => values.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantize_rs_math::{Granularity, QType};

    fn int8() -> QSpec {
        QSpec::new(QType::Int8, true, Granularity::PerTensor)
    }

    #[test]
    fn only_registered_layers_have_a_config() {
        let mut training = QuantizationAwareTraining::new(true);
        training.register_layer("layer1", int8());
        training.register_layer("layer2", int8());
        assert_eq!(training.registered_layers(), ["layer1", "layer2"]);
        assert_eq!(training.get_config("layer1"), Some(&int8()));
        assert_eq!(training.get_config("layer3"), None);
    }

    #[test]
    fn fake_quantized_values_are_close_to_the_originals() {
        let values: Vec<f32> = (0..101_u8).map(|x| f32::from(x) / 50.0 - 1.0).collect();
        let mut training = QuantizationAwareTraining::new(true);
        training.register_layer("layer1", int8());
        let seen = training.fake_quantize(&values, "layer1");
        assert_eq!(seen.len(), values.len());
        assert!(values.iter().zip(&seen).all(|(x, y)| (x - y).abs() <= 0.5 / 127.0 + 1e-6));
        assert_ne!(seen, values);
        assert_eq!(QuantizationAwareTraining::new(false).fake_quantize(&values, "layer1"), values);
    }

    #[test]
    fn the_range_of_a_layer_covers_all_its_batches() {
        let mut calibrator = DynamicRangeCalibrator::default();
        calibrator.collect("layer1", &[-1.0, 2.0]);
        calibrator.collect("layer1", &[0.0, 4.0]);
        assert_eq!(calibrator.get_range("layer1"), Some(Range { min: -1.0, max: 4.0 }));
        assert_eq!(calibrator.num_samples("layer1"), 2);
        assert_eq!(calibrator.get_range("layer2"), None);
    }

    #[test]
    fn finalize_uses_the_collected_ranges() {
        let mut calibrator = DynamicRangeCalibrator::default();
        calibrator.collect("layer1", &[-1.0, 1.0]);
        calibrator.collect("layer2", &[-2.0, 2.0]);
        let found = calibrator.finalize(&int8());
        assert_eq!(found.len(), 2);
        assert_eq!(found["layer2"].scale, 2.0 * found["layer1"].scale);
        calibrator.reset();
        assert!(calibrator.finalize(&int8()).is_empty());
    }
}
