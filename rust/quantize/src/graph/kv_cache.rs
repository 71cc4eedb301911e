//! Caches of keys and values: what `GroupQueryAttention` reads from an input of the model and
//! writes to an output.

use quantize_rs_onnx::{DataType, Model, NodeProto};

use super::ops::MICROSOFT;
use super::{Graph, Producer};

/// The operator, of ONNX Runtime.
const ATTENTION: &str = "GroupQueryAttention";

/// The inputs with the past keys and the past values, the outputs with the present ones, and the
/// inputs with the scales of the cache.
const PLACES: [(usize, usize, usize); 2] = [(3, 1, 12), (4, 2, 13)];

/// More channels have no model, but files may say anything.
const MAX_CHANNELS: usize = 1 << 20;

/// The types of a cache of floats, and of integers.
const CACHE_TYPES: [DataType; 3] = [DataType::Float, DataType::Float16, DataType::BFloat16];
const INTEGERS: [DataType; 2] = [DataType::Int8, DataType::UInt8];

/// A cache of keys or values.
#[derive(Clone, Debug)]
pub(crate) struct KvCache<'m> {
    /// The input of the model with the past, and its position among the inputs of the operator.
    pub(crate) past: &'m str,
    pub(crate) past_input: usize,
    /// The output of the model with the present, and its position among those of the operator.
    pub(crate) present: &'m str,
    pub(crate) present_output: usize,
    /// The input of the operator with the scales of a quantized cache.
    pub(crate) scale_input: usize,
    /// The number of heads, and the elements of each: of int4, two are one element.
    pub(crate) heads: usize,
    pub(crate) size: usize,
}

/// A node with both of its caches.
pub(crate) struct CachedAttention<'m> {
    pub(crate) node: usize,
    pub(crate) caches: Vec<KvCache<'m>>,
}

/// The nodes of the main graph whose cache can be quantized.
pub(crate) fn cached_attention<'m>(graph: &Graph<'m>) -> Vec<CachedAttention<'m>> {
    let found = (0..graph.nodes.len()).filter_map(|node| {
        let proto = graph.nodes[node];
        if proto.domain != MICROSOFT || proto.op_type != ATTENTION || is_quantized(graph, node) {
            return None;
        }
        let caches = PLACES.iter().map(|places| cache(graph, node, *places, &CACHE_TYPES));
        Some(CachedAttention { node, caches: caches.collect::<Option<_>>()? })
    });
    found.collect()
}

/// Whether a model has a node of which the cache is quantized. This needs no [`Graph`].
pub(crate) fn may_have_quantized(model: &Model) -> bool {
    model.graph().node.iter().any(|node| keeps_integers(node))
}

/// The nodes of the main graph whose caches are integers.
pub(crate) fn quantized_attention<'m>(graph: &Graph<'m>) -> Vec<CachedAttention<'m>> {
    let nodes = (0..graph.nodes.len()).filter(|node| is_quantized(graph, *node));
    let found = nodes.filter_map(|node| {
        let caches = PLACES.iter().map(|places| cache(graph, node, *places, &INTEGERS));
        Some(CachedAttention { node, caches: caches.collect::<Option<_>>()? })
    });
    found.collect()
}

/// Whether the cache of a node is quantized already.
pub(crate) fn is_quantized(graph: &Graph<'_>, node: usize) -> bool {
    keeps_integers(graph.nodes[node])
}

fn keeps_integers(node: &NodeProto) -> bool {
    let kind = || node.attribute("k_quant_type").and_then(|kind| kind.s.clone());
    node.op_type == ATTENTION && kind().is_some_and(|kind| kind != b"NONE"[..])
}

/// A cache that comes from an input of the model and goes to an output, and to nothing else.
fn cache<'m>(
    graph: &Graph<'m>,
    node: usize,
    (past, present, scale_input): (usize, usize, usize),
    types: &[DataType],
) -> Option<KvCache<'m>> {
    let (past_input, present_output) = (past, present);
    let past = graph.input(node, past_input)?;
    let present = graph.output(node, present_output)?;
    let (read, written) = (&graph.values[past], &graph.values[present]);
    let alone = matches!(read.producer, Producer::Input)
        && graph.only_consumer(past).is_some()
        && written.is_output
        && written.consumers.is_empty()
        && !written.used_in_subgraph;
    let dtype = graph.dtype(past).filter(|dtype| types.contains(dtype));
    let shape = graph.shape(past).filter(|_| alone && dtype.is_some())?;
    let [_, Some(heads), _, Some(size)] = shape[..] else { return None };
    let channels = heads.checked_mul(size)?;
    if channels == 0 || channels > MAX_CHANNELS {
        return None;
    }
    let (past, present) = (read.name, written.name);
    Some(KvCache { past, past_input, present, present_output, scale_input, heads, size })
}
