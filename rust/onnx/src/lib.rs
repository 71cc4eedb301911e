//! Reads and writes ONNX files without loss: bytes to [`Model`] and back.
//!
//! A model is opened from a path (large files are memory-mapped, not read) or from bytes, and
//! checked once. Only [`Model::apply`] changes it. Unedited messages are written as the bytes they
//! were read from: unknown fields, unusual encodings, weights of any size.
//!
//! ```
//! use quantize_rs_onnx::Model;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
//! let model = Model::open(path)?;
//! assert_eq!(model.to_bytes()?, std::fs::read(path)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod data;
mod dtype;
mod edit;
mod error;
mod external;
mod functions;
#[cfg(unix)]
mod guard;
mod map;
mod model;
mod new_file;
mod opset;
mod other_formats;
mod save;
mod schema;
mod stop;
mod target;
mod tensor;
mod topological_sort;
mod trace;
mod wire;

pub use crate::topological_sort::{reads, topological};
pub use dtype::DataType;
pub use edit::Edit;
pub use error::{Error, ErrorKind};
pub use functions::Functions;
pub use map::Buffer;
pub use model::Model;
pub use opset::ir_of_opset;
pub use save::{ExternalDataSplit, Saved};
pub use schema::{
    AttributeProto, Dimension, FunctionProto, GraphProto, ModelProto, NodeProto, Numbers,
    OperatorSetIdProto, Raw, SparseTensorProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, canonical_domain,
};
pub use stop::stop_when;
pub use target::{write_file, write_file_with};
pub use tensor::Tensor;
pub use trace::{FinishedSpan, Listening, Span, SpanLevel, SpanListener, listen};
