//! A tensor: element type, shape, and bytes.

use bytes::Bytes;

use crate::DataType;
use crate::map::Buffer;

/// A tensor with little-endian elements in C order, as in ONNX `raw_data`.
///
/// `data` is shared: it may be a slice of a mapped file, and cloning it copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The type of an element.
    pub dtype: DataType,
    /// The dimensions; empty for a scalar.
    pub shape: Vec<usize>,
    /// `dtype.byte_len(elements)` bytes.
    pub data: Bytes,
}

impl Tensor {
    /// A tensor of float32 values.
    ///
    /// ```
    /// use quantize_rs_onnx::Tensor;
    /// let t = Tensor::from_f32(vec![2], &[1.0, -2.0]);
    /// assert_eq!(t.to_f32().as_deref(), Some(&[1.0, -2.0][..]));
    /// ```
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Tensor {
        Tensor::from_f32_iter(shape, values.iter().copied())
    }

    /// As [`Tensor::from_f32`], from values that are not in memory.
    pub fn from_f32_iter(shape: Vec<usize>, values: impl ExactSizeIterator<Item = f32>) -> Tensor {
        let mut buffer = Buffer::zeroed(values.len() * size_of::<f32>());
        let (elements, _) = buffer.as_mut().as_chunks_mut();
        elements.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
        Tensor { dtype: DataType::Float, shape, data: buffer.into_bytes() }
    }

    /// A tensor that takes ownership of float32 values, without a copy on little-endian machines.
    ///
    /// ```
    /// use quantize_rs_onnx::Tensor;
    /// let values = [1.0, -2.0];
    /// let owned = Tensor::from_f32_vec(vec![2], values.to_vec());
    /// assert_eq!(owned, Tensor::from_f32(vec![2], &values));
    /// ```
    pub fn from_f32_vec(shape: Vec<usize>, values: Vec<f32>) -> Tensor {
        if cfg!(target_endian = "little") {
            let data = Bytes::from_owner(Floats(values));
            Tensor { dtype: DataType::Float, shape, data }
        } else {
            Tensor::from_f32(shape, &values)
        }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The index along each axis of an element counted in C order.
    ///
    /// ```
    /// use quantize_rs_onnx::Tensor;
    ///
    /// let tensor = Tensor::from_f32_vec(vec![2, 3], vec![0.0; 6]);
    /// assert_eq!(tensor.position(5), [1, 2]);
    /// ```
    pub fn position(&self, mut index: usize) -> Vec<usize> {
        let mut position = vec![0; self.shape.len()];
        for (axis, length) in self.shape.iter().enumerate().rev() {
            let length = (*length).max(1);
            position[axis] = index % length;
            index /= length;
        }
        position
    }

    /// A copy of the elements as float32; `None` if the tensor has another type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.dtype == DataType::Float).then(|| {
            self.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        })
    }
}

/// Floats as the bytes that they have in memory.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({}{:?}, {} bytes)", self.dtype, self.shape, self.data.len())
    }
}
