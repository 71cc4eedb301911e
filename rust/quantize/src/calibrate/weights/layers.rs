//! The layers whose weights can be rounded with the help of samples: which value each weight is
//! multiplied by, and which elements of the weight meet the same elements of that value.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use quantize_rs_math::{Algorithm, Granularity, Layout, Scales};
use quantize_rs_onnx::{DataType, NodeProto};
use serde::Serialize;

use super::rows::{Rows, Window};
use crate::graph::qattention::is_attention;
use crate::graph::uses::Constant;
use crate::graph::{Graph, Producer};
use crate::plan::{Plan, Source, ValuePlan};
use crate::ranges::SEPARATOR;
use crate::{Format, RoundingEffort};

/// The rows of a value that layers multiply by their weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LayerInput {
    /// The value.
    pub(crate) value: String,
    pub(crate) rows: Rows,
    /// The number of groups of channels, each of which has its own rows.
    pub(crate) groups: usize,
    /// The number of elements of a row.
    pub(crate) depth: usize,
    /// Elements of a row whose moments are collected together: all of them, or spans of this length
    /// each for itself.
    pub(crate) span: usize,
}

impl LayerInput {
    /// The number of elements of a row that belong to the same channel.
    fn kernel(&self) -> usize {
        match &self.rows {
            Rows::Patches(window) => window.elements(),
            _ => 1,
        }
    }

    /// The name of its moments: the value, and how they are collected.
    pub(crate) fn name(&self, diagonal: bool) -> String {
        // Serialization cannot fail: there are no maps.
        let how = serde_json::to_string(&(self, diagonal)).unwrap_or_default();
        format!("{}{SEPARATOR}{how}", self.value)
    }

    /// The spans of a row.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (depth, span) = (self.depth, self.span.max(1));
        (0..depth).step_by(span).map(move |first| first..(first + span).min(depth))
    }
}

/// The lengths of spans if there are more: multiples of every usual block of a weight.
const SHORTER: [usize; 5] = [4096, 2048, 1024, 512, 256];

/// How long rows are divided into spans. The time that moments and rounding take grows with the
/// square of the length, and would be many times that of running a layer of many channels.
struct Spans {
    /// Rows that are longer are divided.
    longest: usize,
    /// The length of a span, before it is reduced to whole channels and blocks.
    length: usize,
}

/// Those of convolutions.
const PATCHES: Spans = Spans { longest: 1152, length: 768 };

/// Those of convolutions with 8 bits beside quantized activations, whose errors are far larger than
/// what short spans lose: up to 2 dB of 60 without quantized activations.
const FINE_PATCHES: Spans = Spans { longest: 288, length: 288 };

/// Those of other layers with 8 bits, which lose 0.1 dB. With fewer bits rows are not divided.
const FINE: Spans = Spans { longest: 512, length: 512 };

/// The length of the spans of the rows of a layer, whose elements are divided in whole channels of
/// `kernel` elements.
fn span(rows: &Rows, depth: usize, kernel: usize, wanted: Wanted) -> usize {
    let Wanted { bits, block, beside_activations, effort, .. } = wanted;
    let spans = match rows {
        Rows::Patches(_) if bits >= 8 && beside_activations => FINE_PATCHES,
        Rows::Patches(_) => PATCHES,
        _ if bits >= 8 => FINE,
        _ => return depth,
    };
    if depth <= spans.longest || effort == RoundingEffort::Best {
        return depth;
    }
    let unit = block.unwrap_or(kernel).max(1);
    (spans.length / unit).max(1) * unit
}

/// Which elements of a weight belong to which column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnMap {
    pub(crate) groups: usize,
    pub(crate) width: usize,
    pub(crate) depth: usize,
    group_stride: usize,
    column_stride: usize,
    element_stride: usize,
}

impl ColumnMap {
    /// The flat index of an element.
    pub(crate) fn index(&self, group: usize, column: usize, element: usize) -> usize {
        group * self.group_stride + column * self.column_stride + element * self.element_stride
    }

    /// Columns whose elements lie next to each other.
    fn rows_of(groups: usize, width: usize, depth: usize) -> ColumnMap {
        ColumnMap {
            groups,
            width,
            depth,
            group_stride: width * depth,
            column_stride: depth,
            element_stride: 1,
        }
    }

    /// Columns whose elements are `width` apart.
    fn columns_of(groups: usize, width: usize, depth: usize) -> ColumnMap {
        ColumnMap {
            groups,
            width,
            depth,
            group_stride: width * depth,
            column_stride: 1,
            element_stride: width,
        }
    }

    fn elements(&self) -> usize {
        self.groups * self.width * self.depth
    }
}

/// A weight and the inputs that it meets.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeight {
    /// Its name.
    pub(crate) name: String,
    pub(crate) map: ColumnMap,
    /// Positions of its inputs in [`Layers::inputs`]; several if layers share the weight.
    pub(crate) inputs: Vec<usize>,
}

/// The weights of a plan that can be rounded with the help of samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) inputs: Vec<LayerInput>,
    pub(crate) weights: Vec<LayerWeight>,
    /// Whether only the mean squares of inputs are collected.
    pub(crate) diagonal: bool,
}

impl Layers {
    /// The layers of a plan.
    pub(crate) fn of(graph: &Graph<'_>, plan: &Plan) -> Layers {
        let constants: BTreeMap<&str, Constant<'_>> = plan
            .constants(graph)
            .into_iter()
            .map(|constant| (graph.values[constant.anchor].name, constant))
            .collect();
        let mut layers = Layers::default();
        let mut known: HashMap<String, Vec<usize>> = HashMap::new();
        for (value, how) in plan.quantized().filter(|(_, how)| is_rounded(how)) {
            let Some(constant) = constants.get(value.name.as_str()) else { continue };
            let is_matrix = constant.multipliers(graph).all(multiplies_matrices);
            if !plan.config.rounds_weight(how.spec.qtype, is_matrix) {
                continue;
            }
            let wanted = Wanted {
                format: how.format,
                bits: how.spec.bits(),
                block: match how.spec.granularity {
                    Granularity::Blocked { block_size, .. } => Some(block_size),
                    _ => None,
                },
                beside_activations: plan.config.activations.is_some(),
                effort: plan.config.rounding_effort,
            };
            let Some((map, inputs)) = meets(graph, constant, wanted) else { continue };
            let shape = how.matrix.as_ref().map_or(&constant.shape[..], |matrix| &matrix[..]);
            if !Layout::of(shape, how.spec.granularity)
                .is_ok_and(|it| it.elements() == map.elements())
            {
                continue;
            }
            let mut positions = Vec::new();
            for input in inputs {
                let same = known.entry(input.value.clone()).or_default();
                let found = same.iter().copied().find(|at| layers.inputs[*at] == input);
                let at = found.unwrap_or_else(|| {
                    layers.inputs.push(input);
                    same.push(layers.inputs.len() - 1);
                    layers.inputs.len() - 1
                });
                positions.push(at);
            }
            layers.weights.push(LayerWeight { name: value.name.clone(), map, inputs: positions });
        }
        layers.diagonal = plan.config.last_algorithm() <= Algorithm::Scales;
        layers.bound_memory(plan.config.memory_limit);
        layers
    }

    /// Whether samples are run again, to round layer after layer.
    pub(crate) fn repeats(&self, plan: &Plan) -> bool {
        let best = plan.config.rounding_effort == RoundingEffort::Best;
        best && !self.diagonal && !self.weights.is_empty()
    }

    /// Divides the rows of all inputs into shorter spans, if their moments would take more bytes
    /// together. If they still do, only mean squares are collected.
    fn bound_memory(&mut self, limit: u64) {
        for span in SHORTER {
            if self.bytes() <= limit {
                return;
            }
            for input in self.inputs.iter_mut().filter(|input| input.span > span) {
                let kernel = input.kernel();
                input.span = (span / kernel).max(1) * kernel;
            }
        }
        self.diagonal |= self.bytes() > limit;
    }

    /// The bytes that the moments take together, or twice as much if samples differ in magnitude.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = |span: Range<usize>| {
            let length = span.len() as u64;
            if self.diagonal { length } else { length * (length + 1) / 2 }
        };
        let of_input =
            |input: &LayerInput| input.groups as u64 * input.spans().map(entries).sum::<u64>();
        self.inputs.iter().map(of_input).sum::<u64>().saturating_mul(size_of::<f64>() as u64)
    }
}

/// Whether a weight becomes integers of up to 8 bits with wide scales.
fn is_rounded(how: &ValuePlan) -> bool {
    let qtype = how.spec.qtype;
    how.source == Source::Weights
        && !qtype.is_float()
        && qtype.bits() <= 8
        && matches!(how.spec.scales, Scales::Float)
        && how.spec.codebook.is_none()
}

fn multiplies_matrices(node: &NodeProto) -> bool {
    node.is_onnx() && matches!(&*node.op_type, "MatMul" | "Gemm") || is_attention(node)
}

/// What becomes of a weight, and how long its rounding may take.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    format: Format,
    bits: u32,
    /// The elements of a row that share a scale; `None` if all do.
    block: Option<usize>,
    beside_activations: bool,
    effort: RoundingEffort,
}

/// The inputs that a weight is multiplied by, and its columns. All multiplications must meet the
/// same columns; lookups in a table meet none and do not count.
fn meets(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    wanted: Wanted,
) -> Option<(ColumnMap, Vec<LayerInput>)> {
    let floats = [DataType::Float, DataType::Float16, DataType::BFloat16];
    if !constant.dtype.is_some_and(|dtype| floats.contains(&dtype)) {
        return None;
    }
    let mut found: Option<(ColumnMap, Vec<LayerInput>)> = None;
    for usage in &constant.uses {
        let Some(multiplier) = usage.multiplier(graph) else { continue };
        if multiplier.node.op_type == "Gather" {
            continue;
        }
        // Values in subgraphs are not observed.
        multiplier.index?;
        let side = side(graph, constant, multiplier.node, multiplier.input)?;
        let (map, input) = product(graph, constant, multiplier.node, (side, wanted))?;
        match &mut found {
            None => found = Some((map, vec![input])),
            Some((known, inputs)) if *known == map => inputs.push(input),
            Some(_) => return None,
        }
    }
    found
}

/// How the constant reaches the node.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Side {
    input: usize,
    /// Whether a `Transpose` swaps the two axes of the constant on the way.
    swapped: bool,
}

fn side(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    node: &NodeProto,
    input: usize,
) -> Option<Side> {
    let name = node.input.get(input)?;
    if *name == graph.values[constant.anchor].name {
        return Some(Side { input, swapped: false });
    }
    let Producer::Node { node: before, .. } = graph.values[graph.value(name)?].producer else {
        return None;
    };
    let transpose = graph.nodes[before];
    let swaps = transpose.op_type == "Transpose"
        && transpose.is_onnx()
        && constant.shape.len() == 2
        && graph.input(before, 0) == Some(constant.anchor)
        && transpose.attribute("perm").is_none_or(|perm| perm.ints[..] == [1, 0]);
    swaps.then_some(Side { input, swapped: true })
}

/// The columns of a weight, and the rows that they are multiplied by.
fn product(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    node: &NodeProto,
    (side, wanted): (Side, Wanted),
) -> Option<(ColumnMap, LayerInput)> {
    if !node.is_onnx() && !is_attention(node) {
        return None;
    }
    let input = |at: usize| node.input.get(at).cloned();
    let shape = &constant.shape[..];
    let (value, rows, map) = match (node.op_type.as_str(), side.input, shape) {
        ("MatMul" | "Attention", 1, &[first, second]) => {
            (input(0)?, Rows::Last, matrix(first, second, side))
        }
        ("MatMul", 0, &[first, second]) => {
            let flipped = Side { swapped: !side.swapped, ..side };
            (input(1)?, Rows::SecondLast, matrix(first, second, flipped))
        }
        ("Gemm", 1, &[first, second]) => {
            let transposed = node.int("transB", 0) != 0;
            let side = Side { swapped: side.swapped != transposed, ..side };
            let rows = if node.int("transA", 0) == 0 { Rows::Last } else { Rows::SecondLast };
            (input(0)?, rows, matrix(first, second, side))
        }
        ("Conv", 1, &[outputs, depth, ref kernel @ ..]) if !side.swapped => {
            let groups = groups(node, outputs)?;
            let depth = depth * kernel.iter().product::<usize>();
            let window = Window::of(node, kernel)?;
            (input(0)?, Rows::Patches(window), ColumnMap::rows_of(groups, outputs / groups, depth))
        }
        ("ConvTranspose", 1, &[inputs, outputs, ref kernel @ ..]) if !side.swapped => {
            let groups = groups(node, inputs)?;
            let width = outputs * kernel.iter().product::<usize>();
            (input(0)?, Rows::Channels, ColumnMap::columns_of(groups, width, inputs / groups))
        }
        // `DynamicQuantizeLSTM` stores its weights transposed.
        ("LSTM" | "GRU" | "RNN", 1, &[directions, gates, depth])
            if !side.swapped && wanted.format != Format::Dynamic =>
        {
            (input(0)?, Rows::Last, ColumnMap::rows_of(1, directions * gates, depth))
        }
        _ => return None,
    };
    let id = graph.value(&value)?;
    let constant = graph.constant(id).is_some();
    (!constant && map.elements() > 0).then_some(())?;
    let kernel = match &rows {
        Rows::Patches(_) => shape.iter().skip(2).product(),
        _ => 1,
    };
    let span = span(&rows, map.depth, kernel, wanted);
    Some((map, LayerInput { value, rows, groups: map.groups, depth: map.depth, span }))
}

/// The columns of a matrix that is the right factor of a product.
fn matrix(first: usize, second: usize, side: Side) -> ColumnMap {
    if side.swapped {
        ColumnMap::rows_of(1, first, second)
    } else {
        ColumnMap::columns_of(1, second, first)
    }
}

/// The number of groups of a convolution, if it divides the channels.
fn groups(node: &NodeProto, channels: usize) -> Option<usize> {
    let groups = usize::try_from(node.int("group", 1)).ok()?;
    (groups > 0 && channels > 0 && channels.is_multiple_of(groups)).then_some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_channels_and_blocks_and_short_for_8_bits() {
        let node = NodeProto::new("", "Conv", Vec::new(), vec!["y".to_owned()], Vec::new());
        let patches = Rows::Patches(Window::of(&node, &[3, 3]).unwrap());
        let wanted = |bits, block, beside_activations, effort| Wanted {
            format: Format::Qdq,
            bits,
            block,
            beside_activations,
            effort,
        };
        let usual = |bits, block| wanted(bits, block, false, RoundingEffort::Balanced);
        let beside = |bits| wanted(bits, None, true, RoundingEffort::Balanced);
        let best = wanted(8, None, true, RoundingEffort::Best);
        for (rows, depth, kernel, wanted, length) in [
            (&patches, 4608, 9, usual(4, None), 765),
            (&patches, 4608, 9, usual(8, None), 765),
            (&patches, 1152, 9, usual(8, None), 1152),
            (&patches, 4608, 9, beside(8), 288),
            (&patches, 4608, 9, beside(4), 765),
            (&patches, 288, 9, beside(8), 288),
            (&patches, 4608, 9, best, 4608),
            // A kernel with more elements than a span: one channel.
            (&patches, 3000, 1000, beside(8), 1000),
            (&Rows::Last, 4096, 1, usual(8, None), 512),
            (&Rows::Last, 4096, 1, usual(8, Some(96)), 480),
            (&Rows::Last, 4096, 1, usual(8, Some(1024)), 1024),
            (&Rows::Last, 4096, 1, usual(4, Some(32)), 4096),
            (&Rows::Last, 512, 1, usual(8, None), 512),
            (&Rows::Last, 4096, 1, best, 4096),
        ] {
            assert_eq!(span(rows, depth, kernel, wanted), length, "{rows:?} {depth} {wanted:?}");
        }
    }
}
