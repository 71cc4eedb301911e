//! From floats to integers and back.

mod dequantize;
mod lanes;
pub mod pack;
mod quantize;
pub mod reference;

pub use dequantize::dequantize;
pub use quantize::{fake_quantize, quantize, quantize_measured, quantize_measured_into};
