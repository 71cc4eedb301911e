//! onnx
mod dtype;
mod tensor;
pub use dtype::DataType;
pub use tensor::Tensor;
