//! How an output format stores a weight, or why it cannot.

mod dynamic;
pub(super) mod experts;
mod fake_quant;
mod lstm;
mod matmul_bnb4;
mod matmul_nbits;
pub(super) mod output_layers;

use std::collections::BTreeSet;

use quantize_rs_math::{QSpec, QType};

use super::{Consumers, KeepReason};
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::{Config, Format};

pub(super) use dynamic::keep_attentions;
pub(super) use experts::keep_single as keep_single_experts;
pub(super) use lstm::decide as decide_lstms;

/// How a format stores a weight.
pub(super) struct Form {
    pub(super) spec: QSpec,
    pub(super) consumers: Consumers,
    pub(super) format: Format,
    /// The shape of the matrix that it is stored as, if it is another.
    pub(super) matrix: Option<[usize; 2]>,
    /// Values that are quantized at run time for it, and the labels of the nodes that need that.
    pub(super) at_run_time: Vec<(ValueId, String)>,
}

/// How a format stores a weight; `None` where the options decide, and `DequantizeLinear` reads it.
type FormOf = fn(&Graph<'_>, &Constant<'_>, &Config, QType) -> Result<Option<Form>, KeepReason>;

/// What a format decides about weights.
struct PlanRow {
    format: Format,
    /// The format of a weight for which `form` returns `None`.
    otherwise: Format,
    /// Weights that stay float.
    float_weights: fn(&Graph<'_>, &[Constant<'_>]) -> BTreeSet<ValueId>,
    form: FormOf,
}

/// One row for each output format.
const PLANS: &[PlanRow] = &[
    PlanRow {
        format: Format::Qdq,
        otherwise: Format::Qdq,
        float_weights: |_, _| BTreeSet::new(),
        form: |_, _, _, _| Ok(None),
    },
    PlanRow {
        format: Format::QOperator,
        otherwise: Format::Qdq,
        float_weights: |_, _| BTreeSet::new(),
        form: |_, _, _, _| Ok(None),
    },
    PlanRow {
        format: Format::MatMulNBits,
        otherwise: Format::Qdq,
        float_weights: |_, _| BTreeSet::new(),
        form: matmul_nbits::form,
    },
    PlanRow {
        format: Format::MatMulBnb4,
        otherwise: Format::Qdq,
        float_weights: |_, _| BTreeSet::new(),
        form: matmul_bnb4::form,
    },
    PlanRow {
        format: Format::Dynamic,
        otherwise: Format::Qdq,
        float_weights: output_layers::last,
        form: |graph, constant, config, qtype| Ok(dynamic::form(graph, constant, config, qtype)),
    },
    PlanRow {
        format: Format::FakeQuant,
        otherwise: Format::FakeQuant,
        float_weights: |_, _| BTreeSet::new(),
        form: fake_quant::form,
    },
];

/// The row of a format; a test checks that every format has one.
fn row(format: Format) -> &'static PlanRow {
    PLANS.iter().find(|row| row.format == format).unwrap_or(&PLANS[0])
}

/// Weights that a format leaves to operators in float: none of those that the caller names.
pub(super) fn float_weights(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
) -> BTreeSet<ValueId> {
    if config.include.is_some() {
        return BTreeSet::new();
    }
    (row(config.output_format).float_weights)(graph, constants)
}

/// How a format stores a weight; `None` where the options decide, and it is written with
/// `DequantizeLinear`.
///
/// # Errors
/// The reason why the format cannot store it.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Option<Form>, KeepReason> {
    (row(config.output_format).form)(graph, constant, config, qtype)
}

/// The format of a weight about which the options decide everything else.
pub(super) fn usual(config: &Config) -> Format {
    row(config.output_format).otherwise
}

/// Whether a value is a constant, or the output of reshapes and transposes of it.
pub(super) fn comes_from(graph: &Graph<'_>, value: Option<ValueId>, anchor: ValueId) -> bool {
    let mut value = value;
    while let Some(found) = value {
        if found == anchor {
            return true;
        }
        value = match graph.values[found].producer {
            crate::Producer::Node { node, .. } if uses::rearranges(graph.nodes[node]) => {
                graph.input(node, 0)
            }
            _ => None,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::PLANS;
    use crate::Format;

    #[test]
    fn every_format_has_one_row() {
        for format in Format::ALL {
            assert_eq!(PLANS.iter().filter(|row| row.format == *format).count(), 1, "{format}");
        }
    }
}
