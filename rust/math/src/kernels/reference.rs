//! Reference implementations: the definition of each kernel, one element after the other, written
//! for comparison with the ONNX documentation.
//!
//! They are not optimized. The tests compare the fast kernels with them bit for bit.

use super::sum_preserving::SumGroups;
use crate::rounding::MAGIC;
use crate::{Layout, Params, QSpec, QType};

/// `QuantizeLinear` of one element: for integers
/// `saturate(round_half_even(x / scale) + zero_point)` within the grid, for floats the code of
/// `x / scale`.
///
/// The division is a true f32 division. For integers, the zero point is added after rounding, NaN
/// becomes the smallest integer (as in ONNX Runtime), and infinities saturate. Floats have the zero
/// point 0, and NaN stays NaN: see [`Minifloat`].
///
/// [`Minifloat`]: crate::Minifloat
pub fn quantize_one(x: f32, params: Params, spec: &QSpec) -> i32 {
    let steps = x / params.scale;
    if let Some(format) = spec.qtype.format() {
        return i32::from(format.encode(steps));
    }
    let (qmin, qmax) = spec.grid();
    let rounded = steps.round_ties_even();
    if rounded.is_nan() {
        return qmin;
    }
    let shifted = f64::from(rounded) + f64::from(params.zero_point);
    shifted.clamp(f64::from(qmin), f64::from(qmax)) as i32
}

/// `DequantizeLinear` of one element: `(q - zero_point) · scale`; floats have the zero point 0.
pub fn dequantize_one(q: i32, params: Params, qtype: QType) -> f32 {
    let steps = match qtype.format() {
        Some(format) => format.decode(q as u16),
        None => (i64::from(q) - i64::from(params.zero_point)) as f32,
    };
    steps * params.scale
}

/// [`quantize`](crate::quantize), by definition.
pub fn quantize(data: &[f32], layout: &Layout, params: &[Params], spec: &QSpec) -> Vec<u8> {
    let mut bytes = vec![0; spec.qtype.packed_len(data.len())];
    for (index, &x) in data.iter().enumerate() {
        let q = quantize_one(x, params[layout.group_of(index)], spec);
        store(&mut bytes, index, q, spec.qtype);
    }
    bytes
}

/// [`dequantize`](crate::dequantize), by definition.
pub fn dequantize(bytes: &[u8], layout: &Layout, params: &[Params], qtype: QType) -> Vec<f32> {
    let one =
        |index| dequantize_one(load(bytes, index, qtype), params[layout.group_of(index)], qtype);
    (0..layout.elements()).map(one).collect()
}

/// The value of one step in the fixed-point numbers in which errors are summed. Integer sums do not
/// depend on the order.
pub(super) const STEP: i32 = 1 << 16;

/// An element is adjusted only if its error exceeds this, whatever the sums are.
pub(super) const MIN_MOVE_ERROR: i32 = STEP / 4;

/// The error of an element that is dequantized to `y`, in [`STEP`]s per step of the grid; errors
/// beyond four steps count as four. `inverse` is the inverse of the scale.
#[inline(always)]
pub(super) fn error(y: f32, x: f32, inverse: f32) -> i32 {
    const MAX_ERROR_STEPS: f32 = 4.0;
    let steps = (y - x) * inverse;
    let steps = if steps > -MAX_ERROR_STEPS { steps } else { -MAX_ERROR_STEPS };
    let steps = if steps < MAX_ERROR_STEPS { steps } else { MAX_ERROR_STEPS };
    // Below 2²², so `MAGIC` rounds it.
    (steps * STEP as f32 + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// Whether the grid has an integer below `q` (`down`) or above it.
pub(super) fn may_move(q: i32, down: bool, spec: &QSpec) -> bool {
    let (lo, hi) = spec.grid();
    if down { q > lo } else { q < hi }
}

/// [`quantize_preserving_sums_into`](crate::quantize_preserving_sums_into), by definition: adjusts
/// some of `bytes`, which hold the nearest integers, by one step.
pub fn preserve_sums(
    data: &[f32],
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
    summed: &SumGroups,
    bytes: &mut [u8],
) {
    // The index, integer and error of each element.
    let mut groups = vec![Vec::new(); summed.groups.groups()];
    for (index, &x) in data.iter().enumerate() {
        let params = params[layout.group_of(index)];
        let q = load(bytes, index, spec.qtype);
        let y = dequantize_one(q, params, spec.qtype);
        let error = i64::from(error(y, x, params.scale.recip()));
        groups[summed.groups.group_of(index)].push((index, q, error));
    }
    let sum = |elements: &[(usize, i32, i64)]| elements.iter().map(|(_, _, error)| error).sum();
    for mut group in groups {
        // Makes the adjustment with the smallest sum of squares, the first of equal ones, until
        // none decreases it.
        loop {
            let all: i64 = sum(&group);
            let mut best: Option<(i64, usize)> = None;
            for (at, &(_, q, error)) in group.iter().enumerate() {
                let own: i64 = summed.part.map_or(0, |part| {
                    let from = at - at % part;
                    sum(&group[from..from + part])
                });
                let free = error.abs() > i64::from(MIN_MOVE_ERROR) && may_move(q, error > 0, spec);
                let gain = error.signum() * (error + own + all);
                if free && gain > summed.least_gain() && best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, at));
                }
            }
            let Some((_, at)) = best else { break };
            let (index, q, error) = &mut group[at];
            let down = error.signum();
            *q -= down as i32;
            *error -= down * i64::from(STEP);
            replace(bytes, *index, *q, spec.qtype);
        }
    }
}

/// Replaces element `index`.
pub(super) fn replace(bytes: &mut [u8], index: usize, q: i32, qtype: QType) {
    let bits = qtype.bits() as usize;
    if bits < 8 {
        let mask = ((1_u32 << bits) - 1) as u8;
        bytes[index * bits / 8] &= !(mask << (index * bits % 8));
    }
    store(bytes, index, q, qtype);
}

/// Writes element `index` in the layout of ONNX `raw_data`: little endian, types of less than 8
/// bits packed low bits first.
pub(super) fn store(bytes: &mut [u8], index: usize, q: i32, qtype: QType) {
    let bits = qtype.bits() as usize;
    if bits >= 8 {
        let size = bits / 8;
        bytes[index * size..][..size].copy_from_slice(&q.to_le_bytes()[..size]);
    } else {
        let mask = (1 << bits) - 1;
        let shift = index * bits % 8;
        bytes[index * bits / 8] |= (q as u8 & mask) << shift;
    }
}

/// Reads element `index` of ONNX `raw_data`.
pub(super) fn load(bytes: &[u8], index: usize, qtype: QType) -> i32 {
    let bits = qtype.bits() as usize;
    let field = if bits >= 8 {
        let mut le = [0; 4];
        let size = bits / 8;
        le[..size].copy_from_slice(&bytes[index * size..][..size]);
        i32::from_le_bytes(le)
    } else {
        i32::from(bytes[index * bits / 8]) >> (index * bits % 8)
    };
    // Moves the field to the top of the word and back: the right shift fills with the sign, or with
    // zeros.
    let spare = 32 - qtype.bits();
    if qtype.signed() { field << spare >> spare } else { ((field as u32) << spare >> spare) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, Minifloat};

    const UNIT: Params = Params { scale: 1.0, zero_point: 0 };

    fn spec(qtype: QType) -> QSpec {
        QSpec::new(qtype, false, Granularity::PerTensor)
    }

    #[test]
    fn ties_round_to_even_before_the_zero_point_is_added() {
        let one =
            |x, zero_point| quantize_one(x, Params { zero_point, ..UNIT }, &spec(QType::Int8));
        assert_eq!([0.5, 1.5, 2.5, -0.5].map(|x| one(x, 0)), [0, 2, 2, 0]);
        assert_eq!([0.5, 1.5, 2.5].map(|x| one(x, 1)), [1, 3, 3]);
    }

    #[test]
    fn non_finite_values_become_the_ends_of_the_grid() {
        for &qtype in QType::ALL {
            let one = |x| {
                let q = quantize_one(x, UNIT, &spec(qtype));
                f64::from(dequantize_one(q, UNIT, qtype))
            };
            // Dequantized values are float32, which cannot represent all 32-bit integers.
            let max = qtype.format().map_or(qtype.max() as f32, Minifloat::max);
            let min = if qtype.is_float() { -max } else { qtype.min() as f32 };
            let [min, max] = [min, max].map(f64::from);
            assert_eq!([f32::NEG_INFINITY, f32::INFINITY].map(one), [min, max], "{qtype}");
            let nan = one(f32::NAN);
            // The 4-bit floats have no NaN; it becomes -0.
            let expected = match qtype.format() {
                Some(_) if qtype.bits() > 4 => nan.is_nan(),
                Some(_) => nan == 0.0 && nan.is_sign_negative(),
                None => nan == min,
            };
            assert!(expected, "{qtype}");
        }
    }

    #[test]
    fn floats_are_codes_whatever_the_zero_point() {
        let params = Params { scale: 0.5, zero_point: 3 };
        let codes = [0.5, -0.5, 0.0, -0.0, 224.0, 1e9];
        let codes = codes.map(|x| quantize_one(x, params, &spec(QType::Float8E4M3FN)));
        assert_eq!(codes, [0x38, 0xb8, 0x00, 0x80, 0x7e, 0x7e]);
        let back = codes.map(|q| dequantize_one(q, params, QType::Float8E4M3FN));
        assert_eq!(back, [0.5, -0.5, 0.0, 0.0, 224.0, 224.0]);
    }

    #[test]
    fn bytes_are_those_of_onnx() {
        let stored = |values: &[i32], qtype: QType| {
            let mut bytes = vec![0; qtype.packed_len(values.len())];
            values.iter().enumerate().for_each(|(index, &q)| store(&mut bytes, index, q, qtype));
            let back: Vec<_> = (0..values.len()).map(|index| load(&bytes, index, qtype)).collect();
            assert_eq!(back, values);
            bytes
        };
        assert_eq!(stored(&[1, 2, 3, 4], QType::UInt4), [0x21, 0x43]);
        assert_eq!(stored(&[1, -2, -8], QType::Int4), [0xe1, 0x08]);
        assert_eq!(stored(&[0, 1, -2, -1, 1], QType::Int2), [0xe4, 0x01]);
        assert_eq!(stored(&[-2, 258], QType::Int16), [0xfe, 0xff, 0x02, 0x01]);
        assert_eq!(stored(&[65535], QType::UInt16), [0xff, 0xff]);
        assert_eq!(stored(&[i32::MIN, -1], QType::Int32), [0, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff]);
    }
}
