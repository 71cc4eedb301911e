//! Small tables of embeddings, which get 8 bits where weights get fewer: their errors are not
//! averaged by a sum, and reach every layer after them.

use std::collections::BTreeSet;

use quantize_rs_math::QType;

use super::select::Selection;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::{Config, WeightType};

/// The fraction of the bytes of all weights, one in this many, that 8 bits may add.
const SHARE: usize = 8;

/// The tables that get 8 bits: those that are only looked up, if 8 bits in all of them add little to
/// the size. Tables whose type an option names keep it.
pub(super) fn find(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
) -> BTreeSet<ValueId> {
    let bits = config.weights.bits() as usize;
    if eight_bits(config.weights).is_none() {
        return BTreeSet::new();
    }
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let weights = || constants.iter().filter(|constant| constant.is_weight());
    let is_table = |constant: &&Constant<'_>| {
        let mut nodes = constant.multipliers(graph).peekable();
        nodes.peek().is_some() && nodes.all(|node| matches!(&*node.op_type, "Gather" | "Slice"))
    };
    let unnamed = |constant: &&Constant<'_>| {
        selection.weight_type(&constant.names(graph), constant.multipliers(graph)).is_none()
    };
    let tables: Vec<&Constant<'_>> = weights().filter(is_table).filter(unnamed).collect();
    let added: usize = tables.iter().map(|table| elements(table) * (8 - bits)).sum();
    let all: usize = weights().map(|weight| elements(weight) * bits).sum();
    if added > all / SHARE {
        return BTreeSet::new();
    }
    tables.iter().map(|table| table.anchor).collect()
}

/// The type of 8 bits with the sign of an integer type of fewer bits.
pub(super) fn eight_bits(requested: WeightType) -> Option<WeightType> {
    let WeightType::Of(qtype) = requested else { return None };
    if qtype.is_float() || qtype.bits() >= 8 {
        return None;
    }
    Some(WeightType::Of(if qtype.signed() { QType::Int8 } else { QType::UInt8 }))
}
