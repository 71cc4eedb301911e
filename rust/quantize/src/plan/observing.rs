//! A plan for calibration alone, which observes values whether or not they are quantized.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::{Consumers, Decision, KeepReason, Planned, QuantizeReason, Role, Source, ValuePlan};
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

    /// The same plan, whose calibration also finds the ranges of float32 values that it does not
    /// quantize itself: other plans for the model can then be applied with these ranges.
    #[must_use]
    pub fn observing_all(&self) -> Plan {
        Plan { observes_all: true, ..self.clone() }
    }

    /// The values that are observed although the plan needs no range of their own, and how they
    /// would be quantized.
    pub(crate) fn also_observed(&self) -> impl Iterator<Item = (&Planned, QSpec)> {
        let qtype = self.config.activations.unwrap_or(QType::UInt8);
        let spec = QSpec::new(qtype, self.config.activation_symmetric, Granularity::PerTensor);
        let values = self.values.iter().filter(|_| self.observes_all);
        let floats = values.filter(|value| {
            matches!(value.role, Role::Input | Role::Activation)
                && value.dtype == Some(DataType::Float)
        });
        floats.map(move |value| (value, spec))
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
