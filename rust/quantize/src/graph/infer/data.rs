//! Inference of the elements of small integer vectors, from which shapes are computed.

use std::cmp::Ordering;

use quantize_rs_onnx::{DataType, NodeProto};

use super::call::{Call, Given};
use super::dim::Dim;
use super::fact::MAX_ELEMENTS;
use super::ops::axes_of_shape;
use crate::util::axes::{axis_of, span};

type Elements = Vec<Option<Dim>>;
type Compute = fn(&Call<'_, '_>) -> Option<Elements>;

const ALL: &[(&str, Compute)] = &[
    ("Shape", shape),
    ("Size", |call| Some(vec![Some(call.product(call.shape(0)?))])),
    ("Cast", cast),
    ("Reshape", as_it_is),
    ("Squeeze", as_it_is),
    ("Unsqueeze", as_it_is),
    ("Concat", concat),
    ("Gather", gather),
    ("Slice", slice),
    ("ConstantOfShape", constant_of_shape),
    ("Expand", expand),
    ("Range", range),
    ("Add", |call| each(call, Call::sum)),
    ("Sub", |call| each(call, Call::difference)),
    ("Mul", |call| each(call, |call, a, b| call.state.dims.borrow_mut().times(a, b))),
    ("Div", |call| each(call, divided)),
    ("Mod", |call| each(call, remainder)),
    ("Max", |call| each(call, |_, a, b| larger(a, b, Ordering::Greater))),
    ("Min", |call| each(call, |_, a, b| larger(a, b, Ordering::Less))),
    ("Equal", |call| each(call, equal)),
    ("Not", |call| {
        let not = |element: &Option<Dim>| Some(Dim::Fixed(i64::from((*element)?.fixed()? == 0)));
        Some(call.elements(0)?.iter().map(not).collect())
    }),
    ("Neg", |call| {
        let zero = Dim::Fixed(0);
        let elements = call.elements(0)?.iter();
        Some(elements.map(|element| call.difference(zero, (*element)?)).collect())
    }),
    ("Where", choose),
    ("ReduceProd", |call| {
        let all = call.elements(0)?.iter().copied().collect::<Option<Vec<Dim>>>()?;
        (call.rank(0) == Some(1)).then(|| vec![Some(call.product(&all))])
    }),
];

/// The function that computes the output elements of an operator from its input elements, if there
/// is one.
pub(super) fn operator(node: &NodeProto) -> Option<Compute> {
    if !node.is_onnx() {
        return None;
    }
    ALL.iter().find(|(op_type, _)| node.op_type == *op_type).map(|(_, compute)| *compute)
}

fn shape(call: &Call<'_, '_>) -> Option<Elements> {
    let lengths = call.shape(0)?.get(axes_of_shape(call)?)?;
    let mut dims = call.state.dims.borrow_mut();
    for length in lengths {
        dims.set_length(*length);
    }
    Some(lengths.iter().copied().map(Some).collect())
}

/// Casts between integer types. Dimensions that vary are assumed to fit.
fn cast(call: &Call<'_, '_>) -> Option<Elements> {
    let whole = |dtype| matches!(dtype, Some(DataType::Int64 | DataType::Int32));
    let fits = |element: &Option<Dim>| {
        element.filter(|element| match element {
            Dim::Fixed(number) => i32::try_from(*number).is_ok(),
            Dim::Varies(_) => true,
        })
    };
    (whole(call.dtype(0)) && whole(call.dtype_named("to")))
        .then(|| Some(call.elements(0)?.iter().map(fits).collect()))?
}

fn as_it_is(call: &Call<'_, '_>) -> Option<Elements> {
    call.elements(0).map(<[Option<Dim>]>::to_vec)
}

fn concat(call: &Call<'_, '_>) -> Option<Elements> {
    let mut all = Elements::new();
    for input in 0..call.inputs.len() {
        match (call.elements(input), call.shape(input).map(Vec::as_slice)) {
            (Some(elements), _) => all.extend_from_slice(elements),
            (None, Some([length])) => {
                let length =
                    usize::try_from(length.fixed()?).ok().filter(|it| *it <= MAX_ELEMENTS)?;
                all.extend(vec![None; length]);
            }
            _ => return None,
        }
        if all.len() > MAX_ELEMENTS {
            return None;
        }
    }
    Some(all)
}

fn gather(call: &Call<'_, '_>) -> Option<Elements> {
    let elements = call.elements(0).filter(|_| call.rank(0) == Some(1))?;
    let pick = |index: i64| elements.get(axis_of(index, elements.len())?).copied();
    call.fixed(1)?.into_iter().map(pick).collect()
}

fn slice(call: &Call<'_, '_>) -> Option<Elements> {
    let elements = call.elements(0).filter(|_| call.rank(0) == Some(1))?;
    let one = |name: &str, input: usize| match call.given(name, input) {
        Given::Ints(ints) => match ints[..] {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    };
    let step = if call.has(4) { one("steps", 4)? } else { 1 };
    let length = i64::try_from(elements.len()).ok()?;
    let start = one("starts", 1)?;
    let count = span(length, start, one("ends", 2)?, step)?;
    let start = if start < 0 { start.saturating_add(length) } else { start };
    let start = start.clamp(0, (length - 1).max(0));
    (0..count).map(|at| elements.get(usize::try_from(start + at * step).ok()?).copied()).collect()
}

fn constant_of_shape(call: &Call<'_, '_>) -> Option<Elements> {
    let length = match call.fixed(0)?[..] {
        [] => 1,
        [length] => usize::try_from(length).ok().filter(|length| *length <= MAX_ELEMENTS)?,
        _ => return None,
    };
    let value = call.attribute("value")?.t.as_deref()?;
    let value = crate::graph::constants::ints(&call.state.model.tensor(value).ok()?)?;
    Some(vec![Some(Dim::Fixed(*value.first()?)); length])
}

/// Repeats a single element.
fn expand(call: &Call<'_, '_>) -> Option<Elements> {
    let (elements, wanted) = (call.elements(0)?, call.fixed(1)?);
    let [length] = wanted[..] else { return None };
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_ELEMENTS)?;
    match elements {
        [one] => Some(vec![*one; length]),
        _ => None,
    }
}

fn range(call: &Call<'_, '_>) -> Option<Elements> {
    let one = |input: usize| call.fixed(input)?.first().copied();
    let (mut at, limit, delta) = (one(0)?, one(1)?, one(2)?);
    let mut all = Elements::new();
    while delta != 0 && (delta > 0 && at < limit || delta < 0 && at > limit) {
        if all.len() == MAX_ELEMENTS {
            return None;
        }
        all.push(Some(Dim::Fixed(at)));
        at = at.checked_add(delta)?;
    }
    Some(all)
}

/// Applies a function to two vectors elementwise. A vector of one element is broadcast.
fn each<'c, 'm>(
    call: &Call<'c, 'm>,
    compute: impl Fn(&Call<'c, 'm>, Dim, Dim) -> Option<Dim>,
) -> Option<Elements> {
    let (a, b) = (call.elements(0)?, call.elements(1)?);
    if call.inputs.len() != 2 {
        return None;
    }
    let count = both(a.len(), b.len())?;
    let of = |all: &[Option<Dim>], at: usize| all[if all.len() == 1 { 0 } else { at }];
    Some((0..count).map(|at| compute(call, of(a, at)?, of(b, at)?)).collect())
}

fn both(a: usize, b: usize) -> Option<usize> {
    match (a, b) {
        (1, other) | (other, 1) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}

/// Integer division rounds toward zero, which equals rounding down for non-negative numbers.
fn divided(call: &Call<'_, '_>, a: Dim, b: Dim) -> Option<Dim> {
    if let (Dim::Fixed(a), Dim::Fixed(b)) = (a, b) {
        return a.checked_div(b).map(Dim::Fixed);
    }
    let exact = call.state.dims.borrow_mut().exactly_over(a, b);
    let down = || call.floor(a, b.fixed()?).filter(|_| call.state.dims.borrow().is_length(a));
    exact.or_else(down)
}

fn remainder(_: &Call<'_, '_>, a: Dim, b: Dim) -> Option<Dim> {
    let (a, b) = (a.fixed()?, b.fixed()?);
    (a >= 0 && b > 0).then(|| Dim::Fixed(a % b))
}

fn larger(a: Dim, b: Dim, wanted: Ordering) -> Option<Dim> {
    if a == b {
        return Some(a);
    }
    let (first, second) = (a.fixed()?, b.fixed()?);
    Some(if first.cmp(&second) == wanted { a } else { b })
}

fn equal(call: &Call<'_, '_>, a: Dim, b: Dim) -> Option<Dim> {
    let differ = |number: Dim, length: Dim| {
        number.fixed().is_some_and(|number| number < 0)
            && call.state.dims.borrow().is_length(length)
    };
    match (a, b) {
        (a, b) if a == b => Some(Dim::Fixed(1)),
        (Dim::Fixed(_), Dim::Fixed(_)) => Some(Dim::Fixed(0)),
        (a, b) if differ(a, b) || differ(b, a) => Some(Dim::Fixed(0)),
        _ => None,
    }
}

fn choose(call: &Call<'_, '_>) -> Option<Elements> {
    let (of, a, b) = (call.elements(0)?, call.elements(1)?, call.elements(2)?);
    let count = both(both(of.len(), a.len())?, b.len())?;
    let at = |all: &[Option<Dim>], at: usize| all[if all.len() == 1 { 0 } else { at }];
    let one = |index: usize| match (at(of, index), at(a, index), at(b, index)) {
        (_, a, b) if a == b => a,
        (Some(Dim::Fixed(0)), _, b) => b,
        (Some(Dim::Fixed(_)), a, _) => a,
        _ => None,
    };
    Some((0..count).map(one).collect())
}
