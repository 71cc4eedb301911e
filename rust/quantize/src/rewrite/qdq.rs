//! QDQ: every quantized value stands between a `QuantizeLinear` and a `DequantizeLinear`.
//!
//! The `DequantizeLinear` takes the name of the value, so that nothing that reads it changes:
//! a weight `W` becomes `W_quantized`, `W_scale`, `W_zp` and a node that makes `W`; an activation
//! `y` is renamed `y_float` where it is made, and `y` is what comes back from 8 bits. Where only
//! some read it so, they read `y_dequantized`, and `y` stays what it was.
//!
//! With activations there are several new names for every value of the model, and many small
//! models are little else. So what serves many is written once, and what nobody needs is left out:
//! zero points are shared, those of symmetric weights are absent where runtimes fuse without, and
//! the new nodes have no names.

use std::collections::{BTreeMap, HashMap, HashSet};

use half::{bf16, f16};
use quantize_rs_math::{Granularity, Params};
use quantize_rs_onnx::{AttributeProto, DataType, Edit, Kept, NodeProto, Tensor, TensorProto};

use super::corrections;
use super::dynamic::AtRunTime;
use super::gather::LookUp;
use crate::Format;
use crate::encode::{Encoded, EncodedTensor, StoredScale, integers, scale_type};
use crate::graph::names::Names;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, Producer, ValueId};
use crate::plan::{Plan, Readers, SAYS_TYPE, Source, ValuePlan};

/// The edits that turn the model of `graph` into what `plan` says, with the numbers of `encoded`.
pub fn rewrite(graph: &Graph<'_>, plan: &Plan, encoded: &Encoded) -> Vec<Edit> {
    let mut biased: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for integer in plan.integer_nodes() {
        if let Some(bias) = integer.bias {
            biased.entry(bias).or_default().push(integer.node);
        }
    }
    let mut writer = Writer {
        graph,
        plan,
        brief: plan.config.activations.is_some(),
        summed: biased.values().flatten().copied().collect(),
        biased,
        sources: plan.quantized().map(|(value, how)| (value.name.as_str(), &how.source)).collect(),
        names: Names::of(graph),
        edits: Vec::new(),
        scales: BTreeMap::new(),
        zero_points: BTreeMap::new(),
        weighing: weighing(graph, plan),
        look_ups: BTreeMap::new(),
        uses: HashMap::new(),
        at_run_time: HashMap::new(),
        lstms: HashMap::new(),
        inside: HashMap::new(),
        imported: HashSet::new(),
    };
    if plan.config.output_format != Format::Qdq {
        let constants = uses::constants(graph).into_iter();
        writer.uses = constants.map(|constant| (constant.anchor, constant)).collect();
    }
    // Constants first: what is made of a table is called as the plan for that value says.
    let (constants, others): (Vec<_>, Vec<_>) =
        plan.quantized().partition(|(_, how)| how.source == Source::Weights);
    for (value, how) in constants.into_iter().chain(others) {
        let Some(id) = graph.value(&value.name) else { continue };
        match &how.source {
            Source::Weights => {
                if let Some(tensor) = encoded.weights.get(&value.name) {
                    writer.weight(id, how, tensor);
                }
            }
            Source::Observed | Source::Fixed(_) | Source::SameAs(_) => {
                if let Some(params) = encoded.activations.get(&value.name) {
                    writer.activation(id, how, *params, encoded);
                }
            }
            Source::Product { .. } => writer.bias(id, encoded),
        }
    }
    corrections::write(&mut writer, encoded);
    writer.look_up();
    writer.bodies();
    writer.edits
}

/// Those who read a weight for nothing else, where others need it in float.
fn weighing(graph: &Graph<'_>, plan: &Plan) -> HashMap<ValueId, Vec<Consumer>> {
    if plan.quantized().all(|(_, how)| how.consumers != Readers::Weighing) {
        return HashMap::new();
    }
    uses::constants(graph).into_iter().map(|found| (found.anchor, found.weighing)).collect()
}

/// A tensor of float32 in another type of floats, each to the nearest.
pub(super) fn floats_of(dtype: DataType, tensor: &Tensor) -> Tensor {
    let values = tensor.to_f32().unwrap_or_default().into_iter();
    let data = match dtype {
        DataType::Float16 => values.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        DataType::BFloat16 => values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        DataType::Double => values.flat_map(|x| f64::from(x).to_le_bytes()).collect(),
        _ => return tensor.clone(),
    };
    Tensor { dtype, shape: tensor.shape.clone(), data }
}

/// The attributes of `DequantizeLinear` that say which elements share a scale.
fn along(granularity: Granularity) -> Vec<Kept<AttributeProto>> {
    let integer = |name: &str, value: usize| {
        Kept::new(AttributeProto::int(name, i64::try_from(value).unwrap_or(i64::MAX)))
    };
    match granularity {
        Granularity::PerTensor => vec![],
        Granularity::PerAxis { axis } => vec![integer("axis", axis)],
        Granularity::Blocked { axis, block_size } => {
            vec![integer("axis", axis), integer("block_size", block_size)]
        }
    }
}

/// Whether a zero point may be another number than 0.
fn is_off_middle(how: &ValuePlan) -> bool {
    !how.spec.symmetric || how.spec.middle() != 0
}

pub(super) struct Writer<'g, 'm> {
    pub(super) graph: &'g Graph<'m>,
    pub(super) plan: &'g Plan,
    /// Whether to write no more than is needed, which is when activations are quantized.
    brief: bool,
    /// Nodes that run on integers and whose result a bias of the model is added to.
    pub(super) summed: HashSet<usize>,
    /// Those nodes, by bias.
    biased: HashMap<ValueId, Vec<usize>>,
    sources: HashMap<&'g str, &'g Source>,
    pub(super) names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// Names of the scales of activations, by the value whose range they hold.
    scales: BTreeMap<String, String>,
    /// Names of shared zero points, by their elements.
    zero_points: BTreeMap<(i32, Vec<usize>, Vec<u8>), String>,
    /// Those who read a weight for nothing else, where others need it in float.
    weighing: HashMap<ValueId, Vec<Consumer>>,
    /// Look-ups of integers, by node.
    pub(super) look_ups: BTreeMap<usize, LookUp>,
    /// How constants are read, where weights are written in another format.
    pub(super) uses: HashMap<ValueId, Constant<'m>>,
    /// What values become when the model runs, by name.
    pub(super) at_run_time: HashMap<String, AtRunTime>,
    /// Names of integers, scales and zero points of the weights of LSTMs, by node.
    pub(super) lstms: HashMap<usize, [Option<[String; 3]>; 2]>,
    /// What nodes in graphs inside nodes become.
    pub(super) inside: HashMap<*const NodeProto, Vec<NodeProto>>,
    /// Domains imported so far.
    pub(super) imported: HashSet<String>,
}

impl Writer<'_, '_> {
    fn weight(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        match how.format {
            Format::Qdq => {}
            Format::MatMulNBits => return self.nbits(id, how, tensor),
            Format::Dynamic => return self.dynamic(id, how, tensor),
            Format::FakeQuant => return self.fake(id, how, tensor),
        }
        let name = self.graph.values[id].name;
        let output = match how.consumers {
            Readers::Rows | Readers::Rearranged | Readers::Tied => {
                self.take_out(id);
                let integers = self.constant(name, "quantized", &tensor.quantized);
                if how.consumers != Readers::Rearranged {
                    self.table(id, how, tensor, &integers);
                }
                if how.consumers != Readers::Rows {
                    self.rearranged(id, how, tensor, integers);
                }
                return;
            }
            Readers::All => {
                self.take_out(id);
                name.to_owned()
            }
            Readers::OnIntegers => self.redirect(id),
            Readers::Weighing => self.redirect_weighing(id),
        };
        if !how.spec.qtype.is_scaled() {
            let stored = self.constant(name, how.stored.name(), &tensor.quantized);
            return self.cast(id, stored, output);
        }
        let zero_point = match (self.brief, self.needs_zero_point(id, how)) {
            // Floats have none but 0, which would take half as much as the scales again.
            _ if !how.spec.scales.are_wide() => None,
            (false, _) => Some(self.constant(name, "zp", &tensor.zero_point)),
            (true, true) => Some(self.zero_point(&tensor.zero_point)),
            (true, false) => None,
        };
        let output = self.back_to_type(id, output);
        let output = self.back_to_shape(id, how, output);
        let scale = scale_type(self.graph, id);
        self.dequantize(name, output, how.spec.granularity, tensor, scale, zero_point);
    }

    /// The name of what is made `output` by a change of type, where that is needed.
    fn back_to_type(&mut self, id: ValueId, output: String) -> String {
        let dtype = uses::float_type(self.graph, id).unwrap_or(DataType::Float);
        if dtype == scale_type(self.graph, id) {
            return output;
        }
        let float = self.names.fresh(self.graph.values[id].name, "float32");
        let to = Kept::new(AttributeProto::int("to", i64::from(dtype.number())));
        let node = NodeProto::new("", "Cast", vec![float.clone()], vec![output], vec![to]);
        self.edits.push(Edit::AddNode(node));
        float
    }

    /// The name of what is made `output` by a change of shape, where that is needed.
    pub(super) fn back_to_shape(&mut self, id: ValueId, how: &ValuePlan, output: String) -> String {
        let name = self.graph.values[id].name;
        let shape = self.graph.constant_behind(id).map(|tensor| tensor.dims.clone());
        let (Some(shape), Some(_)) = (shape, how.matrix) else { return output };
        let data = shape.iter().flat_map(|length| length.to_le_bytes()).collect();
        let shape = Tensor { dtype: DataType::Int64, shape: vec![shape.len()], data };
        let matrix = self.names.fresh(name, "matrix");
        let inputs = vec![matrix.clone(), self.constant(name, "shape", &shape)];
        self.edits.push(Edit::AddNode(NodeProto::new("", "Reshape", inputs, vec![output], vec![])));
        matrix
    }

    /// A new name for a weight as it comes back from integers, which those read who read nothing
    /// but a weight in it.
    pub(super) fn redirect_weighing(&mut self, id: ValueId) -> String {
        let restored = self.names.fresh(self.graph.values[id].name, "dequantized");
        let weighing = self.weighing.remove(&id).unwrap_or_default();
        for Consumer { node, input } in weighing {
            self.edits.push(Edit::SetInput { node, input, value: restored.clone() });
        }
        restored
    }

    /// Whether the zero point of a weight must be written though it is 0: ONNX Runtime 1.31 fuses
    /// `Gemm` only then, and what it makes a `Gemm` of. What comes back by one scale and is moved it
    /// takes to uint8 and back after that, unless a zero point says that it was int8. From opset 21 on
    /// it takes the type from the integers, and with a zero point makes what it cannot load (1.32).
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

    /// As [`Writer::needs_zero_point`], of what comes back from integers and may be moved then, as rows
    /// of a table are: whatever else multiplies by the table.
    pub(super) fn moved_needs_zero_point(&self, how: &ValuePlan) -> bool {
        let says_nothing = self.graph.model.opset("").is_some_and(|opset| opset < SAYS_TYPE);
        let whole = how.spec.granularity == Granularity::PerTensor && says_nothing;
        is_off_middle(how) || whole
    }

    /// Integers, scale and zero point of a constant, and the node that makes `output` of them.
    pub(super) fn dequantize_constant(
        &mut self,
        base: &str,
        output: String,
        granularity: Granularity,
        tensor: &EncodedTensor,
        zero_point: Option<String>,
    ) {
        self.dequantize(base, output, granularity, tensor, DataType::Float, zero_point);
    }

    /// As [`Writer::dequantize_constant`], with scales of this type, which what comes back is of.
    fn dequantize(
        &mut self,
        base: &str,
        output: String,
        granularity: Granularity,
        tensor: &EncodedTensor,
        scale: DataType,
        zero_point: Option<String>,
    ) {
        let quantized = self.constant(base, "quantized", &tensor.quantized);
        if let Some(stored) = &tensor.stored_scale {
            return self.dequantize_narrow(base, quantized, output, granularity, stored, scale);
        }
        let scale = floats_of(scale, &tensor.scale);
        let mut inputs = vec![quantized, self.constant(base, "scale", &scale)];
        inputs.extend(zero_point);
        self.node("DequantizeLinear", base, inputs, output, granularity);
    }

    /// As [`Writer::dequantize`], with scales of 8 bits. Those of two levels come back by a
    /// `DequantizeLinear` of their own. What comes back has the type that is said, since that of
    /// such scales says nothing of it.
    fn dequantize_narrow(
        &mut self,
        base: &str,
        quantized: String,
        output: String,
        granularity: Granularity,
        stored: &StoredScale,
        float: DataType,
    ) {
        let codes = self.constant(base, "scale", &stored.codes);
        let (scale, of) = match &stored.whole {
            None => (codes, stored.codes.dtype),
            Some(whole) => {
                let inputs = vec![codes, self.constant(base, "tensor_scale", whole)];
                let scale = self.names.fresh(base, "scale_float");
                self.node("DequantizeLinear", base, inputs, scale.clone(), Granularity::PerTensor);
                (scale, DataType::Float)
            }
        };
        let mut attribute = along(granularity);
        if of != float {
            let to = i64::from(float.number());
            attribute.push(Kept::new(AttributeProto::int("output_dtype", to)));
        }
        self.node_with("DequantizeLinear", base, vec![quantized, scale], output, attribute);
    }

    /// An activation between `QuantizeLinear` and `DequantizeLinear`.
    fn activation(&mut self, id: ValueId, how: &ValuePlan, params: Params, encoded: &Encoded) {
        let value = &self.graph.values[id];
        let scale = self.scale(id, params, encoded);
        let zero_point = self.zero_point(&integers(how.stored, vec![], &[params.zero_point]));
        let quantized = self.names.fresh(value.name, "quantized");
        let (float, restored) = match value.producer {
            Producer::Node { node, output } if how.consumers == Readers::All => {
                let float = self.names.fresh(value.name, "float");
                if let Some(look_up) = self.look_ups.get_mut(&node) {
                    look_up.made = Some(float.clone());
                } else {
                    let value = float.clone();
                    self.edits.push(Edit::RenameOutput { node, output, value });
                }
                (float, value.name.to_owned())
            }
            // An input of the model keeps its name too.
            _ => (value.name.to_owned(), self.redirect(id)),
        };
        let parameters = |first: String| vec![first, scale.clone(), zero_point.clone()];
        let per_tensor = Granularity::PerTensor;
        let inputs = parameters(float);
        self.node("QuantizeLinear", value.name, inputs, quantized.clone(), per_tensor);
        let inputs = parameters(quantized);
        self.node("DequantizeLinear", value.name, inputs, restored, per_tensor);
    }

    /// A new name for what comes back from integers, which those read who run on integers.
    fn redirect(&mut self, id: ValueId) -> String {
        let value = &self.graph.values[id];
        let restored = self.names.fresh(value.name, "dequantized");
        for Consumer { node, input } in value.consumers.iter().copied() {
            let takes =
                ops::rule(self.graph.nodes[node]).is_some_and(|rule| rule.takes_activation(input));
            if takes && self.plan.on_integers.contains(&node) {
                self.edits.push(Edit::SetInput { node, input, value: restored.clone() });
            }
        }
        restored
    }

    /// The name of the scale of an activation; values that follow another share its.
    fn scale(&mut self, id: ValueId, params: Params, encoded: &Encoded) -> String {
        let mut root = self.graph.values[id].name;
        while let Some(Source::SameAs(source)) = self.sources.get(root)
            && encoded.activations.contains_key(source)
        {
            root = source;
        }
        if let Some(name) = self.scales.get(root) {
            return name.clone();
        }
        let root = root.to_owned();
        let name = self.constant(&root, "scale", &Tensor::from_f32(vec![], &[params.scale]));
        self.scales.insert(root, name.clone());
        name
    }

    /// The name of a zero point; all that are the same have one.
    pub(super) fn zero_point(&mut self, tensor: &Tensor) -> String {
        let key = (tensor.dtype.number(), tensor.shape.clone(), tensor.data.to_vec());
        if let Some(name) = self.zero_points.get(&key) {
            return name.clone();
        }
        let name = self.constant("zp", tensor.dtype.name(), tensor);
        self.zero_points.insert(key, name.clone());
        name
    }

    /// A bias: one int32 copy for each node, since each has a scale of its own.
    fn bias(&mut self, id: ValueId, encoded: &Encoded) {
        let value = &self.graph.values[id];
        let nodes = self.biased.remove(&id).unwrap_or_default();
        let alone = nodes.len() == 1
            && value.consumers.len() == 1
            && !value.used_in_subgraph
            && !value.is_output;
        for node in &nodes {
            let Some(tensor) = encoded.biases.get(node) else { continue };
            let output = if alone {
                value.name.to_owned()
            } else {
                self.names.fresh(value.name, "dequantized")
            };
            if !alone {
                let value = output.clone();
                self.edits.push(Edit::SetInput { node: *node, input: 2, value });
            }
            // What was written with axes of length 1 before its own keeps them.
            let mut tensor = tensor.clone();
            let axes = match self.graph.nodes[*node].op_type.as_str() {
                // ONNX Runtime computes on integers with a vector alone.
                "Gemm" => 1,
                _ => self.graph.shape(id).map_or(1, |shape| shape.len().max(1)),
            };
            tensor.quantized.shape.splice(..0, std::iter::repeat_n(1, axes - 1));
            // Two nodes may share a bias and not the granularity of their weights.
            let granularity = match tensor.scale.shape[..] {
                [] => Granularity::PerTensor,
                _ => Granularity::PerAxis { axis: axes - 1 },
            };
            // The zero point of int32 is 0 and may be left out.
            self.dequantize_constant(value.name, output, granularity, &tensor, None);
        }
        if alone
            || nodes.len() == value.consumers.len() && !value.used_in_subgraph && !value.is_output
        {
            self.take_out(id);
        }
    }

    /// Takes a constant out of the model, with what nobody reads any more once it is gone.
    pub(super) fn take_out(&mut self, id: ValueId) {
        let value = &self.graph.values[id];
        match value.producer {
            Producer::Node { node, .. } => {
                self.edits.push(Edit::RemoveNode(node));
                for source in
                    self.graph.nodes[node].input.iter().filter_map(|name| self.graph.value(name))
                {
                    let source_value = &self.graph.values[source];
                    if source_value.consumers.len() == 1
                        && !source_value.used_in_subgraph
                        && !source_value.is_output
                    {
                        self.take_out(source);
                    }
                }
            }
            _ => self.edits.push(Edit::RemoveInitializer(value.name.to_owned())),
        }
    }

    /// Adds a constant and returns its name.
    pub(super) fn constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    /// A `Cast` to the type that a constant had.
    fn cast(&mut self, id: ValueId, input: String, output: String) {
        let base = self.graph.values[id].name;
        let dtype = uses::float_type(self.graph, id).unwrap_or(DataType::Float);
        let to = i64::from(dtype.number());
        let name = if self.brief { String::new() } else { self.names.fresh(base, "Cast") };
        let attribute = vec![Kept::new(AttributeProto::int("to", to))];
        self.edits.push(Edit::AddNode(NodeProto::new(
            name,
            "Cast",
            vec![input],
            vec![output],
            attribute,
        )));
    }

    pub(super) fn node(
        &mut self,
        op_type: &str,
        base: &str,
        input: Vec<String>,
        output: String,
        granularity: Granularity,
    ) {
        self.node_with(op_type, base, input, output, along(granularity));
    }

    fn node_with(
        &mut self,
        op_type: &str,
        base: &str,
        input: Vec<String>,
        output: String,
        attribute: Vec<Kept<AttributeProto>>,
    ) {
        let name = if self.brief { String::new() } else { self.names.fresh(base, op_type) };
        let node = NodeProto::new(name, op_type, input, vec![output], attribute);
        self.edits.push(Edit::AddNode(node));
    }
}
