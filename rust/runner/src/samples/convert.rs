//! Converts numbers to the type of an input, or reports the first that does not fit.

use half::{bf16, f16};
use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec};
use quantize_rs_onnx::{DataType, Tensor};

use super::data;
use crate::inputs::byte_len;

/// Converts the elements to the type `to`; `what` names the file or array in errors.
///
/// Between floating-point types, numbers are rounded to the nearest; integers become the nearest
/// float; booleans are 0 and 1. A tensor that already has the type is checked, not copied. Floats
/// may be −∞, as in attention masks.
///
/// ```
/// use quantize_rs_onnx::{DataType, Tensor};
/// use quantize_rs_runner::samples::convert;
///
/// let ids = Tensor::from_f32(vec![2], &[1.0, 2.5]);
/// let error = convert(ids, DataType::Int64, "ids").unwrap_err();
/// assert_eq!(error.to_string(), "float32 value 2.5 at [1] does not fit int64 (`ids`)");
/// ```
///
/// # Errors
/// [`CalibrationErrorKind::NonFinite`] for NaN and +∞, and [`CalibrationErrorKind::Data`] for a
/// number that `to` cannot represent: 1.5 or 300 as uint8, 1e300 as float32; both errors give the
/// number and its index. Also `Data` for types that are not plain numbers.
pub fn convert(tensor: Tensor, to: DataType, what: &str) -> Result<Tensor, CalibrationError> {
    let from = tensor.dtype;
    let (Some(read), Some(write)) = (reader(from), writer(to)) else {
        let message = format!("{from} cannot be converted to {to}, only plain numbers can");
        return Err(data(message).at_value(what));
    };
    let (shape, bytes) = (&tensor.shape, tensor.data.len());
    if byte_len(from, shape) != Some(bytes) {
        let message = format!("{bytes} bytes of data for shape {shape:?} of {from}");
        return Err(data(message).at_value(what));
    }
    let numbers = tensor.data.chunks_exact(from.bits() / 8).map(read);
    if from == to {
        if from.is_float()
            && !all_finite(&tensor)
            && let Some((index, number)) = numbers.enumerate().find(|(_, n)| !n.is_sound())
        {
            return Err(misfit(number, index, &tensor, to).at_value(what));
        }
        return Ok(tensor);
    }
    let mut converted = Vec::with_capacity(tensor.elements().saturating_mul(to.bits() / 8));
    for (index, number) in numbers.enumerate() {
        if !number.is_sound() || !write(number, &mut converted) {
            return Err(misfit(number, index, &tensor, to).at_value(what));
        }
    }
    Ok(Tensor { dtype: to, shape: tensor.shape, data: converted.into() })
}

/// A warning about integers for a float input, such as pixels of 0 to 255 where the model expects 0
/// to 1. Booleans are masks.
pub(super) fn warning(input: &InputSpec, from: DataType) -> Option<String> {
    let to = input.dtype.filter(|dtype| dtype.is_float())?;
    let integers = !from.is_float() && from != DataType::Bool;
    integers.then(|| {
        format!(
            "the samples of input `{}` are {from}, and the input is {to}: the numbers are used as \
             they are; give {to} samples, prepared as in production",
            input.name
        )
    })
}

/// Whether all elements are finite, as a fast check for the most common type; `false` when unknown.
fn all_finite(tensor: &Tensor) -> bool {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    let finite = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & EXPONENT != EXPONENT;
    let (elements, rest) = tensor.data.as_chunks::<4>();
    // Without early exit, which would prevent vectorization.
    let blocks = || elements.chunks(1024);
    tensor.dtype == DataType::Float
        && rest.is_empty()
        && blocks().all(|block| block.iter().fold(true, |all, bytes| all & finite(bytes)))
}

/// A number of any of the types, without rounding.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// Whether a float input may have it: masks may be −∞.
    fn is_sound(self) -> bool {
        self.is_finite() || self.is_mask()
    }

    fn is_mask(self) -> bool {
        matches!(self, Number::Float(f64::NEG_INFINITY))
    }

    fn is_finite(self) -> bool {
        match self {
            Number::Integer(_) => true,
            Number::Float(value) => value.is_finite(),
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Integer(value) => value.fmt(f),
            Number::Float(value) if value.is_nan() => f.write_str("NaN"),
            Number::Float(value) if value.is_infinite() && *value > 0.0 => f.write_str("infinity"),
            Number::Float(value) if value.is_infinite() => f.write_str("-infinity"),
            Number::Float(value) => write!(f, "{value:?}"),
        }
    }
}

fn misfit(number: Number, index: usize, tensor: &Tensor, to: DataType) -> CalibrationError {
    let (from, position) = (tensor.dtype, tensor.position(index));
    if number.is_finite() {
        return data(format!("{from} value {number} at {position:?} does not fit {to}"));
    }
    let found = number.to_string();
    CalibrationError::new(CalibrationErrorKind::NonFinite { found, position })
}

/// Reads one element.
type Read = fn(&[u8]) -> Number;

/// Appends the element with that value; `false` if it does not fit.
type Write = fn(Number, &mut Vec<u8>) -> bool;

macro_rules! element {
    ($type:ty, $bytes:ident) => {
        <$type>::from_le_bytes($bytes.try_into().unwrap_or_default())
    };
}

fn reader(dtype: DataType) -> Option<Read> {
    Some(match dtype {
        DataType::Float => |b| Number::Float(element!(f32, b).into()),
        DataType::Double => |b| Number::Float(element!(f64, b)),
        DataType::Float16 => |b| Number::Float(element!(f16, b).into()),
        DataType::BFloat16 => |b| Number::Float(element!(bf16, b).into()),
        DataType::Bool => |b| Number::Integer((element!(u8, b) != 0).into()),
        DataType::UInt8 => |b| Number::Integer(element!(u8, b).into()),
        DataType::UInt16 => |b| Number::Integer(element!(u16, b).into()),
        DataType::UInt32 => |b| Number::Integer(element!(u32, b).into()),
        DataType::UInt64 => |b| Number::Integer(element!(u64, b).into()),
        DataType::Int8 => |b| Number::Integer(element!(i8, b).into()),
        DataType::Int16 => |b| Number::Integer(element!(i16, b).into()),
        DataType::Int32 => |b| Number::Integer(element!(i32, b).into()),
        DataType::Int64 => |b| Number::Integer(element!(i64, b).into()),
        _ => return None,
    })
}

fn writer(dtype: DataType) -> Option<Write> {
    /// The nearest value, unless it is infinite and the number is not.
    fn nearest<T>(number: Number, value: T, is_finite: fn(T) -> bool) -> Option<T>
    where
        T: Copy,
    {
        (is_finite(value) || number.is_mask()).then_some(value)
    }
    fn put<T, const N: usize>(value: Option<T>, to: fn(T) -> [u8; N], bytes: &mut Vec<u8>) -> bool {
        value.map(|value| bytes.extend_from_slice(&to(value))).is_some()
    }
    macro_rules! integer {
        ($type:ty) => {
            |n, bytes| {
                let value = integer(n).and_then(|value| <$type>::try_from(value).ok());
                put(value, <$type>::to_le_bytes, bytes)
            }
        };
    }
    Some(match dtype {
        DataType::Float => {
            |n, bytes| put(nearest(n, narrow(n), f32::is_finite), f32::to_le_bytes, bytes)
        }
        DataType::Double => |n, bytes| put(Some(float(n)), f64::to_le_bytes, bytes),
        DataType::Float16 => |n, bytes| {
            let value = nearest(n, f16::from_f64(float(n)), f16::is_finite);
            put(value, f16::to_le_bytes, bytes)
        },
        DataType::BFloat16 => |n, bytes| {
            let value = nearest(n, bf16::from_f64(float(n)), bf16::is_finite);
            put(value, bf16::to_le_bytes, bytes)
        },
        DataType::Bool => |n, bytes| {
            let value = integer(n).and_then(|value| u8::try_from(value).ok());
            put(value.filter(|value| *value < 2), u8::to_le_bytes, bytes)
        },
        DataType::UInt8 => integer!(u8),
        DataType::UInt16 => integer!(u16),
        DataType::UInt32 => integer!(u32),
        DataType::UInt64 => integer!(u64),
        DataType::Int8 => integer!(i8),
        DataType::Int16 => integer!(i16),
        DataType::Int32 => integer!(i32),
        DataType::Int64 => integer!(i64),
        _ => return None,
    })
}

/// The number as an integer, if it is one. Floats beyond ±2^64 do not fit any integer type.
fn integer(number: Number) -> Option<i128> {
    match number {
        Number::Integer(value) => Some(value),
        Number::Float(value) if value.fract() == 0.0 && value.abs() <= 2_f64.powi(64) => {
            #[allow(clippy::cast_possible_truncation)] // checked in the line above
            Some(value as i128)
        }
        Number::Float(_) => None,
    }
}

/// The nearest float64.
#[allow(clippy::cast_precision_loss)] // rounds to the nearest
fn float(number: Number) -> f64 {
    match number {
        Number::Integer(value) => value as f64,
        Number::Float(value) => value,
    }
}

/// The nearest float32.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // to the nearest
fn narrow(number: Number) -> f32 {
    match number {
        Number::Integer(value) => value as f32,
        Number::Float(value) => value as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const PLAIN: [DataType; 13] = [
        DataType::Float,
        DataType::Double,
        DataType::Float16,
        DataType::BFloat16,
        DataType::Bool,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
    ];

    fn doubles(values: &[f64]) -> Tensor {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype: DataType::Double, shape: vec![values.len()], data }
    }

    #[test]
    fn zero_and_one_round_trip_between_any_two_plain_types() {
        for from in PLAIN {
            for to in PLAIN {
                let there = convert(doubles(&[0.0, 1.0, 1.0]), from, "x").expect("fits");
                let back = convert(there.clone(), to, "x").expect("fits");
                assert_eq!(convert(back, from, "x").expect("fits"), there, "{from} {to}");
            }
        }
    }

    #[test]
    fn every_other_type_is_refused_by_name() {
        for dtype in DataType::all().filter(|dtype| !PLAIN.contains(dtype)) {
            let error = convert(doubles(&[1.0]), dtype, "x").expect_err("refused");
            assert!(error.to_string().contains(dtype.name()), "{error}");
            let tensor = Tensor { dtype, shape: vec![1], data: Bytes::from_static(&[0; 16]) };
            assert!(convert(tensor, DataType::Float, "x").is_err(), "{dtype}");
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_named_with_its_index() {
        let cases = [
            (1.5, DataType::Int64, "float64 value 1.5 at [1] does not fit int64 (`x`)"),
            (300.0, DataType::UInt8, "float64 value 300.0 at [1] does not fit uint8 (`x`)"),
            (-1.0, DataType::UInt64, "float64 value -1.0 at [1] does not fit uint64 (`x`)"),
            (2.0, DataType::Bool, "float64 value 2.0 at [1] does not fit bool (`x`)"),
            (1e300, DataType::Float, "float64 value 1e300 at [1] does not fit float32 (`x`)"),
            (1e300, DataType::Int64, "float64 value 1e300 at [1] does not fit int64 (`x`)"),
            (65520.0, DataType::Float16, "float64 value 65520.0 at [1] does not fit float16 (`x`)"),
            (3e19, DataType::UInt64, "float64 value 3e19 at [1] does not fit uint64 (`x`)"),
        ];
        for (value, to, message) in cases {
            let error = convert(doubles(&[0.0, value]), to, "x").expect_err(message);
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn non_finite_numbers_are_refused_for_every_type() {
        for to in PLAIN {
            let mut values = vec![0.0; 6];
            values[4] = f64::NAN;
            let tensor = Tensor { shape: vec![2, 3], ..doubles(&values) };
            let error = convert(tensor, to, "x").expect_err("NaN");
            assert_eq!(error.to_string(), "NaN at [1, 1], samples must be finite (`x`)");
            assert!(matches!(error.kind(), CalibrationErrorKind::NonFinite { .. }));
        }
    }

    #[test]
    fn a_mask_of_negative_infinity_fits_floats_and_nothing_else() {
        let mask = doubles(&[0.0, f64::NEG_INFINITY]);
        for to in PLAIN {
            match convert(mask.clone(), to, "x") {
                Ok(found) => {
                    assert!(to.is_float(), "{to}");
                    let same = convert(found.clone(), to, "x").expect("its own type");
                    assert_eq!(same, found);
                    assert_eq!(convert(found, DataType::Double, "x").expect("fits"), mask);
                }
                Err(error) => {
                    assert!(!to.is_float(), "{error}");
                    assert!(error.to_string().starts_with("-infinity at [1], "), "{error}");
                }
            }
        }
        assert!(convert(doubles(&[f64::INFINITY]), DataType::Float, "x").is_err());
    }

    #[test]
    fn integers_are_exact_to_the_last_bit() {
        let data = Bytes::copy_from_slice(&u64::MAX.to_le_bytes());
        let largest = Tensor { dtype: DataType::UInt64, shape: vec![1], data };
        assert!(convert(largest.clone(), DataType::Int64, "x").is_err());
        assert_eq!(convert(largest.clone(), DataType::UInt64, "x").expect("fits"), largest);
    }

    #[test]
    fn data_of_the_wrong_length_is_refused() {
        let short = Tensor { shape: vec![3], ..doubles(&[1.0, 2.0]) };
        assert!(convert(short, DataType::Float, "x").is_err());
        let vast = Tensor { shape: vec![usize::MAX, 2], ..doubles(&[]) };
        assert!(convert(vast, DataType::Float, "x").is_err());
    }
}
