//! Feeds ONNX models with samples and shows what flows through them.
//!
//! Two halves, both behind the traits of [`quantize_rs`]:
//!
//! - [`Tract`] is an [`Engine`](quantize_rs::Engine): it runs a model and lends every tapped value
//!   to a [`Sink`](quantize_rs::Sink) right after the node that made it ran. It is pure Rust, needs
//!   nothing installed, and refuses by name whatever it cannot run right.
//! - [`samples`] reads what the model is fed with: `.npy`, `.npz`, `.safetensors`, folders of images,
//!   arrays in memory, random values.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::atomic::AtomicBool;
//! use quantize_rs::{Engine, InputSpec, Sink};
//! use quantize_rs_onnx::Model;
//! use quantize_rs_runner::{Tract, samples};
//!
//! struct AbsMax(f32);
//! impl Sink for AbsMax {
//!     fn observe(&mut self, _tap: usize, _shape: &[usize], values: &[f32]) {
//!         self.0 = values.iter().fold(self.0, |max, value| max.max(value.abs()));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.onnx")?;
//! let mut samples =
//!     samples::open(Path::new("images.npy"), &InputSpec::of(&model), Some(100))?;
//! let first = samples.next_sample().ok_or("no samples")??;
//! let runner = Tract.prepare(&model, &["/layer1/Relu_output_0".into()], &first)?;
//! let mut largest = AbsMax(0.0);
//! runner.run(&first, &mut largest, &AtomicBool::new(false))?;
//! # Ok(())
//! # }
//! ```

mod guard;
#[cfg_attr(not(any(feature = "tract", feature = "onnxruntime")), allow(dead_code))] // for engines
mod inputs;
pub mod samples;
#[cfg(feature = "tract")]
mod tract;

#[cfg(feature = "tract")]
pub use tract::Tract;
