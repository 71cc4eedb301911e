//! Operators that convert between floats and integers.

use quantize_rs_onnx::DataType;

use super::{ShapeRule, Type, all, as_first, one};
use crate::graph::infer::fact::Shape;

/// The type from the attribute, otherwise of the zero point, otherwise uint8.
pub(super) const QUANTIZED: &[Type] = &[Type::By(|call| match call.attribute("output_dtype") {
    Some(dtype) if dtype.i != Some(0) => call.dtype_named("output_dtype"),
    _ if call.has(2) => call.dtype(2),
    _ => Some(DataType::UInt8),
})];

/// The type from the attribute, otherwise of the scale.
pub(super) const DEQUANTIZED: &[Type] = &[Type::By(|call| match call.attribute("output_dtype") {
    Some(dtype) if dtype.i != Some(0) => call.dtype_named("output_dtype"),
    _ => call.dtype(1),
})];

pub(super) const ALL: &[ShapeRule] = &[
    one("QuantizeLinear", QUANTIZED, as_first),
    one("DequantizeLinear", DEQUANTIZED, as_first),
    all(
        "DynamicQuantizeLinear",
        &[Type::Is(DataType::UInt8), Type::Is(DataType::Float), Type::Is(DataType::UInt8)],
        |call| vec![as_first(call), Some(Shape::new()), Some(Shape::new())],
    ),
];
