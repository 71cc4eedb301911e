//! Opset conversion of normalizations.

use quantize_rs_onnx::{AttributeProto, NodeProto, Raw};

use super::context::{self, NodeContext};

/// Opset 9: statistics are always per channel.
pub(super) fn spatial(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let spatial = context::int(node, "spatial", 1)?;
    let flat = |name: &str| context.shape(name).is_some_and(|shape| shape.len() == 2);
    if spatial == 0 && !context::input(node, 0).is_some_and(flat) {
        return Err("it normalizes each element separately (spatial is 0)".to_owned());
    }
    Ok(context::remove(node, "spatial"))
}

/// Opset 14: an attribute enables training mode, which has other outputs.
pub(super) fn training(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    if node.output.iter().skip(1).any(|output| !output.is_empty()) {
        let what = "it is in training mode (it outputs statistics); export the model for inference";
        return Err(what.to_owned());
    }
    let changed = node.output.len() > 1;
    node.output.truncate(1);
    Ok(changed)
}

/// Opset 21: scale and bias are per channel instead of per group.
pub(super) fn group(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let base = context::base(node);
    let x = context::input(node, 0).unwrap_or_default().to_owned();
    let groups = context::int(node, "num_groups", 1)?;
    let [channels, repeats] = ["channels", "group_channels"].map(|what| context.fresh(&base, what));
    let ends = [("start", 1), ("end", 2)];
    let ends = ends.map(|(name, value)| Raw::new(AttributeProto::int(name, value))).to_vec();
    let groups = context.ints(&base, "groups", &[groups]);
    let (behind, all) = (context.ints(&base, "axes", &[1]), context.ints(&base, "shape", &[-1]));
    let mut add = |op_type: &str, inputs: [&String; 2], made: &String, given: Vec<_>| {
        let inputs = inputs.map(String::clone).into_iter().filter(|name| !name.is_empty());
        let output = vec![made.clone()];
        context.before.push(NodeProto::new("", op_type, inputs.collect(), output, given));
    };
    add("Shape", [&x, &String::new()], &channels, ends);
    add("Div", [&channels, &groups], &repeats, Vec::new());
    for (index, what) in [(1, "scale"), (2, "bias")] {
        let Some(value) = context::input(node, index).map(str::to_owned) else { continue };
        let [column, grid, row] = ["column", "grid", "channels"]
            .map(|part| context.fresh(&base, &format!("{what}_{part}")));
        let mut add = |op_type: &str, inputs: [&String; 2], made: &String| {
            let inputs = inputs.map(String::clone).to_vec();
            let output = vec![made.clone()];
            context.before.push(NodeProto::new("", op_type, inputs, output, Vec::new()));
        };
        add("Unsqueeze", [&value, &behind], &column);
        add("Expand", [&column, &repeats], &grid);
        add("Reshape", [&grid, &all], &row);
        context::set_input(node, index, row);
    }
    Ok(true)
}
