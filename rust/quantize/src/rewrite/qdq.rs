//! QDQ: every quantized value stands between a `QuantizeLinear` and a `DequantizeLinear`.
//!
//! The output of the `DequantizeLinear` has the name of the value, so that its consumers do not
//! change. A weight `W` becomes `W_quantized`, `W_scale`, `W_zp` and a node that computes `W`. An
//! activation `y` is renamed `y_float` at its producer, and `y` is the dequantized value. If only
//! some consumers read the quantized value, they read `y_dequantized`, and `y` is not renamed.
//!
//! If activations are quantized, each value of the model adds several names. In small models these
//! would be most of the file, so equal zero points are shared, zero points of symmetric weights are
//! omitted where runtimes fuse without them, and new nodes have no names.
//!
//! A long name is not repeated: its scale is called `s7`, the value itself `f7` in float and `q7`
//! in integers. Only the integers of a weight always have its name, by which validation finds it.

use quantize_rs_math::{Granularity, Params};
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw};

use super::FormatWriter;
use super::writer::Writer;
use crate::encode::{Encoded, EncodedTensor, integers, scale_type};
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Consumer, Producer, ValueId};
use crate::plan::{Consumers, ValuePlan, writes_type};

/// Writes weights as integers before a `DequantizeLinear`. Activations and biases are written by
/// the default methods of [`FormatWriter`].
pub(super) struct Qdq;

impl FormatWriter for Qdq {
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    ) {
        writer.weight(id, how, tensor);
    }
}

impl Writer<'_, '_> {
    /// Writes the integers of a weight, and the nodes that dequantize them.
    pub(super) fn weight(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        let name = self.graph.values[id].name;
        let output = match how.consumers {
            Consumers::GatheredRows | Consumers::AfterReshape | Consumers::TiedEmbedding => {
                self.take_out(id);
                let integers = self.integers(name, "quantized", &tensor.quantized);
                if how.consumers != Consumers::AfterReshape {
                    self.table(id, how, tensor, &integers);
                }
                if how.consumers != Consumers::GatheredRows {
                    self.rearranged(id, how, tensor, integers);
                }
                return;
            }
            Consumers::All => {
                self.take_out(id);
                name.to_owned()
            }
            Consumers::IntegerOps => {
                let restored = self.names.fresh(name, "dequantized");
                self.redirect(id, restored)
            }
            Consumers::AsWeight => self.redirect_weighing(id),
        };
        if !how.spec.qtype.is_scaled() {
            let stored = self.integers(name, how.stored.name(), &tensor.quantized);
            return self.cast(id, stored, output);
        }
        let zero_point = match (self.brief, self.needs_zero_point(id, how)) {
            // The zero point of floats is always 0. Writing it would take half the size of the
            // scales.
            _ if !how.spec.scales.are_wide() => None,
            (false, _) => Some(self.short_constant(name, "zp", &tensor.zero_point)),
            (true, true) => Some(self.zero_point(&tensor.zero_point)),
            (true, false) => None,
        };
        let output = self.back_to_type(id, output);
        let output = self.back_to_shape(id, how, output);
        let scale = scale_type(self.graph, id);
        self.dequantize(name, output, how.spec.granularity, tensor, scale, zero_point);
    }

    /// Adds a `Cast` that computes `output`, if the model needs another type than the scales have.
    /// Returns the name of its input, or `output`.
    fn back_to_type(&mut self, id: ValueId, output: String) -> String {
        let dtype = uses::float_type(self.graph, id).unwrap_or(DataType::Float);
        if dtype == scale_type(self.graph, id) {
            return output;
        }
        let float = self.names.fresh(self.graph.values[id].name, "float32");
        let to = Raw::new(AttributeProto::int("to", i64::from(dtype.number())));
        let node = NodeProto::new("", "Cast", vec![float.clone()], vec![output], vec![to]);
        self.edits.push(Edit::AddNode(node));
        float
    }

    /// Whether the zero point of a weight must be written although it is 0.
    ///
    /// ONNX Runtime 1.31 fuses a `Gemm`, and what it converts to a `Gemm`, only with a zero point.
    /// If a weight with one scale is moved after it is dequantized, ONNX Runtime quantizes the
    /// result to uint8 and dequantizes it again, unless a zero point gives the type int8. From
    /// opset 21 on, it takes the type from the integers. With a zero point, ONNX Runtime 1.32 then
    /// writes a model that it cannot load.
    pub(super) fn needs_zero_point(&self, id: ValueId, how: &ValuePlan) -> bool {
        let mut consumers = self.graph.values[id].consumers.iter();
        let needed = |consumer: &Consumer| match self.graph.nodes[consumer.node].op_type.as_str() {
            "Gemm" => true,
            "MatMul" => self.summed.contains(&consumer.node),
            "Conv" | "ConvTranspose" | "Einsum" | "GRU" | "LSTM" | "RNN" => false,
            _ => self.moved_needs_zero_point(how),
        };
        is_off_middle(how) || consumers.any(needed)
    }

    /// As [`Writer::needs_zero_point`], for a dequantized value that may be moved, such as the rows
    /// of a table. The other consumers of the table do not matter.
    pub(super) fn moved_needs_zero_point(&self, how: &ValuePlan) -> bool {
        let says_type = writes_type(self.graph.model);
        let whole = how.spec.granularity == Granularity::PerTensor && !says_type;
        is_off_middle(how) || whole
    }

    /// Writes a `QuantizeLinear` and a `DequantizeLinear` for an activation.
    pub(super) fn activation(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        params: Params,
        encoded: &Encoded,
    ) {
        let value = &self.graph.values[id];
        let scale = self.scale(id, params, encoded);
        let zero_point = self.zero_point(&integers(how.stored, vec![], [params.zero_point]));
        let quantized = self.names.short(value.name, "quantized");
        let (float, restored) = match value.producer {
            Producer::Node { node, output } if how.consumers == Consumers::All => {
                let float = self.names.short(value.name, "float");
                if let Some(gather) = self.gathers.get_mut(&node) {
                    gather.output = Some(float.clone());
                } else {
                    let value = float.clone();
                    self.edits.push(Edit::RenameOutput { node, output, value });
                }
                (float, value.name.to_owned())
            }
            // An input of the model keeps its name as well.
            _ => {
                let restored = self.names.short(value.name, "dequantized");
                (value.name.to_owned(), self.redirect(id, restored))
            }
        };
        let parameters = |first: String| vec![first, scale.clone(), zero_point.clone()];
        let per_tensor = Granularity::PerTensor;
        let inputs = parameters(float);
        self.node("QuantizeLinear", value.name, inputs, quantized.clone(), per_tensor);
        let inputs = parameters(quantized);
        self.node("DequantizeLinear", value.name, inputs, restored, per_tensor);
    }

    /// Makes the consumers that run on integers read `restored`, the dequantized value.
    fn redirect(&mut self, id: ValueId, restored: String) -> String {
        let value = &self.graph.values[id];
        for Consumer { node, input } in value.consumers.iter().copied() {
            let takes =
                ops::rule(self.graph.nodes[node]).is_some_and(|rule| rule.takes_activation(input));
            if takes && self.plan.on_integers.contains(&node) {
                self.edits.push(Edit::SetInput { node, input, value: restored.clone() });
            }
        }
        restored
    }

    /// Writes a bias: one int32 copy for each node, because each node has its own scale.
    pub(super) fn bias(&mut self, id: ValueId, encoded: &Encoded) {
        let value = &self.graph.values[id];
        let nodes = self.biased.remove(&id).unwrap_or_default();
        let alone = nodes.len() == 1 && self.graph.only_consumer(id).is_some();
        for node in &nodes {
            let Some(tensor) = encoded.biases.get(node) else { continue };
            let output = if alone {
                value.name.to_owned()
            } else {
                self.names.short(value.name, "dequantized")
            };
            if !alone {
                let value = output.clone();
                self.edits.push(Edit::SetInput { node: *node, input: 2, value });
            }
            // Leading axes of length 1 are kept.
            let mut tensor = tensor.clone();
            let axes = match self.graph.nodes[*node].op_type.as_str() {
                // ONNX Runtime runs on integers only if the bias is a vector.
                "Gemm" => 1,
                _ => self.graph.shape(id).map_or(1, |shape| shape.len().max(1)),
            };
            tensor.quantized.shape.splice(..0, std::iter::repeat_n(1, axes - 1));
            // Two nodes may share a bias although their weights have different granularities.
            let granularity = match tensor.scale.shape[..] {
                [] => Granularity::PerTensor,
                _ => Granularity::PerAxis { axis: axes - 1 },
            };
            // The zero point of int32 is 0 and may be omitted.
            let quantized = self.short_constant(value.name, "quantized", &tensor.quantized);
            let scale = self.short_constant(value.name, "scale", &tensor.scale);
            let inputs = vec![quantized, scale];
            self.node("DequantizeLinear", value.name, inputs, output, granularity);
        }
        if alone || nodes.len() == value.consumers.len() && !value.is_read_outside() {
            self.take_out(id);
        }
    }

    /// Writes a `Cast` to the original type of a constant.
    fn cast(&mut self, id: ValueId, input: String, output: String) {
        let base = self.graph.values[id].name;
        let dtype = uses::float_type(self.graph, id).unwrap_or(DataType::Float);
        let to = i64::from(dtype.number());
        let name = if self.brief { String::new() } else { self.names.short(base, "Cast") };
        let attribute = vec![Raw::new(AttributeProto::int("to", to))];
        self.edits.push(Edit::AddNode(NodeProto::new(
            name,
            "Cast",
            vec![input],
            vec![output],
            attribute,
        )));
    }
}

/// Whether a zero point may differ from 0.
fn is_off_middle(how: &ValuePlan) -> bool {
    !how.spec.symmetric || how.spec.zero_point_midpoint() != 0
}
