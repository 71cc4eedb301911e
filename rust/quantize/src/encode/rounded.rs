//! Stores weights that were rounded with the help of samples.

use quantize_rs_math::{Layout, Params, QType, dequantize, metrics, pack, ranges};
use quantize_rs_onnx::Tensor;

use super::{EncodedTensor, assemble, data_type, invalid, matmul_nbits, scale_zeros, stored};
use crate::plan::ValuePlan;
use crate::ranges::RoundedWeight;
use crate::{Format, QuantizeError};

/// The weight as it is stored. `None` if its scales are smaller than the bias needs.
pub(super) fn encoded(
    name: &str,
    how: &ValuePlan,
    shape: &[usize],
    floats: &[f32],
    rounded: &RoundedWeight,
    floors: &[f32],
) -> Result<Option<EncodedTensor>, QuantizeError> {
    let layout = Layout::of(shape, how.spec.granularity).map_err(|error| invalid(name, &error))?;
    let mut params = rounded.params();
    if params.len() != layout.groups() || rounded.integers.len() != layout.elements() {
        return Ok(None);
    }
    let highest = floors.iter().copied().fold(0.0, f32::max);
    let each = floors.len() == params.len();
    let floor = |group: usize| if each { floors[group] } else { highest };
    // The scale of an all-zero channel is arbitrary, so it is set to suit the bias.
    let ranges = ranges(floats, &layout);
    let all_zero: Vec<bool> = ranges.iter().map(|range| range.absmax() == 0.0).collect();
    scale_zeros(&mut params, &all_zero);
    for (group, params) in params.iter_mut().enumerate().filter(|(group, _)| all_zero[*group]) {
        if floor(group) > 0.0 {
            params.scale = floor(group);
        }
    }
    let reaches = |(group, params): (usize, &Params)| params.scale.abs() >= floor(group);
    if !params.iter().enumerate().all(reaches) {
        return Ok(None);
    }
    let bytes = packed(&rounded.integers, how.spec.qtype);
    let metrics = metrics(floats, &dequantize(&bytes, &layout, &params, how.spec.qtype));
    if how.format == Format::MatMulNBits {
        return Ok(matmul_nbits::rounded(how, shape, rounded, &params, metrics));
    }
    let quantized = Tensor {
        dtype: data_type(how.stored),
        shape: shape.to_vec(),
        data: stored(bytes.into(), how, floats.len()),
    };
    Ok(Some(assemble(quantized, &layout, &params, how.stored, metrics)))
}

/// The integers as they are packed in a file.
fn packed(integers: &[u8], qtype: QType) -> Vec<u8> {
    if qtype.bits() == 8 {
        return integers.to_vec();
    }
    let signed: Vec<i8> = integers.iter().copied().map(u8::cast_signed).collect();
    pack::pack(&signed, qtype.bits())
}
