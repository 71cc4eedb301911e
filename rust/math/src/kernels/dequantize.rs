//! Dequantization of integers and 8-bit floats.

use rayon::prelude::*;

use super::params_per_element::{Lanes, Table};
use super::{pack, reference};
use crate::metrics::CHUNK;
use crate::{Layout, Params, QType};

/// Dequantizes ONNX `raw_data`: `(q - zero_point) · scale`.
///
/// `bytes` has the layout that [`quantize`](crate::quantize) writes, and `params` one entry per
/// group of `layout` ([`Layout::check_packed`]). Equals [`reference::dequantize`].
pub fn dequantize(bytes: &[u8], layout: &Layout, params: &[Params], qtype: QType) -> Vec<f32> {
    assert_eq!(layout.check_packed(bytes.len(), qtype, params.len()), Ok(()));
    let Some(table) = Table::of(layout, params, qtype, (qtype.min(), qtype.max())) else {
        return reference::dequantize(bytes, layout, params, qtype);
    };
    let mut floats = vec![0.0; layout.elements()];
    let one = |scratch: &mut Scratch, (index, (floats, bytes)): (usize, (&mut [f32], &[u8]))| {
        let codes = scratch.widen(bytes, qtype, floats.len());
        for piece in layout.cut().pieces(index * CHUNK, floats.len()) {
            let at = piece.start..piece.start + piece.len;
            let (codes, floats) = (&codes[at.clone()], &mut floats[at]);
            if piece.each {
                dequantize_run(codes, qtype, table.each(piece), floats);
            } else {
                dequantize_run(codes, qtype, table.same(piece), floats);
            }
        }
    };
    if floats.len() <= CHUNK {
        one(&mut Scratch::default(), (0, (&mut floats, bytes)));
    } else {
        let bytes = bytes.par_chunks(qtype.packed_len(CHUNK));
        let chunks = floats.par_chunks_mut(CHUNK).zip(bytes).enumerate();
        chunks.for_each_init(Scratch::default, one);
    }
    floats
}

/// Working memory for a chunk.
#[derive(Default)]
struct Scratch {
    codes: Vec<u8>,
    integers: Vec<i32>,
}

impl Scratch {
    /// The integers of a chunk, of at most 16 bits each; for floats, their codes as integers.
    fn widen(&mut self, bytes: &[u8], qtype: QType, elements: usize) -> &[i32] {
        let Scratch { codes, integers } = self;
        integers.resize(elements, 0);
        let bits = qtype.bits();
        let sign = if qtype.signed() { 1 << (bits - 1) } else { 0 };
        if bits > 8 {
            for (integer, &bytes) in integers.iter_mut().zip(bytes.as_chunks().0) {
                *integer = extend(i32::from(u16::from_le_bytes(bytes)), sign);
            }
        } else {
            codes.resize(elements, 0);
            pack::unpack_into(bytes, bits, codes);
            for (integer, &code) in integers.iter_mut().zip(codes.iter()) {
                *integer = extend(i32::from(code), sign);
            }
        }
        integers
    }
}

/// The number that a code represents when its sign bit has the value `sign`; 0 when it has none.
#[inline]
fn extend(code: i32, sign: i32) -> i32 {
    (code ^ sign) - sign
}

/// Dequantizes a run. Integers and zero points are small: they and their differences are exact in
/// f32.
#[inline]
fn dequantize_run(codes: &[i32], qtype: QType, lanes: impl Lanes, floats: &mut [f32]) {
    let len = floats.len();
    let codes = &codes[..len];
    if let Some(format) = qtype.format() {
        for i in 0..len {
            floats[i] = format.decode(codes[i] as u16) * lanes.scale(i);
        }
    } else {
        for i in 0..len {
            floats[i] = (codes[i] as f32 - lanes.zero(i)) * lanes.scale(i);
        }
    }
}
