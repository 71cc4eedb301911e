//! JSON encoding of statistics: exact and compact.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};

/// JSON has no infinity: serde writes null, which becomes the end of an empty range again.
pub(crate) fn null_is_inf<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f32::INFINITY))
}

/// As [`null_is_inf`], for an upper end.
pub(crate) fn null_is_negative_inf<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<f32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f32::NEG_INFINITY))
}

/// An end as a number, or `None` when it is infinite. It is f64 because the shortest decimal digits
/// of an f32 need not survive JSON's f64, whereas an f64 with the value of an f32 does.
pub(super) fn end(value: f32) -> Option<f64> {
    value.is_finite().then(|| f64::from(value))
}

/// Lists of finite numbers, each written as f64.
pub(super) mod floats {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(of: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(of.iter().copied().map(f64::from))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let read = Vec::<f64>::deserialize(from)?.into_iter().map(|number| number as f32);
        let finite = |number: f32| {
            let wrong = || D::Error::custom("a number beyond those of float32");
            number.is_finite().then_some(number).ok_or_else(wrong)
        };
        read.map(finite).collect()
    }
}

/// Counts as base64 of LEB128 numbers, seven bits to a byte. A count of 0 is followed by the number
/// of further zeros; trailing zeros are omitted.
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

/// Decodes the output of [`counts_to_text`] into `len` counts; `None` if it is not valid.
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
    fn counts_round_trip() {
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
    fn malformed_counts_are_refused() {
        // Not base64; an unterminated number; a number of more than 64 bits; a zero without run
        // length; too many counts.
        for bytes in [&[0x80][..], &[0xff; 10], &[0], &[1, 1, 1], &[0, 0xff, 0x7f, 1]] {
            assert_eq!(counts_from_text(&STANDARD.encode(bytes), 2), None, "{bytes:?}");
        }
        assert_eq!(counts_from_text("?", 2), None);
    }
}
