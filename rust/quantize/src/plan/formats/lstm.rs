//! LSTMs that quantize their input at run time: `DynamicQuantizeLSTM` of ONNX Runtime.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::comes_from;
use crate::Format;
use crate::graph::ops::is_function;
use crate::graph::uses::{Constant, Multiplier};
use crate::graph::{Graph, ValueId};
use crate::plan::accumulator_overflow::overflows;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::rules::Context;
use crate::plan::{Consumers, Decision, KeepReason, ValuePlan};

/// The gates of an LSTM.
const GATES: usize = 4;

/// Lets every LSTM with quantized weights multiply integers, where `DynamicQuantizeLSTM` has all
/// that the node needs. A warning says why another does not.
pub(in crate::plan) fn decide(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, config, .. } = *context;
    if config.output_format != Format::Dynamic || !config.dynamic_lstm {
        return Outcome::default();
    }
    let lstms = Lstm::all(context, decisions);
    if lstms.is_empty() {
        let none = "dynamic_lstm has no effect: the model has no LSTM with quantized weights";
        return Outcome::warn([none.to_owned()]);
    }
    let of_lstm = |lstm: &Lstm<'_, '_>| match lstm.plans(context, decisions) {
        Ok(plans) => {
            let plans = plans.into_iter();
            let weights: Outcome = plans
                .map(|(anchor, plan)| Outcome::revise(anchor, Decision::Quantize(plan)))
                .collect();
            // A value that a subgraph computes is not part of the plan.
            match graph.value(&lstm.node.input[0]) {
                Some(read) => {
                    let node = lstm.node.label();
                    weights.and(Outcome::keep(read, KeepReason::AtRunTime { node }))
                }
                None => weights,
            }
        }
        Err(why) => Outcome::warn([format!(
            "{} computes in float, its weights alone are quantized: {why}",
            lstm.node.label()
        )]),
    };
    lstms.iter().map(of_lstm).collect()
}

/// An LSTM of the main graph or of a subgraph, with at least one quantized weight.
struct Lstm<'c, 'm> {
    node: &'m NodeProto,
    /// W and R, where they are constants.
    weights: [Option<&'c Constant<'m>>; 2],
}

impl<'c, 'm> Lstm<'c, 'm> {
    fn all(context: &Context<'c, 'm>, decisions: &Decisions) -> Vec<Lstm<'c, 'm>> {
        let Context { graph, constants, .. } = *context;
        let mut all: Vec<Lstm<'c, 'm>> = Vec::new();
        for constant in constants {
            for reader in constant.uses.iter().filter_map(|usage| usage.multiplier(graph)) {
                let Multiplier { node, input, .. } = reader;
                let direct = node.input[input] == graph.values[constant.anchor].name;
                if !(node.is_onnx() && node.op_type == "LSTM" && direct) {
                    continue;
                }
                let Some(place) = input.checked_sub(1).filter(|place| *place < 2) else { continue };
                let known = all.iter().position(|lstm| std::ptr::eq(lstm.node, node));
                let index = known.unwrap_or_else(|| {
                    all.push(Lstm { node, weights: [None; 2] });
                    all.len() - 1
                });
                all[index].weights[place] = Some(constant);
            }
        }
        all.retain(|lstm| {
            let mut weights = lstm.weights.iter().flatten();
            weights.any(|weight| decisions.quantized(weight.anchor).is_some())
        });
        all
    }

    /// How both weights are quantized, or why they are not.
    fn plans(
        &self,
        context: &Context<'_, '_>,
        decisions: &Decisions,
    ) -> Result<Vec<(ValueId, ValuePlan)>, String> {
        let Context { graph, config, .. } = *context;
        can_be(graph, self.node)?;
        let mut plans = Vec::new();
        for (constant, name) in self.weights.iter().zip(["W", "R"]) {
            let plan = constant.and_then(|constant| decisions.quantized(constant.anchor));
            let (Some(constant), Some(plan)) = (*constant, plan) else {
                return Err(format!("{name} stays float"));
            };
            let is_this = |reader: Multiplier<'_>| std::ptr::eq(reader.node, self.node);
            let [only] = &constant.uses[..] else {
                return Err(format!("others read {name} too"));
            };
            if !only.multiplier(graph).is_some_and(is_this)
                || !matches!(plan.consumers, Consumers::All)
            {
                return Err(format!("others read {name} too"));
            }
            if constant.dtype != Some(DataType::Float) {
                let dtype = constant.dtype;
                let dtype = dtype.map_or_else(|| "of no type".to_owned(), |it| it.to_string());
                return Err(format!("{name} is {dtype}"));
            }
            let &[directions, rows, columns] = &constant.shape[..] else {
                return Err(format!("{name} has {} axes, not 3", constant.shape.len()));
            };
            if !matches!(plan.spec.qtype, QType::Int8 | QType::UInt8) {
                return Err(format!("{name} is {}", plan.spec.qtype));
            }
            let input = graph.value(&self.node.input[0]);
            if comes_from(graph, input, constant.anchor) || rows % GATES != 0 {
                return Err(format!("{name} is no weight of it alone"));
            }
            let qtype = plan.spec.qtype;
            // At least one scale per direction; zero points differ by direction, not by row.
            let symmetric =
                config.symmetric == Some(true) || qtype.signed() || config.scales_per_channel();
            let reduced = qtype == QType::Int8 && config.profile().reduced;
            let granularity = Granularity::PerAxis { axis: 0 };
            let spec = QSpec { reduce_range: reduced, ..QSpec::new(qtype, symmetric, granularity) };
            if overflows(columns, &spec) {
                return Err(format!("its sums over {name} are so long that they may leave int32"));
            }
            let matrix = config.scales_per_channel().then_some([directions * rows, columns]);
            let revised = ValuePlan { spec, matrix, format: Format::Dynamic, ..plan.clone() };
            plans.push((constant.anchor, revised));
        }
        Ok(plans)
    }
}

/// Whether ONNX Runtime's operator has all that a node needs; else what it lacks.
fn can_be(graph: &Graph<'_>, node: &NodeProto) -> Result<(), String> {
    if is_function(graph, "DynamicQuantizeLSTM") {
        return Err("the model calls a function of its own DynamicQuantizeLSTM".to_owned());
    }
    match node.int("layout", 0) {
        0 => Ok(()),
        layout => Err(format!("its layout is {layout}, ONNX Runtime knows 0 alone")),
    }
}
