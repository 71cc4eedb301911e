//! The state that all output formats share: the edits so far, fresh names, and shared constants.

use std::collections::{BTreeMap, HashMap, HashSet};

use half::{bf16, f16};
use quantize_rs_math::{Granularity, Params};
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto};

use super::gather::IntegerGather;
use super::subgraphs::Inside;
use crate::encode::{Encoded, EncodedTensor, StoredScale};
use crate::graph::constants::of_ints;
use crate::graph::names::Names;
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, Producer, ValueId};
use crate::plan::{Consumers, Plan, Source, ValuePlan};

/// The edits of one model, to which the formats add.
pub(super) struct Writer<'g, 'm> {
    pub(super) graph: &'g Graph<'m>,
    pub(super) plan: &'g Plan,
    /// Whether to omit optional zero points and node names: true if activations are quantized.
    pub(super) brief: bool,
    /// Nodes that run on integers and have a bias in the model.
    pub(super) summed: HashSet<usize>,
    /// The same nodes, by bias.
    pub(super) biased: HashMap<ValueId, Vec<usize>>,
    sources: HashMap<&'g str, &'g Source>,
    pub(super) names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// The weight of each constant of integers, by the name of the constant.
    pub(super) weights: HashMap<String, String>,
    /// Names of the scales of activations, by the value whose range they hold.
    scales: BTreeMap<String, String>,
    /// Names of shared zero points, by their elements.
    zero_points: BTreeMap<(i32, Vec<usize>, Vec<u8>), String>,
    /// The consumers that use a constant only as a weight, if other consumers need it in float.
    weighing: HashMap<ValueId, Vec<Consumer>>,
    /// `Gather` nodes that take integers, by node.
    pub(super) gathers: BTreeMap<usize, IntegerGather>,
    /// How constants are used, after a format asked for it.
    uses: Option<HashMap<ValueId, Constant<'m>>>,
    /// Domains imported so far.
    pub(super) imported: HashSet<String>,
    /// Subgraphs, and what is replaced in them.
    pub(super) inside: Inside<'m>,
}

impl<'g, 'm> Writer<'g, 'm> {
    pub(super) fn new(graph: &'g Graph<'m>, plan: &'g Plan) -> Writer<'g, 'm> {
        let mut biased: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for integer in plan.integer_nodes() {
            if let Some(bias) = integer.bias {
                biased.entry(bias).or_default().push(integer.node);
            }
        }
        let sources = plan.quantized().map(|(value, how)| (value.name.as_str(), &how.source));
        Writer {
            graph,
            plan,
            brief: plan.config.activations.is_some(),
            summed: biased.values().flatten().copied().collect(),
            biased,
            sources: sources.collect(),
            names: Names::of(graph).repeating(plan.config.onnxruntime_names),
            edits: Vec::new(),
            weights: HashMap::new(),
            scales: BTreeMap::new(),
            zero_points: BTreeMap::new(),
            weighing: weighing(graph, plan),
            gathers: BTreeMap::new(),
            uses: None,
            imported: HashSet::new(),
            inside: Inside::default(),
        }
    }

    /// How a constant is used, for the writer that replaces its uses; `None` on the second call.
    pub(super) fn take_uses(&mut self, id: ValueId) -> Option<Constant<'m>> {
        let (graph, plan) = (self.graph, self.plan);
        let found = || {
            let constants = plan.constants(graph).into_iter();
            constants.map(|constant| (constant.anchor, constant)).collect()
        };
        self.uses.get_or_insert_with(found).remove(&id)
    }
}

impl Writer<'_, '_> {
    /// Adds a constant and returns its name.
    pub(super) fn constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    /// As [`Writer::constant`], for the integers of a weight in any layout.
    pub(super) fn integers(&mut self, weight: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.constant(weight, suffix, tensor);
        self.weights.insert(name.clone(), weight.to_owned());
        name
    }

    /// As [`Writer::constant`], with a name that does not repeat a long one.
    pub(super) fn short_constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.short(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    /// The name of a zero point. Equal zero points share one constant.
    pub(super) fn zero_point(&mut self, tensor: &Tensor) -> String {
        let key = (tensor.dtype.number(), tensor.shape.clone(), tensor.data.to_vec());
        if let Some(name) = self.zero_points.get(&key) {
            return name.clone();
        }
        let name = self.constant("zp", tensor.dtype.name(), tensor);
        self.zero_points.insert(key, name.clone());
        name
    }

    /// The name of the scale of an activation. A value with the range of another shares its scale.
    pub(super) fn scale(&mut self, id: ValueId, params: Params, encoded: &Encoded) -> String {
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
        let scale = Tensor::from_f32(vec![], &[params.scale]);
        let name = self.short_constant(&root, "scale", &scale);
        self.scales.insert(root, name.clone());
        name
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

    pub(super) fn node_with(
        &mut self,
        op_type: &str,
        base: &str,
        input: Vec<String>,
        output: String,
        attribute: Vec<Raw<AttributeProto>>,
    ) {
        let name = if self.brief { String::new() } else { self.names.short(base, op_type) };
        let node = NodeProto::new(name, op_type, input, vec![output], attribute);
        self.edits.push(Edit::AddNode(node));
    }

    /// Writes the integers, scale and zero point of a constant, and the node that computes `output`
    /// from them.
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

    /// As [`Writer::dequantize_constant`], with scales and a result of type `scale`.
    pub(super) fn dequantize(
        &mut self,
        base: &str,
        output: String,
        granularity: Granularity,
        tensor: &EncodedTensor,
        scale: DataType,
        zero_point: Option<String>,
    ) {
        let quantized = self.integers(base, "quantized", &tensor.quantized);
        if let Some(stored) = &tensor.stored_scale {
            return self.dequantize_narrow(base, quantized, output, granularity, stored, scale);
        }
        let scale = floats_of(scale, &tensor.scale);
        let mut inputs = vec![quantized, self.short_constant(base, "scale", &scale)];
        inputs.extend(zero_point);
        self.node("DequantizeLinear", base, inputs, output, granularity);
    }

    /// As [`Writer::dequantize`], with scales of 8 bits. Scales of two levels are dequantized by
    /// their own `DequantizeLinear`. The result has type `float`: the type of 8-bit scales does not
    /// determine it.
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
            attribute.push(Raw::new(AttributeProto::int("output_dtype", to)));
        }
        self.node_with("DequantizeLinear", base, vec![quantized, scale], output, attribute);
    }

    /// Adds a `Reshape` that computes `output`, if the weight was quantized as a matrix of another
    /// shape. Returns the name of its input, or `output`.
    pub(super) fn back_to_shape(&mut self, id: ValueId, how: &ValuePlan, output: String) -> String {
        let name = self.graph.values[id].name;
        let shape = self.graph.constant_behind(id).map(|tensor| tensor.dims.clone());
        let (Some(shape), Some(_)) = (shape, how.matrix) else { return output };
        let shape = of_ints(vec![shape.len()], &shape);
        let matrix = self.names.fresh(name, "matrix");
        let inputs = vec![matrix.clone(), self.constant(name, "shape", &shape)];
        self.edits.push(Edit::AddNode(NodeProto::new("", "Reshape", inputs, vec![output], vec![])));
        matrix
    }

    /// A new name for a dequantized weight. The consumers that use the constant only as a weight
    /// read it.
    pub(super) fn redirect_weighing(&mut self, id: ValueId) -> String {
        let restored = self.names.fresh(self.graph.values[id].name, "dequantized");
        let weighing = self.weighing.remove(&id).unwrap_or_default();
        for Consumer { node, input } in weighing {
            self.edits.push(Edit::SetInput { node, input, value: restored.clone() });
        }
        let (graph, constant) = (self.graph, self.take_uses(id));
        let uses = constant.into_iter().flat_map(|constant| constant.uses);
        for reader in uses.filter_map(|usage| usage.multiplier(graph)) {
            if reader.body.is_some() && reader.node.input[reader.input] == graph.values[id].name {
                self.set_input_inside(&reader, &restored);
            }
        }
        restored
    }

    /// Removes a constant from the model, and whatever has no consumer after that.
    pub(super) fn take_out(&mut self, id: ValueId) {
        let value = &self.graph.values[id];
        match value.producer {
            Producer::Node { node, .. } => {
                self.edits.push(Edit::RemoveNode(node));
                for source in
                    self.graph.nodes[node].input.iter().filter_map(|name| self.graph.value(name))
                {
                    if self.graph.only_consumer(source).is_some() {
                        self.take_out(source);
                    }
                }
            }
            _ => self.edits.push(Edit::RemoveInitializer(value.name.to_owned())),
        }
    }
}

/// The consumers that use a constant only as a weight, if other consumers need it in float.
fn weighing(graph: &Graph<'_>, plan: &Plan) -> HashMap<ValueId, Vec<Consumer>> {
    if plan.quantized().all(|(_, how)| how.consumers != Consumers::AsWeight) {
        return HashMap::new();
    }
    plan.constants(graph).into_iter().map(|found| (found.anchor, found.weighing)).collect()
}

/// A float32 tensor converted to another float type, rounded to nearest.
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
fn along(granularity: Granularity) -> Vec<Raw<AttributeProto>> {
    let integer = |name: &str, value: usize| {
        Raw::new(AttributeProto::int(name, i64::try_from(value).unwrap_or(i64::MAX)))
    };
    match granularity {
        Granularity::PerTensor => vec![],
        Granularity::PerAxis { axis } => vec![integer("axis", axis)],
        Granularity::Blocked { axis, block_size } => {
            vec![integer("axis", axis), integer("block_size", block_size)]
        }
    }
}
