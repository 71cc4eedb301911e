//! LSTMs that quantize what they read when the model runs: `DynamicQuantizeLSTM` of ONNX Runtime.

use std::collections::HashMap;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::{comes_from, is_function};
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, ValueId};
use crate::plan::accumulator_overflow::overflows;
use crate::plan::{Decision, Draft, Kept, Readers, ValuePlan};
use crate::{Config, Format};

/// The gates of an LSTM.
const GATES: usize = 4;

/// Lets every LSTM whose weights are both quantized multiply them as integers, where ONNX Runtime's operator can do
/// what it does. Of the others it is said why their weights alone are quantized.
pub(in crate::plan) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    draft: &mut Draft,
) {
    if config.output_format != Format::Dynamic || !config.dynamic_lstm {
        return;
    }
    let constants: HashMap<ValueId, &Constant<'_>> =
        constants.iter().map(|constant| (constant.anchor, constant)).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        let weights = [1, 2].map(|input| graph.input(index, input));
        let is_lstm = node.is_onnx() && node.op_type == "LSTM";
        if !is_lstm || !weights.iter().any(|it| planned(draft, *it)) {
            continue;
        }
        match of_node(graph, &constants, config, draft, index) {
            Ok(plans) => {
                for (anchor, plan) in plans {
                    draft.decisions.insert(anchor, Decision::Quantize(plan));
                }
                if let Some(read) = graph.input(index, 0) {
                    draft.keep(read, Kept::AtRunTime { node: node.label() });
                }
            }
            Err(why) => draft.warnings.push(format!(
                "{} computes in float, its weights alone are quantized: {why}",
                node.label()
            )),
        }
    }
}

fn planned(draft: &Draft, weight: Option<ValueId>) -> bool {
    let decision = weight.and_then(|weight| draft.decisions.get(&weight));
    matches!(decision, Some(Decision::Quantize(_)))
}

/// How both weights of a node are quantized, or why they are not.
fn of_node(
    graph: &Graph<'_>,
    constants: &HashMap<ValueId, &Constant<'_>>,
    config: &Config,
    draft: &Draft,
    index: usize,
) -> Result<Vec<(ValueId, ValuePlan)>, String> {
    let node = graph.nodes[index];
    can_be(graph, node)?;
    let mut plans = Vec::new();
    for (input, name) in [(1, "W"), (2, "R")] {
        let anchor = graph.input(index, input);
        let decision = anchor.and_then(|anchor| draft.decisions.get(&anchor));
        let (Some(anchor), Some(Decision::Quantize(plan))) = (anchor, decision) else {
            return Err(format!("{name} stays float"));
        };
        let constant = constants.get(&anchor).ok_or_else(|| format!("{name} is not constant"))?;
        if !matches!(constant.uses[..], [Use::Weight { node, .. }] if node == index)
            || !matches!(plan.consumers, Readers::All)
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
        // A scale for each direction at least; zero points differ by direction, not by row.
        let symmetric = config.symmetric || qtype.signed() || config.per_channel;
        let reduced = qtype == QType::Int8 && config.profile().reduced;
        let granularity = Granularity::PerAxis { axis: 0 };
        let spec = QSpec { reduced, ..QSpec::new(qtype, symmetric, granularity) };
        if overflows(columns, &spec) {
            return Err(format!("its sums over {name} are so long that they may leave int32"));
        }
        let matrix = config.per_channel.then_some([directions * rows, columns]);
        let plan = plan.clone();
        plans.push((anchor, ValuePlan { spec, matrix, format: Format::Dynamic, ..plan }));
    }
    Ok(plans)
}

/// Whether ONNX Runtime's operator has all that a node wants.
fn can_be(graph: &Graph<'_>, node: &NodeProto) -> Result<(), String> {
    if is_function(graph, "DynamicQuantizeLSTM") {
        return Err("the model calls a function of its own DynamicQuantizeLSTM".to_owned());
    }
    match node.int("layout", 0) {
        0 => Ok(()),
        layout => Err(format!("its layout is {layout}, ONNX Runtime knows 0 alone")),
    }
}
