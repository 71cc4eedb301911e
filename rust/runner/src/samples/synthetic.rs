//! Inputs made from what the graph says about them, for models that come without samples.

use std::collections::HashMap;

use quantize_rs::{CalibrationError, CheckedInputs, Graph, InputSpec, Producer, Sample};
use quantize_rs_onnx::{DataType, Model, Tensor};

use super::random::SplitMix64;
use super::sequence_lens::{RECURRENT, are_lengths, longest};
use super::units::Units;
use super::widths::last_axis;
use super::{convert, refuse_strings};
use crate::inputs::{elements, mismatch};

/// The length of a dynamic dimension that is neither a batch nor the side of an image.
const LENGTH: usize = 16;

/// The length of a dynamic signal: a float input with no axis beside it but the batch and one or
/// two channels, such as sound. Shorter ones leave nothing between the paddings of a spectrum, or
/// after convolutions with strides.
const SIGNAL: usize = 512;

/// The side of an image whose size is dynamic.
const SIDE: usize = 64;

/// The number of synthetic samples that a result is checked on.
const CHECKED: usize = 4;

/// A larger model is not run on synthetic samples, in bytes: quantizing its weights takes the
/// memory of one layer, and running it takes that of all.
const MAX_BYTES: u64 = 256 << 20;

/// The most elements of one input.
const MAX_ELEMENTS: usize = 1 << 26;

/// Operators that pass indices on to the node that looks them up.
pub(super) const PASSING: &[&str] = &["Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"];

/// The maximum number of such operators in a row.
const DEPTH: usize = 4;

/// The samples that the outputs of a quantized model are checked on: those that a calibration kept,
/// or else synthetic ones.
///
/// # Errors
/// See [`synthetic`]. Models of more than 256 MB are not run on synthetic samples.
pub fn for_check(
    model: &Model,
    kept: &[Sample],
) -> (CheckedInputs, Result<Vec<Sample>, CalibrationError>) {
    if !kept.is_empty() {
        return (CheckedInputs::Calibration, Ok(kept.to_vec()));
    }
    let bytes = model.byte_len();
    if bytes > MAX_BYTES {
        let what = "the model has more than 256 MB, and no samples were given";
        return (CheckedInputs::Synthetic, Err(mismatch(what)));
    }
    (CheckedInputs::Synthetic, synthetic(model, CHECKED))
}

/// `count` samples made from the declared inputs of a model; they are the same for every call.
///
/// Floating-point inputs get normal values, in the units of the input if the graph begins with its
/// mean and scale, otherwise standard normal ones. Lengths of sequences, which a recurrent operator
/// reads or which are called so, are at least half of the sequence. Integers that a `Gather` looks
/// up in a constant table are rows of that table; masks are 1; other integers and booleans are
/// bits. Of the dynamic dimensions the last is that of the constant that it meets, the batch is 1:
/// the first, or the second of what a recurrent operator reads by steps. Those of the sides of
/// images are 64, that of a signal is 512, and others 16; a dimension has the same length wherever
/// it has the same name, and `a + b` is the sum of two named lengths.
///
/// Such inputs show whether a quantized model computes nearly the same as the float model. They say
/// little about its accuracy on real inputs.
///
/// # Errors
/// [`CalibrationErrorKind::InputMismatch`](quantize_rs::CalibrationErrorKind::InputMismatch) with
/// the name of an input without a type or rank, or that is no tensor of plain numbers.
pub fn synthetic(model: &Model, count: usize) -> Result<Vec<Sample>, CalibrationError> {
    let graph = Graph::of(model).map_err(|error| mismatch(error.to_string()))?;
    let specs = InputSpec::of(model);
    if specs.is_empty() {
        return Err(mismatch("the model has no input to feed"));
    }
    refuse_strings(&specs)?;
    let lengths = Lengths::of(&graph, &specs);
    let shapes = specs.iter().map(|spec| Ok((spec, shape_of(&graph, spec, &lengths)?)));
    let shapes: Vec<_> = shapes.collect::<Result<_, CalibrationError>>()?;
    let inputs: Vec<Made> =
        (0..specs.len()).map(|index| Made::of(&graph, index, &shapes)).collect::<Result<_, _>>()?;
    let mut bits = SplitMix64::new(0);
    (0..count)
        .map(|_| {
            let made = inputs.iter().map(|input| Ok((input.name.clone(), input.value(&mut bits)?)));
            Ok(Sample { inputs: made.collect::<Result<_, CalibrationError>>()? })
        })
        .collect()
}

/// An input that is made.
struct Made {
    name: String,
    dtype: DataType,
    shape: Vec<usize>,
    content: Content,
}

/// The values of an input.
enum Content {
    Normal(Option<Units>),
    Ones,
    Bits,
    /// Whole numbers below this one.
    Below(usize),
    /// Lengths of sequences, from half of this one on: mostly, little of a sequence is padding, and
    /// statistics of a single step do not exist.
    Lengths(usize),
}

impl Made {
    /// The input at an index, all of which have these shapes.
    fn of(
        graph: &Graph<'_>,
        index: usize,
        shapes: &[(&InputSpec, Vec<usize>)],
    ) -> Result<Made, CalibrationError> {
        let (spec, shape) = &shapes[index];
        let name = &spec.name;
        let dtype = spec.dtype.ok_or_else(|| lacks(name, "type"))?;
        let lengths = || are_lengths(graph, spec).then(|| longest(graph, name, shapes)).flatten();
        let content = if dtype.is_float() {
            Content::Normal(Units::of(graph, name, shape))
        } else if let Some(most) = lengths() {
            Content::Lengths(most)
        } else if let Some(rows) = rows_read_by(graph, name) {
            Content::Below(rows)
        } else if name.to_lowercase().contains("mask") {
            Content::Ones
        } else {
            Content::Bits
        };
        Ok(Made { name: name.clone(), dtype, shape: shape.clone(), content })
    }

    fn value(&self, bits: &mut SplitMix64) -> Result<Tensor, CalibrationError> {
        let count = self.shape.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|position| match &self.content {
                Content::Normal(Some(units)) => units.value(&self.shape, position, bits.normal()),
                Content::Normal(None) => bits.normal(),
                Content::Ones => 1.0,
                Content::Bits => bits.bit(),
                Content::Below(rows) => bits.below(*rows),
                Content::Lengths(most) => bits.between(most.div_ceil(2), *most),
            })
            .collect();
        convert(Tensor::from_f32_vec(self.shape.clone(), values), self.dtype, &self.name)
    }
}

/// The error for an input that does not say enough.
fn lacks(name: &str, what: &str) -> CalibrationError {
    mismatch(format!("input `{name}` has no {what} to make a sample from")).at_value(name)
}

/// The shape of an input.
fn shape_of(
    graph: &Graph<'_>,
    spec: &InputSpec,
    lengths: &Lengths,
) -> Result<Vec<usize>, CalibrationError> {
    let name = &spec.name;
    let dtype = spec.dtype.ok_or_else(|| lacks(name, "type"))?;
    let declared = spec.shape.as_ref().ok_or_else(|| lacks(name, "rank"))?;
    let names = dimension_names(graph, name);
    let shape: Vec<usize> = declared
        .iter()
        .enumerate()
        .map(|(axis, length)| {
            let of = names.get(axis).and_then(Option::as_deref);
            let known = length.or_else(|| lengths.0.get(of?).copied());
            known.unwrap_or_else(|| likely(graph, name, declared, (axis, dtype)))
        })
        .collect();
    if elements(&shape).is_none_or(|elements| elements > MAX_ELEMENTS) {
        let what = format!("input `{name}` of shape {shape:?} is too large to make a sample");
        return Err(mismatch(what).at_value(name));
    }
    Ok(shape)
}

/// The lengths of the dynamic dimensions that have names.
struct Lengths(HashMap<String, usize>);

impl Lengths {
    /// A name has the length that its first place suggests, or the sum of others if it says so.
    fn of(graph: &Graph<'_>, specs: &[InputSpec]) -> Lengths {
        let (mut lengths, mut sums) = (HashMap::new(), Vec::new());
        for spec in specs {
            let (Some(declared), Some(dtype)) = (&spec.shape, spec.dtype) else { continue };
            for (axis, name) in dimension_names(graph, &spec.name).into_iter().enumerate() {
                let Some(name) = name.filter(|_| declared.get(axis) == Some(&None)) else {
                    continue;
                };
                let length = likely(graph, &spec.name, declared, (axis, dtype));
                if is_sum(&name) {
                    sums.push((name, length));
                } else {
                    // The past of a cache has the four axes of an image.
                    let is_past = axis > 0 && name.contains(PAST);
                    lengths.entry(name).or_insert(if is_past { LENGTH } else { length });
                }
            }
        }
        for (sum, length) in sums {
            let length = summed(&sum, &lengths).unwrap_or(length);
            lengths.entry(sum).or_insert(length);
        }
        Lengths(lengths)
    }
}

/// What the names of lengths of decoders contain: the keys that a cache holds already, the tokens
/// of the call, and both together.
const PAST: &str = "past";
const TOKENS: &str = "sequence";
const TOTAL: &str = "total";

/// Whether a dimension is named after a sum, such as `past_sequence_length + sequence_length`.
fn is_sum(name: &str) -> bool {
    name.contains('+') || name.contains(TOTAL)
}

/// The length of a dimension that is named after a sum; `None` if a part is unknown.
fn summed(name: &str, lengths: &HashMap<String, usize>) -> Option<usize> {
    // Others are the tokens of an encoder, and the size of a cache.
    let is_tokens = |name: &&String| {
        let others = [PAST, "encoder", "max"];
        name.contains(TOKENS) && !is_sum(name) && !others.iter().any(|other| name.contains(other))
    };
    let tokens = lengths.keys().filter(is_tokens).min().map(|name| lengths[name]);
    if name.contains(TOTAL) {
        let past = lengths.keys().filter(|name| name.contains(PAST) && !is_sum(name)).min()?;
        return lengths[past].checked_add(tokens.unwrap_or(1));
    }
    let part = |part: &str| match part.parse::<usize>() {
        // Exporters write `past_sequence_length + 1` even where several tokens may be given.
        Ok(1) if name.contains(PAST) => Some(tokens.unwrap_or(1)),
        Ok(number) => Some(number),
        Err(_) => lengths.get(part).copied(),
    };
    name.split('+').try_fold(0_usize, |sum, text| sum.checked_add(part(text.trim())?))
}

/// The names of the dimensions of an input.
pub(super) fn dimension_names(graph: &Graph<'_>, input: &str) -> Vec<Option<String>> {
    let declared = graph.model.graph().input.iter().find(|info| info.name == input);
    let shape = declared.and_then(|info| info.tensor_type()?.shape.as_ref());
    let named = |name: &String| !name.is_empty();
    shape.map_or_else(Vec::new, |shape| {
        shape.dim.iter().map(|dim| dim.param.clone().filter(named)).collect()
    })
}

/// The length of a dynamic dimension.
fn likely(
    graph: &Graph<'_>,
    input: &str,
    declared: &[Option<usize>],
    (axis, dtype): (usize, DataType),
) -> usize {
    if let Some(length) = last_axis(graph, input, declared.len())
        && axis + 1 == declared.len()
    {
        return length;
    }
    let is_image = declared.len() == 4 && dtype.is_float();
    match axis {
        0 | 1 if has_steps_first(graph, input) => [LENGTH, 1][axis],
        0 => 1,
        _ if is_image && is_channels(declared, axis) => 3,
        _ if is_image => SIDE,
        _ if is_signal(declared) && dtype.is_float() => SIGNAL,
        _ => LENGTH,
    }
}

/// Whether an input with a dynamic last dimension is a signal, with one or two channels or without.
fn is_signal(declared: &[Option<usize>]) -> bool {
    matches!(declared, [_, None] | [_, Some(1 | 2), None])
}

/// Whether the first axis of an input holds steps, and the second the batch, as a recurrent
/// operator reads it.
pub(super) fn has_steps_first(graph: &Graph<'_>, input: &str) -> bool {
    readers(graph, input, &["Cast", "Identity"], DEPTH).into_iter().any(|(node, place)| {
        let node = graph.nodes[node];
        place == 0 && RECURRENT.contains(&&*node.op_type) && node.int("layout", 0) == 0
    })
}

/// Whether an axis of an image holds its channels: the second, unless the last has 1 or 3.
fn is_channels(declared: &[Option<usize>], axis: usize) -> bool {
    axis == 1 && !matches!(declared.last(), Some(Some(1 | 3)))
}

/// The nodes that read an input, and at which place: directly, or through at most `depth` operators
/// in a row that pass it on.
pub(super) fn readers(
    graph: &Graph<'_>,
    input: &str,
    passing: &[&str],
    depth: usize,
) -> Vec<(usize, usize)> {
    let (mut values, mut found) = (Vec::from_iter(graph.value(input)), Vec::new());
    for _ in 0..depth {
        let mut next = Vec::new();
        for reader in values.iter().flat_map(|value| &graph.values[*value].consumers) {
            let is_passed_on = passing.contains(&&*graph.nodes[reader.node].op_type);
            if reader.input == 0 && is_passed_on {
                next.extend(graph.output(reader.node, 0));
            } else {
                found.push((reader.node, reader.input));
            }
        }
        next.sort_unstable();
        next.dedup();
        values = next;
    }
    found
}

/// The rows of the constant table in which an input is looked up, if it is.
fn rows_read_by(graph: &Graph<'_>, input: &str) -> Option<usize> {
    let found = readers(graph, input, PASSING, DEPTH).into_iter();
    let lookups =
        found.filter(|(node, place)| graph.nodes[*node].op_type == "Gather" && *place == 1);
    lookups.filter_map(|(node, _)| table_rows(graph, graph.input(node, 0)?, node)).min()
}

/// The length of the axis of a constant table along which a `Gather` looks up.
fn table_rows(graph: &Graph<'_>, table: usize, node: usize) -> Option<usize> {
    let is_constant = graph.constant(table).is_some()
        || matches!(graph.values[table].producer, Producer::Initializer { .. });
    let shape = graph.shape(table).filter(|_| is_constant)?;
    let axis = graph.nodes[node].attribute("axis").and_then(|found| found.i).unwrap_or(0);
    let axis =
        usize::try_from(if axis < 0 { axis + i64::try_from(shape.len()).ok()? } else { axis });
    shape.get(axis.ok()?).copied().flatten().filter(|rows| *rows > 0)
}
