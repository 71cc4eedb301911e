//! Shape inference of control flow operators and constants.

use quantize_rs_onnx::{DataType, GraphProto};

use super::call::Call;
use super::dim::Dim;
use super::fact::{Fact, Shape};
use crate::util::axes::axis_of;

/// The outputs of a constant or of a control flow operator; `None` for other operators.
pub(super) fn made(call: &Call<'_, '_>) -> Option<Vec<Fact>> {
    if !call.node.is_onnx() {
        return None;
    }
    match call.node.op_type.as_str() {
        "Constant" => Some(vec![constant(call)]),
        "Identity" => Some(vec![call.fact(0).cloned().unwrap_or_default()]),
        "If" => Some(branches(call).unwrap_or_default()),
        "Loop" => Some(repeated(call).unwrap_or_default()),
        "Scan" => Some(scanned(call).unwrap_or_default()),
        _ => None,
    }
}

fn constant(call: &Call<'_, '_>) -> Fact {
    let vector = |dtype, length: usize| Fact {
        dtype: Some(dtype),
        shape: i64::try_from(length).ok().map(|length| vec![Dim::Fixed(length)]),
        ..Fact::default()
    };
    let scalar = |dtype| Fact { dtype: Some(dtype), shape: Some(Shape::new()), ..Fact::default() };
    let numbers = |ints: &[i64]| Some(ints.iter().map(|it| Some(Dim::Fixed(*it))).collect());
    let held = call.node.attribute.first().and_then(|own| Some((own, call.attribute(&own.name)?)));
    let Some((own, held)) = held else { return Fact::default() };
    match own.name.as_str() {
        "value" => held.t.as_deref().map(|tensor| call.state.constant(tensor)).unwrap_or_default(),
        "value_int" => {
            let elements = held.i.and_then(|number| numbers(&[number]));
            Fact { elements, ..scalar(DataType::Int64) }
        }
        "value_ints" => {
            let elements = numbers(&held.ints);
            Fact { elements, ..vector(DataType::Int64, held.ints.len()) }
        }
        "value_float" => scalar(DataType::Float),
        "value_floats" => vector(DataType::Float, held.floats.len()),
        "value_string" => scalar(DataType::String),
        _ => Fact::default(),
    }
}

fn body<'m>(call: &Call<'_, 'm>, name: &str) -> Option<&'m GraphProto> {
    call.attribute(name)?.g.as_deref()
}

/// The facts that hold for the outputs of both branches.
fn branches(call: &Call<'_, '_>) -> Option<Vec<Fact>> {
    let made = |name| Some(call.state.body(body(call, name)?, &[], call.scope));
    let (then, other) = (made("then_branch")?, made("else_branch")?);
    Some(then.into_iter().zip(other).map(|(a, b)| joined(call, a, &b)).collect())
}

/// The facts that hold for both values.
fn joined(call: &Call<'_, '_>, a: Fact, b: &Fact) -> Fact {
    let same_rank = a.rank() == b.rank();
    let join = |a: Shape, b: &Shape| {
        let one = |(a, b): (Dim, &Dim)| if a == *b { a } else { call.unknown() };
        a.into_iter().zip(b).map(one).collect()
    };
    let shape = a.shape.zip(b.shape.as_ref()).filter(|_| same_rank).map(|(a, b)| join(a, b));
    Fact { dtype: a.dtype.filter(|dtype| b.dtype == Some(*dtype)), shape, ..Fact::default() }
}

/// How many times the facts about loop-carried values are widened before nothing is assumed of
/// them.
const MAX_WIDENINGS: usize = 3;

/// Infers the loop-carried values of a subgraph, as facts that hold in every iteration, and its
/// other outputs. The loop-carried values follow `ahead` other outputs.
fn iterations<'m>(
    call: &Call<'_, 'm>,
    graph: &'m GraphProto,
    mut carried: Vec<Fact>,
    ahead: usize,
    given: impl Fn(&[Fact]) -> Vec<Fact>,
) -> Option<(Vec<Fact>, Vec<Fact>)> {
    for fact in &mut carried {
        *fact = Fact { elements: None, floats: None, ..std::mem::take(fact) };
    }
    // Dimensions that stand for any dimension because they differ between iterations.
    let mut any: Vec<Dim> = Vec::new();
    for iteration in 0..=MAX_WIDENINGS + 1 {
        let mut made = call.state.body(graph, &given(&carried), call.scope);
        let mut each = made.split_off(made.len().min(ahead + carried.len()));
        let after = made.get(ahead..).filter(|after| after.len() == carried.len())?;
        if carried.iter().zip(after).all(|(fact, after)| covers(fact, after, &any)) {
            // They differ between iterations, and so between these values, too.
            let dims = carried.iter_mut().chain(&mut each).flat_map(|fact| &mut fact.shape);
            for dim in dims.flatten().filter(|dim| any.contains(dim)) {
                *dim = call.unknown();
            }
            return Some((carried, each));
        }
        for (fact, after) in carried.iter_mut().zip(after) {
            if iteration >= MAX_WIDENINGS {
                *fact = Fact::default();
            } else if !covers(fact, after, &any) {
                let before = fact.shape.clone().unwrap_or_default();
                *fact = joined(call, std::mem::take(fact), after);
                let new = fact.shape.iter().flatten().filter(|length| !before.contains(length));
                any.extend(new);
            }
        }
    }
    None
}

/// Whether the facts about a value also hold for another value. The dimensions in `any` match all
/// dimensions.
fn covers(fact: &Fact, other: &Fact, any: &[Dim]) -> bool {
    let same = |a: &[Dim], b: &[Dim]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || any.contains(a))
    };
    let shape = match (&fact.shape, &other.shape) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(a), Some(b)) => same(a, b),
    };
    shape && (fact.dtype.is_none() || fact.dtype == other.dtype)
}

fn repeated(call: &Call<'_, '_>) -> Option<Vec<Fact>> {
    let graph = body(call, "body")?;
    let scalar = |dtype| Fact { dtype: Some(dtype), shape: Some(Shape::new()), ..Fact::default() };
    let carried = (2..call.node.input.len())
        .map(|input| call.fact(input).cloned().unwrap_or_default())
        .collect::<Vec<_>>();
    let given = |carried: &[Fact]| {
        let mut given = vec![scalar(DataType::Int64), scalar(DataType::Bool)];
        given.extend_from_slice(carried);
        given
    };
    let (mut made, each) = iterations(call, graph, carried, 1, given)?;
    let count = call.unknown();
    made.extend(each.into_iter().map(|fact| stacked(fact, 0, count)));
    Some(made)
}

/// The outputs of all iterations, stacked along a new axis.
fn stacked(fact: Fact, axis: i64, count: Dim) -> Fact {
    let stack = |mut shape: Shape| {
        let axis = axis_of(axis, shape.len() + 1)?;
        shape.insert(axis, count);
        Some(shape)
    };
    Fact { dtype: fact.dtype, shape: fact.shape.and_then(stack), ..Fact::default() }
}

/// Before opset 9, the first input was the sequence lengths, and a batch axis preceded the scan
/// axis.
fn scanned(call: &Call<'_, '_>) -> Option<Vec<Fact>> {
    let first = usize::from(call.opset() < 9);
    let graph = body(call, "body")?;
    let scans = usize::try_from(call.int("num_scan_inputs", 0)).ok()?;
    let states = call.node.input.len().checked_sub(scans)?.checked_sub(first)?;
    let along = |name: &str, at: usize| match call.ints(name) {
        Some(axes) if first == 0 => axes.get(at).copied().unwrap_or(0),
        _ => 0,
    };
    let mut batch = None;
    let mut within = |mut fact: Fact| {
        let inside = |mut shape: Shape| {
            (!shape.is_empty()).then(|| batch = Some(shape.remove(0)))?;
            Some(shape)
        };
        if first > 0 {
            fact.shape = fact.shape.and_then(inside);
        }
        Fact { elements: None, floats: None, ..fact }
    };
    let input = |at: usize| call.fact(first + at).cloned().unwrap_or_default();
    let carried: Vec<_> = (0..states).map(|at| within(input(at))).collect();
    let mut count = None;
    let mut slices = Vec::new();
    for at in 0..scans {
        let mut fact = within(input(states + at));
        fact.shape = fact.shape.and_then(|mut shape| {
            let axis = axis_of(along("scan_input_axes", at), shape.len())?;
            let length = shape.remove(axis);
            count = count.filter(|count: &Dim| count.fixed().is_some()).or(Some(length));
            Some(shape)
        });
        slices.push(fact);
    }
    let count = count.unwrap_or_else(|| call.unknown());
    let given = |carried: &[Fact]| [carried, &slices].concat();
    let (mut made, each) = iterations(call, graph, carried, 0, given)?;
    let outputs = each.into_iter().enumerate();
    made.extend(outputs.map(|(at, fact)| stacked(fact, along("scan_output_axes", at), count)));
    if first > 0 {
        let batch = batch.unwrap_or_else(|| call.unknown());
        made = made.into_iter().map(|fact| stacked(fact, 0, batch)).collect();
    }
    Some(made)
}
