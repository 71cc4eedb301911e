//! Opset conversion of activation functions, Clip and Dropout.

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto, Raw};

use super::context::{self, NodeContext};
use crate::util::axes::axis_of;

/// Opset 13: `Softmax`, `LogSoftmax` and `Hardmax` work along one axis. Before, they flattened all
/// axes starting at `axis` into one.
pub(super) fn coerced(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let axis = context::int(node, "axis", 1)?;
    let input = context::input(node, 0).unwrap_or_default().to_owned();
    let shape = context.shape(&input).or_else(|| Some(vec![None; context.rank(&input)?]));
    if let Some(axis) = shape.and_then(|shape| only_axis(&shape, axis)) {
        if context::int(node, "axis", -1)? == axis {
            return Ok(false);
        }
        context::set(node, AttributeProto::int("axis", axis));
        return Ok(true);
    }
    let base = context::base(node);
    let [shape, flat, made] = ["shape", "flat", "of_rows"].map(|what| context.fresh(&base, what));
    let whole = vec![input.clone()];
    let before = [
        NodeProto::new("", "Shape", whole.clone(), vec![shape.clone()], Vec::new()),
        NodeProto::new("", "Flatten", whole, vec![flat.clone()], attributes("axis", axis)),
    ];
    context.before.extend(before);
    context::set(node, AttributeProto::int("axis", -1));
    context::set_input(node, 0, flat);
    let output = node.output.first_mut().map(|output| std::mem::replace(output, made.clone()));
    let output = output.into_iter().collect();
    context.after.push(NodeProto::new("", "Reshape", vec![made, shape], output, Vec::new()));
    Ok(true)
}

/// The only axis, starting at `axis`, whose dimension is not 1; the last axis if all are 1.
fn only_axis(shape: &[Option<usize>], axis: i64) -> Option<i64> {
    let rank = i64::try_from(shape.len()).ok()?;
    let first = axis_of(axis, shape.len())?;
    let mut long = (first..).zip(&shape[first..]).filter(|(_, length)| **length != Some(1));
    let only = match (long.next(), long.next()) {
        (None, _) => rank - 1,
        (Some((only, _)), None) => i64::try_from(only).ok()?,
        _ => return None,
    };
    Some(only)
}

fn attributes(name: &str, value: i64) -> Vec<Raw<AttributeProto>> {
    vec![Raw::new(AttributeProto::int(name, value))]
}

/// Opset 11: the bounds are inputs.
pub(super) fn clip(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let mut changed = false;
    for (index, name) in [(1, "min"), (2, "max")] {
        if let Some(bound) = context::float(node, name)? {
            let dtype = context.float_dtype(context::input(node, 0).unwrap_or_default())?;
            let bound = context.float(&context::base(node), name, bound, dtype)?;
            context::remove(node, name);
            context::set_input(node, index, bound);
            changed = true;
        }
    }
    Ok(changed)
}

/// Opset 10: the mask is boolean. Its consumers get it cast to the previous type.
pub(super) fn dropout_mask(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let Some(mask) = node.output.get(1).filter(|mask| !mask.is_empty()).cloned() else {
        return Ok(false);
    };
    if !context.is_read(&mask) {
        node.output.truncate(1);
        context.gone.push(mask);
        return Ok(true);
    }
    let dtype = context.float_dtype(context::input(node, 0).unwrap_or_default())?;
    let of_booleans = context.fresh(&mask, "bool");
    node.output[1].clone_from(&of_booleans);
    let to = attributes("to", i64::from(dtype.number()));
    context.after.push(NodeProto::new("", "Cast", vec![of_booleans], vec![mask], to));
    Ok(true)
}

/// Opset 12: the ratio is an input, which only matters in training. For inference, the mask is all
/// true. Before, it was unspecified, and runtimes set no element.
pub(super) fn dropout(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    if let Some(mask) = node.output.get(1).filter(|mask| context.is_read(mask)) {
        return Err(format!(
            "its mask `{mask}` is used, and opset 12 defines the mask differently"
        ));
    }
    let Some(ratio) = context::float(node, "ratio")? else { return Ok(false) };
    let ratio = context.float(&context::base(node), "ratio", ratio, DataType::Float)?;
    context::remove(node, "ratio");
    context::set_input(node, 1, ratio);
    Ok(true)
}
