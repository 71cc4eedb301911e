//! The Rust API of version 0.10: quantizing weights one at a time, and helpers for single layers.
//!
//! Inputs and outputs are plain vectors. This module may import all others.

pub(crate) mod layers;
pub(crate) mod onnx_model;

pub use layers::{DynamicRangeCalibrator, QuantizationAwareTraining};
pub use onnx_model::{
    OnnxModel, QdqWeightInput, QuantConfig, QuantizedTensor, Quantizer, WeightTensor,
};
