//! Quantizes the caches of keys and values of `GroupQueryAttention`: inputs and outputs of the
//! model become integers, and the operator gets a scale for each channel.

use std::collections::BTreeMap;

use quantize_rs_onnx::{
    AttributeProto, DataType, Dimension, Edit, Model, NodeProto, Raw, Tensor, TensorProto,
    ValueInfoProto,
};

use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::kv_cache::{KvCache, cached_attention};
use crate::graph::names::Names;
use crate::options::KvCacheType;

/// The axis of the elements of a head.
const CHANNELS: usize = 3;

/// The model with quantized caches, how many nodes have one, and how many keep floats. `largest`
/// has the largest magnitude of each channel of each present value.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn with_quantized_cache(
    model: &Model,
    kind: KvCacheType,
    largest: &BTreeMap<String, Vec<f32>>,
) -> Result<(Model, usize, usize), QuantizeError> {
    let graph = Graph::of(model)?;
    let (mut names, mut edits) = (Names::of(&graph), Vec::new());
    let (mut count, mut left) = (0, 0);
    for found in cached_attention(&graph) {
        let fits = |cache: &KvCache<'_>| {
            let channels = largest.get(cache.present).map(Vec::len);
            channels == Some(cache.heads * cache.size)
                && (cache.size * kind.bits()).is_multiple_of(8)
        };
        if !found.caches.iter().all(fits) {
            left += 1;
            continue;
        }
        count += 1;
        let mut node = with_attributes(graph.nodes[found.node], kind);
        for cache in &found.caches {
            let scales = scales(&largest[cache.present], cache.size, kind);
            let scale = Tensor::from_f32(vec![1, cache.heads, 1, cache.size], &scales);
            let name = names.fresh(cache.present, "scale");
            edits.push(Edit::AddInitializer(TensorProto::new(&name, &scale)));
            if node.input.len() <= cache.scale_input {
                node.input.resize(cache.scale_input + 1, String::new());
            }
            node.input[cache.scale_input] = name;
        }
        edits.push(Edit::ReplaceNode { node: found.node, with: node });
        let changed = |name: &str| found.caches.iter().any(|c| c.past == name || c.present == name);
        let infos = model.graph().input.iter().chain(&model.graph().output);
        let infos = infos.filter(|info| changed(&info.name));
        edits.extend(infos.map(|info| Edit::SetValueInfo(as_integers(info, kind))));
    }
    let mut result = model.clone();
    if !edits.is_empty() {
        result.apply(edits)?;
    }
    Ok((result, count, left))
}

fn with_attributes(node: &NodeProto, kind: KvCacheType) -> NodeProto {
    let mut node = node.clone();
    let bits = i64::try_from(kind.bits()).unwrap_or(8);
    let attributes = [
        AttributeProto::string("k_quant_type", "PER_CHANNEL"),
        AttributeProto::string("v_quant_type", "PER_CHANNEL"),
        AttributeProto::int("kv_cache_bit_width", bits),
    ];
    node.attribute.retain(|old| attributes.iter().all(|new| new.name != old.name));
    node.attribute.extend(attributes.into_iter().map(Raw::new));
    node
}

/// A scale for each channel. One that was 0 in all samples gets the largest scale of its head.
fn scales(largest: &[f32], size: usize, kind: KvCacheType) -> Vec<f32> {
    let head = |channels: &[f32]| {
        let most = channels.iter().copied().fold(0.0, f32::max);
        let usual = if most > 0.0 { most } else { 1.0 };
        let scale = |x: &f32| if *x > 0.0 { *x } else { usual } / kind.largest();
        channels.iter().map(|x| scale(x).max(f32::MIN_POSITIVE)).collect::<Vec<f32>>()
    };
    largest.chunks(size.max(1)).flat_map(head).collect()
}

/// The information on an input or output that becomes integers.
fn as_integers(info: &ValueInfoProto, kind: KvCacheType) -> ValueInfoProto {
    let mut info = info.clone();
    let tensor = info.value_type.as_mut().and_then(|found| found.edit().tensor.as_mut());
    let Some(tensor) = tensor.map(Raw::edit) else { return info };
    tensor.elem_type = kind.data_type().number();
    let channels = tensor.shape.as_mut().and_then(|shape| shape.edit().dim.get_mut(CHANNELS));
    if let (Some(channels), DataType::UInt8) = (channels, kind.data_type())
        && let Some(length) = channels.value
    {
        *channels = Raw::new(Dimension::fixed(length / 2));
    }
    info
}
