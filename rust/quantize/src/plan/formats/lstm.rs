//! LSTMs that quantize their input at run time: `DynamicQuantizeLSTM` of ONNX Runtime.

use std::collections::HashMap;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::{comes_from, is_function};
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, ValueId};
use crate::plan::accumulator_overflow::overflows;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::rules::Context;
use crate::plan::{Consumers, Decision, KeepReason, ValuePlan};
use crate::{Config, Format};

/// The gates of an LSTM.
const GATES: usize = 4;

/// Lets every LSTM with quantized weights multiply integers, where `DynamicQuantizeLSTM` has all
/// that the node needs. A warning says why another does not.
pub(in crate::plan) fn decide(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, config, .. } = *context;
    if config.output_format != Format::Dynamic || !config.dynamic_lstm {
        return Outcome::default();
    }
    let constants: HashMap<ValueId, &Constant<'_>> =
        context.constants.iter().map(|constant| (constant.anchor, constant)).collect();
    let has_quantized_weight = |index: &usize| {
        let node = graph.nodes[*index];
        let mut weights = [1, 2].into_iter().filter_map(|input| graph.input(*index, input));
        let is_lstm = node.is_onnx() && node.op_type == "LSTM";
        is_lstm && weights.any(|weight| decisions.quantized(weight).is_some())
    };
    let of_lstm = |index: usize| {
        let label = graph.nodes[index].label();
        match of_node(graph, &constants, config, decisions, index) {
            Ok(plans) => {
                let plans = plans.into_iter();
                let weights: Outcome = plans
                    .map(|(anchor, plan)| Outcome::revise(anchor, Decision::Quantize(plan)))
                    .collect();
                match graph.input(index, 0) {
                    Some(read) => {
                        weights.and(Outcome::keep(read, KeepReason::AtRunTime { node: label }))
                    }
                    None => weights,
                }
            }
            Err(why) => Outcome::warn([format!(
                "{label} computes in float, its weights alone are quantized: {why}"
            )]),
        }
    };
    (0..graph.nodes.len()).filter(has_quantized_weight).map(of_lstm).collect()
}

/// How both weights of an LSTM are quantized, or why they are not.
fn of_node(
    graph: &Graph<'_>,
    constants: &HashMap<ValueId, &Constant<'_>>,
    config: &Config,
    decisions: &Decisions,
    index: usize,
) -> Result<Vec<(ValueId, ValuePlan)>, String> {
    let node = graph.nodes[index];
    can_be(graph, node)?;
    let mut plans = Vec::new();
    for (input, name) in [(1, "W"), (2, "R")] {
        let anchor = graph.input(index, input);
        let plan = anchor.and_then(|anchor| decisions.quantized(anchor));
        let (Some(anchor), Some(plan)) = (anchor, plan) else {
            return Err(format!("{name} stays float"));
        };
        let constant = constants.get(&anchor).ok_or_else(|| format!("{name} is not constant"))?;
        if !matches!(constant.uses[..], [Use::Weight { node, .. }] if node == index)
            || !matches!(plan.consumers, Consumers::All)
        {
            return Err(format!("others read {name} too"));
        }
        if constant.dtype != Some(DataType::Float) {
            let dtype = constant.dtype.map_or_else(|| "of no type".to_owned(), |it| it.to_string());
            return Err(format!("{name} is {dtype}"));
        }
        let &[directions, rows, columns] = &constant.shape[..] else {
            return Err(format!("{name} has {} axes, not 3", constant.shape.len()));
        };
        if !matches!(plan.spec.qtype, QType::Int8 | QType::UInt8) {
            return Err(format!("{name} is {}", plan.spec.qtype));
        }
        if comes_from(graph, graph.input(index, 0), anchor) || rows % GATES != 0 {
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
        let plan = plan.clone();
        plans.push((anchor, ValuePlan { spec, matrix, format: Format::Dynamic, ..plan }));
    }
    Ok(plans)
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
