//! Converts floats of any type to float64 and back.

use quantize_rs_onnx::{DataType, Tensor};

/// The exact elements of a floating-point tensor.
pub(super) fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let data = &tensor.data;
    Some(match tensor.dtype {
        DataType::Float => {
            data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
        }
        DataType::Double => {
            data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
        }
        DataType::Float16 => {
            data.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f64()).collect()
        }
        DataType::BFloat16 => {
            data.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f64()).collect()
        }
        _ => return None,
    })
}

/// Rounds numbers to a floating-point type. Returns the tensor and the largest relative rounding
/// error; `None` if a number overflows or the error is larger than rounding explains.
pub(super) fn rounded(dtype: DataType, shape: Vec<usize>, values: &[f64]) -> Option<(Tensor, f64)> {
    // One unit in the last place. The limit for float16 allows for subnormal numbers.
    let most = match dtype {
        DataType::Float => 2f64.powi(-23),
        DataType::Float16 => 2f64.powi(-9),
        DataType::BFloat16 => 2f64.powi(-8),
        DataType::Double => 0.0,
        _ => return None,
    };
    // Errors of numbers far below the largest are measured relative to this magnitude.
    let least = values.iter().fold(0f64, |most, value| most.max(value.abs())) * 2f64.powi(-12);
    let mut data = Vec::with_capacity(values.len().checked_mul(dtype.bits() / 8)?);
    let mut change = 0f64;
    for value in values {
        let back = put(&mut data, dtype, *value);
        if !back.is_finite() {
            return None;
        }
        let lost = (back - value).abs();
        if lost > 0.0 {
            change = change.max(lost / value.abs().max(least));
        }
    }
    (change <= most).then(|| (Tensor { dtype, shape, data: data.into() }, change))
}

/// Appends a number and returns its rounded value.
#[allow(clippy::cast_possible_truncation)] // rounds on purpose
fn put(data: &mut Vec<u8>, dtype: DataType, value: f64) -> f64 {
    match dtype {
        DataType::Float => {
            let narrow = value as f32;
            data.extend_from_slice(&narrow.to_le_bytes());
            f64::from(narrow)
        }
        DataType::Float16 => {
            let narrow = half::f16::from_f64(value);
            data.extend_from_slice(&narrow.to_le_bytes());
            narrow.to_f64()
        }
        DataType::BFloat16 => {
            let narrow = half::bf16::from_f64(value);
            data.extend_from_slice(&narrow.to_le_bytes());
            narrow.to_f64()
        }
        _ => {
            data.extend_from_slice(&value.to_le_bytes());
            value
        }
    }
}
