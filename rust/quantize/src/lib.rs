//! Makes ONNX models smaller and faster, and says honestly what it cost.
//!
//! The flow on one screen; every noun can be printed, kept and handed on:
//!
//! ```
//! use quantize_rs::{Config, Model, Prepared};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("digits.int8.onnx");
//! let model = Model::open(path)?;                                      // what is in the file
//! let config = Config { per_channel: true, symmetric: true, ..Config::default() };
//! let prepared = Prepared::of(&model, config)?;                        // what it was made into
//! let plan = prepared.plan();                                         // what will be done, and why
//! println!("{plan}");
//! let report = plan.apply(&prepared.model, None)?.save(&out)?;         // done, checked, written
//! assert!(report.ratio() > 3.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With activations too, samples are run through the model by an [`Engine`] (the crate
//! `quantize-rs-runner` brings one) in [`calibrate()`], and the [`Ranges`] go to [`Plan::apply`].
//!
//! Those who want weights one by one find the names of earlier versions:
//!
//! ```
//! use quantize_rs::{OnnxModel, QuantConfig, Quantizer};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("digits.int8.onnx");
//! let model = OnnxModel::load(path)?;
//! let quantizer = Quantizer::new(QuantConfig::default().with_bits(8).with_per_channel(true));
//! let mut quantized = Vec::new();
//! for weight in model.extract_weights()? {
//!     quantized.push(quantizer.quantize_weight(&weight)?.into_weight(weight.name));
//! }
//! model.save_quantized(&quantized, &out)?;
//! # assert!(std::fs::metadata(&out)?.len() * 3 < std::fs::metadata(path)?.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analysis;
mod apply;
mod calibrate;
pub mod config;
mod conformance;
mod correct;
mod decode;
mod encode;
mod error;
mod facade;
mod fingerprint;
mod fnv;
mod format;
mod graph;
mod guard;
mod infer;
mod info;
mod layers;
mod limits;
mod mixed;
mod one_sided;
pub mod ops;
mod opset;
mod plan;
pub mod prepare;
mod processor;
mod ranges;
pub mod recommend;
mod report;
pub mod rewrite;
mod rounding;
mod sample;
mod smooth;
mod target;
pub mod text;
mod uses;
mod validate;
mod verify;
mod weight_type;

pub use analysis::{
    Accuracy, Bar, CompareOptions, Comparison, Extract, Kernels, Latencies, Latency,
    LatencyOptions, LayerError, LayerErrors, LayerRow, Metric, OutlierChannel, OutlierElement,
    OutlierOptions, Outliers, OutputRow, Sensitivity, SensitivityOptions, Speed, WeightOutliers,
    compare, extract, latency, layer_errors, outliers, sensitivity, weight_sensitivity,
};
pub use apply::Quantized;
pub use calibrate::{
    Control, Method, MethodComparison, MethodRow, Progress, calibrate, compare_methods,
};
pub use config::Config;
pub use conformance::{Rule, Violation, conformance};
pub use encode::{Encoded, EncodedTensor, StoredScale, encode};
pub use error::{CalibrationError, CalibrationErrorKind, QuantizeError, QuantizeErrorKind};
pub use facade::{
    OnnxModel, QdqWeightInput, QuantConfig, QuantizedTensor, Quantizer, WeightTensor,
};
pub use format::{Format, FormatRow};
pub use graph::{Graph, Maker, Reader, Value, ValueId};
pub use guard::{Attempt, FloatLayer, GuardOptions, Verified, guarded};
pub use infer::{Inference, infer_shapes};
pub use info::ModelInfo;
pub use layers::{DynamicRangeCalibrator, QuantizationAwareTraining};
pub use mixed::{LayerWidth, MixedOptions, MixedPrecision, mixed_precision};
pub use opset::{Conversion, convert_opset};
pub use plan::{
    Because, Decision, Kept, Plan, Planned, QConfig, QConfigDict, Readers, Role, Source, ValuePlan,
};
pub use prepare::{
    Below, Optimization, Optimized, Prepared, Prune, PrunedWeight, Pruning, Step, optimize, prune,
};
pub use quantize_rs_math::{
    Granularity, Metrics, Params, QSpec, QType, Range, Scales, WeightMethod,
};
pub use quantize_rs_onnx::{DataType, Model, Tensor};
pub use ranges::{Difference, Ranges, RangesDiff, Seen, tensorrt};
pub use recommend::{Recommendation, SampleSource, Wanted, Way, recommend};
pub use report::{Histogram, Page, QuantizedRow, Report, Row, Seconds, Sizes, StoredBytes};
pub use rounding::Rounding;
pub use sample::{Engine, InputSpec, Runner, Sample, Samples, Sink, Timed};
pub use target::{Bias, Placement, Profile, Target};
pub use validate::{Check, Problem, StoredWeight, Uncompared, Validation, validate};
pub use weight_type::{MicroLayout, MicroRow, WeightType};
