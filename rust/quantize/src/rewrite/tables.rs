//! Tables that are looked up as integers: rows are brought back after they are taken, and not the
//! whole table before, which runtimes would do at every run.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, Kept, NodeProto};

use super::qdq::Writer;
use crate::encode::EncodedTensor;
use crate::graph::{Reader, ValueId};
use crate::plan::ValuePlan;

/// What becomes of one look-up.
pub(super) struct LookUp {
    integers: String,
    scale: String,
    back: Back,
    /// What is made of it is called, where that is not the name of the value.
    pub(super) made: Option<String>,
}

/// How what was taken comes back from integers.
#[derive(Clone)]
enum Back {
    /// By a scale for each row, which is looked up too.
    ByRow,
    /// By one scale and zero point, absent where that is 0.
    Whole { zero_point: Option<String> },
}

impl Writer<'_, '_> {
    /// Lets those who look up a table take integers of it.
    pub(super) fn table(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
        integers: &str,
    ) {
        let value = &self.graph.values[id];
        let by_row = how.spec.granularity != Granularity::PerTensor;
        let mut scale = tensor.scale.clone();
        if by_row {
            // One length for each axis of the table, so that rows meet their scales.
            scale.shape.resize(tensor.quantized.shape.len(), 1);
        }
        let scale = self.constant(value.name, "scale", &scale);
        let back = if by_row {
            Back::ByRow
        } else {
            let needed = self.needs_zero_point(id, how);
            Back::Whole { zero_point: needed.then(|| self.zero_point(&tensor.zero_point)) }
        };
        let graph = self.graph;
        let looks_up = |reader: &&Reader| graph.nodes[reader.node].op_type == "Gather";
        for Reader { node, .. } in value.readers.iter().filter(looks_up).copied() {
            let (integers, scale, back) = (integers.to_owned(), scale.clone(), back.clone());
            self.look_ups.insert(node, LookUp { integers, scale, back, made: None });
        }
    }

    /// Writes the look-ups.
    pub(super) fn look_up(&mut self) {
        for (node, look_up) in std::mem::take(&mut self.look_ups) {
            let LookUp { integers, scale, back, made } = look_up;
            let proto = self.graph.nodes[node];
            let name = proto.output[0].clone();
            let output = made.unwrap_or_else(|| name.clone());
            let taken = self.names.fresh(&name, "taken");
            self.edits.push(Edit::SetInput { node, input: 0, value: integers });
            self.edits.push(Edit::RenameOutput { node, output: 0, value: taken.clone() });
            let mut add = |op_type: &str, input: Vec<String>, output: &str, attribute| {
                let output = vec![output.to_owned()];
                self.edits
                    .push(Edit::AddNode(NodeProto::new("", op_type, input, output, attribute)));
            };
            match back {
                Back::Whole { zero_point } => {
                    let input = [taken, scale].into_iter().chain(zero_point).collect();
                    add("DequantizeLinear", input, &output, vec![]);
                }
                Back::ByRow => {
                    let [float, scales] = ["float", "scales"].map(|s| self.names.fresh(&taken, s));
                    let to = i64::from(DataType::Float.number());
                    let to = vec![Kept::new(AttributeProto::int("to", to))];
                    add("Cast", vec![taken], &float, to);
                    let input = vec![scale, proto.input[1].clone()];
                    add("Gather", input, &scales, vec![]);
                    add("Mul", vec![float, scales], &output, vec![]);
                }
            }
        }
    }
}
