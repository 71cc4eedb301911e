//! Operators that combine elements but keep the shape: normalizations, softmax, cumulative sums.

use quantize_rs_onnx::DataType;

use super::{Call, SAME, Shape, ShapeRule, Type, all, as_first, one};
use crate::graph::infer::dim::Dim;

/// Statistics have the type that an attribute names, by default float32.
const STATISTICS: &[Type] = &[
    Type::Input(0),
    Type::By(|call| match call.attribute("stash_type") {
        Some(_) => call.dtype_named("stash_type"),
        None => Some(DataType::Float),
    }),
];

pub(super) const ALL: &[ShapeRule] = &[
    one("CumProd", SAME, as_first),
    one("CumSum", SAME, as_first),
    one("GroupNormalization", SAME, as_first),
    one("Hardmax", SAME, as_first),
    one("InstanceNormalization", SAME, as_first),
    one("LRN", SAME, as_first),
    one("LogSoftmax", SAME, as_first),
    one("LpNormalization", SAME, as_first),
    one("MeanVarianceNormalization", SAME, as_first),
    one("RMSNormalization", SAME, as_first),
    one("ReverseSequence", SAME, as_first),
    one("RotaryEmbedding", SAME, as_first),
    one("Softmax", SAME, as_first),
    one("Trilu", SAME, as_first),
    all("BatchNormalization", &[Type::Input(0), Type::Input(3)], |call| {
        let channels = call.shape(3).cloned();
        vec![as_first(call), channels.clone(), channels.clone(), channels.clone(), channels]
    }),
    all("LayerNormalization", STATISTICS, layer_norm),
    // Operators of ONNX Runtime that it registers in the ONNX domain.
    one("SimplifiedLayerNormalization", SAME, as_first),
    all("SoftmaxCrossEntropyLoss", SAME, |call| vec![loss(call), as_first(call)]),
    one("NegativeLogLikelihoodLoss", SAME, loss),
    all("Dropout", &[Type::Input(0), Type::By(mask)], |call| vec![as_first(call); 2]),
];

/// The statistics have dimension 1 on all axes from `axis` on.
fn layer_norm(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let statistics = as_first(call).zip(call.axis(call.int("axis", -1), 0)).map(|(shape, axis)| {
        let one = |(at, length)| if at < axis { length } else { Dim::Fixed(1) };
        shape.into_iter().enumerate().map(one).collect()
    });
    vec![as_first(call), statistics.clone(), statistics]
}

/// A scalar, or one element per label.
fn loss(call: &Call<'_, '_>) -> Option<Shape> {
    if call.string("reduction") == Some("none") {
        call.shape(1).cloned()
    } else {
        Some(Shape::new())
    }
}

/// Before opset 10, the mask had the type of the input.
fn mask(call: &Call<'_, '_>) -> Option<DataType> {
    if call.opset() < 10 { call.dtype(0) } else { Some(DataType::Bool) }
}
