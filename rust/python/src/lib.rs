//! The extension module `quantize_rs._core`: it extracts arguments, releases the interpreter, calls
//! the Rust crates and converts the results. Users import the package `quantize_rs` in `python/`.

// pyo3 passes extracted arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod analysis;
mod buffer;
mod calibrate;
mod convert;
mod engine;
mod errors;
mod gil;
mod half_precision;
mod kernels;
mod method_comparison;
mod model;
mod module_options;
mod optimized;
mod option_dict;
mod outcome;
mod output_metric;
mod plan;
mod quantized;
mod ranges;
mod sample_iterator;
mod source;
mod trace;
mod training;
mod variants;

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;
use quantize_rs::QuantizeError;

/// The Rust part of `quantize_rs`. It is private and may change at any time; use the package.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::analysis::{
        check_accuracy_criteria, check_outputs, compare, layer_errors, merged_sensitivity,
        mixed_precision, outliers, quantize_with_accuracy_control, recommended, sensitivity,
        unreadable, validate, weight_sensitivity,
    };
    #[pymodule_export]
    use super::calibrate::Run;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::half_precision::{HalfPrecision, convert_half, convert_half_with_samples};
    #[pymodule_export]
    use super::kernels::{
        dequantize_linear, dtype_of, pack, quantize_linear, scale_zero_point, unpack,
    };
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::optimized::Optimized;
    #[pymodule_export]
    use super::option_dict::{op_types, option_table};
    #[pymodule_export]
    use super::outcome::Outcome;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::quantized::{Quantized, page};
    #[pymodule_export]
    use super::ranges::{Histogram, Ranges};
    #[pymodule_export]
    use super::run_cli;
    #[pymodule_export]
    use super::source::Source;
    #[pymodule_export]
    use super::trace::Trace;
    #[pymodule_export]
    use super::training::{
        Observer, fake_quantize, fake_quantize_gradients, fake_quantize_stochastic, learn_scale,
    };
    #[pymodule_export]
    use super::variants::{variants, variants_with_samples};
    #[pymodule_export]
    use crate::method_comparison::MethodComparison;
    #[pymodule_export]
    use crate::sample_iterator::Feeds;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::trace::log_stages();
        module.add("RANDOM_SAMPLES", quantize_rs::RANDOM_SAMPLES)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the command line and returns its exit code.
#[pyfunction]
fn run_cli(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    gil::detached(py, None, || {
        let ended = quantize_rs_cli::run(arguments);
        // The number of an `ExitCode` cannot be read, only compared.
        let code = (0..=u8::MAX).find(|code| ExitCode::from(*code) == ended);
        Ok::<_, QuantizeError>(code.unwrap_or(u8::MAX))
    })
}
