//! Weights of experts in blocks, for `QMoE`.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::Form;
use super::matmul_nbits::{BLOCK_SIZE, unsigned};
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, ValueId, moe};
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::rules::Context;
use crate::plan::{Consumers, Decision, KeepReason, Plan, Planned, ValuePlan};
use crate::{Config, Format};

/// Whether a `MoE` multiplies by a constant.
pub(super) fn reads(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    constant.multipliers(graph).any(moe::is_moe)
}

/// How a weight is stored: the rows of all experts as those of one matrix, in blocks.
///
/// # Errors
/// The reason why `QMoE` cannot read the weight.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Form, String> {
    let known = [DataType::Float, DataType::Float16];
    if let Some(dtype) = constant.dtype.filter(|dtype| !known.contains(dtype)) {
        return Err(format!("it is {dtype}"));
    }
    let [Use::Weight { node, input, .. }] = constant.uses[..] else {
        return Err("more than one node reads it, or one in a graph inside a node".to_owned());
    };
    let proto = graph.nodes[node];
    moe::fits(graph, proto)?;
    let direct = proto.input[input] == graph.values[constant.anchor].name;
    let &[experts, rows, columns] = &constant.shape[..] else {
        return Err(format!("it has {} axes, not 3", constant.shape.len()));
    };
    let length = |projection: moe::Projection| {
        let shape = graph.shape(graph.input(node, projection.weight)?)?;
        shape.last().copied().flatten()
    };
    let [Some(one), Some(other)] = moe::PROJECTIONS.map(length) else {
        return Err(format!("the shapes of the weights of {} are not known", proto.label()));
    };
    if !direct {
        return Err(format!("it is rearranged before {} reads it", proto.label()));
    }
    let block_size = moe::block(config.block_size.unwrap_or(BLOCK_SIZE), [one, other]);
    if block_size.is_none() && !columns.is_multiple_of(moe::LEAST_MULTIPLE) {
        return Err(format!("rows of {columns} elements are no multiple of 8"));
    }
    let whole = block_size.unwrap_or(columns);
    let granularity = Granularity::Blocked { axis: 1, block_size: whole };
    // The zero points of whole rows are packed in another way.
    let symmetric = block_size.is_none() || config.symmetric_weights(qtype, granularity);
    Ok(Form {
        spec: QSpec::new(unsigned(qtype), symmetric, granularity),
        consumers: Consumers::All,
        format: Format::MatMulNBits,
        at_run_time: Vec::new(),
        matrix: Some([experts * rows, columns]),
    })
}

/// Why `QMoE` cannot read a grid of fewer bits than the type that stores it, if it cannot: the
/// middle of the grid is not that of the type, and only blocks have zero points.
pub(in crate::plan) fn lacks_zero_points(
    spec: &QSpec,
    matrix: Option<[usize; 2]>,
) -> Option<&'static str> {
    let Granularity::Blocked { block_size, .. } = spec.granularity else { return None };
    let rows = matrix.is_some() && !moe::is_block(block_size);
    (rows && spec.used_bits != 0)
        .then_some("no block divides its rows, and rows take 2, 4 or 8 bits")
}

/// Keeps a weight float if the other one of its `MoE` stays float or is stored in another way:
/// `QMoE` reads integers alone, with blocks of one size and, on a CPU, of one number of bits.
pub(in crate::plan) fn keep_single(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, config, .. } = *context;
    if config.output_format != Format::MatMulNBits {
        return Outcome::default();
    }
    let nodes = (0..graph.nodes.len()).filter(|node| moe::is_moe(graph.nodes[*node]));
    let of_node = |node: usize| {
        let weights = moe::PROJECTIONS.map(|it| graph.input(node, it.weight));
        let planned = |id: &Option<ValueId>| {
            let plan = decisions.quantized((*id)?)?;
            (plan.format == Format::MatMulNBits).then_some(plan)
        };
        let plans: Vec<&ValuePlan> = weights.iter().filter_map(planned).collect();
        if plans.len() == weights.len() && are_alike(&plans) {
            return Outcome::default();
        }
        let why = format!(
            "the other weight of {} stays float, or has other bits or blocks",
            graph.nodes[node].label()
        );
        let kept = || KeepReason::NoForm { format: Format::MatMulNBits, why: why.clone() };
        let alone = weights.iter().filter(|id| planned(id).is_some()).flatten();
        alone.map(|id| Outcome::revise(*id, Decision::KeepFloat(kept()))).collect()
    };
    nodes.map(of_node).collect()
}

impl Plan {
    /// The weights that a `QMoE` reads, by node: each alone stays float.
    pub(crate) fn joint_weights(&self, graph: &Graph<'_>) -> Vec<Vec<String>> {
        let nodes = (0..graph.nodes.len()).filter(|node| moe::is_moe(graph.nodes[*node]));
        let of_node = |node: usize| {
            let weights = moe::PROJECTIONS.map(|it| graph.input(node, it.weight));
            let values = weights.into_iter().flatten().filter_map(|id| self.values.get(id));
            let reads = |value: &&Planned| match &value.decision {
                Decision::Quantize(how) => how.format == Format::MatMulNBits,
                Decision::KeepFloat(_) => false,
            };
            values.filter(reads).map(|value| value.name.clone()).collect::<Vec<_>>()
        };
        nodes.map(of_node).filter(|weights| weights.len() > 1).collect()
    }
}

/// Whether weights have one number of bits, and blocks of one size or whole rows as blocks.
fn are_alike(plans: &[&ValuePlan]) -> bool {
    let mut pairs = plans.windows(2);
    if pairs.any(|pair| pair[0].spec.qtype != pair[1].spec.qtype) {
        return false;
    }
    let size = |plan: &&ValuePlan| match plan.spec.granularity {
        Granularity::Blocked { block_size, .. } => Some(block_size),
        _ => None,
    };
    let is_row = |plan: &&ValuePlan| size(plan) == plan.matrix.map(|[_, columns]| columns);
    plans.windows(2).all(|pair| size(&pair[0]) == size(&pair[1])) || plans.iter().all(is_row)
}
