//! Changes bytes, of which some are numbers of a known place.

use crate::random::Random;

/// Changes a few bytes, or how many there are.
pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        bytes.push(random.byte());
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.byte()),
        2 => {
            let end = (at + 1 + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        3 => {
            let end = (at + 1 + random.below(64)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => bytes[at] = random.byte(),
    }
}

/// Puts another number into the bytes of a field, little-endian or big-endian.
pub(crate) fn number(field: &mut [u8], big_endian: bool, random: &mut Random) {
    let length = field.len().min(8);
    let mut old = [0; 8];
    old[..length].copy_from_slice(&field[..length]);
    if big_endian {
        old[..length].reverse();
    }
    let old = u64::from_le_bytes(old);
    let new = match random.below(4) {
        0 => old.wrapping_add(random.next() % 5).wrapping_sub(2),
        1 => random.next() % 4096,
        2 => old ^ (1 << random.below(8 * length)),
        _ => random.edge(),
    };
    field[..length].copy_from_slice(&new.to_le_bytes()[..length]);
    if big_endian {
        field[..length].reverse();
    }
}
