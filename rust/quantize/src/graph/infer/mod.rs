//! Types and shapes of values, inferred: what each operator makes of what it reads, by the words of
//! the ONNX specification.
//!
//! An operator that has no row here, an attribute that makes no sense, a length that is not known:
//! what is made of it is unknown, and the walk goes on. Lengths that vary are expressions
//! ([`Dim`]), and so are the elements of small vectors of integers, of which shapes are made.

mod call;
mod control;
mod data;
mod dim;
mod engine;
mod fact;
mod infer_shapes;
mod ops;

pub(crate) use dim::Dim;
pub(crate) use engine::{Facts, Inferred};
pub(crate) use fact::Fact;
pub use infer_shapes::{Inference, infer_shapes};
