//! FNV-1a: a non-cryptographic hash that is the same on all machines and in all releases.

use std::hash::Hasher;

/// 64-bit FNV-1a. Source: <http://www.isthe.com/chongo/tech/comp/fnv/>.
pub(crate) struct Fnv(u64);

const PRIME: u64 = 0x0100_0000_01b3;

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Hashes eight bytes at once, and mixes the high bits into the low bits.
    pub(crate) fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(PRIME);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// Hashes bytes eight at a time.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        self.write(rest);
    }
}

/// A hash of some words of the elements of a tensor, spread over them.
pub(crate) fn hash_of_some(data: &[u8]) -> u64 {
    const WORDS: usize = 64;
    let mut hash = Fnv::default();
    let (words, rest) = data.as_chunks::<8>();
    let some = words.iter().step_by(words.len() / WORDS + 1);
    some.for_each(|word| hash.word(u64::from_le_bytes(*word)));
    hash.write(rest);
    hash.finish()
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
}
