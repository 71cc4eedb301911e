//! Dequantizes stored weights.

use quantize_rs_math::{
    CodebookSpec, Granularity, Layout, Params, QType, dequantize, pack, power_of_two,
};
use quantize_rs_onnx::{DataType, Tensor};

use crate::graph::elements::{integers, qtype_of, to_f32};

/// A stored weight.
pub(crate) struct Decoded {
    pub(crate) qtype: QType,
    pub(crate) shape: Vec<usize>,
    pub(crate) floats: Vec<f32>,
    pub(crate) layout: Layout,
    pub(crate) params: Vec<Params>,
    /// Float zero points, used instead of the zero points of `params`.
    pub(crate) between: Option<Vec<f32>>,
}

/// Integers with per-tensor, per-axis or blocked scales.
pub(crate) fn plain(
    qtype: QType,
    integers: &Tensor,
    granularity: Granularity,
    scales: &[f32],
    zero_points: Option<&Tensor>,
) -> Option<Decoded> {
    let layout = Layout::of(&integers.shape, granularity).ok()?;
    let points = match zero_points {
        Some(tensor) => points(tensor, scales.len())?,
        None => vec![0; scales.len()],
    };
    let params: Vec<Params> = scales
        .iter()
        .zip(points)
        .map(|(&scale, zero_point)| Params { scale, zero_point })
        .collect();
    layout.check_packed(integers.data.len(), qtype, params.len()).ok()?;
    let floats = dequantize(&integers.data, &layout, &params, qtype);
    let shape = integers.shape.clone();
    Some(Decoded { qtype, shape, floats, layout, params, between: None })
}

/// The elements of a zero point tensor.
pub(crate) fn points(tensor: &Tensor, count: usize) -> Option<Vec<i32>> {
    // The zero point of a float is 0.
    if qtype_of(tensor.dtype)?.is_float() {
        return Some(vec![0; count]);
    }
    let numbers = integers(tensor)?;
    match numbers[..] {
        [one] => Some(vec![one; count]),
        _ => Some(numbers).filter(|numbers| numbers.len() == count),
    }
}

/// A matrix that is stored in blocks, one row of blocks per column.
pub(crate) struct Cut {
    pub(crate) bits: u32,
    pub(crate) block_size: usize,
    pub(crate) depth: usize,
    pub(crate) signed: bool,
}

impl Cut {
    /// Dequantizes the matrix, with one row per column of the product.
    pub(crate) fn decode(
        &self,
        integers: &Tensor,
        scales: &[f32],
        zero_points: Option<&Tensor>,
    ) -> Option<Decoded> {
        let Cut { bits, block_size, depth, signed } = *self;
        let qtype = match (bits, signed) {
            (2, _) => QType::UInt2,
            (4, false) => QType::UInt4,
            (4, true) => QType::Int4,
            (8, _) => QType::UInt8,
            _ => return None,
        };
        let width = *integers.shape.first()?;
        let blocks = depth.div_ceil(block_size.max(1));
        if scales.len() != width.checked_mul(blocks)? || width == 0 {
            return None;
        }
        let (row_len, per_byte) = (integers.data.len() / width, 8 / bits as usize);
        if row_len < depth.div_ceil(per_byte) {
            return None;
        }
        let middle = if signed { 0 } else { 1 << (bits - 1) };
        let floats = zero_points.filter(|tensor| tensor.dtype != DataType::UInt8);
        let between = floats.and_then(to_f32).filter(|it| it.len() == scales.len());
        let points = match zero_points {
            None => vec![middle; scales.len()],
            Some(_) if between.is_some() => vec![0; scales.len()],
            Some(tensor) if tensor.dtype == DataType::UInt8 => {
                let packed = blocks.div_ceil(per_byte);
                let rows = tensor.data.chunks(packed.max(1));
                let row = |row: &[u8]| codes(row, bits, false, blocks);
                rows.filter(|row| row.len() == packed).flat_map(row).collect()
            }
            Some(tensor) => points(tensor, scales.len())?,
        };
        if points.len() != scales.len() {
            return None;
        }
        let params: Vec<Params> = scales
            .iter()
            .zip(points)
            .map(|(&scale, zero_point)| Params { scale, zero_point })
            .collect();
        let shape = vec![width, depth];
        let layout = Layout::of(&shape, Granularity::Blocked { axis: 1, block_size }).ok()?;
        let mut floats = Vec::new();
        for (index, row) in integers.data.chunks_exact(row_len).enumerate() {
            let own = &params[index * blocks..][..blocks];
            let codes = codes(row, bits, signed, depth);
            floats.extend(codes.into_iter().enumerate().map(|(at, code)| {
                let (block, Params { scale, zero_point }) = (at / block_size, own[at / block_size]);
                #[allow(clippy::cast_precision_loss)] // integers of 9 bits
                let steps = (code - zero_point) as f32;
                let between = between.as_ref().map_or(0.0, |all| all[index * blocks + block]);
                (steps - between) * scale
            }));
        }
        Some(Decoded { qtype, shape, floats, layout, params, between })
    }
}

/// Codes of a matrix, with one row per column of the product.
pub(crate) fn coded(spec: CodebookSpec, codes: &Tensor, scales: &[f32]) -> Option<Decoded> {
    let CodebookSpec { depth, width, block_size, .. } = spec;
    let floats = spec.decode(&codes.data, scales)?;
    let shape = vec![width, depth];
    // Blocks that do not divide a column go on in the next.
    let elements = Granularity::Blocked { axis: 0, block_size };
    let layout = Layout::of(&[width.checked_mul(depth)?], elements).ok()?;
    let params = scales.iter().map(|&scale| Params { scale, zero_point: 0 }).collect();
    Some(Decoded { qtype: QType::UInt4, shape, floats, layout, params, between: None })
}

/// The elements of a packed integer tensor.
fn codes(bytes: &[u8], bits: u32, signed: bool, count: usize) -> Vec<i32> {
    if bits == 8 {
        return bytes.iter().take(count).map(|byte| i32::from(*byte)).collect();
    }
    let wide = pack::unpack(bytes, bits, signed, count).into_iter();
    let mask = (1 << bits) - 1;
    wide.map(|code| if signed { i32::from(code) } else { i32::from(code) & mask }).collect()
}

/// Scales as numbers, for any float type.
pub(crate) fn scale_floats(tensor: &Tensor) -> Option<Vec<f32>> {
    if tensor.dtype == DataType::Float8E8M0 {
        return Some(tensor.data.iter().map(|code| power_of_two(*code)).collect());
    }
    let narrow = || {
        let qtype = qtype_of(tensor.dtype)?;
        qtype.format().filter(|_| qtype.bits() == 8)?;
        let unit = [Params { scale: 1.0, zero_point: 0 }];
        let layout = Layout::of(&[tensor.elements()], Granularity::PerTensor).ok()?;
        layout.check_packed(tensor.data.len(), qtype, 1).ok()?;
        Some(dequantize(&tensor.data, &layout, &unit, qtype))
    };
    to_f32(tensor).or_else(narrow)
}
