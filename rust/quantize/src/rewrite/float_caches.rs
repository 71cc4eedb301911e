//! Gives a model with quantized caches of keys and values the inputs and outputs of the float
//! model, so that both can run the same samples: the past is quantized behind its input, and the
//! present is dequantized before its output, as `GroupQueryAttention` of ONNX Runtime does it.

use std::borrow::Cow;

use quantize_rs_onnx::{
    AttributeProto, DataType, Edit, Model, NodeProto, Raw, Tensor, TensorProto, ValueInfoProto,
};

use crate::QuantizeError;
use crate::calibrate::engine::Sample;
use crate::graph::Graph;
use crate::graph::constants::of_ints;
use crate::graph::elements::is_single_or_half;
use crate::graph::kv_cache::{KvCache, may_have_quantized, quantized_attention};
use crate::graph::names::Names;

/// The first opset whose Clip takes its limits as inputs, and which has Round.
const CLIP_AND_ROUND: i64 = 11;

/// The model, with floats for each quantized cache that `original` has as floats.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn with_float_caches<'m>(
    model: &'m Model,
    original: &Model,
) -> Result<Cow<'m, Model>, QuantizeError> {
    let is_too_old = model.opset("").is_none_or(|opset| opset < CLIP_AND_ROUND);
    if is_too_old || !may_have_quantized(model) {
        return Ok(Cow::Borrowed(model));
    }
    let graph = Graph::of(model)?;
    let mut writer = Writer { graph: &graph, names: Names::of(&graph), edits: Vec::new() };
    for found in quantized_attention(&graph) {
        for cache in &found.caches {
            let past = float_info(&original.graph().input, cache.past);
            let present = float_info(&original.graph().output, cache.present);
            if let (Some(past), Some(present)) = (past, present) {
                writer.cache(found.node, cache, past, present);
            }
        }
    }
    let edits = writer.edits;
    if edits.is_empty() {
        return Ok(Cow::Borrowed(model));
    }
    let mut result = model.clone();
    result.apply(edits)?;
    Ok(Cow::Owned(result))
}

/// A sample of the float model for a model with quantized caches: of each past, its length alone.
/// This is for measuring latency, which does not depend on the values.
///
/// # Errors
/// A model that cannot be read.
pub(crate) fn with_integer_caches<'s>(
    sample: &'s Sample,
    model: &Model,
) -> Result<Cow<'s, Sample>, QuantizeError> {
    if !may_have_quantized(model) {
        return Ok(Cow::Borrowed(sample));
    }
    let graph = Graph::of(model)?;
    let mut found = sample.clone();
    for cache in quantized_attention(&graph).iter().flat_map(|found| &found.caches) {
        let dtype = graph.value(cache.past).and_then(|id| graph.dtype(id));
        let past = found.inputs.iter_mut().find(|(name, _)| name == cache.past);
        if let (Some(dtype), Some((_, past))) = (dtype, past) {
            let mut shape = past.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = cache.size;
            }
            let bytes = shape.iter().product();
            *past = Tensor { dtype, shape, data: vec![0; bytes].into() };
        }
    }
    Ok(Cow::Owned(found))
}

/// The information on an input or output of floats.
fn float_info<'o>(
    infos: &'o [Raw<ValueInfoProto>],
    name: &str,
) -> Option<(&'o ValueInfoProto, DataType)> {
    let info = infos.iter().find(|info| info.name == name)?;
    let dtype = DataType::from_number(info.tensor_type()?.elem_type)?;
    is_single_or_half(dtype).then_some((&**info, dtype))
}

/// Writes what stands between floats and integers.
struct Writer<'a, 'm> {
    graph: &'a Graph<'m>,
    names: Names<'m>,
    edits: Vec<Edit>,
}

impl Writer<'_, '_> {
    fn cache(
        &mut self,
        node: usize,
        cache: &KvCache<'_>,
        past: (&ValueInfoProto, DataType),
        present: (&ValueInfoProto, DataType),
    ) {
        let Some(scale) = self.scale(node, cache) else { return };
        let packed = self.is_packed(node);
        let integers = self.quantized(cache, &scale, packed, past.1);
        self.edits.push(Edit::SetInput { node, input: cache.past_input, value: integers });
        let value = self.names.fresh(cache.present, "quantized");
        let output = cache.present_output;
        self.edits.push(Edit::RenameOutput { node, output, value: value.clone() });
        self.dequantized(cache, &scale, packed, &value, present.1);
        for info in [past.0, present.0] {
            self.edits.push(Edit::SetValueInfo(info.clone()));
        }
    }

    /// Two elements of 4 bits in a byte, or one of 8 bits.
    fn is_packed(&self, node: usize) -> bool {
        self.graph.nodes[node].int("kv_cache_bit_width", 8) == 4
    }

    /// The scales as float32.
    fn scale(&mut self, node: usize, cache: &KvCache<'_>) -> Option<String> {
        let id = self.graph.input(node, cache.scale_input)?;
        let name = self.graph.values[id].name.to_owned();
        let is_narrow = self.graph.dtype(id).is_some_and(|dtype| dtype != DataType::Float);
        Some(if is_narrow { self.cast(&name, DataType::Float) } else { name })
    }

    /// Quantizes the past, and returns the name of the integers.
    fn quantized(
        &mut self,
        cache: &KvCache<'_>,
        scale: &str,
        packed: bool,
        dtype: DataType,
    ) -> String {
        let mut past = cache.past.to_owned();
        if dtype != DataType::Float {
            past = self.cast(&past, DataType::Float);
        }
        let (least, most) = if packed { (-8.0, 7.0) } else { (-128.0, 127.0) };
        let limits = [self.float(cache, "min", least), self.float(cache, "max", most)];
        let quotient = self.node("Div", &[&past, scale], cache.past);
        let rounded = self.node("Round", &[&quotient], cache.past);
        let clipped = self.node("Clip", &[&rounded, &limits[0], &limits[1]], cache.past);
        if !packed {
            return self.cast(&clipped, DataType::Int8);
        }
        // The first of two elements takes the lower half of a byte, and 8 stands for 0.
        let offset = self.float(cache, "offset", 8.0);
        let sixteen = self.float(cache, "sixteen", 16.0);
        let shifted = self.node("Add", &[&clipped, &offset], cache.past);
        let pairs = self.reshaped(cache, &shifted, &[cache.size, 2]);
        let low = self.element(cache, &pairs, 0);
        let high = self.element(cache, &pairs, 1);
        let high = self.node("Mul", &[&high, &sixteen], cache.past);
        let bytes = self.node("Add", &[&low, &high], cache.past);
        self.cast(&bytes, DataType::UInt8)
    }

    /// Dequantizes the present.
    fn dequantized(
        &mut self,
        cache: &KvCache<'_>,
        scale: &str,
        packed: bool,
        integers: &str,
        dtype: DataType,
    ) {
        let mut numbers = self.cast(integers, DataType::Float);
        if packed {
            let offset = self.float(cache, "offset", 8.0);
            let sixteen = self.float(cache, "sixteen", 16.0);
            let quotient = self.node("Div", &[&numbers, &sixteen], cache.present);
            let high = self.node("Floor", &[&quotient], cache.present);
            let multiple = self.node("Mul", &[&high, &sixteen], cache.present);
            let low = self.node("Sub", &[&numbers, &multiple], cache.present);
            let halves = [low, high].map(|half| self.reshaped(cache, &half, &[cache.size, 1]));
            let pairs = self.names.fresh(cache.present, "pairs");
            let axis = AttributeProto::int("axis", 4);
            self.add("Concat", &[&halves[0], &halves[1]], &pairs, Some(axis));
            let shifted = self.reshaped(cache, &pairs, &[2 * cache.size]);
            numbers = self.node("Sub", &[&shifted, &offset], cache.present);
        }
        if dtype == DataType::Float {
            self.add("Mul", &[&numbers, scale], cache.present, None);
        } else {
            let floats = self.node("Mul", &[&numbers, scale], cache.present);
            let to = AttributeProto::int("to", i64::from(dtype.number()));
            self.add("Cast", &[&floats], cache.present, Some(to));
        }
    }

    /// A cache whose last axis is replaced.
    fn reshaped(&mut self, cache: &KvCache<'_>, value: &str, last: &[usize]) -> String {
        // The first three axes stay: 0 says so.
        let mut shape = vec![0; 3];
        shape.extend(last.iter().map(|length| i64::try_from(*length).unwrap_or(i64::MAX)));
        let lengths = self.integers(cache, &shape);
        self.node("Reshape", &[value, &lengths], value)
    }

    /// One element of each pair.
    fn element(&mut self, cache: &KvCache<'_>, pairs: &str, which: i64) -> String {
        let index = self.scalar(cache, which);
        let name = self.names.fresh(pairs, "element");
        self.add("Gather", &[pairs, &index], &name, Some(AttributeProto::int("axis", 4)));
        name
    }

    fn cast(&mut self, value: &str, to: DataType) -> String {
        let name = self.names.fresh(value, "cast");
        let to = AttributeProto::int("to", i64::from(to.number()));
        self.add("Cast", &[value], &name, Some(to));
        name
    }

    fn node(&mut self, op_type: &str, inputs: &[&str], base: &str) -> String {
        let name = self.names.fresh(base, &op_type.to_lowercase());
        self.add(op_type, inputs, &name, None);
        name
    }

    fn add(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        output: &str,
        attribute: Option<AttributeProto>,
    ) {
        let inputs = inputs.iter().map(|input| (*input).to_owned()).collect();
        let attributes = attribute.map(Raw::new).into_iter().collect();
        let node = NodeProto::new("", op_type, inputs, vec![output.to_owned()], attributes);
        self.edits.push(Edit::AddNode(node));
    }

    fn float(&mut self, cache: &KvCache<'_>, suffix: &str, value: f32) -> String {
        self.constant(cache, suffix, &Tensor::from_f32(Vec::new(), &[value]))
    }

    fn integers(&mut self, cache: &KvCache<'_>, values: &[i64]) -> String {
        self.constant(cache, "shape", &of_ints(vec![values.len()], values))
    }

    fn scalar(&mut self, cache: &KvCache<'_>, value: i64) -> String {
        self.constant(cache, "index", &of_ints(Vec::new(), &[value]))
    }

    fn constant(&mut self, cache: &KvCache<'_>, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(cache.past, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }
}
