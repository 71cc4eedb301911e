//! Average pools that ONNX Runtime replaces by its integer kernel although that averages otherwise.

use std::collections::HashMap;

use super::{KeepReason, Plan, Source};
use crate::graph::ops::arithmetic::averages_integers;
use crate::graph::{Graph, Producer};

impl Plan {
    /// The plan without the values that such pools read: between `DequantizeLinear` and
    /// `QuantizeLinear`, the runtime would replace them, whatever this plan says.
    pub(super) fn without_misread_pools(self, graph: &Graph<'_>) -> Plan {
        let is_pool = |node: usize| {
            let proto = graph.nodes[node];
            proto.is_onnx() && proto.op_type == "AveragePool" && !averages_integers(proto)
        };
        let pools = (0..graph.nodes.len()).filter(|node| is_pool(*node));
        let kept: HashMap<String, KeepReason> = pools
            .filter_map(|node| {
                let value = self.source_of(graph, node)?;
                let node = graph.nodes[node].label();
                Some((value, KeepReason::MisreadBy { node }))
            })
            .collect();
        self.without(kept)
    }

    /// The observed value whose range the input of a node has.
    fn source_of(&self, graph: &Graph<'_>, node: usize) -> Option<String> {
        let mut name = graph.values[graph.input(node, 0)?].name;
        // No chain of values with one range is longer than the graph.
        for _ in 0..=graph.nodes.len() {
            let (_, how) = self.quantized().find(|(value, _)| value.name == name)?;
            match &how.source {
                Source::SameAs(source) => name = graph.values[graph.value(source)?].name,
                _ => break,
            }
        }
        let id = graph.value(name)?;
        matches!(graph.values[id].producer, Producer::Node { .. } | Producer::Input)
            .then(|| name.to_owned())
    }
}
