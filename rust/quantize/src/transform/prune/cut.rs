//! Selects the elements of a tensor to prune.

// Converts fractions to numbers of elements.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use bytes::Bytes;
use half::{bf16, f16};
use quantize_rs_math::Layout;
use quantize_rs_onnx::{DataType, Tensor};

use super::buffer;
use crate::options::Below;
use crate::transform::floats::floats;

/// A pruned tensor.
pub(super) struct Zeroed {
    /// The number of zeros before.
    pub(super) before: usize,
    /// The number of zeros after.
    pub(super) after: usize,
    /// The bytes of all elements.
    pub(super) elements: Bytes,
}

/// How the elements of a type are read and compared.
trait Number {
    /// Reads an element from its bytes.
    fn read(bytes: &[u8]) -> f64;

    /// The magnitude of an element.
    fn magnitude(bytes: &[u8]) -> f64 {
        Self::read(bytes).abs()
    }

    /// Rounds a number to this type.
    fn rounded(number: f64) -> f64;
}

macro_rules! number {
    ($name:ident, $width:literal, $read:expr, $round:expr) => {
        struct $name;
        impl Number for $name {
            fn read(bytes: &[u8]) -> f64 {
                let mut own = [0; $width];
                own.copy_from_slice(bytes);
                let read: fn([u8; $width]) -> f64 = $read;
                read(own)
            }
            fn rounded(number: f64) -> f64 {
                let round: fn(f64) -> f64 = $round;
                round(number)
            }
        }
    };
}

number!(Single, 4, |bytes| f32::from_le_bytes(bytes).into(), |x| (x as f32).into());
number!(Double, 8, f64::from_le_bytes, |x| x);
number!(Half, 2, |bytes| f16::from_le_bytes(bytes).into(), |x| f16::from_f64(x).into());
number!(Brain, 2, |bytes| bf16::from_le_bytes(bytes).into(), |x| bf16::from_f64(x).into());

/// Sets small elements of a tensor to 0; `None` if it is not a floating-point tensor.
///
/// # Errors
/// Returns the index of a non-finite element.
pub(super) fn zeroed(
    tensor: &Tensor,
    layout: &Layout,
    below: Below,
) -> Result<Option<Zeroed>, usize> {
    match tensor.dtype {
        DataType::Float => of::<Single>(tensor, 4, layout, below).map(Some),
        DataType::Double => of::<Double>(tensor, 8, layout, below).map(Some),
        DataType::Float16 => of::<Half>(tensor, 2, layout, below).map(Some),
        DataType::BFloat16 => of::<Brain>(tensor, 2, layout, below).map(Some),
        _ => Ok(None),
    }
}

/// The number of zeros in a tensor.
pub(super) fn zeros(tensor: &Tensor) -> usize {
    floats(tensor).map_or(0, |values| values.iter().filter(|x| **x == 0.0).count())
}

fn of<N: Number>(
    tensor: &Tensor,
    width: usize,
    layout: &Layout,
    below: Below,
) -> Result<Zeroed, usize> {
    let magnitudes = || tensor.data.chunks_exact(width).map(N::magnitude);
    if let Some(index) = magnitudes().position(|x| !x.is_finite()) {
        return Err(index);
    }
    let mut limits = match below {
        Below::Absolute(threshold) => {
            let below = N::rounded(threshold);
            (0..layout.groups()).map(|_| Limit { below, equal: 0 }).collect()
        }
        Below::Relative(part) => relative::<N>(magnitudes(), layout, part),
        Below::Sparsity(part) => smallest(magnitudes(), layout, part),
    };
    let mut elements = buffer(&tensor.data);
    let bytes: &mut [u8] = elements.as_mut();
    let (mut before, mut after) = (0, 0);
    for (index, element) in bytes.chunks_exact_mut(width).enumerate() {
        let x = N::magnitude(element);
        if x == 0.0 {
            before += 1;
            after += 1;
        } else if limits[layout.group_of(index)].takes(x) {
            element.fill(0);
            after += 1;
        }
    }
    Ok(Zeroed { before, after, elements: elements.into_bytes() })
}

/// The elements to prune in one group.
struct Limit {
    /// Magnitudes below this are pruned.
    below: f64,
    /// The number of elements with exactly this magnitude to prune.
    equal: usize,
}

impl Limit {
    fn takes(&mut self, x: f64) -> bool {
        // Both sides were read from the same bytes, so equality is exact.
        let equal = x.total_cmp(&self.below).is_eq() && self.equal > 0;
        self.equal -= usize::from(equal);
        x < self.below || equal
    }
}

/// Prunes magnitudes below a fraction of the maximum of the group.
fn relative<N: Number>(
    magnitudes: impl Iterator<Item = f64>,
    layout: &Layout,
    part: f64,
) -> Vec<Limit> {
    let mut largest = vec![0.0_f64; layout.groups()];
    for (index, x) in magnitudes.enumerate() {
        let largest = &mut largest[layout.group_of(index)];
        *largest = largest.max(x);
    }
    // The product of two numbers of the type is exact in float64, so it is rounded once.
    let below = |largest: f64| N::rounded(N::rounded(part) * largest);
    largest.into_iter().map(|largest| Limit { below: below(largest), equal: 0 }).collect()
}

/// Prunes the smallest magnitudes up to a fraction of the group.
fn smallest(magnitudes: impl Iterator<Item = f64>, layout: &Layout, part: f64) -> Vec<Limit> {
    let mut groups: Vec<Vec<f64>> = vec![Vec::new(); layout.groups()];
    for (index, x) in magnitudes.enumerate() {
        groups[layout.group_of(index)].push(x);
    }
    let limit = |mut group: Vec<f64>| {
        let count = (part * group.len() as f64).round() as usize;
        if count == 0 {
            return Limit { below: 0.0, equal: 0 };
        }
        let (smaller, last, _) = group.select_nth_unstable_by(count - 1, f64::total_cmp);
        let below = *last;
        let equal = 1 + smaller.iter().filter(|x| x.total_cmp(&below).is_eq()).count();
        Limit { below, equal }
    };
    groups.into_iter().map(limit).collect()
}
