//! A plan for calibration alone, which observes values whether or not they are quantized.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::{Consumers, Decision, KeepReason, QuantizeReason, Role, Source, ValuePlan};
use crate::graph::{Graph, Producer, ValueId};
use crate::{Format, Model, Plan, QuantizeError};

impl Plan {
    /// A plan for the same model that observes the float32 values that nodes of these types read or
    /// write, or all nodes if there are no types. It is for calibration, not to be applied.
    ///
    /// # Errors
    /// The plan was made for another model.
    pub fn observing(&self, model: &Model, op_types: &[String]) -> Result<Plan, QuantizeError> {
        self.check_model(model)?;
        let graph = Graph::of(model)?;
        let mut plan = self.clone();
        plan.config.activations = Some(QType::UInt8);
        plan.config.bias_correction = false;
        plan.config.smooth = false;
        for (id, value) in plan.values.iter_mut().enumerate() {
            if !matches!(value.role, Role::Input | Role::Activation) {
                continue;
            }
            let node = near(&graph, id, op_types).filter(|_| value.dtype == Some(DataType::Float));
            value.decision = match node {
                Some(node) => Decision::Quantize(ValuePlan {
                    spec: QSpec::new(QType::UInt8, false, Granularity::PerTensor),
                    stored: QType::UInt8,
                    matrix: None,
                    format: Format::Qdq,
                    source: Source::Observed,
                    consumers: Consumers::All,
                    because: QuantizeReason::InputOf(graph.nodes[node].label()),
                }),
                None => Decision::KeepFloat(KeepReason::NoRule { op_type: None }),
            };
        }
        Ok(plan)
    }
}

/// A node of one of the types that reads or writes a value.
fn near(graph: &Graph<'_>, id: ValueId, op_types: &[String]) -> Option<usize> {
    let value = &graph.values[id];
    let producer = match value.producer {
        Producer::Node { node, .. } => Some(node),
        _ => None,
    };
    let mut nodes = producer.into_iter().chain(value.consumers.iter().map(|reader| reader.node));
    nodes.find(|node| op_types.is_empty() || op_types.contains(&graph.nodes[*node].op_type))
}
