//! Nodes that become operators on integers, or move integers.

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto, Raw};

use super::Fusion;
use super::quantized::{Codes, dequantized, quantized};
use crate::graph::ops::arithmetic::averages_integers;
use crate::graph::ops::{MICROSOFT, moves_elements};
use crate::graph::qattention;
use crate::graph::qlinear::{QLinear, ROWS, SOFTMAX_ALONG_ONE_AXIS, Slot, limits};
use crate::graph::{Consumer, Graph, ValueId};

/// Operators that move or select elements, which ONNX Runtime runs on integers of 8 bits, and the
/// opset since which they accept these.
const MOVES: &[(&str, i64)] = &[
    ("DepthToSpace", 13),
    ("Expand", 8),
    ("Flatten", 9),
    ("Gather", 1),
    ("GatherElements", 11),
    ("GatherND", 11),
    ("Identity", 1),
    ("MaxPool", 12),
    ("Pad", 13),
    ("ReduceMax", 12),
    ("ReduceMin", 12),
    ("Reshape", 5),
    ("Resize", 11),
    ("Slice", 10),
    ("SpaceToDepth", 13),
    ("Split", 2),
    ("Squeeze", 1),
    ("Tile", 6),
    ("Transpose", 1),
    ("Unsqueeze", 1),
];

/// The relative tolerance of the scale of a bias, which is a product of two others in float32.
const SCALE_TOLERANCE: f32 = 1e-5;

/// The output of a node: its integers, and the nodes between.
struct Output<'m> {
    codes: Codes<'m>,
    gone: Vec<usize>,
}

impl<'m> Fusion<'_, 'm> {
    /// Whether a node reads a quantized activation, and no node that only quantizes or dequantizes.
    pub(super) fn reads_activations(&self, node: usize) -> bool {
        let graph = self.graph;
        let is_codes =
            |id: ValueId| dequantized(graph, id).is_some_and(|codes| !constant(graph, codes.name));
        (0..graph.nodes[node].input.len())
            .filter_map(|input| graph.input(node, input))
            .any(is_codes)
            && graph.nodes[node].op_type != "QuantizeLinear"
    }

    /// Lets a node that moves or selects elements move integers; `false` if it cannot.
    pub(super) fn moves(&mut self, node: usize) -> bool {
        self.moved(node).is_some()
    }

    fn moved(&mut self, node: usize) -> Option<()> {
        let (graph, proto) = (self.graph, self.graph.nodes[node]);
        let opset = graph.model.opset("").unwrap_or(1);
        let known = |(op_type, since): &&(&str, i64)| *op_type == proto.op_type && *since <= opset;
        MOVES.iter().find(known).filter(|_| proto.is_onnx())?;
        let moves = match proto.op_type.as_str() {
            // Its table is a constant or an activation, and its indices are integers.
            "Gather" => true,
            _ => moves_elements(graph, node),
        };
        let input = dequantized(graph, graph.input(node, 0)?)?;
        if !moves || !input.is_8_bit() || !input.is_positive() {
            return None;
        }
        let outputs = (0..proto.output.len()).map(|output| {
            let codes = quantized(graph, graph.output(node, output)?)?;
            codes.equals(&input).then_some(codes)
        });
        let outputs = outputs.collect::<Option<Vec<_>>>()?;
        let mut with = proto.clone();
        input.name.clone_into(&mut with.input[0]);
        if proto.op_type == "Pad" {
            self.pad_with_zero_point(node, &mut with, &input)?;
        }
        for (place, codes) in with.output.iter_mut().zip(&outputs) {
            codes.name.clone_into(place);
        }
        let gone: Vec<usize> = outputs.iter().map(|codes| codes.node).collect();
        self.replace(node, with, &gone);
        Some(())
    }

    /// The padding value 0 is the zero point.
    fn pad_with_zero_point(
        &mut self,
        node: usize,
        with: &mut NodeProto,
        input: &Codes<'m>,
    ) -> Option<()> {
        let mode = with.attribute("mode").and_then(|mode| mode.s.clone());
        if mode.is_some_and(|mode| mode != b"constant"[..]) {
            return self.graph.input(node, 2).is_none().then_some(());
        }
        let zero_point = match input.zero_point {
            Some(name) => name.to_owned(),
            None => self.zero(input.dtype),
        };
        // A zero point with one element may be a vector, and padding values are scalars.
        let scalar = match input.zero_point {
            Some(name) => self.graph.constant(self.graph.value(name)?)?.dims.is_empty(),
            None => true,
        };
        if !scalar || with.input.len() < 2 {
            return None;
        }
        match with.input.get_mut(2) {
            Some(place) => *place = zero_point,
            None => with.input.push(zero_point),
        }
        Some(())
    }

    /// Lets a node compute on integers, and returns the operator; `None` if it cannot.
    pub(super) fn computes(&mut self, node: usize) -> Option<&'static str> {
        let proto = self.graph.nodes[node];
        let microsoft = self.microsoft;
        let fits = |row: &&QLinear| row.replaces(proto) && (microsoft || row.domain != MICROSOFT);
        let mut rows = ROWS.iter().filter(fits);
        let row = rows.find(|row| self.computed(node, row).is_some());
        row.map(|row| row.op_type)
    }

    fn computed(&mut self, node: usize, row: &QLinear) -> Option<()> {
        let (graph, proto) = (self.graph, self.graph.nodes[node]);
        let (mut sources, mut bias) = (Vec::new(), None);
        for input in 0..proto.input.len() {
            let Some(id) = graph.input(node, input) else { continue };
            match row.slot(input)? {
                Slot::Plain(_) => {}
                Slot::Bias(_) => bias = Some(dequantized(graph, id)?),
                Slot::Scaled { .. } => {
                    let codes = dequantized(graph, id).filter(Codes::is_8_bit)?;
                    sources.push(codes);
                }
            }
        }
        let output = match row.output {
            Some(_) => self.output(node),
            None => None,
        };
        let found = Operands { graph, node, sources: &sources, bias: bias.as_ref() };
        match &output {
            Some(output) => found.match_output(row, &output.codes)?,
            None if row.output.is_none() || row.may_be_float => {}
            None => return None,
        }
        found.are_supported(row)?;
        let attribute = attributes(graph, node, row)?;
        let inputs = self.inputs(node, row, &sources, bias.as_ref(), output.as_ref());
        let outputs = match &output {
            Some(output) => vec![output.codes.name.to_owned()],
            None => proto.output.clone(),
        };
        let mut with = NodeProto::new(&proto.name, row.op_type, inputs, outputs, attribute);
        row.domain.clone_into(&mut with.domain);
        self.replace(node, with, output.as_ref().map_or(&[], |output| &output.gone));
        Some(())
    }

    /// All inputs of the operator on integers.
    fn inputs(
        &mut self,
        node: usize,
        row: &QLinear,
        sources: &[Codes<'m>],
        bias: Option<&Codes<'m>>,
        output: Option<&Output<'m>>,
    ) -> Vec<String> {
        let proto = self.graph.nodes[node];
        let mut all: Vec<String> = Vec::new();
        let mut put = |at: usize, name: String| {
            if all.len() <= at {
                all.resize(at + 1, String::new());
            }
            all[at] = name;
        };
        let mut given = sources.iter();
        for (input, name) in proto.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match row.slot(input) {
                Some(Slot::Plain(at)) => put(at, name.clone()),
                Some(Slot::Bias(at)) => {
                    put(at, bias.map(|bias| bias.name.to_owned()).unwrap_or_default());
                }
                Some(Slot::Scaled { at, scale, zero_point }) => {
                    let Some(codes) = given.next() else { continue };
                    put(at, codes.name.to_owned());
                    put(scale, codes.scale.to_owned());
                    put(zero_point, self.zero_point(codes));
                }
                None => {}
            }
        }
        if let (Some(at), Some(Output { codes, .. })) = (row.output, output) {
            put(at, codes.scale.to_owned());
            put(at + 1, self.zero_point(codes));
        }
        all
    }

    fn zero_point(&mut self, codes: &Codes<'m>) -> String {
        match codes.zero_point {
            Some(name) => name.to_owned(),
            None => self.zero(codes.dtype),
        }
    }

    /// The integers of the output of a node, which an activation function may precede.
    fn output(&self, node: usize) -> Option<Output<'m>> {
        let graph = self.graph;
        let output = graph.output(node, 0)?;
        if let Some(codes) = quantized(graph, output) {
            let gone = vec![codes.node];
            return Some(Output { codes, gone });
        }
        let Consumer { node: limit, input: 0 } = graph.only_consumer(output)? else {
            return None;
        };
        let (least, most) = limits(graph, limit)?;
        let codes = quantized(graph, graph.output(limit, 0)?)?;
        let folded = codes.saturate_at(least, most);
        let gone = vec![limit, codes.node];
        folded.then_some(Output { codes, gone })
    }
}

/// The inputs of a node as integers.
struct Operands<'a, 'm> {
    graph: &'a Graph<'m>,
    node: usize,
    sources: &'a [Codes<'m>],
    bias: Option<&'a Codes<'m>>,
}

impl Operands<'_, '_> {
    /// Whether the types of inputs and output go together.
    fn match_output(&self, row: &QLinear, output: &Codes<'_>) -> Option<()> {
        let products = row.multiplies();
        let alike = if products { self.sources.get(..1)? } else { self.sources };
        // A sum, a product and others take scalars alone.
        if !output.is_positive() || !(products || output.is_scalar) {
            return None;
        }
        let same = output.is_8_bit() && alike.iter().all(|codes| codes.dtype == output.dtype);
        same.then_some(())
    }

    /// Whether ONNX Runtime has the operator for such integers.
    fn are_supported(&self, row: &QLinear) -> Option<()> {
        let (proto, graph) = (self.graph.nodes[self.node], self.graph);
        let usable = |codes: &&Codes<'_>| codes.is_per_tensor() && codes.is_positive();
        let first = self.sources.first().filter(usable)?;
        if !row.multiplies() {
            let fits = |codes: &Codes<'_>| usable(&codes) && codes.is_scalar;
            return self.sources.iter().all(fits).then_some(());
        }
        let weight = self.sources.get(1)?;
        // Kernels for int8 activations have no variant for uint8 weights, and `QAttention` has none
        // for int8 activations.
        let attention = row.float == "Attention";
        if first.dtype == DataType::Int8 && (attention || weight.dtype == DataType::UInt8) {
            return None;
        }
        if attention && qattention::fits(graph, proto).is_err() {
            return None;
        }
        let rank = graph.shape(graph.input(self.node, 1)?)?.len();
        let axis = weight
            .axis
            .map(|axis| if axis < 0 { axis + i64::try_from(rank).unwrap_or(0) } else { axis });
        let columns = match row.float {
            "Conv" => 0,
            "Gemm" => i64::from(proto.int("transB", 0) == 0),
            _ => 1,
        };
        let fits = axis.is_none_or(|axis| axis == columns && (rank == 2 || row.float == "Conv"));
        // The filters of a convolution share one zero point.
        let one = weight.zero_points.windows(2).all(|pair| pair[0] == pair[1]);
        let usual = row.float != "Gemm" || usual_factors(proto);
        let sound = fits && (one || row.float != "Conv") && usual;
        (sound && self.bias.is_none_or(|bias| matches_products(bias, first, weight))).then_some(())
    }
}

/// Whether a `Gemm` has no factors.
#[allow(clippy::float_cmp)] // attributes of the file, not computed numbers
fn usual_factors(gemm: &NodeProto) -> bool {
    gemm.float("alpha", 1.0) == 1.0 && gemm.float("beta", 1.0) == 1.0
}

/// Whether a bias has int32 elements in the scale of the products.
fn matches_products(bias: &Codes<'_>, input: &Codes<'_>, weight: &Codes<'_>) -> bool {
    let near = |(scale, of_weight): (&f32, &f32)| {
        let product = input.scales[0] * of_weight;
        (product - scale).abs() <= SCALE_TOLERANCE * product.abs()
    };
    let zero = bias.zero_points.iter().all(|zero_point| *zero_point == 0);
    // A single scale of a weight stands for all channels.
    let counts = weight.is_per_tensor() || bias.scales.len() == weight.scales.len();
    let of_weights = weight.scales.iter().cycle();
    bias.dtype == DataType::Int32 && zero && counts && bias.scales.iter().zip(of_weights).all(near)
}

/// The attributes of the operator on integers; `None` if it has no counterpart of one of them.
fn attributes(graph: &Graph<'_>, node: usize, row: &QLinear) -> Option<Vec<Raw<AttributeProto>>> {
    let proto = graph.nodes[node];
    let mut all = proto.attribute.clone();
    if row.float == "Attention" {
        return Some(qattention::attributes(proto));
    }
    let mut add = |attribute: AttributeProto| all.push(Raw::new(attribute));
    match row.float {
        "Softmax" => {
            let opset = graph.model.opset("").unwrap_or(1);
            let usual = if opset < SOFTMAX_ALONG_ONE_AXIS { 1 } else { -1 };
            if proto.attribute("axis").is_none() {
                add(AttributeProto::int("axis", usual));
            }
            add(AttributeProto::int("opset", opset));
        }
        // Both are 1.
        "Gemm" => all.retain(|attribute| attribute.name != "beta"),
        "AveragePool" if !averages_integers(proto) => return None,
        // All are 1.
        "AveragePool" => {
            all.retain(|attribute| attribute.name != "dilations");
        }
        _ => {}
    }
    Some(all)
}

fn constant(graph: &Graph<'_>, name: &str) -> bool {
    graph.value(name).is_some_and(|id| graph.constant_behind(id).is_some())
}
