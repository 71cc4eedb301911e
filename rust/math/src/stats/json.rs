//! How statistics are written to JSON, so that they read back exactly and stay short.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};

/// JSON has no infinity: serde writes null, which is read back as the empty end that it was.
pub(crate) fn null_is_inf<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f32::INFINITY))
}

/// As [`null_is_inf`], for an upper end.
pub(crate) fn null_is_negative_inf<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<f32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f32::NEG_INFINITY))
}

/// The number of an end, or nothing when it is infinite. As f64, since the shortest digits of an f32 need not read
/// back through the f64 that JSON has, but an f64 whose value is an f32 does.
pub(super) fn end(value: f32) -> Option<f64> {
    value.is_finite().then(|| f64::from(value))
}

/// Finite numbers, as [`end`] has one.
pub(super) mod floats {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(of: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(of.iter().copied().map(f64::from))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let read = Vec::<f64>::deserialize(from)?;
        Ok(read.into_iter().map(|number| number as f32).collect())
    }
}

/// Counts as base64 of numbers in LEB128, seven bits to a byte: a count of 0 is followed by the number of further
/// zeros, and zeros at the end are not written.
pub(super) fn counts_to_text(counts: &[u64]) -> String {
    let mut bytes = Vec::new();
    let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    let mut rest = &counts[..used];
    while let Some((&count, after)) = rest.split_first() {
        push(&mut bytes, count);
        rest = after;
        if count == 0 {
            let zeros = rest.iter().take_while(|&&count| count == 0).count();
            push(&mut bytes, zeros as u64);
            rest = &rest[zeros..];
        }
    }
    STANDARD.encode(bytes)
}

/// What [`counts_to_text`] wrote of `len` counts, or nothing when it did not.
pub(super) fn counts_from_text(text: &str, len: usize) -> Option<Vec<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    let mut bytes = bytes.iter().copied();
    let mut counts = vec![0; len];
    let mut at = 0;
    while bytes.len() > 0 {
        let count = pull(&mut bytes)?;
        *counts.get_mut(at)? = count;
        at += 1;
        if count == 0 {
            at = at.checked_add(usize::try_from(pull(&mut bytes)?).ok()?)?;
        }
    }
    Some(counts)
}

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn pull(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = bytes.next()?;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_back() {
        let cases: [&[u64]; 6] = [
            &[0, 0, 0, 0],
            &[1, 2, 3, 4],
            &[0, 0, 5, 0],
            &[u64::MAX, 0, 127, 128],
            &[0, 0, 0, 1 << 63],
            &[],
        ];
        for counts in cases {
            let text = counts_to_text(counts);
            assert_eq!(counts_from_text(&text, counts.len()).as_deref(), Some(counts), "{text}");
        }
        let mut last = vec![0; 4096];
        assert_eq!(counts_to_text(&last), "");
        last[4095] = 1;
        assert_eq!(counts_to_text(&last).len(), 8);
    }

    #[test]
    fn what_was_not_written_like_this_is_refused() {
        // Not base64; a number without an end; a number of more than 64 bits; a zero without its run; too many counts.
        for bytes in [&[0x80][..], &[0xff; 10], &[0], &[1, 1, 1], &[0, 0xff, 0x7f, 1]] {
            assert_eq!(counts_from_text(&STANDARD.encode(bytes), 2), None, "{bytes:?}");
        }
        assert_eq!(counts_from_text("?", 2), None);
    }
}
