//! Elementwise operators with one or more inputs.

use quantize_rs_onnx::DataType;

use super::{ANY, BOOL, Call, SAME, Shape, ShapeRule, Type, as_first, one};

const TO: &[Type] = &[Type::By(|call| call.dtype_named("to"))];

pub(super) const ALL: &[ShapeRule] = &[
    one("Abs", SAME, as_first),
    one("Acos", SAME, as_first),
    one("Acosh", SAME, as_first),
    one("Asin", SAME, as_first),
    one("Asinh", SAME, as_first),
    one("Atan", SAME, as_first),
    one("Atanh", SAME, as_first),
    one("BitwiseNot", SAME, as_first),
    one("Ceil", SAME, as_first),
    one("Celu", SAME, as_first),
    one("Clip", SAME, as_first),
    one("Cos", SAME, as_first),
    one("Cosh", SAME, as_first),
    one("Elu", SAME, as_first),
    one("Erf", SAME, as_first),
    one("Exp", SAME, as_first),
    one("Floor", SAME, as_first),
    one("Gelu", SAME, as_first),
    one("HardSigmoid", SAME, as_first),
    one("HardSwish", SAME, as_first),
    one("LeakyRelu", SAME, as_first),
    one("Log", SAME, as_first),
    one("Mish", SAME, as_first),
    one("Neg", SAME, as_first),
    one("PRelu", SAME, as_first),
    one("Reciprocal", SAME, as_first),
    one("Relu", SAME, as_first),
    one("Round", SAME, as_first),
    one("Selu", SAME, as_first),
    one("Shrink", SAME, as_first),
    one("Sigmoid", SAME, as_first),
    one("Sign", SAME, as_first),
    one("Sin", SAME, as_first),
    one("Sinh", SAME, as_first),
    one("Softplus", SAME, as_first),
    one("Softsign", SAME, as_first),
    one("Sqrt", SAME, as_first),
    one("Swish", SAME, as_first),
    one("Tan", SAME, as_first),
    one("Tanh", SAME, as_first),
    one("ThresholdedRelu", SAME, as_first),
    // Operators with another output type.
    one("Cast", TO, as_first),
    one("CastLike", &[Type::Input(1)], as_first),
    one("BitCast", TO, as_first),
    one("IsInf", BOOL, as_first),
    one("IsNaN", BOOL, as_first),
    one("Not", BOOL, as_first),
    // Operators that broadcast several inputs.
    one("Add", ANY, two),
    one("And", BOOL, two),
    one("BitShift", ANY, two),
    one("BitwiseAnd", ANY, two),
    one("BitwiseOr", ANY, two),
    one("BitwiseXor", ANY, two),
    one("Div", ANY, two),
    one("Equal", BOOL, two),
    one("Greater", BOOL, two),
    one("GreaterOrEqual", BOOL, two),
    one("Less", BOOL, two),
    one("LessOrEqual", BOOL, two),
    one("Mod", ANY, two),
    one("Mul", ANY, two),
    one("Or", BOOL, two),
    one("Pow", SAME, two),
    one("Sub", ANY, two),
    one("Xor", BOOL, two),
    one("StringConcat", &[Type::Is(DataType::String)], two),
    one("Max", ANY, many),
    one("Mean", ANY, many),
    one("Min", ANY, many),
    one("Sum", ANY, many),
    one("Where", &[Type::By(|call| call.dtype(1).or_else(|| call.dtype(2)))], |call| {
        call.broadcast_all(0..3)
    }),
];

/// Before opset 7, the second input was broadcast to the first.
fn two(call: &Call<'_, '_>) -> Option<Shape> {
    if call.opset() < 7 { as_first(call) } else { call.broadcast_all(0..2) }
}

/// Before opset 8, all inputs had the same shape.
fn many(call: &Call<'_, '_>) -> Option<Shape> {
    if call.opset() < 8 { as_first(call) } else { call.broadcast_all(0..call.inputs.len()) }
}
