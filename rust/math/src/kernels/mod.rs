//! From floats to integers and back.

mod dequantize;
mod errors;
pub(crate) mod fake;
mod lanes;
pub mod pack;
mod quantize;
pub mod reference;

pub use dequantize::dequantize;
pub(crate) use errors::squared_errors;
pub use quantize::{fake_quantize, quantize, quantize_measured, quantize_measured_into};
