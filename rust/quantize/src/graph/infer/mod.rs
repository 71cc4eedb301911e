//! Type and shape inference: derives the outputs of each operator from its inputs, following the
//! ONNX specification.
//!
//! Inference never fails. The outputs of unknown operators or invalid attributes are unknown, and
//! inference continues with the next node. Dynamic dimensions are expressions ([`Dim`]), and so are
//! the elements of the small integer vectors from which shapes are computed.

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
pub use infer_shapes::{ShapeInference, infer_shapes};
