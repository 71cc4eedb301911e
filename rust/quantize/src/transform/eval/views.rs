//! Strided views: a shape, and the distance in the source between elements along each axis.

use quantize_rs_onnx::Tensor;

use super::elements::width;
use super::{Call, fits};

/// A strided view of the elements of a tensor.
pub(super) struct View {
    pub(super) shape: Vec<usize>,
    /// In elements; 0 repeats elements.
    pub(super) strides: Vec<isize>,
    pub(super) offset: usize,
}

impl View {
    /// All elements in C order.
    pub(super) fn of(shape: &[usize]) -> Option<View> {
        let mut strides = vec![0isize; shape.len()];
        let mut step = 1isize;
        for (stride, length) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.checked_mul(isize::try_from(*length).ok()?.max(1))?;
        }
        Some(View { shape: shape.to_vec(), strides, offset: 0 })
    }

    /// Broadcasts the view to a shape.
    pub(super) fn broadcast(mut self, shape: &[usize]) -> Option<View> {
        let new = shape.len().checked_sub(self.shape.len())?;
        for (axis, length) in self.shape.iter().enumerate() {
            match (*length, shape[new + axis]) {
                (1, wanted) if wanted != 1 => self.strides[axis] = 0,
                (length, wanted) if length != wanted => return None,
                _ => {}
            }
        }
        self.strides.splice(0..0, std::iter::repeat_n(0, new));
        self.shape = shape.to_vec();
        Some(self)
    }

    /// The elements of the view as a tensor of at most `limit` bytes. It shares the bytes of the
    /// source if they are in order there.
    pub(super) fn copy(&self, limit: usize, source: &Tensor) -> Option<Tensor> {
        let width = width(source.dtype)?;
        let elements = fits(&self.shape, width, limit)?;
        let in_order = View::of(&self.shape)?.strides == self.strides;
        if in_order {
            let start = if elements == 0 { 0 } else { self.offset.checked_mul(width)? };
            let end = start.checked_add(elements * width)?;
            if end > source.data.len() {
                return None;
            }
            let data = source.data.slice(start..end);
            return Some(Tensor { dtype: source.dtype, shape: self.shape.clone(), data });
        }
        let mut data = Vec::with_capacity(elements * width);
        let mut index = vec![0usize; self.shape.len()];
        let mut at = isize::try_from(self.offset).ok()?;
        for _ in 0..elements {
            let from = usize::try_from(at).ok()?.checked_mul(width)?;
            data.extend_from_slice(source.data.get(from..from + width)?);
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                at -= self.strides[axis] * isize::try_from(index[axis]).ok()?;
                index[axis] = 0;
            }
        }
        Some(Tensor { dtype: source.dtype, shape: self.shape.clone(), data: data.into() })
    }
}

/// The broadcast shape of these shapes.
pub(super) fn common(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let mut common = vec![1; rank];
    for shape in shapes {
        for (wanted, length) in common.iter_mut().rev().zip(shape.iter().rev()) {
            match (*wanted, *length) {
                (_, 1) => {}
                (1, length) => *wanted = length,
                (wanted, length) if wanted != length => return None,
                _ => {}
            }
        }
    }
    Some(common)
}

/// Broadcasts a tensor to a shape.
pub(super) fn spread(call: &Call<'_>, tensor: &Tensor, shape: &[usize]) -> Option<Tensor> {
    if tensor.shape == shape {
        return Some(tensor.clone());
    }
    View::of(&tensor.shape)?.broadcast(shape)?.copy(call.limit, tensor)
}
