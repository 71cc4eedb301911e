//! From floats to integers and back.

mod dequantize;
mod errors;
pub(crate) mod fake;
mod lanes;
pub mod pack;
mod quantize;
pub mod reference;
mod sums;

pub use dequantize::dequantize;
pub(crate) use errors::squared_errors;
pub use quantize::{
    fake_quantize, quantize, quantize_keeping_sums_into, quantize_measured, quantize_measured_into,
};
pub use sums::Summed;
