//! Versions 2 to 7: from the first models to those that name inputs as numpy broadcasts them.

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto};

use super::place::{self, Place};

/// Version 6: who may overwrite whose memory is no longer said.
pub(super) fn in_place(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    Ok(place::remove(node, "consumed_inputs"))
}

/// Version 6: the constants of Selu have more digits; those that were meant are written out.
pub(super) fn selu(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    in_place(node, place)?;
    for (name, old) in [("alpha", 1.6732_f32), ("gamma", 1.0507_f32)] {
        if node.attribute(name).is_none() {
            place::set(node, AttributeProto::float(name, old));
        }
    }
    Ok(true)
}

/// Version 7: the second input is broadcast as numpy does, its axes against the last ones.
pub(super) fn broadcast(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let (broadcast, axis) = (place::int(node, "broadcast", 0)?, place::maybe_int(node, "axis")?);
    let mut changed = place::remove(node, "broadcast");
    changed |= place::remove(node, "axis");
    let Some(axis) = axis.filter(|_| broadcast != 0) else { return Ok(changed) };
    let [left, right] =
        [0, 1].map(|index| place::input(node, index).unwrap_or_default().to_owned());
    let (Some(left_rank), Some(right_shape)) = (place.rank(&left), place.shape(&right)) else {
        return Err(format!(
            "`{right}` is broadcast from axis {axis} on, and the axes of `{left}` and `{right}` are \
             not known; infer the shapes of the model first"
        ));
    };
    if right_shape.iter().all(|length| *length == Some(1)) {
        return Ok(changed);
    }
    let signed = |rank: usize| i64::try_from(rank).unwrap_or(i64::MAX);
    let axis = if axis < 0 { axis + signed(left_rank) } else { axis };
    let behind = signed(left_rank).saturating_sub(axis).saturating_sub(signed(right_shape.len()));
    if axis < 0 || behind < 0 {
        return Err(format!("its axis {axis} is not one of `{left}`"));
    }
    if behind > 0 {
        let first = signed(right_shape.len());
        let added: Vec<i64> = (first..first + behind).collect();
        aligned(node, place, &added);
    }
    Ok(true)
}

/// Puts axes of length 1 behind those of the second input.
fn aligned(node: &mut NodeProto, place: &mut Place<'_, '_>, axes: &[i64]) {
    let Some(value) = node.input.get_mut(1) else { return };
    let name = place.fresh(value, "aligned");
    let axes = vec![quantize_rs_onnx::Raw::new(AttributeProto::ints("axes", axes))];
    let from = std::mem::replace(value, name.clone());
    place.before.push(NodeProto::new("", "Unsqueeze", vec![from], vec![name], axes));
}

/// Version 7: the slopes of the channels stand against the last axis unless they have more axes.
pub(super) fn slope(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let [x, slope] = [0, 1].map(|index| place::input(node, index).unwrap_or_default().to_owned());
    let shape = place.shape(&slope);
    if shape.as_deref().is_some_and(|shape| shape.iter().all(|length| *length == Some(1))) {
        return Ok(false);
    }
    let (Some(1), Some(rank)) = (shape.map(|shape| shape.len()), place.rank(&x)) else {
        let what = "are not known; infer the shapes of the model first";
        return Err(format!("the axes of `{x}` and `{slope}` {what}"));
    };
    if rank <= 2 {
        return Ok(false);
    }
    let axes: Vec<i64> = (1..i64::try_from(rank).unwrap_or(1) - 1).collect();
    aligned(node, place, &axes);
    Ok(true)
}

/// Version 7: the third input of Gemm may always be broadcast, as numpy does.
pub(super) fn gemm(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    Ok(place::remove(node, "broadcast"))
}

/// Version 7: whoever does not train computes as in a test, without saying so.
pub(super) fn test_mode(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    if place::int(node, "is_test", 0)? == 0 {
        return Err("it is in training (is_test is 0); export the model for inference".to_owned());
    }
    Ok(place::remove(node, "is_test"))
}

/// Version 7: that all steps are wanted is said by an output.
pub(super) fn whole_sequence(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    Ok(place::remove(node, "output_sequence"))
}

/// Version 6: the type is a number.
pub(super) fn cast(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    let to = place::string(node, "to", "")?;
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
        _ => return Err(format!("its type `{to}` is none that opset 6 casts to")),
    };
    place::set(node, AttributeProto::int("to", i64::from(dtype.number())));
    Ok(true)
}

/// Version 4: the axis has to be said; it was 1.
pub(super) fn concat(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    if node.attribute("axis").is_some() {
        return Ok(false);
    }
    place::set(node, AttributeProto::int("axis", 1));
    Ok(true)
}

/// Version 5: the shape is an input.
pub(super) fn reshape(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    place::remove(node, "consumed_inputs");
    let shape = place::ints(node, "shape")?.unwrap_or_default().to_vec();
    place::remove(node, "shape");
    let name = place.ints(&place::base(node), "shape", &shape);
    place::set_input(node, 1, name);
    Ok(true)
}

/// Version 2: the lengths are an attribute, and the axis is 0 unless said.
pub(super) fn split(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let Some(lengths) = place::input(node, 1).map(str::to_owned) else { return Ok(false) };
    let found = place.constant(&lengths).ok_or_else(|| format!("`{lengths}` is not constant"))?;
    let values: Vec<f32> = found.to_f32().ok_or_else(|| format!("`{lengths}` is not float32"))?;
    // Lengths of axes: whole numbers, which stood in a float.
    #[allow(clippy::cast_possible_truncation)]
    let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
    place::set(node, AttributeProto::ints("split", &values));
    node.input.truncate(1);
    Ok(true)
}

/// Version 2: the attribute has another name.
pub(super) fn pad(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    let pads = place::ints(node, "paddings")?.unwrap_or_default().to_vec();
    place::remove(node, "paddings");
    place::set(node, AttributeProto::ints("pads", &pads));
    Ok(true)
}

/// Version 2: the power is an integer.
pub(super) fn power(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    let Some(power) = place::float(node, "p")? else { return Ok(false) };
    if power.fract() != 0.0 || !(1.0..1e6).contains(&power) {
        return Err(format!("its power {power} is not a whole number"));
    }
    #[allow(clippy::cast_possible_truncation)] // looked at just now
    place::set(node, AttributeProto::int("p", power as i64));
    Ok(true)
}
