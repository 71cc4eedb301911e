//! What a comment at the integers of a weight says of them: how many bits they use, if that is
//! fewer than their type has; and a checksum, if they were rounded with the help of samples. Such
//! integers are not the nearest ones, so that nothing else tells whether they are those that were
//! written.

use std::hash::Hasher;

use quantize_rs_math::Algorithm;

use crate::options::HalfType;
use crate::util::fnv::Fnv;

/// What separates the number of bits from the rest.
const BITS: &str = " bits used";

/// What the mark of rounded integers begins with.
const BEGIN: &str = "rounded with samples";

/// The mark for integers, as they are stored, and their scales.
pub(crate) fn mark(algorithm: Algorithm, integers: &[u8], scales: &[f32]) -> String {
    let sums = HalfType::ALL.iter().map(|half| checksum(integers, scales, *half));
    let sums: Vec<String> = sums.map(|sum| format!("{sum:08x}")).collect();
    format!("{BEGIN} ({algorithm}), checksum {}", sums.concat())
}

/// Whether a comment is a mark, and if so, whether it is that of these integers and scales.
pub(crate) fn verify(comment: &str, integers: &[u8], scales: &[f32]) -> Option<bool> {
    let (_, mark) = comment.split_once(BEGIN)?;
    let (_, sums) = mark.rsplit_once(' ')?;
    let sums = sums.as_bytes().chunks(8).map(std::str::from_utf8);
    Some(HalfType::ALL.iter().zip(sums).any(|(half, sum)| {
        let sum = sum.ok().and_then(|sum| u32::from_str_radix(sum, 16).ok());
        sum == Some(checksum(integers, scales, *half))
    }))
}

/// The comment for integers that use this many bits, with the mark of rounded ones.
pub(crate) fn with_bits(bits: u32, mark: Option<String>) -> String {
    let used = format!("{bits}{BITS}");
    mark.map_or_else(|| used.clone(), |mark| format!("{used}, {mark}"))
}

/// How many bits a comment says that integers use.
pub(crate) fn used_bits(comment: &str) -> Option<u32> {
    comment.split_once(BITS)?.0.parse().ok()
}

/// A checksum that stays the same if the scales are rounded to a 16-bit type later.
#[allow(clippy::cast_possible_truncation)] // folded before
fn checksum(integers: &[u8], scales: &[f32], half: HalfType) -> u32 {
    let mut hash = Fnv::default();
    hash.bytes(integers);
    for scale in scales {
        hash.write_u64(f64::from(half.rounded(*scale)).to_bits());
    }
    let hash = hash.finish();
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_fits_its_integers_and_scales_alone() {
        let integers = [1, 2, 3, 250, 7, 0, 9, 8, 4, 4];
        let comment = mark(Algorithm::Gptq, &integers, &[0.5, 2.0]);
        assert!(comment.starts_with("rounded with samples (gptq), checksum "), "{comment}");
        assert_eq!(verify(&comment, &integers, &[0.5, 2.0]), Some(true));
        assert_eq!(verify(&comment, &integers, &[0.5, 2.5]), Some(false));
        assert_eq!(verify(&comment, &integers[1..], &[0.5, 2.0]), Some(false));
        let comment = mark(Algorithm::Gptq, &integers, &[0.3, 2.0]);
        for half in HalfType::ALL {
            let rounded = half.rounded(0.3);
            assert_eq!(verify(&comment, &integers, &[rounded, 2.0]), Some(true), "{half}");
        }
        assert_eq!(verify(&comment, &integers, &[0.31, 2.0]), Some(false));
        let comment = with_bits(3, Some(comment));
        assert_eq!(verify(&comment, &integers, &[0.3, 2.0]), Some(true));
        assert_eq!((used_bits(&comment), used_bits(&with_bits(6, None))), (Some(3), Some(6)));
        assert_eq!(used_bits("another comment"), None);
        assert_eq!(verify("another comment", &integers, &[]), None);
        assert_eq!(verify("rounded with samples, checksum lost", &integers, &[]), Some(false));
    }
}
