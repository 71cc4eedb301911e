//! Quantizes ONNX models and reports what quantization costs in accuracy.
//!
//! The steps of the main flow. Each intermediate result can be printed, stored and passed on:
//!
//! ```
//! use quantize_rs::{Config, Model, PreprocessedModel};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("digits.int8.onnx");
//! let model = Model::open(path)?; // read the file
//! let config = Config { per_channel: Some(true), symmetric: Some(true), ..Config::default() };
//! let prepared = PreprocessedModel::of(&model, config)?; // preprocess the graph
//! let plan = prepared.plan(); // decide what to quantize
//! println!("{plan}");
//! let report = plan.apply(&prepared.model, None)?.save(&out)?; // quantize, check, write
//! assert!(report.ratio() > 3.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To quantize activations too, run samples through the model with an [`Engine`] (the crate
//! `quantize-rs-runner` provides one) in [`calibrate()`], and pass the resulting [`Ranges`] to
//! [`Plan::apply`].
//!
//! To quantize weights one at a time, use the API of earlier versions:
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
//!
//! # Modules
//!
//! Each module is a stage of the flow and imports only modules before it, in this order: `util`,
//! `error`, `options`, `graph`, `ranges`, `transform`, `plan`, `encode`, `calibrate`, `rewrite`,
//! `check`, `report`, `apply`, `analysis`, `html`, `legacy`. There is one exception: pruning, a
//! part of `transform`, asks `plan` which weights are excluded.

mod analysis;
mod apply;
mod calibrate;
mod check;
mod encode;
mod error;
mod graph;
mod html;
mod legacy;
pub mod options;
mod plan;
mod ranges;
mod report;
pub mod rewrite;
pub mod transform;
mod util;

pub use analysis::{
    AccuracyControl, ActivationWidth, CheckSamples, CompareOptions, Comparison, HalfOptions,
    HalfPrecision, HalfReport, Kernels, LatencyOptions, LayerError, LayerErrors, LayerRow,
    LayerWidth, MeasuredStrategy, Metric, MetricHandle, MixedOptions, MixedPrecision,
    OutlierChannel, OutlierElement, OutlierOptions, Outliers, OutputMetric, OutputValue,
    Recommendation, Request, SETS as VARIANT_SETS, SampleOutputs, SampleSource, Sensitivity,
    SensitivityOptions, Strategy, Variant, VariantOptions, VariantRow, VariantSet, Variants,
    WeightOutliers, compare, convert_half, convert_half_with_samples, latency, layer_errors,
    mixed_precision, outliers, quantize_with_accuracy_control, recommend, recommend_measured,
    sensitivity, variants, weight_sensitivity,
};
pub use apply::Quantized;
pub use calibrate::{
    Control, Engine, MethodComparison, MethodRow, Progress, RanOperators, RetainingSamples,
    RoundingCost, Sample, Samples, Session, TimedSession, ValueSink, calibrate, calibrate_shard,
    compare_methods, round_weights,
};
pub use check::{
    Check, Problem, Rule, StoredWeight, Uncompared, Validation, Violation, conformance, validate,
};
pub use encode::{Encoded, EncodedTensor, StoredScale, encode};
pub use error::{
    CalibrationError, CalibrationErrorKind, QuantizeError, QuantizeErrorKind, with_causes,
};
pub use graph::{
    Consumer, Graph, InputSpec, ModelInfo, Producer, ShapeInference, Value, ValueId, infer_shapes,
    is_quantized_op, ops,
};
pub use html::Page;
pub use legacy::{
    DynamicRangeCalibrator, OnnxModel, QdqWeightInput, QuantConfig, QuantizationAwareTraining,
    QuantizedTensor, Quantizer, WeightTensor,
};
pub use options::config;
pub use options::{
    Below, Bias, Config, Format, FormatActivations, FormatRow, HalfType, KvCacheType, Method,
    MicroLayout, MicroRow, MixedLayers, PartialRow, PartialType, Placement, Profile, RoundedFor,
    Rounding, RoundingEffort, Shard, StoredWeights, Target, WeightAlgorithm, WeightType,
};
pub use plan::{
    Consumers, Decision, KeepReason, Plan, Planned, PreprocessedModel, QConfig, QConfigDict,
    QuantizeReason, Role, Source, ValuePlan, quantizable_op_types,
};
pub use quantize_rs_math::{
    Granularity, Metrics, Params, QSpec, QType, Range, Scales, WeightMethod,
};
pub use quantize_rs_onnx::{
    DataType, FinishedSpan, Listening, Model, Span, SpanLevel, SpanListener, Tensor, listen,
    stop_when,
};
pub use ranges::{
    ENOUGH_SAMPLES, Histogram, InputEvidence, MIN_SAMPLES, Moments, ObservedRange, RANDOM_SAMPLES,
    RangeDifference, Ranges, RangesDiff, RoundedWeight, RoundedWeights, RoundingEvidence,
    SampleEvidence, few_samples, rows_at_once, tensorrt,
};
pub use report::{
    ACTIVATIONS, Accuracy, AccuracyCriteria, Assessment, Candidate, CheckedInputs, Evaluation,
    Grade, IntegerOutputRow, Latencies, Latency, LostChannels, Origin, OutputCheck, OutputRow,
    QuantizedRow, Report, ReportRow, RevertedLayer, Sizes, Speed, StoredBytes, Timings, WEIGHTS,
};
pub use transform::half_precision::{KeptNode, KeptReason};
pub use transform::{
    Extract, OpsetConversion, Optimization, Optimized, Prune, PrunedWeight, Pruning, Step,
    convert_opset, extract, onnx_op_types, optimize, prune,
};
pub use util::chrome_trace::ChromeTrace;
pub use util::text;
