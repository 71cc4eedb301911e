//! Operators that compute on integers and have all scales as inputs (`QLinearConv` and others), and
//! the operators on floats that they correspond to.
//!
//! The inputs are those of the ONNX specification, and of ONNX Runtime's contributed operators
//! (docs/ContribOperators.md there).

use quantize_rs_onnx::NodeProto;

use super::ops::MICROSOFT;
use super::qattention::QATTENTION;
use super::{Graph, ValueId, clip};

/// The opset since which `Softmax` works along one axis, by default the last.
pub(crate) const SOFTMAX_ALONG_ONE_AXIS: i64 = 13;

/// Where an operator on integers has an input of the operator on floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Integers, their scale and their zero point.
    Scaled {
        /// The input with the integers.
        at: usize,
        /// The input with the scale.
        scale: usize,
        /// The input with the zero point.
        zero_point: usize,
    },
    /// A bias of int32, in the scale of the products.
    Bias(usize),
    /// A value that is not quantized.
    Plain(usize),
}

impl Slot {
    /// The input.
    pub(crate) const fn at(self) -> usize {
        match self {
            Slot::Scaled { at, .. } | Slot::Bias(at) | Slot::Plain(at) => at,
        }
    }
}

/// An operator on integers, as runtimes and their tools write it, with its operator on floats.
#[derive(Debug)]
pub(crate) struct QLinear {
    /// Its name.
    pub(crate) op_type: &'static str,
    /// Its domain.
    pub(crate) domain: &'static str,
    /// The operator on floats.
    pub(crate) float: &'static str,
    /// The domain of the operator on floats.
    pub(crate) float_domain: &'static str,
    /// The inputs of the operator on floats, in their order.
    pub(crate) inputs: &'static [Slot],
    /// Whether the last of them repeats, as the inputs of a `Concat` do.
    pub(crate) repeats: bool,
    /// The input with the scale of its output, which the zero point follows; `None` if its output
    /// is float.
    pub(crate) output: Option<usize>,
    /// Whether it may do without the scale of its output, which is float then.
    pub(crate) may_be_float: bool,
}

/// Integers that their scale and their zero point follow.
const fn scaled(at: usize) -> Slot {
    Slot::Scaled { at, scale: at + 1, zero_point: at + 2 }
}

const fn row(
    (domain, op_type): (&'static str, &'static str),
    float: &'static str,
    inputs: &'static [Slot],
    output: usize,
) -> QLinear {
    let output = Some(output);
    let (float_domain, repeats, may_be_float) = ("", false, false);
    QLinear { op_type, domain, float, float_domain, inputs, repeats, output, may_be_float }
}

const ONE: &[Slot] = &[scaled(0)];
const TWO: &[Slot] = &[scaled(0), scaled(3)];

/// All operators on integers with scales as inputs. Of several for one operator on floats, the
/// first that a node allows is written.
pub(crate) const ROWS: &[QLinear] = &[
    row(("", "QLinearConv"), "Conv", &[scaled(0), scaled(3), Slot::Bias(8)], 6),
    row(("", "QLinearMatMul"), "MatMul", TWO, 6),
    QLinear {
        output: None,
        ..row(
            (MICROSOFT, "MatMulIntegerToFloat"),
            "MatMul",
            &[
                Slot::Scaled { at: 0, scale: 2, zero_point: 4 },
                Slot::Scaled { at: 1, scale: 3, zero_point: 5 },
            ],
            0,
        )
    },
    QLinear {
        may_be_float: true,
        ..row((MICROSOFT, "QGemm"), "Gemm", &[scaled(0), scaled(3), Slot::Bias(6)], 7)
    },
    QLinear {
        float_domain: MICROSOFT,
        output: None,
        ..row(
            (MICROSOFT, QATTENTION),
            "Attention",
            &[
                Slot::Scaled { at: 0, scale: 3, zero_point: 6 },
                Slot::Scaled { at: 1, scale: 4, zero_point: 7 },
                Slot::Plain(2),
                Slot::Plain(5),
                Slot::Plain(8),
            ],
            0,
        )
    },
    row((MICROSOFT, "QLinearAdd"), "Add", TWO, 6),
    row((MICROSOFT, "QLinearMul"), "Mul", TWO, 6),
    row((MICROSOFT, "QLinearSigmoid"), "Sigmoid", ONE, 3),
    row((MICROSOFT, "QLinearLeakyRelu"), "LeakyRelu", ONE, 3),
    row((MICROSOFT, "QLinearSoftmax"), "Softmax", ONE, 3),
    row((MICROSOFT, "QLinearAveragePool"), "AveragePool", ONE, 3),
    row((MICROSOFT, "QLinearGlobalAveragePool"), "GlobalAveragePool", ONE, 3),
    row((MICROSOFT, "QLinearWhere"), "Where", &[Slot::Plain(0), scaled(1), scaled(4)], 7),
    QLinear { repeats: true, ..row((MICROSOFT, "QLinearConcat"), "Concat", &[scaled(2)], 0) },
];

/// The row of an operator on integers.
pub(crate) fn qlinear_of(node: &NodeProto) -> Option<&'static QLinear> {
    let same = |row: &&QLinear| row.op_type == node.op_type && row.domain == domain(node);
    ROWS.iter().find(same)
}

/// The domain of a node, with one name for that of ONNX.
fn domain(node: &NodeProto) -> &str {
    if node.is_onnx() { "" } else { &node.domain }
}

impl QLinear {
    /// Whether a node is the operator on floats that it corresponds to.
    pub(crate) fn replaces(&self, node: &NodeProto) -> bool {
        self.float == node.op_type && self.float_domain == domain(node)
    }

    /// Whether it multiplies matrices.
    pub(crate) fn multiplies(&self) -> bool {
        matches!(self.float, "Conv" | "MatMul" | "Gemm" | "Attention")
    }

    /// Where it has an input of the operator on floats.
    pub(crate) fn slot(&self, input: usize) -> Option<Slot> {
        let last = self.inputs.len().saturating_sub(1);
        match (self.inputs.get(input), self.inputs.get(last)) {
            (Some(slot), _) => Some(*slot),
            (None, Some(slot)) if self.repeats => Some(scaled(slot.at() + (input - last) * 3)),
            _ => None,
        }
    }

    /// The input that holds an input of the operator on floats.
    pub(crate) fn input(&self, input: usize) -> Option<usize> {
        self.slot(input).map(Slot::at)
    }

    /// The input that holds the bias.
    pub(crate) fn bias(&self) -> Option<usize> {
        self.inputs.iter().find(|slot| matches!(slot, Slot::Bias(_))).map(|slot| slot.at())
    }
}

/// The limits of a `Relu` or `Clip`; `None` if they are known at run time only, or for another
/// operator.
pub(crate) fn limits(graph: &Graph<'_>, node: usize) -> Option<(f32, f32)> {
    let [least, most] = clip::bounds(graph, node)?;
    Some((least.or(f32::NEG_INFINITY)?, most.or(f32::INFINITY)?))
}

/// The single number of a constant.
pub(crate) fn number(graph: &Graph<'_>, id: ValueId) -> Option<f32> {
    clip::single(&graph.model.tensor(graph.constant_behind(id)?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_inputs_have_one_place() {
        for row in ROWS {
            let mut taken: Vec<usize> =
                row.output.into_iter().flat_map(|at| [at, at + 1]).collect();
            for slot in row.inputs {
                match *slot {
                    Slot::Scaled { at, scale, zero_point } => taken.extend([at, scale, zero_point]),
                    other => taken.push(other.at()),
                }
            }
            let count = taken.len();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), count, "{}", row.op_type);
            assert_eq!(taken.last(), Some(&(count - 1)), "{}", row.op_type);
        }
    }

    #[test]
    fn further_inputs_of_a_concat_follow() {
        let concat = ROWS.iter().find(|row| row.repeats).unwrap();
        assert_eq!(concat.input(0), Some(2));
        assert_eq!(concat.slot(2), Some(Slot::Scaled { at: 8, scale: 9, zero_point: 10 }));
        let add = ROWS.iter().find(|row| row.float == "Add").unwrap();
        assert_eq!(add.input(2), None);
    }
}
