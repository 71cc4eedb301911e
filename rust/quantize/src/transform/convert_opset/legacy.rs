//! Opset versions 2 to 7, which mainly introduced `NumPy` broadcasting.

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto};

use super::context::{self, NodeContext};

/// Opset 6: in-place hints are removed.
pub(super) fn in_place(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    Ok(context::remove(node, "consumed_inputs"))
}

/// Opset 6: the default constants of Selu have more digits. The previous defaults become explicit.
pub(super) fn selu(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    in_place(node, context)?;
    for (name, old) in [("alpha", 1.6732_f32), ("gamma", 1.0507_f32)] {
        if node.attribute(name).is_none() {
            context::set(node, AttributeProto::float(name, old));
        }
    }
    Ok(true)
}

/// Opset 7: the second input is broadcast with `NumPy` semantics, which align the last axes.
pub(super) fn broadcast(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let (broadcast, axis) =
        (context::int(node, "broadcast", 0)?, context::maybe_int(node, "axis")?);
    let mut changed = context::remove(node, "broadcast");
    changed |= context::remove(node, "axis");
    let Some(axis) = axis.filter(|_| broadcast != 0) else { return Ok(changed) };
    let [left, right] =
        [0, 1].map(|index| context::input(node, index).unwrap_or_default().to_owned());
    let (Some(left_rank), Some(right_shape)) = (context.rank(&left), context.shape(&right)) else {
        return Err(format!(
            "`{right}` is broadcast at axis {axis}, and the ranks of `{left}` and `{right}` are \
             unknown; infer the shapes of the model first"
        ));
    };
    if right_shape.iter().all(|length| *length == Some(1)) {
        return Ok(changed);
    }
    let signed = |rank: usize| i64::try_from(rank).unwrap_or(i64::MAX);
    let axis = if axis < 0 { axis + signed(left_rank) } else { axis };
    let behind = signed(left_rank).saturating_sub(axis).saturating_sub(signed(right_shape.len()));
    if axis < 0 || behind < 0 {
        return Err(format!("its axis {axis} is out of range for `{left}`"));
    }
    if behind > 0 {
        let first = signed(right_shape.len());
        let added: Vec<i64> = (first..first + behind).collect();
        aligned(node, context, &added);
    }
    Ok(true)
}

/// Appends axes of dimension 1 to the second input.
fn aligned(node: &mut NodeProto, context: &mut NodeContext<'_, '_>, axes: &[i64]) {
    let Some(value) = node.input.get_mut(1) else { return };
    let name = context.fresh(value, "aligned");
    let axes = vec![quantize_rs_onnx::Raw::new(AttributeProto::ints("axes", axes))];
    let from = std::mem::replace(value, name.clone());
    context.before.push(NodeProto::new("", "Unsqueeze", vec![from], vec![name], axes));
}

/// Opset 7: a slope per channel must have trailing axes of dimension 1, since it aligns with the
/// last axis.
pub(super) fn slope(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let [x, slope] = [0, 1].map(|index| context::input(node, index).unwrap_or_default().to_owned());
    let shape = context.shape(&slope);
    if shape.as_deref().is_some_and(|shape| shape.iter().all(|length| *length == Some(1))) {
        return Ok(false);
    }
    let (Some(1), Some(rank)) = (shape.map(|shape| shape.len()), context.rank(&x)) else {
        let what = "are unknown; infer the shapes of the model first";
        return Err(format!("the ranks of `{x}` and `{slope}` {what}"));
    };
    if rank <= 2 {
        return Ok(false);
    }
    let axes: Vec<i64> = (1..i64::try_from(rank).unwrap_or(1) - 1).collect();
    aligned(node, context, &axes);
    Ok(true)
}

/// Opset 7: the third input of Gemm is always broadcast with `NumPy` semantics.
pub(super) fn gemm(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    Ok(context::remove(node, "broadcast"))
}

/// Opset 7: the default is inference mode.
pub(super) fn test_mode(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    if context::int(node, "is_test", 0)? == 0 {
        return Err(
            "it is in training mode (is_test is 0); export the model for inference".to_owned()
        );
    }
    Ok(context::remove(node, "is_test"))
}

/// Opset 7: the presence of an output says whether all steps are returned.
pub(super) fn whole_sequence(
    node: &mut NodeProto,
    _: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    Ok(context::remove(node, "output_sequence"))
}

/// Opset 6: the type is a number.
pub(super) fn cast(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    let to = context::string(node, "to", "")?;
    let dtype = match to.to_ascii_uppercase().as_str() {
        "FLOAT" => DataType::Float,
        "DOUBLE" => DataType::Double,
        "FLOAT16" => DataType::Float16,
        "INT8" => DataType::Int8,
        "INT16" => DataType::Int16,
        "INT32" => DataType::Int32,
        "INT64" => DataType::Int64,
        "UINT8" => DataType::UInt8,
        "UINT16" => DataType::UInt16,
        "UINT32" => DataType::UInt32,
        "UINT64" => DataType::UInt64,
        "BOOL" => DataType::Bool,
        _ => return Err(format!("its type `{to}` is not supported by Cast of opset 6")),
    };
    context::set(node, AttributeProto::int("to", i64::from(dtype.number())));
    Ok(true)
}

/// Opset 4: the axis is required. Its default was 1.
pub(super) fn concat(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    if node.attribute("axis").is_some() {
        return Ok(false);
    }
    context::set(node, AttributeProto::int("axis", 1));
    Ok(true)
}

/// Opset 5: the shape is an input.
pub(super) fn reshape(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    context::remove(node, "consumed_inputs");
    let shape = context::ints(node, "shape")?.unwrap_or_default().to_vec();
    context::remove(node, "shape");
    let name = context.ints(&context::base(node), "shape", &shape);
    context::set_input(node, 1, name);
    Ok(true)
}

/// Opset 2: the sizes are an attribute. The default axis is 0 in both versions.
pub(super) fn split(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let Some(lengths) = context::input(node, 1).map(str::to_owned) else { return Ok(false) };
    let found = context.constant(&lengths).ok_or_else(|| format!("`{lengths}` is not constant"))?;
    let values: Vec<f32> = found.to_f32().ok_or_else(|| format!("`{lengths}` is not float32"))?;
    // The sizes are integers that were stored as floats.
    #[allow(clippy::cast_possible_truncation)]
    let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
    context::set(node, AttributeProto::ints("split", &values));
    node.input.truncate(1);
    Ok(true)
}

/// Opset 2: the attribute is renamed.
pub(super) fn pad(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    let pads = context::ints(node, "paddings")?.unwrap_or_default().to_vec();
    context::remove(node, "paddings");
    context::set(node, AttributeProto::ints("pads", &pads));
    Ok(true)
}

/// Opset 2: the power is an integer.
pub(super) fn power(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    let Some(power) = context::float(node, "p")? else { return Ok(false) };
    if power.fract() != 0.0 || !(1.0..1e6).contains(&power) {
        return Err(format!("its power {power} is not a whole number"));
    }
    #[allow(clippy::cast_possible_truncation)] // checked above
    context::set(node, AttributeProto::int("p", power as i64));
    Ok(true)
}
