//! Checks of the `dynamic` format: weights are integers beside the nodes that compute on them.

use quantize_rs_onnx::TensorProto;

use super::{Models, failed};
use crate::QuantizeError;
use crate::graph::elements::data_type;
use crate::plan::{Planned, ValuePlan};

/// Operators that multiply by integers, and their weight inputs.
const OPERATORS: &[(&str, &[usize])] =
    &[("MatMulInteger", &[1]), ("ConvInteger", &[1]), ("DynamicQuantizeLSTM", &[1, 2])];

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
    let holds = |node: usize, input: usize| {
        let found = after.input(node, input).and_then(|id| after.constant(id));
        found.is_some_and(|found| {
            found.dtype() == Some(data_type(how.stored)) && count(found) == weight
        })
    };
    let multiplies = |node: usize| {
        let op_type = after.nodes[node].op_type.as_str();
        let mut found = OPERATORS.iter().filter(|(name, _)| *name == op_type);
        found.any(|(_, inputs)| inputs.iter().any(|input| holds(node, *input)))
    };
    let found = (0..after.nodes.len()).any(multiplies);
    found.then_some(()).ok_or_else(missing)
}
