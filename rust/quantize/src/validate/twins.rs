//! Operators on integers that are told the scales of all they read and make: what they are on floats,
//! and that they read what these read.

use quantize_rs_onnx::{AttributeProto, NodeProto};

use super::Check;
use super::wiring::{Step, Walk, bias_input, equal};

/// What an operator that multiplies integers, as runtimes and their tools write it, computes.
pub(super) struct Twin {
    /// Its name.
    pub(super) op_type: &'static str,
    /// The operator on floats.
    pub(super) float: &'static str,
    /// The inputs that are those of the operator on floats, in their order; the last is followed by
    /// more of its kind where the operator takes any number.
    pub(super) inputs: &'static [usize],
    /// How far those that follow are apart; 0 where none do.
    pub(super) more: usize,
}

const fn twin(op_type: &'static str, float: &'static str, inputs: &'static [usize]) -> Twin {
    Twin { op_type, float, inputs, more: 0 }
}

/// Every operator on integers whose scales are inputs of its own.
pub(super) const TWINS: &[Twin] = &[
    twin("QLinearConv", "Conv", &[0, 3, 8]),
    twin("QLinearMatMul", "MatMul", &[0, 3]),
    twin("QGemm", "Gemm", &[0, 3, 6]),
    twin("QLinearAdd", "Add", &[0, 3]),
    twin("QLinearMul", "Mul", &[0, 3]),
    twin("QLinearSigmoid", "Sigmoid", &[0]),
    twin("QLinearLeakyRelu", "LeakyRelu", &[0]),
    twin("QLinearSoftmax", "Softmax", &[0]),
    twin("QLinearAveragePool", "AveragePool", &[0]),
    twin("QLinearGlobalAveragePool", "GlobalAveragePool", &[0]),
    Twin { op_type: "QLinearConcat", float: "Concat", inputs: &[2], more: 3 },
];

/// The row of an operator on integers.
pub(super) fn twin_of(node: &NodeProto) -> Option<&'static Twin> {
    TWINS.iter().find(|twin| twin.op_type == node.op_type)
}

impl Walk<'_, '_> {
    /// An operator that is told the scales of all it reads and makes, in the place of one on floats.
    pub(super) fn twins(&mut self, there: usize, here: usize, twin: &Twin) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let told = |attribute: &AttributeProto| {
            // Scales take the place of a factor of the bias, which is 1 then.
            let left_out = attribute.name == "beta" && attribute.f == Some(1.0);
            let found = is.attribute(&attribute.name);
            left_out || found.is_some_and(|found| equal(attribute, found))
        };
        if !was.attribute.iter().all(|attribute| told(attribute)) {
            let what = "its attributes are not those that it has in the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        for input in 0..was.input.len() {
            let last = twin.inputs.len() - 1;
            let at = match twin.inputs.get(input) {
                Some(at) => *at,
                None if twin.more > 0 => twin.inputs[last] + (input - last) * twin.more,
                None => continue,
            };
            let (a, b) = (self.before.input(there, input), self.after.input(here, at));
            let (name, from) = (is.named().to_owned(), is.label());
            match (a, b) {
                (None, _) => {}
                (Some(there), Some(here_value)) => {
                    if bias_input(was, input) && was.op_type != "Add" {
                        let why = "a bias of int32 beside scales that its node is told";
                        self.found.skip(self.after.values[here_value].name, why);
                        continue;
                    }
                    let reader = Some((here, at));
                    self.waiting.push(Step { there, here: here_value, name, from, reader });
                }
                (Some(a), None) => {
                    let read = self.before.values[a].name;
                    let what = format!("input {at} is missing, the original reads `{read}`");
                    self.found.problem(Check::Connectivity, name, what);
                }
            }
        }
    }
}
