//! A tensor: element type, shape, and the bytes wherever they are.

use bytes::Bytes;

use crate::DataType;

/// A tensor in memory: little-endian elements in C order, as ONNX `raw_data` holds them.
///
/// `data` is a handle: it may point into a mapped file, and cloning it copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The type of an element.
    pub dtype: DataType,
    /// Length of each axis; empty for a scalar.
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
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype: DataType::Float, shape, data }
    }

    /// A tensor of float32 values that it takes over: on little-endian machines none is copied.
    ///
    /// ```
    /// use quantize_rs_onnx::Tensor;
    /// let values = [1.0, -2.0];
    /// assert_eq!(Tensor::from_f32_vec(vec![2], values.to_vec()), Tensor::from_f32(vec![2], &values));
    /// ```
    pub fn from_f32_vec(shape: Vec<usize>, values: Vec<f32>) -> Tensor {
        if cfg!(target_endian = "little") {
            let data = Bytes::from_owner(Floats(values));
            Tensor { dtype: DataType::Float, shape, data }
        } else {
            Tensor::from_f32(shape, &values)
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as float32 values, copied; `None` unless the type is float32.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.dtype == DataType::Float).then(|| {
            self.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        })
    }
}

/// Values as the bytes that they are in memory.
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
