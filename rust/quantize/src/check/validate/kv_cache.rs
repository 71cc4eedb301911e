//! Caches of keys and values that became integers: what may differ then.

use std::collections::BTreeSet;

use quantize_rs_onnx::{DataType, NodeProto};

use super::wiring::equal;
use super::{Check, Validation};
use crate::graph::Graph;
use crate::graph::elements::to_f32;

pub(super) use crate::graph::kv_cache::is_quantized;

/// The attributes of a quantized cache.
const ATTRIBUTES: [&str; 3] = ["k_quant_type", "v_quant_type", "kv_cache_bit_width"];

/// The inputs with the past keys and values, and the outputs with the present ones.
const CACHES: [(usize, usize); 2] = [(3, 1), (4, 2)];

/// The inputs with the scales.
const SCALES: [usize; 2] = [12, 13];

/// Whether an input holds the scales of a cache.
pub(super) fn is_scale(input: usize) -> bool {
    SCALES.contains(&input)
}

/// Whether two nodes have the same attributes, except those of a quantized cache.
pub(super) fn same_but_types(was: &NodeProto, is: &NodeProto) -> bool {
    let own = |node: &NodeProto| {
        let names = node.attribute.iter().map(|attribute| attribute.name.clone());
        names.filter(|name| !ATTRIBUTES.contains(&name.as_str())).collect::<BTreeSet<String>>()
    };
    let same = |name: &String| match (was.attribute(name), is.attribute(name)) {
        (Some(was), Some(is)) => equal(was, is),
        _ => false,
    };
    own(was) == own(is) && own(was).iter().all(same)
}

/// The inputs and outputs of a model that are caches of integers.
pub(super) fn quantized_values<'m>(after: &Graph<'m>) -> BTreeSet<&'m str> {
    let nodes = (0..after.nodes.len()).filter(|node| is_quantized(after, *node));
    let values = nodes.flat_map(|node| {
        let pairs = CACHES.iter();
        pairs.flat_map(move |(past, present)| {
            [after.input(node, *past), after.output(node, *present)]
        })
    });
    let integers = [Some(DataType::Int8), Some(DataType::UInt8)];
    let values = values.flatten().map(|value| &after.values[value]);
    let typed = values.filter(|value| {
        let dtype = value.info.and_then(|info| info.tensor_type()).map(|tensor| tensor.elem_type);
        integers.contains(&dtype.and_then(DataType::from_number))
    });
    typed.map(|value| value.name).collect()
}

/// Checks that the scales of quantized caches are positive numbers.
pub(super) fn check(after: &Graph<'_>, found: &mut Validation) {
    for node in (0..after.nodes.len()).filter(|node| is_quantized(after, *node)) {
        for input in SCALES {
            let name = after.nodes[node].named();
            let Some(id) = after.input(node, input) else {
                let what =
                    format!("its cache is quantized, and input {input} with the scales is missing");
                found.problem(Check::Scale, name, what);
                continue;
            };
            let tensor = after.constant(id).and_then(|proto| after.model.tensor(proto).ok());
            let scales = tensor.and_then(|tensor| to_f32(&tensor));
            let Some(scales) = scales else {
                found.skip(name, "the scales of its cache are computed at run time");
                continue;
            };
            if let Some(wrong) = scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
                let what = format!("the scale {wrong} of its cache is not a positive number");
                found.problem(Check::Scale, name, what);
            }
        }
    }
}
