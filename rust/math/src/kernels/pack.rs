//! Packing of integers of less than 8 bits: the first element in the lowest bits, as in ONNX.

/// Packs `values` of 1, 2, 4 or 8 `bits` each into bytes.
///
/// Bits of a value beyond its width are dropped. Unused bits of the last byte are 0.
///
/// ```
/// assert_eq!(quantize_rs_math::pack::pack(&[1, 2, -1], 4), [0x21, 0x0f]);
/// ```
pub fn pack(values: &[i8], bits: u32) -> Vec<u8> {
    let codes: Vec<u8> = values.iter().map(|&value| value as u8).collect();
    let mut bytes = vec![0; codes.len().div_ceil(per_byte(bits))];
    pack_into(&codes, bits, &mut bytes);
    bytes
}

/// Unpacks the first `elements` values of `bits` bits each; fewer when there are not enough bytes.
///
/// Unsigned 8-bit values are returned as the `i8` with the same bits.
///
/// ```
/// assert_eq!(quantize_rs_math::pack::unpack(&[0x21, 0x0f], 4, true, 3), [1, 2, -1]);
/// assert_eq!(quantize_rs_math::pack::unpack(&[0x21, 0x0f], 4, false, 3), [1, 2, 15]);
/// ```
pub fn unpack(bytes: &[u8], bits: u32, signed: bool, elements: usize) -> Vec<i8> {
    let mut codes = vec![0; elements.min(bytes.len().saturating_mul(per_byte(bits)))];
    unpack_into(bytes, bits, &mut codes);
    let spare = 8 - width(bits);
    let value = |code: u8| if signed { (code << spare) as i8 >> spare } else { code as i8 };
    codes.into_iter().map(value).collect()
}

/// Packs codes, one per byte, into `bytes`; stops at the end of the shorter slice.
#[inline]
pub(crate) fn pack_into(codes: &[u8], bits: u32, bytes: &mut [u8]) {
    match width(bits) {
        1 => pack_by::<8>(codes, bytes),
        2 => pack_by::<4>(codes, bytes),
        4 => pack_by::<2>(codes, bytes),
        _ => bytes.iter_mut().zip(codes).for_each(|(byte, &code)| *byte = code),
    }
}

/// Unpacks bytes into codes, one per byte, without sign extension; stops at the end of the shorter
/// slice.
#[inline]
pub(crate) fn unpack_into(bytes: &[u8], bits: u32, codes: &mut [u8]) {
    match width(bits) {
        1 => unpack_by::<8>(bytes, codes),
        2 => unpack_by::<4>(bytes, codes),
        4 => unpack_by::<2>(bytes, codes),
        _ => codes.iter_mut().zip(bytes).for_each(|(code, &byte)| *code = byte),
    }
}

/// The width to use: widths that do not divide a byte are treated as 8.
const fn width(bits: u32) -> u32 {
    if matches!(bits, 1 | 2 | 4) { bits } else { 8 }
}

const fn per_byte(bits: u32) -> usize {
    8 / width(bits) as usize
}

#[inline]
fn pack_by<const N: usize>(codes: &[u8], bytes: &mut [u8]) {
    let (whole, rest) = codes.as_chunks::<N>();
    for (byte, codes) in bytes.iter_mut().zip(whole) {
        *byte = join::<N>(codes);
    }
    if let (false, Some(byte)) = (rest.is_empty(), bytes.get_mut(whole.len())) {
        *byte = join::<N>(rest);
    }
}

/// The byte that holds up to `N` codes.
#[inline]
fn join<const N: usize>(codes: &[u8]) -> u8 {
    let bits = 8 / N;
    let mask = u8::MAX >> (8 - bits);
    codes.iter().enumerate().fold(0, |byte, (i, code)| byte | (code & mask) << (i * bits))
}

#[inline]
fn unpack_by<const N: usize>(bytes: &[u8], codes: &mut [u8]) {
    let (whole, rest) = codes.as_chunks_mut::<N>();
    for (codes, &byte) in whole.iter_mut().zip(bytes) {
        split::<N>(byte, codes);
    }
    if let Some(&byte) = bytes.get(whole.len()) {
        split::<N>(byte, rest);
    }
}

/// Up to `N` codes of a byte.
#[inline]
fn split<const N: usize>(byte: u8, codes: &mut [u8]) {
    let bits = 8 / N;
    let mask = u8::MAX >> (8 - bits);
    for (i, code) in codes.iter_mut().enumerate() {
        *code = byte >> (i * bits) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_come_first() {
        assert_eq!(pack(&[1, 2, 3, 4, 5], 4), [0x21, 0x43, 0x05]);
        assert_eq!(pack(&[0, 1, -2, -1], 2), [0xe4]);
        assert_eq!(unpack(&[0xe4], 2, true, 4), [0, 1, -2, -1]);
        assert_eq!(unpack(&[0xe4], 2, false, 4), [0, 1, 2, 3]);
        assert_eq!(pack(&[1, 0, 0, 1, 1], 1), [0b1_1001]);
    }

    #[test]
    fn neither_too_few_bytes_nor_odd_widths_panic() {
        assert_eq!(unpack(&[0x21], 4, true, 9), [1, 2]);
        assert!(unpack(&[], 2, true, 9).is_empty());
        for bits in [0, 3, 7, 8, 33] {
            assert_eq!(unpack(&pack(&[1, -2], bits), bits, true, 2), [1, -2]);
        }
    }
}
