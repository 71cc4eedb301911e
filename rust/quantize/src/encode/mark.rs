//! The mark of weights that were rounded with the help of samples: a comment at their integers,
//! with a checksum. Such integers are not the nearest ones, so that nothing else tells whether they
//! are those that were written.

use std::hash::Hasher;

use quantize_rs_math::Algorithm;

use crate::util::fnv::Fnv;

/// What the mark begins with.
const BEGIN: &str = "rounded with samples";

/// The mark for integers, as they are stored, and their scales.
pub(crate) fn mark(algorithm: Algorithm, integers: &[u8], scales: &[f32]) -> String {
    format!("{BEGIN} ({algorithm}), checksum {:016x}", checksum(integers, scales))
}

/// Whether a comment is a mark, and if so, whether it is that of these integers and scales.
pub(crate) fn verify(comment: &str, integers: &[u8], scales: &[f32]) -> Option<bool> {
    comment.strip_prefix(BEGIN)?;
    let (_, sum) = comment.rsplit_once(' ')?;
    Some(u64::from_str_radix(sum, 16) == Ok(checksum(integers, scales)))
}

fn checksum(integers: &[u8], scales: &[f32]) -> u64 {
    let mut hash = Fnv::default();
    hash.bytes(integers);
    for scale in scales {
        hash.write_u32(scale.to_bits());
    }
    hash.finish()
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
        assert_eq!(verify("another comment", &integers, &[]), None);
        assert_eq!(verify("rounded with samples, checksum lost", &integers, &[]), Some(false));
    }
}
