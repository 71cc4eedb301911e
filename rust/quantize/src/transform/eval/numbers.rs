//! Operators that compute elementwise, with broadcasting.
//!
//! Floats are computed in their own type and rounded after each operation, as in runtimes.
//! Functions that runtimes approximate are computed in float64.

use std::cmp::Ordering::{self, Equal as EQUAL, Greater as GREATER, Less as LESS};

use quantize_rs_onnx::{DataType, Tensor};

use super::elements::{Element, tensor, values};
use super::views::{common, spread};
use super::{Call, Evaluate};
use crate::graph::clip;

pub(super) const ALL: &[(&str, Evaluate)] = &[
    ("Add", |call| arithmetic(call, &ADD)),
    ("Sub", |call| arithmetic(call, &SUB)),
    ("Mul", |call| arithmetic(call, &MUL)),
    ("Div", |call| arithmetic(call, &DIV)),
    ("Pow", |call| arithmetic(call, &POW)),
    ("Min", |call| arithmetic(call, &MIN)),
    ("Max", |call| arithmetic(call, &MAX)),
    ("Equal", |call| compare(call, |order| order == Some(EQUAL))),
    ("Less", |call| compare(call, |order| order == Some(LESS))),
    ("Greater", |call| compare(call, |order| order == Some(GREATER))),
    ("LessOrEqual", |call| compare(call, |order| matches!(order, Some(LESS | EQUAL)))),
    ("GreaterOrEqual", |call| compare(call, |order| matches!(order, Some(GREATER | EQUAL)))),
    ("And", |call| pairwise::<bool, bool>(call, |a, b| Some(a && b))),
    ("Or", |call| pairwise::<bool, bool>(call, |a, b| Some(a || b))),
    ("Not", |call| each::<bool>(call, |it| Some(!it))),
    ("Neg", |call| signed(call, |it| -it, |it| -it, |it| Some(it.wrapping_neg()))),
    ("Abs", |call| signed(call, f32::abs, f64::abs, |it| Some(it.wrapping_abs()))),
    ("Sqrt", |call| signed(call, f32::sqrt, f64::sqrt, |_| None)),
    ("Reciprocal", |call| signed(call, |it| 1.0 / it, |it| 1.0 / it, |_| None)),
    ("Floor", |call| signed(call, f32::floor, f64::floor, |_| None)),
    ("Ceil", |call| signed(call, f32::ceil, f64::ceil, |_| None)),
    ("Round", |call| signed(call, f32::round_ties_even, f64::round_ties_even, |_| None)),
    ("Sign", |call| function(call, |it| if it == 0.0 { 0.0 } else { it.signum() })),
    ("Relu", |call| function(call, |it| if it < 0.0 { 0.0 } else { it })),
    ("Exp", |call| function(call, f64::exp)),
    ("Log", |call| function(call, f64::ln)),
    ("Sin", |call| function(call, f64::sin)),
    ("Cos", |call| function(call, f64::cos)),
    ("Tanh", |call| function(call, f64::tanh)),
    ("Sigmoid", |call| function(call, |it| 1.0 / (1.0 + (-it).exp()))),
    ("Softplus", |call| function(call, |it| it.max(0.0) + (-it.abs()).exp().ln_1p())),
    ("Clip", clip),
];

/// An operation for each supported type. Returns `None` if runtimes may differ.
struct Arithmetic {
    f32: fn(f32, f32) -> Option<f32>,
    f64: fn(f64, f64) -> Option<f64>,
    i64: fn(i64, i64) -> Option<i64>,
    i32: fn(i32, i32) -> Option<i32>,
}

const ADD: Arithmetic = Arithmetic {
    f32: |a, b| Some(a + b),
    f64: |a, b| Some(a + b),
    i64: i64::checked_add,
    i32: i32::checked_add,
};
const SUB: Arithmetic = Arithmetic {
    f32: |a, b| Some(a - b),
    f64: |a, b| Some(a - b),
    i64: i64::checked_sub,
    i32: i32::checked_sub,
};
const MUL: Arithmetic = Arithmetic {
    f32: |a, b| Some(a * b),
    f64: |a, b| Some(a * b),
    i64: i64::checked_mul,
    i32: i32::checked_mul,
};
/// Integer division rounds toward zero.
const DIV: Arithmetic = Arithmetic {
    f32: |a, b| Some(a / b),
    f64: |a, b| Some(a / b),
    i64: i64::checked_div,
    i32: i32::checked_div,
};
/// Only powers that are products, which all runtimes round alike.
const POW: Arithmetic = Arithmetic {
    f32: |a, b| match b {
        1.0 => Some(a),
        2.0 => Some(a * a),
        0.5 if a > 0.0 => Some(a.sqrt()),
        _ => None,
    },
    f64: |a, b| match b {
        1.0 => Some(a),
        2.0 => Some(a * a),
        _ => None,
    },
    i64: |a, b| a.checked_pow(u32::try_from(b).ok()?),
    i32: |a, b| a.checked_pow(u32::try_from(b).ok()?),
};
const MIN: Arithmetic = Arithmetic {
    f32: |a, b| if a < b { Some(a) } else { (b < a || a.to_bits() == b.to_bits()).then_some(b) },
    f64: |a, b| if a < b { Some(a) } else { (b < a || a.to_bits() == b.to_bits()).then_some(b) },
    i64: |a, b| Some(a.min(b)),
    i32: |a, b| Some(a.min(b)),
};
/// Results for NaN and for zeros of different signs vary between runtimes.
const MAX: Arithmetic = Arithmetic {
    f32: |a, b| if a > b { Some(a) } else { (b > a || a.to_bits() == b.to_bits()).then_some(b) },
    f64: |a, b| if a > b { Some(a) } else { (b > a || a.to_bits() == b.to_bits()).then_some(b) },
    i64: |a, b| Some(a.max(b)),
    i32: |a, b| Some(a.max(b)),
};

/// An operation with two inputs. `Min` and `Max` take any number and apply it repeatedly.
fn arithmetic(call: &Call<'_>, with: &Arithmetic) -> Option<Tensor> {
    let mut inputs = call.inputs.iter();
    let mut result = inputs.next()?.clone()?;
    if call.inputs.len() < 2 {
        return None;
    }
    for next in inputs {
        let both = [Some(result), next.clone()];
        let call = Call { inputs: &both, ..*call };
        result = match both[0].as_ref()?.dtype {
            DataType::Float => pairwise(&call, with.f32)?,
            DataType::Double => pairwise(&call, with.f64)?,
            DataType::Int64 => pairwise(&call, with.i64)?,
            DataType::Int32 => pairwise(&call, with.i32)?,
            _ => return None,
        };
    }
    Some(result)
}

fn compare(call: &Call<'_>, is: fn(Option<Ordering>) -> bool) -> Option<Tensor> {
    fn of<T: Element + PartialOrd>(
        call: &Call<'_>,
        is: fn(Option<Ordering>) -> bool,
    ) -> Option<Tensor> {
        pairwise::<T, bool>(call, |a, b| Some(is(a.partial_cmp(&b))))
    }
    match call.input(0)?.dtype {
        DataType::Float => of::<f32>(call, is),
        DataType::Double => of::<f64>(call, is),
        DataType::Int64 => of::<i64>(call, is),
        DataType::Int32 => of::<i32>(call, is),
        DataType::Bool => of::<bool>(call, is),
        _ => None,
    }
}

/// Applies a function elementwise to both inputs, with broadcasting.
fn pairwise<T: Element, R: Element>(
    call: &Call<'_>,
    with: impl Fn(T, T) -> Option<R>,
) -> Option<Tensor> {
    // Before opset 7, attributes controlled broadcasting.
    let [Some(a), Some(b)] = call.inputs else { return None };
    if call.opset < 7 {
        return None;
    }
    let shape = common(&[&a.shape, &b.shape])?;
    call.fits(&shape, (T::DTYPE.bits() / 8).max(R::DTYPE.bits() / 8))?;
    let a: Vec<T> = values(&spread(call, a, &shape)?)?;
    let b: Vec<T> = values(&spread(call, b, &shape)?)?;
    let made: Option<Vec<R>> = a.into_iter().zip(b).map(|(a, b)| with(a, b)).collect();
    Some(tensor(shape, made?))
}

fn each<T: Element>(call: &Call<'_>, with: impl Fn(T) -> Option<T>) -> Option<Tensor> {
    let source = call.input(0)?;
    call.fits(&source.shape, T::DTYPE.bits() / 8)?;
    let made: Option<Vec<T>> = values(source)?.into_iter().map(with).collect();
    Some(tensor(source.shape.clone(), made?))
}

fn signed(
    call: &Call<'_>,
    single: fn(f32) -> f32,
    double: fn(f64) -> f64,
    whole: fn(i64) -> Option<i64>,
) -> Option<Tensor> {
    match call.input(0)?.dtype {
        DataType::Float => each(call, |it| Some(single(it))),
        DataType::Double => each(call, |it| Some(double(it))),
        DataType::Int64 => each(call, whole),
        DataType::Int32 => each::<i32>(call, |it| i32::try_from(whole(it.into())?).ok()),
        _ => None,
    }
}

/// A function of each float; `None` if a result is not finite, where runtimes may differ.
fn function(call: &Call<'_>, of: fn(f64) -> f64) -> Option<Tensor> {
    let finite = |it: f64| Some(of(it)).filter(|it| it.is_finite());
    match call.input(0)?.dtype {
        DataType::Float => each::<f32>(call, |it| rounded(finite(it.into())?)),
        DataType::Double => each(call, finite),
        _ => None,
    }
}

/// The nearest float32; `None` if it is not finite.
#[allow(clippy::cast_possible_truncation)] // rounds
pub(super) fn rounded(number: f64) -> Option<f32> {
    Some(number as f32).filter(|number| number.is_finite())
}

/// `Clip` of floats.
fn clip(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0).filter(|source| source.dtype == DataType::Float)?;
    let [min, max] = clip::bounds_of(call.node, |input| clip::single(call.input(input)?))?;
    let (min, max) = (min.or(f32::MIN)?, max.or(f32::MAX)?);
    call.fits(&source.shape, 4)?;
    let clipped = |it: f32| (!it.is_nan() && min <= max).then(|| it.max(min).min(max));
    let made: Option<Vec<f32>> = values(source)?.into_iter().map(clipped).collect();
    Some(tensor(source.shape.clone(), made?))
}
