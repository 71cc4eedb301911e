//! Kernels that quantize and dequantize.

mod candidate_errors;
mod dequantize;
pub(crate) mod fake;
pub mod pack;
mod params_per_element;
mod quantize;
pub mod reference;
mod sum_preserving;

pub(crate) use candidate_errors::squared_errors;
pub use dequantize::dequantize;
pub use quantize::{
    fake_quantize, quantize, quantize_measured, quantize_measured_into,
    quantize_preserving_sums_into,
};
pub use sum_preserving::SumGroups;
