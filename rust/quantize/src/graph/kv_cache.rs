//! Caches of keys and values: what `GroupQueryAttention` reads from an input of the model and
//! writes to an output.

use quantize_rs_onnx::DataType;

use super::ops::MICROSOFT;
use super::{Graph, Producer};

/// The operator, of ONNX Runtime.
const ATTENTION: &str = "GroupQueryAttention";

/// The inputs with the past keys and the past values, the outputs with the present ones, and the
/// inputs with the scales of the cache.
const PLACES: [(usize, usize, usize); 2] = [(3, 1, 12), (4, 2, 13)];

/// More channels have no model, but files may say anything.
const MAX_CHANNELS: usize = 1 << 20;

/// A cache of keys or values.
#[derive(Clone, Debug)]
pub(crate) struct KvCache<'m> {
    /// The input of the model with the past.
    pub(crate) past: &'m str,
    /// The output of the model with the present.
    pub(crate) present: &'m str,
    /// The input of the operator with the scales of a quantized cache.
    pub(crate) scale_input: usize,
    /// The number of heads, and the elements of each.
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
        let caches = PLACES.iter().map(|places| cache(graph, node, *places));
        Some(CachedAttention { node, caches: caches.collect::<Option<_>>()? })
    });
    found.collect()
}

/// Whether the cache of a node is quantized already.
pub(crate) fn is_quantized(graph: &Graph<'_>, node: usize) -> bool {
    let proto = graph.nodes[node];
    let kind = proto.attribute("k_quant_type").and_then(|kind| kind.s.clone());
    proto.op_type == ATTENTION && kind.is_some_and(|kind| kind != b"NONE"[..])
}

/// A cache that comes from an input of the model and goes to an output, and to nothing else.
fn cache<'m>(
    graph: &Graph<'m>,
    node: usize,
    (past, present, scale_input): (usize, usize, usize),
) -> Option<KvCache<'m>> {
    let past = graph.input(node, past)?;
    let present = graph.output(node, present)?;
    let (read, written) = (&graph.values[past], &graph.values[present]);
    let alone = matches!(read.producer, Producer::Input)
        && read.consumers.len() == 1
        && !read.used_in_subgraph
        && !read.is_output
        && written.is_output
        && written.consumers.is_empty()
        && !written.used_in_subgraph;
    let float = [DataType::Float, DataType::Float16, DataType::BFloat16];
    let dtype = graph.dtype(past).filter(|dtype| float.contains(dtype));
    let shape = graph.shape(past).filter(|_| alone && dtype.is_some())?;
    let [_, Some(heads), _, Some(size)] = shape[..] else { return None };
    let channels = heads.checked_mul(size)?;
    if channels == 0 || channels > MAX_CHANNELS {
        return None;
    }
    Some(KvCache { past: read.name, present: written.name, scale_input, heads, size })
}
