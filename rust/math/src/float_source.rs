//! Sources of float32 elements: a slice, or the bytes of a file, which need not be aligned.

/// The elements of a float32 tensor.
///
/// ```
/// use quantize_rs_math::{FloatSource, Granularity, Layout, Range, ranges};
/// let bytes = [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()];
/// let layout = Layout::of(&[2], Granularity::PerTensor)?;
/// assert_eq!(ranges(FloatSource::LittleEndian(&bytes), &layout), [Range { min: -2.0, max: 1.5 }]);
/// assert_eq!(ranges(&[1.5, -2.0], &layout), [Range { min: -2.0, max: 1.5 }]);
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum FloatSource<'a> {
    /// Floats in memory, in native byte order.
    Slice(&'a [f32]),
    /// Floats as ONNX `raw_data` stores them, at any offset of a mapped file.
    LittleEndian(&'a [[u8; 4]]),
}

impl FloatSource<'_> {
    /// The number of elements.
    pub fn len(self) -> usize {
        match self {
            FloatSource::Slice(values) => values.len(),
            FloatSource::LittleEndian(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The element at an index.
    pub(crate) fn get(self, index: usize) -> f32 {
        match self {
            FloatSource::Slice(values) => values[index],
            FloatSource::LittleEndian(values) => values[index].value(),
        }
    }
}

/// How one float is read. Loops over either implementation compile to the same vector code.
pub(crate) trait Element: Copy + Send + Sync {
    fn value(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Element for [u8; 4] {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_le_bytes(self)
    }
}

impl<'a> From<&'a [f32]> for FloatSource<'a> {
    fn from(values: &'a [f32]) -> FloatSource<'a> {
        FloatSource::Slice(values)
    }
}

impl<'a> From<&'a Vec<f32>> for FloatSource<'a> {
    fn from(values: &'a Vec<f32>) -> FloatSource<'a> {
        FloatSource::Slice(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for FloatSource<'a> {
    fn from(values: &'a [f32; N]) -> FloatSource<'a> {
        FloatSource::Slice(values)
    }
}
