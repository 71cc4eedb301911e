//! The Rust API of version 0.10 and earlier, implemented with the current API.

use std::path::Path;

use quantize_rs_math::{
    Granularity, Layout, Metrics, Params, QSpec, QType, dequantize, pack, params,
    quantize_measured, ranges_checked,
};
use quantize_rs_onnx::{Edit, Model, Tensor};

use crate::encode::{self, Encoded, EncodedTensor};
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::options::WeightType;
use crate::{Config, ModelInfo, Plan, PreprocessedModel, QuantizeError, rewrite};

/// A model whose weights you can extract, quantize one at a time, and store.
#[derive(Clone, Debug)]
pub struct OnnxModel(Model);

/// A float weight of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightTensor {
    /// The name of the weight.
    pub name: String,
    /// The elements, in C order.
    pub data: Vec<f32>,
    /// The shape.
    pub shape: Vec<usize>,
    /// The axis of the output channels, if there is one.
    pub axis: Option<usize>,
}

/// The configuration of a [`Quantizer`]. The default is int8, per tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantConfig {
    /// The number of bits: 2, 4 or 8.
    pub bits: u8,
    /// Whether each output channel has its own scale.
    pub per_channel: bool,
    /// Whether the zero point is fixed at 0.
    pub symmetric: bool,
}

impl Default for QuantConfig {
    fn default() -> QuantConfig {
        QuantConfig { bits: 8, per_channel: false, symmetric: false }
    }
}

impl QuantConfig {
    /// Sets the number of bits.
    #[must_use]
    pub fn with_bits(self, bits: u8) -> QuantConfig {
        QuantConfig { bits, ..self }
    }

    /// Sets whether each output channel has its own scale.
    #[must_use]
    pub fn with_per_channel(self, per_channel: bool) -> QuantConfig {
        QuantConfig { per_channel, ..self }
    }

    /// Sets whether the zero point is fixed at 0.
    #[must_use]
    pub fn with_symmetric(self, symmetric: bool) -> QuantConfig {
        QuantConfig { symmetric, ..self }
    }
}

/// Quantizes one tensor at a time.
#[derive(Clone, Debug)]
pub struct Quantizer {
    config: QuantConfig,
}

/// A quantized tensor.
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    bytes: Vec<u8>,
    params: Vec<Params>,
    layout: Layout,
    spec: QSpec,
    bits: u8,
    metrics: Metrics,
}

/// A quantized weight, to be stored in a model.
#[derive(Clone, Debug, PartialEq)]
pub struct QdqWeightInput {
    /// The name of the float weight that it replaces.
    pub original_name: String,
    /// The integers, one per element.
    pub quantized_values: Vec<i8>,
    /// The scales: a single one, or one per index along `axis`.
    pub scales: Vec<f32>,
    /// The zero points, one per scale.
    pub zero_points: Vec<i8>,
    /// The number of bits: 4 or 8.
    pub bits: u8,
    /// The axis of the scales; `None` for a single scale.
    pub axis: Option<usize>,
}

impl OnnxModel {
    /// Loads a model file.
    ///
    /// # Errors
    /// The same as [`Model::open`].
    pub fn load(path: impl AsRef<Path>) -> Result<OnnxModel, QuantizeError> {
        Ok(OnnxModel(Model::open(path)?))
    }

    /// A summary of the model.
    pub fn info(&self) -> ModelInfo {
        ModelInfo::of(&self.0)
    }

    /// Copies of the weights that can be quantized.
    ///
    /// # Errors
    /// The data of a weight is missing or too short.
    pub fn extract_weights(&self) -> Result<Vec<WeightTensor>, QuantizeError> {
        let prepared = self.prepared(Config { per_channel: Some(true), ..Config::default() })?;
        let (graph, plan) = (Graph::of(&prepared.model)?, prepared.plan());
        plan.quantized()
            .filter_map(|(value, how)| {
                let proto = graph.constant(graph.value(&value.name)?)?;
                let axis = match how.spec.granularity {
                    Granularity::PerAxis { axis } => Some(axis),
                    _ => None,
                };
                Some(prepared.model.tensor(proto).map_err(QuantizeError::from).map(|tensor| {
                    WeightTensor {
                        name: value.name.clone(),
                        data: to_f32(&tensor).unwrap_or_default(),
                        shape: tensor.shape,
                        axis,
                    }
                }))
            })
            .collect()
    }

    /// Saves the model with these weights quantized.
    ///
    /// # Errors
    /// A name does not refer to a weight of the model, numbers do not fit its shape, or the file
    /// cannot be written.
    pub fn save_quantized(
        &self,
        weights: &[QdqWeightInput],
        path: impl AsRef<Path>,
    ) -> Result<(), QuantizeError> {
        let mut config = Config { symmetric: Some(true), ..Config::default() };
        config.layer_bits =
            weights.iter().map(|weight| (weight.original_name.clone(), weight.bits)).collect();
        config.per_channel = Some(weights.iter().any(|weight| weight.axis.is_some()));
        let prepared = self.prepared(config)?;
        let (graph, mut plan) = (Graph::of(&prepared.model)?, prepared.plan());
        let mut encoded = Encoded::default();
        for weight in weights {
            let tensor = plan.impose(weight, &graph)?;
            encoded.weights.insert(weight.original_name.clone(), tensor);
        }
        let mut model = prepared.model.clone();
        let edits: Vec<Edit> = rewrite::rewrite(&graph, &plan, &encoded);
        model.apply(edits)?;
        model.save(path)?;
        Ok(())
    }

    /// The model in the opset that the result needs, with the original names of its weights.
    fn prepared(&self, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        PreprocessedModel::of(&self.0, Config { passes: Some(Vec::new()), ..config })
    }
}

impl Plan {
    /// Replaces the plan of a weight with the quantization that the caller already performed.
    fn impose(
        &mut self,
        weight: &QdqWeightInput,
        graph: &Graph<'_>,
    ) -> Result<EncodedTensor, QuantizeError> {
        let name = &weight.original_name;
        let wrong = |what: String| {
            let tensor = name.clone();
            QuantizeError::new(QuantizeErrorKind::InvalidTensor { tensor, what })
        };
        let shape: Option<Vec<usize>> =
            graph.value(name).and_then(|id| graph.shape(id)?.into_iter().collect());
        let shape = shape.ok_or_else(|| wrong("is not a constant of the model".to_owned()))?;
        let how = self
            .quantized_mut(name)
            .ok_or_else(|| wrong("is not a weight of the model".to_owned()))?;
        how.matrix = None;
        how.spec.granularity = match weight.axis {
            Some(axis) => Granularity::PerAxis { axis },
            None => Granularity::PerTensor,
        };
        let layout =
            Layout::of(&shape, how.spec.granularity).map_err(|error| wrong(error.to_string()))?;
        let (values, groups) = (weight.quantized_values.len(), layout.groups());
        if values != layout.elements()
            || weight.scales.len() != groups
            || weight.zero_points.len() != groups
        {
            return Err(wrong(format!(
                "has {values} values, {} scales and {} zero points for shape {shape:?}, \
                 expected {}, {groups} and {groups}",
                weight.scales.len(),
                weight.zero_points.len(),
                layout.elements(),
            )));
        }
        let integers = |shape: Vec<usize>, values: &[i8]| {
            let wide: Vec<i32> = values.iter().map(|value| i32::from(*value)).collect();
            encode::integers(how.stored, shape, wide)
        };
        Ok(EncodedTensor {
            stored_scale: None,
            quantized: integers(shape, &weight.quantized_values),
            scale: Tensor::from_f32(layout.scale_shape(), &weight.scales),
            zero_point: integers(layout.scale_shape(), &weight.zero_points),
            metrics: None,
            rounded: None,
        })
    }
}

impl Quantizer {
    /// Creates a quantizer with this configuration.
    pub fn new(config: QuantConfig) -> Quantizer {
        Quantizer { config }
    }

    /// Quantizes a tensor. The channel axis is 0.
    ///
    /// # Errors
    /// The data holds NaN or infinity, or its length does not match the shape.
    pub fn quantize_tensor(
        &self,
        data: &[f32],
        shape: &[usize],
    ) -> Result<QuantizedTensor, QuantizeError> {
        self.quantize_along("tensor", data, shape, Some(0))
    }

    /// Quantizes a weight of a model. The channel axis is that of the weight.
    ///
    /// # Errors
    /// The same as [`Quantizer::quantize_tensor`], with the name of the weight.
    pub fn quantize_weight(&self, weight: &WeightTensor) -> Result<QuantizedTensor, QuantizeError> {
        self.quantize_along(&weight.name, &weight.data, &weight.shape, weight.axis)
    }

    fn quantize_along(
        &self,
        name: &str,
        data: &[f32],
        shape: &[usize],
        axis: Option<usize>,
    ) -> Result<QuantizedTensor, QuantizeError> {
        let wrong = |error: quantize_rs_math::MathError| {
            let (tensor, what) = (name.to_owned(), error.to_string());
            QuantizeError::new(QuantizeErrorKind::InvalidTensor { tensor, what })
        };
        let granularity = match axis {
            Some(axis) if self.config.per_channel => Granularity::PerAxis { axis },
            _ => Granularity::PerTensor,
        };
        let WeightType::Of(qtype @ (QType::Int2 | QType::Int4 | QType::Int8)) =
            crate::options::config::signed("bits", self.config.bits)?
        else {
            let what = format!("is {}, expected 2, 4 or 8", self.config.bits);
            return Err(QuantizeError::option("bits", what));
        };
        let spec = QSpec::new(qtype, self.config.symmetric, granularity);
        let layout = Layout::of(shape, granularity).map_err(wrong)?;
        layout.check(data.len(), layout.groups()).map_err(wrong)?;
        let params: Vec<Params> = ranges_checked(data, &layout)
            .map_err(wrong)?
            .into_iter()
            .map(|range| params(range, &spec))
            .collect();
        let (bytes, metrics) = quantize_measured(data, &layout, &params, &spec);
        Ok(QuantizedTensor { bytes, params, layout, spec, bits: self.config.bits, metrics })
    }
}

impl QuantizedTensor {
    /// The integers, one per element.
    pub fn data(&self) -> Vec<i8> {
        match self.spec.qtype.bits() {
            8 => self.bytes.iter().map(|byte| byte.cast_signed()).collect(),
            bits => pack::unpack(&self.bytes, bits, true, self.layout.elements()),
        }
    }

    /// The number of bits.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether each channel has its own scale.
    pub fn is_per_channel(&self) -> bool {
        self.axis().is_some()
    }

    /// The axis of the scales.
    pub fn axis(&self) -> Option<usize> {
        match self.spec.granularity {
            Granularity::PerAxis { axis } => Some(axis),
            _ => None,
        }
    }

    /// All scales and zero points.
    pub fn get_all_scales_zero_points(&self) -> (Vec<f32>, Vec<i8>) {
        self.params.iter().map(|params| (params.scale, narrow(params.zero_point))).unzip()
    }

    /// The dequantized elements.
    pub fn to_f32(&self) -> Vec<f32> {
        dequantize(&self.bytes, &self.layout, &self.params, self.spec.qtype)
    }

    /// The mean squared quantization error.
    pub fn quantization_error(&self) -> f64 {
        self.metrics.mse
    }

    /// Turns the tensor into a weight called `name`, to be stored in a model.
    pub fn into_weight(self, name: impl Into<String>) -> QdqWeightInput {
        let (scales, zero_points) = self.get_all_scales_zero_points();
        QdqWeightInput {
            original_name: name.into(),
            quantized_values: self.data(),
            scales,
            zero_points,
            bits: self.bits(),
            axis: self.axis(),
        }
    }
}

/// Converts a zero point of a type with at most 8 bits.
fn narrow(value: i32) -> i8 {
    i8::try_from(value).unwrap_or_default()
}
