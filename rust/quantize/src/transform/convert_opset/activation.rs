//! Opset conversion of activation functions, Clip and Dropout.

use quantize_rs_onnx::{AttributeProto, DataType, Kept, NodeProto};

use super::place::{self, Place};

/// Opset 13: `Softmax`, `LogSoftmax` and `Hardmax` work along one axis. Before, they flattened all
/// axes starting at `axis` into one.
pub(super) fn coerced(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let axis = place::int(node, "axis", 1)?;
    let input = place::input(node, 0).unwrap_or_default().to_owned();
    let shape = place.shape(&input).or_else(|| Some(vec![None; place.rank(&input)?]));
    if let Some(axis) = shape.and_then(|shape| only_axis(&shape, axis)) {
        if place::int(node, "axis", -1)? == axis {
            return Ok(false);
        }
        place::set(node, AttributeProto::int("axis", axis));
        return Ok(true);
    }
    let base = place::base(node);
    let [shape, flat, made] = ["shape", "flat", "of_rows"].map(|what| place.fresh(&base, what));
    let whole = vec![input.clone()];
    let before = [
        NodeProto::new("", "Shape", whole.clone(), vec![shape.clone()], Vec::new()),
        NodeProto::new("", "Flatten", whole, vec![flat.clone()], attributes("axis", axis)),
    ];
    place.before.extend(before);
    place::set(node, AttributeProto::int("axis", -1));
    place::set_input(node, 0, flat);
    let output = node.output.first_mut().map(|output| std::mem::replace(output, made.clone()));
    let output = output.into_iter().collect();
    place.after.push(NodeProto::new("", "Reshape", vec![made, shape], output, Vec::new()));
    Ok(true)
}

/// The only axis, starting at `axis`, whose dimension is not 1; the last axis if all are 1.
fn only_axis(shape: &[Option<usize>], axis: i64) -> Option<i64> {
    let rank = i64::try_from(shape.len()).ok()?;
    let first = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
    let from = shape.get(first..).filter(|from| !from.is_empty())?;
    let mut long = (first..).zip(from).filter(|(_, length)| **length != Some(1));
    let only = match (long.next(), long.next()) {
        (None, _) => rank - 1,
        (Some((only, _)), None) => i64::try_from(only).ok()?,
        _ => return None,
    };
    Some(only)
}

fn attributes(name: &str, value: i64) -> Vec<Kept<AttributeProto>> {
    vec![Kept::new(AttributeProto::int(name, value))]
}

/// Opset 11: the bounds are inputs.
pub(super) fn clip(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let mut changed = false;
    for (index, name) in [(1, "min"), (2, "max")] {
        if let Some(bound) = place::float(node, name)? {
            let dtype = place.float_dtype(place::input(node, 0).unwrap_or_default())?;
            let bound = place.float(&place::base(node), name, bound, dtype)?;
            place::remove(node, name);
            place::set_input(node, index, bound);
            changed = true;
        }
    }
    Ok(changed)
}

/// Opset 10: the mask is boolean. Its consumers get it cast to the previous type.
pub(super) fn dropout_mask(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    let Some(mask) = node.output.get(1).filter(|mask| !mask.is_empty()).cloned() else {
        return Ok(false);
    };
    if !place.is_read(&mask) {
        node.output.truncate(1);
        place.gone.push(mask);
        return Ok(true);
    }
    let dtype = place.float_dtype(place::input(node, 0).unwrap_or_default())?;
    let of_booleans = place.fresh(&mask, "bool");
    node.output[1].clone_from(&of_booleans);
    let to = attributes("to", i64::from(dtype.number()));
    place.after.push(NodeProto::new("", "Cast", vec![of_booleans], vec![mask], to));
    Ok(true)
}

/// Opset 12: the ratio is an input, which only matters in training. For inference, the mask is all
/// true. Before, it was unspecified, and runtimes set no element.
pub(super) fn dropout(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    if let Some(mask) = node.output.get(1).filter(|mask| place.is_read(mask)) {
        return Err(format!(
            "its mask `{mask}` is used, and opset 12 defines the mask differently"
        ));
    }
    let Some(ratio) = place::float(node, "ratio")? else { return Ok(false) };
    let ratio = place.float(&place::base(node), "ratio", ratio, DataType::Float)?;
    place::remove(node, "ratio");
    place::set_input(node, 1, ratio);
    Ok(true)
}
