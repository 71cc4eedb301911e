//! `Cast` between numeric types, where the result is the same in all runtimes.

// The lossy casts in this module are intended or checked.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_lossless)]

use half::{bf16, f16};
use quantize_rs_onnx::{DataType, Tensor};

use super::elements::{Element, tensor, values};
use super::{Call, Evaluate};

pub(super) const ALL: &[(&str, Evaluate)] = &[("Cast", cast), ("CastLike", cast_like)];

fn cast(call: &Call<'_>) -> Option<Tensor> {
    let to = i32::try_from(call.node.attribute("to")?.i?).ok()?;
    to_type(call, DataType::from_number(to)?)
}

fn cast_like(call: &Call<'_>) -> Option<Tensor> {
    to_type(call, call.input(1)?.dtype)
}

/// A number between two types.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

fn to_type(call: &Call<'_>, to: DataType) -> Option<Tensor> {
    let source = call.input(0)?;
    if source.dtype == to {
        return Some(source.clone());
    }
    call.fits(&source.shape, to.bits().div_ceil(8))?;
    let numbers = numbers(source)?;
    let shape = source.shape.clone();
    Some(match to {
        DataType::Float => tensor(shape, numbers.into_iter().map(float32)),
        DataType::Double => tensor(
            shape,
            numbers.into_iter().map(|number| match number {
                Number::Whole(whole) => whole as f64,
                Number::Float(float) => float,
            }),
        ),
        DataType::Float16 => {
            let halves = numbers.into_iter().map(|it| f16::from_f32(float32(it)).to_bits());
            Tensor { dtype: to, ..tensor::<u16>(shape, halves) }
        }
        DataType::BFloat16 => {
            let halves = numbers.into_iter().map(|it| bf16::from_f32(float32(it)).to_bits());
            Tensor { dtype: to, ..tensor::<u16>(shape, halves) }
        }
        DataType::Bool => tensor(
            shape,
            numbers.into_iter().map(|number| match number {
                Number::Whole(whole) => whole != 0,
                Number::Float(float) => float != 0.0,
            }),
        ),
        DataType::Int64 => whole::<i64>(shape, &numbers)?,
        DataType::Int32 => whole::<i32>(shape, &numbers)?,
        DataType::Int16 => whole::<i16>(shape, &numbers)?,
        DataType::Int8 => whole::<i8>(shape, &numbers)?,
        DataType::UInt64 => whole::<u64>(shape, &numbers)?,
        DataType::UInt32 => whole::<u32>(shape, &numbers)?,
        DataType::UInt16 => whole::<u16>(shape, &numbers)?,
        DataType::UInt8 => whole::<u8>(shape, &numbers)?,
        _ => return None,
    })
}

/// Rounds integers and float64 once.
fn float32(number: Number) -> f32 {
    match number {
        Number::Whole(whole) => whole as f32,
        Number::Float(float) => float as f32,
    }
}

/// Integers in a type that represents all of them. Runtimes disagree on overflow.
fn whole<T: Element + TryFrom<i128>>(shape: Vec<usize>, numbers: &[Number]) -> Option<Tensor> {
    let fit = |number: &Number| match number {
        Number::Whole(whole) => T::try_from(*whole).ok(),
        Number::Float(float) if float.abs() < 1e30 => T::try_from(float.trunc() as i128).ok(),
        Number::Float(_) => None,
    };
    Some(tensor(shape, numbers.iter().map(fit).collect::<Option<Vec<T>>>()?))
}

fn numbers(source: &Tensor) -> Option<Vec<Number>> {
    fn of<T: Element>(source: &Tensor, number: fn(T) -> Number) -> Option<Vec<Number>> {
        Some(values::<T>(source)?.into_iter().map(number).collect())
    }
    let bits = || source.data.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    match source.dtype {
        DataType::Float => of::<f32>(source, |it| Number::Float(it.into())),
        DataType::Double => of::<f64>(source, Number::Float),
        DataType::Float16 => {
            Some(bits().map(|bits| Number::Float(f16::from_bits(bits).to_f64())).collect())
        }
        DataType::BFloat16 => {
            Some(bits().map(|bits| Number::Float(bf16::from_bits(bits).to_f64())).collect())
        }
        DataType::Bool => of::<bool>(source, |it| Number::Whole(it.into())),
        DataType::Int64 => of::<i64>(source, |it| Number::Whole(it.into())),
        DataType::Int32 => of::<i32>(source, |it| Number::Whole(it.into())),
        DataType::Int16 => of::<i16>(source, |it| Number::Whole(it.into())),
        DataType::Int8 => of::<i8>(source, |it| Number::Whole(it.into())),
        DataType::UInt64 => of::<u64>(source, |it| Number::Whole(it.into())),
        DataType::UInt32 => of::<u32>(source, |it| Number::Whole(it.into())),
        DataType::UInt16 => of::<u16>(source, |it| Number::Whole(it.into())),
        DataType::UInt8 => of::<u8>(source, |it| Number::Whole(it.into())),
        _ => None,
    }
}
