//! Checks of the `dynamic` format: weights are integers beside the nodes that compute on them.

use quantize_rs_onnx::{NodeProto, TensorProto};

use super::{Models, failed};
use crate::QuantizeError;
use crate::graph::ValueId;
use crate::graph::elements::data_type;
use crate::graph::uses::{self, Subgraphs};
use crate::plan::{Planned, ValuePlan};

/// Operators that multiply by integers, and their weight inputs.
const OPERATORS: &[(&str, &[usize])] = &[
    ("MatMulInteger", &[1]),
    ("ConvInteger", &[1]),
    ("DynamicQuantizeLSTM", &[1, 2]),
    ("QAttention", &[1]),
];

/// Checks that a node multiplies by integers with the type and number of elements of the weight.
pub(super) fn value(
    Models { before, after }: &Models<'_, '_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    let missing = || failed(format!("`{}` is not multiplied as integers", value.name));
    let count = |tensor: &TensorProto| tensor.dims.iter().product::<i64>();
    let weight = before.value(&value.name).and_then(|id| before.constant_behind(id));
    let weight = weight.map(count).ok_or_else(missing)?;
    let holds = |id: ValueId| {
        let constant = uses::rearranged_from(after, id).and_then(|id| after.constant(id));
        constant.is_some_and(|found| {
            found.dtype() == Some(data_type(how.stored)) && count(found) == weight
        })
    };
    let multiplies = |node: &NodeProto, value: &dyn Fn(&str) -> Option<ValueId>| {
        let mut found = OPERATORS.iter().filter(|(name, _)| *name == node.op_type);
        found.any(|(_, inputs)| {
            let mut read = inputs.iter().filter_map(|input| node.input.get(*input));
            read.any(|name| value(name).is_some_and(holds))
        })
    };
    let inside = || {
        let bodies = Subgraphs::of(after);
        bodies.nodes().any(|(body, node)| multiplies(node, &|name| bodies.outer(after, body, name)))
    };
    let found = after.nodes.iter().any(|node| multiplies(node, &|name| after.value(name)));
    (found || inside()).then_some(()).ok_or_else(missing)
}
