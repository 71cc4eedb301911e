//! Runs ONNX models on samples and observes their values.
//!
//! The crate has two parts, both behind the traits of [`quantize_rs`]:
//!
//! - Engines run a model and pass every observed value to a [`ValueSink`](quantize_rs::ValueSink).
//!   [`Tract`] is pure Rust, needs no installation, and refuses models that it cannot run
//!   correctly, with the names of the nodes. [`OnnxRuntime`] loads the library of an installed
//!   `onnxruntime` package, runs every model that ONNX Runtime runs, and is faster. [`Auto`]
//!   chooses between them, and gives the reason.
//! - [`samples`] reads the inputs of the model: `.npy`, `.npz`, `.safetensors`, folders of images,
//!   arrays in memory, random values.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::atomic::AtomicBool;
//! use quantize_rs::{Engine, InputSpec, ValueSink};
//! use quantize_rs_onnx::Model;
//! use quantize_rs_runner::{Auto, OnnxRuntime, samples};
//!
//! struct AbsMax(f32);
//! impl ValueSink for AbsMax {
//!     fn observe(&mut self, _index: usize, _shape: &[usize], values: &[f32]) {
//!         self.0 = values.iter().fold(self.0, |max, value| max.max(value.abs()));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.onnx")?;
//! let mut samples =
//!     samples::open(Path::new("images.npy"), &InputSpec::of(&model), Some(100))?;
//! let first = samples.next_sample().ok_or("no samples")??;
//!
//! let engine = match OnnxRuntime::find() {
//!     Some(library) => Auto::with(OnnxRuntime::open(&library)?),
//!     None => Auto::without("no onnxruntime was found"),
//! };
//! let runner = engine.prepare(&model, &["/layer1/Relu_output_0".into()], &first)?;
//! if let Some(note) = runner.note() {
//!     println!("{note}");
//! }
//! let mut largest = AbsMax(0.0);
//! runner.run(&first, &mut largest, &AtomicBool::new(false))?;
//! # Ok(())
//! # }
//! ```

#[cfg(all(feature = "onnxruntime", feature = "tract"))]
mod auto;
mod catch_panic;
#[cfg_attr(not(any(feature = "tract", feature = "onnxruntime")), allow(dead_code))] // for engines
mod inputs;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
pub mod samples;
#[cfg(feature = "tract")]
mod tract;

#[cfg(all(feature = "onnxruntime", feature = "tract"))]
pub use auto::Auto;
#[cfg(feature = "onnxruntime")]
pub use onnxruntime::OnnxRuntime;
#[cfg(feature = "tract")]
pub use tract::Tract;

/// The remedy if one of the problems is an operator that no engine of this crate can know.
#[cfg(any(feature = "tract", feature = "onnxruntime"))]
const OF_THE_CALLER: &str = "give an engine object that runs the operator (engine=...), or \
    quantize the weights alone, which runs nothing";
