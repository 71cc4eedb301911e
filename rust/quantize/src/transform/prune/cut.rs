//! Which elements of a tensor become 0.

// Counting parts of lengths.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use bytes::Bytes;
use half::{bf16, f16};
use quantize_rs_math::Layout;
use quantize_rs_onnx::{DataType, Tensor};

use super::buffer;
use crate::options::Below;

/// A pruned tensor.
pub(super) struct Zeroed {
    /// How many elements were 0.
    pub(super) before: usize,
    /// How many are.
    pub(super) after: usize,
    /// All elements.
    pub(super) elements: Bytes,
}

/// How numbers of a type are compared.
trait Number {
    /// The number at the start of these bytes.
    fn read(bytes: &[u8]) -> f64;

    /// Its magnitude.
    fn magnitude(bytes: &[u8]) -> f64 {
        Self::read(bytes).abs()
    }

    /// A number as one of this type.
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

/// A tensor with its small elements 0; `None` where it is of no floats.
///
/// # Errors
/// The position of an element that is no finite number.
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

/// The elements of a tensor, exactly; `None` where it is of no floats.
pub(super) fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let (width, read): (usize, fn(&[u8]) -> f64) = match tensor.dtype {
        DataType::Float => (4, Single::read),
        DataType::Double => (8, Double::read),
        DataType::Float16 => (2, Half::read),
        DataType::BFloat16 => (2, Brain::read),
        _ => return None,
    };
    Some(tensor.data.chunks_exact(width).map(read).collect())
}

/// How many elements of a tensor are 0.
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

/// What becomes 0 in one group of elements.
struct Limit {
    /// All below this,
    below: f64,
    /// and so many that are equal to it.
    equal: usize,
}

impl Limit {
    fn takes(&mut self, x: f64) -> bool {
        // Read from the same bytes: what is equal is so to the last bit.
        let equal = x.total_cmp(&self.below).is_eq() && self.equal > 0;
        self.equal -= usize::from(equal);
        x < self.below || equal
    }
}

/// All below a part of the largest of the group.
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
    // The product of two numbers of the type is exact in float64, and rounded once.
    let below = |largest: f64| N::rounded(N::rounded(part) * largest);
    largest.into_iter().map(|largest| Limit { below: below(largest), equal: 0 }).collect()
}

/// The smallest of the group, until a part of it is 0.
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
