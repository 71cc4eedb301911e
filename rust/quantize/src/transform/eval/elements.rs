//! The element types in which arithmetic is done.

use quantize_rs_onnx::{DataType, Tensor};

/// An element type.
pub(super) trait Element: Copy {
    const DTYPE: DataType;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, out: &mut Vec<u8>);
}

macro_rules! element {
    ($($type:ty, $dtype:ident;)*) => {$(
        impl Element for $type {
            const DTYPE: DataType = DataType::$dtype;
            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map_or_else(|_| Default::default(), Self::from_le_bytes)
            }
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

element! {
    f32, Float; f64, Double; i64, Int64; i32, Int32; i16, Int16; i8, Int8;
    u64, UInt64; u32, UInt32; u16, UInt16; u8, UInt8;
}

impl Element for bool {
    const DTYPE: DataType = DataType::Bool;
    fn read(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|byte| *byte != 0)
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}

/// The elements of a tensor, if they have this type.
pub(super) fn values<T: Element>(tensor: &Tensor) -> Option<Vec<T>> {
    (tensor.dtype == T::DTYPE)
        .then(|| tensor.data.chunks_exact(T::DTYPE.bits() / 8).map(T::read).collect())
}

/// Creates a tensor with these elements.
pub(super) fn tensor<T: Element>(
    shape: Vec<usize>,
    elements: impl IntoIterator<Item = T>,
) -> Tensor {
    let mut data = Vec::new();
    elements.into_iter().for_each(|element| element.write(&mut data));
    Tensor { dtype: T::DTYPE, shape, data: data.into() }
}

/// The size of an element in bytes; `None` for strings and for types that are packed into bytes.
pub(super) fn width(dtype: DataType) -> Option<usize> {
    (dtype.bits() >= 8).then(|| dtype.bits() / 8)
}
