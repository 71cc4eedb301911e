//! Replaces stored weights that few engines can read with the floats that they stand for.

use std::collections::HashMap;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{DataType, Edit, Model, NodeProto, Tensor, TensorProto, canonical_domain};

use super::writer::floats_of;
use crate::QuantizeError;
use crate::encode::codes::codes_of;
use crate::encode::dequantize::{Cut, Decoded, plain, scale_floats};
use crate::graph::elements::qtype_of;
use crate::graph::granularity::granularity;
use crate::graph::names::Names;
use crate::graph::ops::MICROSOFT;
use crate::graph::{Consumer, Graph, Producer, ValueId};

/// A copy of a model in which weights are floats instead of blocks, integers of fewer than 8 bits
/// or 8-bit floats. It computes the same numbers. `None` if the model has no such weights.
///
/// The copy is for engines that cannot read the stored weights. They are all in memory, in float.
///
/// # Errors
/// A node violates the specification of its operator.
pub fn with_float_weights(model: &Model) -> Result<Option<Model>, QuantizeError> {
    let graph = Graph::of(model)?;
    let mut floats = FloatWeights {
        graph: &graph,
        known: HashMap::new(),
        replaced: HashMap::new(),
        names: Names::of(&graph),
        edits: Vec::new(),
    };
    for node in graph.order()? {
        floats.node(node);
    }
    floats.widen_integers();
    floats.remove_unused();
    if floats.edits.is_empty() {
        return Ok(None);
    }
    let edits = floats.edits;
    let mut with = model.clone();
    with.apply(edits)?;
    Ok(Some(with))
}

struct FloatWeights<'g, 'm> {
    graph: &'g Graph<'m>,
    /// The values of replaced `DequantizeLinear` nodes, which may be scales of others.
    known: HashMap<ValueId, Tensor>,
    /// The replaced nodes, each with the inputs that its replacement reads, too.
    replaced: HashMap<usize, &'static [usize]>,
    names: Names<'g>,
    edits: Vec<Edit>,
}

impl FloatWeights<'_, '_> {
    fn node(&mut self, index: usize) {
        let node = self.graph.nodes[index];
        let (done, still_read): (_, &[usize]) =
            match (node.op_type.as_str(), canonical_domain(&node.domain)) {
                ("DequantizeLinear", "") => (self.dequantized(index), &[]),
                // What it multiplies, and the bias.
                ("MatMulNBits", MICROSOFT) => (self.product(index), &[0, 5]),
                ("MatMulBnb4", MICROSOFT) => (self.coded_product(index), &[0]),
                // The rows.
                ("GatherBlockQuantized", MICROSOFT) => (self.lookup(index), &[1]),
                _ => return,
            };
        if done.is_some() {
            self.replaced.insert(index, still_read);
        }
    }

    fn tensor(&self, value: ValueId) -> Option<Tensor> {
        if let Some(known) = self.known.get(&value) {
            return Some(known.clone());
        }
        self.graph.model.tensor(self.graph.fixed_constant(value)?).ok()
    }

    fn input(&self, node: usize, input: usize) -> Option<Tensor> {
        self.tensor(self.graph.input(node, input)?)
    }

    /// Replaces a `DequantizeLinear` of a constant with its result.
    fn dequantized(&mut self, index: usize) -> Option<()> {
        let node = self.graph.nodes[index];
        let integers = self.input(index, 0)?;
        let scale = self.input(index, 1)?;
        let qtype = qtype_of(integers.dtype)?;
        let block_size = usize::try_from(node.int("block_size", 0)).ok()?;
        let widened = node.attribute("output_dtype").is_some();
        let is_common = qtype.bits() >= 8 && !qtype.is_float() && block_size == 0 && !widened;
        if is_common && scale.dtype == DataType::Float {
            return None;
        }
        let granularity = granularity(node, integers.shape.len(), &scale.shape)?;
        let zero_point = match self.graph.input(index, 2) {
            Some(value) => Some(self.tensor(value)?),
            None => None,
        };
        let scales = scale_floats(&scale)?;
        let decoded = plain(qtype, &integers, granularity, &scales, zero_point.as_ref())?;
        let output = self.graph.output(index, 0)?;
        let dtype = match i32::try_from(node.int("output_dtype", 0)).ok()? {
            0 if scale.dtype.bits() < 16 => DataType::Float,
            0 => scale.dtype,
            number => DataType::from_number(number)?,
        };
        let floats = floats_of(dtype, &Tensor::from_f32_vec(decoded.shape, decoded.floats));
        let name = self.graph.values[output].name;
        self.edits.push(Edit::RemoveNode(index));
        self.edits.push(Edit::AddInitializer(TensorProto::new(name, &floats)));
        self.known.insert(output, floats);
        Some(())
    }

    /// Replaces a product with a matrix in blocks with one with a matrix of floats.
    fn product(&mut self, index: usize) -> Option<()> {
        let node = self.graph.nodes[index];
        // Rows in an order of their own.
        if self.graph.input(index, 4).is_some() {
            return None;
        }
        let depth = usize::try_from(node.int("K", 0)).ok()?;
        let Decoded { shape, floats, .. } = self.blocks(index, 1, depth)?;
        let [width, depth] = shape[..] else { return None };
        let mut transposed = Vec::with_capacity(floats.len());
        for row in 0..depth {
            transposed.extend((0..width).map(|column| floats[column * depth + row]));
        }
        let scale = self.input(index, 2)?;
        let matrix = Tensor::from_f32_vec(vec![depth, width], transposed);
        let matrix = self.constant(node, &floats_of(scale.dtype, &matrix));
        let inputs = vec![node.input[0].clone(), matrix];
        let output = node.output.first()?.clone();
        let bias = node.input.get(5).filter(|name| !name.is_empty());
        let product = match bias {
            Some(bias) => {
                let product = self.names.fresh(&output, "product");
                let inputs = vec![product.clone(), bias.clone()];
                let add = NodeProto::new("", "Add", inputs, vec![output], Vec::new());
                self.edits.push(Edit::AddNode(add));
                product
            }
            None => output,
        };
        let name = node.name.clone();
        let with = NodeProto::new(name, "MatMul", inputs, vec![product], Vec::new());
        self.edits.push(Edit::ReplaceNode { node: index, with });
        Some(())
    }

    /// Replaces a product with a matrix of codes with one with a matrix of floats.
    fn coded_product(&mut self, index: usize) -> Option<()> {
        let node = self.graph.nodes[index];
        let spec = codes_of(node)?;
        let (codes, scale) = (self.input(index, 1)?, self.input(index, 2)?);
        let floats = spec.decode(&codes.data, &scale_floats(&scale)?)?;
        let (depth, width) = (spec.depth, spec.width);
        let transposed =
            (0..floats.len()).map(|at| floats[at % width * depth + at / width]).collect();
        let matrix = Tensor::from_f32_vec(vec![depth, width], transposed);
        let matrix = self.constant(node, &floats_of(scale.dtype, &matrix));
        let inputs = vec![node.input[0].clone(), matrix];
        let outputs = node.output.clone();
        let with = NodeProto::new(node.name.clone(), "MatMul", inputs, outputs, Vec::new());
        self.edits.push(Edit::ReplaceNode { node: index, with });
        Some(())
    }

    /// Replaces a lookup in a table in blocks with one in a table of floats.
    fn lookup(&mut self, index: usize) -> Option<()> {
        let node = self.graph.nodes[index];
        let integers = self.input(index, 0)?;
        let bits = usize::try_from(node.int("bits", 4)).ok()?;
        let packed = if integers.dtype == DataType::UInt8 { 8 / bits.max(1) } else { 1 };
        let [_, columns] = integers.shape[..] else { return None };
        let axes = [node.int("gather_axis", 0), node.int("quantize_axis", 1)];
        if !matches!(axes, [0, 1 | -1]) {
            return None;
        }
        let Decoded { shape, floats, .. } = self.blocks(index, 0, columns * packed)?;
        let scale = self.input(index, 2)?;
        let table = floats_of(scale.dtype, &Tensor::from_f32_vec(shape, floats));
        let inputs = vec![self.constant(node, &table), node.input[1].clone()];
        let outputs = node.output.clone();
        let with = NodeProto::new(node.name.clone(), "Gather", inputs, outputs, Vec::new());
        self.edits.push(Edit::ReplaceNode { node: index, with });
        Some(())
    }

    /// The matrix at an input of a node, one row for each row of blocks.
    fn blocks(&self, index: usize, input: usize, depth: usize) -> Option<Decoded> {
        let node = self.graph.nodes[index];
        let integers = self.input(index, input)?;
        let scales = scale_floats(&self.input(index, 2)?)?;
        let zero_points = match self.graph.input(index, 3) {
            Some(value) => Some(self.tensor(value)?),
            None => None,
        };
        let cut = Cut {
            bits: u32::try_from(node.int("bits", 4)).ok()?,
            block_size: usize::try_from(node.int("block_size", 128)).ok()?,
            depth,
            signed: integers.dtype == DataType::Int4,
        };
        cut.decode(&integers, &scales, zero_points.as_ref())
    }

    fn constant(&mut self, node: &NodeProto, tensor: &Tensor) -> String {
        let base = node.output.first().map_or("", String::as_str);
        let name = self.names.fresh(base, "weight");
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    /// Whether all nodes that read a value are replaced by nodes that do not read it.
    fn is_unused(&self, value: ValueId) -> bool {
        let found = &self.graph.values[value];
        let gone = |consumer: &Consumer| {
            let still_read = self.replaced.get(&consumer.node);
            still_read.is_some_and(|inputs| !inputs.contains(&consumer.input))
        };
        !found.is_read_outside() && !found.consumers.is_empty() && found.consumers.iter().all(gone)
    }

    /// Stores the integers of fewer than 8 bits that other nodes read in 8 bits.
    fn widen_integers(&mut self) {
        for value in 0..self.graph.values.len() {
            let found = &self.graph.values[value];
            let Producer::Initializer { tensor, overridable: false } = found.producer else {
                continue;
            };
            let qtype = tensor.dtype().and_then(qtype_of);
            let Some(qtype) = qtype.filter(|qtype| qtype.bits() < 8 && !qtype.is_float()) else {
                continue;
            };
            // A QuantizeLinear clips at the ends of the type of its zero point.
            let clips = |consumer: &Consumer| {
                self.graph.nodes[consumer.node].op_type == "QuantizeLinear" && consumer.input == 2
            };
            if self.is_unused(value) || found.is_output || found.consumers.iter().any(clips) {
                continue;
            }
            let Some(integers) = self.tensor(value) else { continue };
            let decoded = plain(qtype, &integers, Granularity::PerTensor, &[1.0], None);
            let Some(decoded) = decoded else { continue };
            let signed = qtype.signed();
            #[allow(clippy::cast_possible_truncation)] // integers of at most 4 bits
            let bytes = decoded.floats.iter().map(|number| (*number as i8).to_le_bytes()[0]);
            let wide = Tensor {
                dtype: if signed { DataType::Int8 } else { DataType::UInt8 },
                shape: decoded.shape,
                data: bytes.collect(),
            };
            self.edits.push(Edit::ReplaceInitializer(TensorProto::new(found.name, &wide)));
        }
    }

    /// Removes the constants that only replaced nodes read.
    fn remove_unused(&mut self) {
        for value in 0..self.graph.values.len() {
            let found = &self.graph.values[value];
            let is_own = matches!(found.producer, Producer::Initializer { overridable: false, .. });
            if is_own && self.is_unused(value) {
                self.edits.push(Edit::RemoveInitializer(found.name.to_owned()));
            }
        }
    }
}
