//! The reasons for which a node stays float32, in order.

use quantize_rs_onnx::{DataType, NodeProto};

use super::constants::{Magnitudes, elements};
use super::decide::{Given, Kind, Settings};
use super::dequantized;
use super::fits::{Misfit, Samples};
use super::numbers::Numbers;
use super::operators as ops;
use super::scope::Scope;
use super::{KeptReason, SCALES_SINCE};
use crate::graph::elements::to_f32;
use crate::options::HalfType;

/// A `MatMul` of positions by a constant with more elements than this computes features.
const MAX_FREQUENCIES: usize = 4096;

type Rule = fn(&Candidate<'_, '_>) -> Option<KeptReason>;

/// The reasons, of which the first that holds is given.
const REASONS: &[Rule] = &[
    excluded,
    float32_before,
    unknown_type,
    undefined,
    carried,
    crashes,
    read_or_made,
    whole_numbers,
    reads_large,
    may_overflow,
    between,
];

/// A node that may compute in 16 bits, with what is known of its graph.
pub(super) struct Candidate<'c, 's> {
    pub(super) scope: &'c Scope<'s>,
    pub(super) settings: &'c Settings<'c>,
    pub(super) given: &'c Given,
    pub(super) samples: Samples<'c>,
    pub(super) numbers: &'c Numbers<'s>,
    /// The type of a float here or around the graph.
    pub(super) kind: &'c dyn Fn(&str) -> Option<Kind>,
    pub(super) node: &'s NodeProto,
    /// A value that it reads or computes and whose type is not known.
    pub(super) unknown: Option<&'s str>,
    /// The floats that it reads, with the position of each.
    pub(super) read: Vec<(usize, &'s str)>,
    /// The floats that it computes.
    pub(super) made: Vec<&'s str>,
}

impl<'s> Candidate<'_, 's> {
    /// Why it stays float32; `None` if it computes in 16 bits.
    pub(super) fn reason(&self) -> Option<KeptReason> {
        REASONS.iter().find_map(|rule| rule(self))
    }

    /// The floats that it reads and that are not constant.
    fn computed(&self) -> impl Iterator<Item = &'s str> {
        let computed = |name: &&str| !self.scope.is_constant(name);
        self.read.iter().map(|(_, name)| *name).filter(computed)
    }

    fn is_quantization(&self) -> bool {
        matches!(self.node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear")
    }
}

/// Why the caller, or the node around the graph, leaves a node in float32.
pub(super) fn left_out(
    node: &NodeProto,
    settings: &Settings<'_>,
    given: &Given,
) -> Option<KeptReason> {
    let all = given.all_float.then_some(KeptReason::Operator);
    (settings.excluded)(node).or(all)
}

fn excluded(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    left_out(at.node, at.settings, at.given)
}

fn float32_before(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    at.settings.mixed.then_some(KeptReason::Before)
}

fn unknown_type(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    at.unknown.map(|value| KeptReason::UnknownType { value: value.to_owned() })
}

fn undefined(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let defined = ops::is_defined(at.node, at.settings.half, at.settings.opset);
    (!defined).then_some(KeptReason::Operator)
}

fn carried(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let carried = at.made.iter().any(|name| at.given.carried.contains(*name));
    (carried && !at.is_quantization()).then_some(KeptReason::Carried)
}

/// ONNX Runtime (1.32 on CPUs) crashes when it loads such a `Transpose` in float16: it fuses it
/// into a `MatMul` that reads it, if the other factor is a constant matrix once it has folded what
/// computes it. In float32 it does not.
fn crashes(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let transposes = at.settings.half == HalfType::Float16 && ops::transposes_batch(at.node);
    (transposes && is_multiplied(at.scope, at.node)).then_some(KeptReason::Crashes)
}

/// Whether a `MatMul` reads the result of a node, perhaps cast.
fn is_multiplied(scope: &Scope<'_>, node: &NodeProto) -> bool {
    let consumers = node.output.iter().flat_map(|name| scope.consumers(name));
    let mut consumers = consumers.map(|(node, _)| &*scope.graph.node[*node]);
    consumers.any(|reader| match reader.op_type.as_str() {
        "MatMul" => reader.is_onnx(),
        "Cast" | "Identity" => is_multiplied(scope, reader),
        _ => false,
    })
}

/// A constant that it reads, or a value that it reads or computes, does not fit the type.
fn read_or_made(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    if at.is_quantization() {
        return scales(at);
    }
    let constants = at.read.iter().find_map(|(input, name)| constant(at, *input, name));
    constants.or_else(|| {
        let values = at.made.iter().copied().chain(at.read.iter().map(|(_, name)| *name));
        values.into_iter().find_map(|name| at.samples.reason(name))
    })
}

/// Why the scales of a `QuantizeLinear` or `DequantizeLinear` stay float32; `None` if it
/// computes a weight with scales that fit the type.
fn scales(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let node = at.node;
    let constant = |input: usize| node.input.get(input).and_then(|name| at.scope.constant(name));
    // The output of later opsets may have another type than the scales.
    let to_float = node.attribute("output_dtype").and_then(|own| own.i).unwrap_or(0);
    let as_scales = to_float == 0 || to_float == i64::from(DataType::Float.number());
    let is_weight = node.op_type == "DequantizeLinear" && as_scales && constant(0).is_some();
    let scales = constant(1).filter(|_| is_weight).and_then(|all| Magnitudes::of(&all));
    let Some(Magnitudes { largest: magnitude, .. }) = scales else {
        return Some(KeptReason::Quantization);
    };
    let Settings { half, opset, .. } = *at.settings;
    if node.is_onnx() && opset < SCALES_SINCE {
        return Some(KeptReason::Float32Scales { opset });
    }
    large_when_dequantized(at, 1, magnitude).or_else(|| {
        let misfit = Misfit::of(half, magnitude, 1.0)?;
        Some(misfit.of_constant(&node.input[1], magnitude))
    })
}

/// That a constant is too large for 16 bits once it is dequantized, whose scales are up to
/// `scale`.
fn large_when_dequantized(at: &Candidate<'_, '_>, input: usize, scale: f32) -> Option<KeptReason> {
    let name = |input: usize| at.node.input.get(input);
    let dtype = |input: usize| Some(at.scope.constant(name(input)?)?.dtype);
    let (integers, largest) = dequantized::scaled(at.node, input, dtype)?;
    let magnitude = scale * largest;
    let large = magnitude > at.settings.half.largest();
    large.then(|| Misfit::Large.of_constant(&at.node.input[integers], magnitude))
}

/// Why a node cannot read a constant in 16 bits.
fn constant(at: &Candidate<'_, '_>, input: usize, name: &str) -> Option<KeptReason> {
    if ops::is_float32_input(at.node, input) {
        return None;
    }
    let found = Magnitudes::of(&elements(at.scope, name)?)?;
    let misfit = |magnitude: f32| Misfit::of(at.settings.half, magnitude, 1.0);
    // As bounds, numbers beyond the range are as good as infinity.
    let is_bound = matches!(at.node.op_type.as_str(), "Clip" | "Max" | "Min");
    if misfit(found.largest) == Some(Misfit::Large) && !is_bound {
        return Some(Misfit::Large.of_constant(name, found.largest));
    }
    if let Some(large) = large_when_dequantized(at, input, found.largest) {
        return Some(large);
    }
    // Here the relative error of each element counts.
    let each = match at.node.op_type.as_str() {
        "Div" | "Pow" => input == 1,
        "BatchNormalization" => input == 4,
        _ => is_bound,
    };
    let size = if each { found.least } else { found.largest };
    (misfit(size) == Some(Misfit::Small)).then(|| Misfit::Small.of_constant(name, size))
}

fn whole_numbers(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let arithmetic = ops::is_elementwise(at.node)
        || ops::moves(at.node)
        || ops::is_exact(at.node)
        || ops::is_of_whole_numbers(at.node)
        || multiplies_by_few(at);
    let computed: Vec<&str> = at.computed().collect();
    let is_whole = |name: &&str| {
        let counted = ops::counts(at.node) && at.numbers.small.contains(name);
        counted || at.numbers.whole.contains(name)
    };
    let whole = !computed.is_empty() && computed.iter().all(is_whole);
    (arithmetic && whole).then_some(KeptReason::WholeNumbers)
}

/// Whether a node multiplies by a constant of few elements.
fn multiplies_by_few(at: &Candidate<'_, '_>) -> bool {
    let few = |name: &String| {
        let constant = at.scope.constant(name);
        constant.is_some_and(|constant| constant.elements() <= MAX_FREQUENCIES)
    };
    at.node.op_type == "MatMul" && at.node.is_onnx() && at.node.input.iter().any(few)
}

fn reads_large(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let large = at.computed().any(|name| at.numbers.large.contains(name));
    large.then_some(KeptReason::ReadsLarge)
}

/// Samples would show whether results are too large.
fn may_overflow(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let half = at.settings.half;
    if at.samples.exist() || !half.overflows() || !ops::grows(at.node) {
        return None;
    }
    let made = at.node.output.first().and_then(|name| at.numbers.bounds.get(name.as_str()));
    let bounded = made.is_some_and(|bound| *bound <= half.largest());
    (!bounded && !is_small_power(at)).then_some(KeptReason::MayOverflow)
}

/// Whether a node computes a root.
fn is_small_power(at: &Candidate<'_, '_>) -> bool {
    let exponent = at.node.input.get(1).filter(|_| at.node.op_type == "Pow");
    let exponent = exponent.and_then(|name| to_f32(&at.scope.constant(name)?));
    exponent.is_some_and(|all| all.iter().all(|x| x.abs() <= 1.0))
}

fn between(at: &Candidate<'_, '_>) -> Option<KeptReason> {
    let moved = ops::moves(at.node)
        && at.computed().any(|name| (at.kind)(name) == Some(Kind::Float))
        && !at.computed().any(|name| at.given.inputs.contains_key(name));
    moved.then_some(KeptReason::Between)
}
