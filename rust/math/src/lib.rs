//! The arithmetic of quantization, on slices.
//!
//! The crate knows no ONNX and no files, and runs on rayon's thread pool. A tensor is a flat slice
//! in C order with a [`Layout`], which says which elements share a scale. Quantizing a tensor takes
//! these steps:
//!
//! ```
//! use quantize_rs_math::{
//!     Granularity, Layout, QSpec, QType, params, quantize_measured, ranges_checked,
//! };
//!
//! let weight = [0.5, -1.0, 0.25, 8.0, -2.0, 4.0];
//! let spec = QSpec::new(QType::Int8, true, Granularity::PerAxis { axis: 0 });
//! let layout = Layout::of(&[2, 3], spec.granularity)?;
//! let ranges = ranges_checked(&weight, &layout)?;
//! let params: Vec<_> = ranges.into_iter().map(|range| params(range, &spec)).collect();
//! let (bytes, metrics) = quantize_measured(&weight, &layout, &params, &spec);
//! assert_eq!(bytes.len(), 6);
//! assert!(metrics.sqnr_db > 40.0);
//! # Ok::<(), quantize_rs_math::MathError>(())
//! ```
//!
//! Each kernel is defined by a plain loop in [`kernels::reference`] and equals it bit for bit. No
//! result depends on the number of threads.

// Not `forbid`: `ndarray::s!` allows it in its expansion.
#![deny(unsafe_code)]
// Wrapping, rounding and saturating casts are the subject of this crate.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod bias;
mod codebook;
mod error;
mod float_source;
mod group_ranges;
pub mod kernels;
mod layout;
mod linalg;
mod lsq;
mod matmul_nbits;
mod metrics;
mod microscaling;
mod minifloat;
pub mod observers;
mod params;
mod qtype;
pub mod range;
mod rounding;
mod second_moments;
mod simd;
mod spec;
pub mod stats;
mod threads;
mod weight;
mod weight_rounding;

pub use crate::float_source::FloatSource;
pub use crate::group_ranges::{first_non_finite, ranges, ranges_checked};
pub use crate::lsq::{LearnedParams, LsqOptions, learn_scale};
pub use crate::matmul_nbits::{BlockParamTypes, ColumnParams, MatMulNBitsSpec, ZeroPoints};
pub use crate::microscaling::{BlockScales, block_scales, power_of_two};
pub use bias::quantize_bias;
pub use codebook::{Codebook, CodebookSpec, Coded};
pub use error::MathError;
pub use kernels::fake::{
    Gradients, fake_quantize_gradients, fake_quantize_masked, fake_quantize_stochastic,
};
pub use kernels::{
    SumGroups, dequantize, fake_quantize, pack, quantize, quantize_measured,
    quantize_measured_into, quantize_preserving_sums_into,
};
pub use layout::Layout;
pub use metrics::{Deviation, Metrics, metrics};
pub use minifloat::Minifloat;
pub use params::{Params, Range, params};
pub use qtype::QType;
pub use second_moments::{SecondMoments, TooManySamples};
pub use spec::{Granularity, QSpec, Scales};
pub use threads::{begin_thread, start_threads};
pub use weight::{WeightMethod, fit};
pub use weight_rounding::{
    Algorithm, ColumnIntegers, Effort, Rounded, ScaleBounds, WeightColumns, corrected_targets,
    improve_columns, output_error, quadratic_error, round_columns,
};
