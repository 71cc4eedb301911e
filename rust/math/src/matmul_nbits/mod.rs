//! Block-wise quantized matrices in the layout of `MatMulNBits`: one row per output column, divided
//! into blocks. Each block is padded to whole bytes and has a scale and a zero point.

mod blocks;
mod columns;

use crate::group_ranges::first_non_finite;
use crate::kernels::pack::pack_into;
use crate::metrics::Sums;
use crate::{FloatSource, Granularity, MathError, Metrics, Params, QSpec, QType, WeightMethod};

/// How a `depth` × `width` weight matrix (the right operand of a `MatMul`) is quantized: in blocks
/// of `block_size` elements along the axis of length `depth`. The last block may be shorter.
///
/// ```
/// use quantize_rs_math::{BlockParamTypes, MatMulNBitsSpec, QType, WeightMethod};
/// let spec = MatMulNBitsSpec {
///     depth: 40,
///     width: 3,
///     transposed: false,
///     block_size: 32,
///     qtype: QType::UInt4,
///     used_bits: 0,
///     symmetric: true,
///     method: WeightMethod::Mse,
///     params: BlockParamTypes::Plain,
/// };
/// assert_eq!((spec.blocks(), spec.blob_len()), (2, 16));
/// let (blobs, columns) = spec.quantize(&vec![0.5; 120])?;
/// assert_eq!((blobs.len(), columns.scales.len()), (3 * 2 * 16, 3 * 2));
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulNBitsSpec {
    /// Length of the reduction axis (K).
    pub depth: usize,
    /// Number of output columns (N).
    pub width: usize,
    /// Whether the data is `width` × `depth`.
    pub transposed: bool,
    /// Elements per block, a multiple of 8.
    pub block_size: usize,
    /// An unsigned type of 2, 4 or 8 bits.
    pub qtype: QType,
    /// How many of its bits are used; 0 stands for all.
    pub used_bits: u32,
    /// Whether all zero points are the midpoint of the grid; scales of up to 4 bits may then be
    /// negative.
    pub symmetric: bool,
    /// How the scale and the zero point of a block are chosen.
    pub method: WeightMethod,
    /// The types of scales and zero points.
    pub params: BlockParamTypes,
}

/// The types of the scales and the zero points of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockParamTypes {
    /// float32 scales, integer zero points.
    Plain,
    /// float32 scales, and float zero points if the method
    /// [finds](WeightMethod::has_float_zero_points) them.
    FloatZeroPoints,
    /// Scales that float16 can represent, for weights that are dequantized to float16; integer zero
    /// points.
    HalfScales,
}

/// The zero points of a matrix, block by block, in the order of the columns.
#[derive(Clone, Debug, PartialEq)]
pub enum ZeroPoints {
    /// Those of a column are packed like its integers.
    Packed(Vec<u8>),
    /// One float per block: an integer `q` represents `(q - zero_point) · scale`.
    Floats(Vec<f32>),
}

/// The scales, zero points and metrics of a quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnParams {
    /// One scale per block, in the order of the columns.
    pub scales: Vec<f32>,
    /// The zero points.
    pub zero_points: ZeroPoints,
    /// The dequantized matrix, compared with the original.
    pub metrics: Metrics,
}

impl ColumnParams {
    fn none() -> ColumnParams {
        let metrics = Sums::default().metrics(0);
        ColumnParams { scales: Vec::new(), zero_points: ZeroPoints::Packed(Vec::new()), metrics }
    }
}

impl MatMulNBitsSpec {
    /// Blocks per column.
    pub fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block_size.max(1))
    }

    /// Bytes per block.
    pub fn blob_len(&self) -> usize {
        self.qtype.packed_len(self.block_size)
    }

    /// Bytes of the zero points of one column.
    pub fn zero_points_len(&self) -> usize {
        self.qtype.packed_len(self.blocks())
    }

    /// Whether the zero points are floats.
    fn has_float_zero_points(&self) -> bool {
        self.params == BlockParamTypes::FloatZeroPoints
            && self.method.has_float_zero_points(&self.spec())
    }

    fn spec(&self) -> QSpec {
        let spec = QSpec::new(self.qtype, self.symmetric, Granularity::PerTensor);
        QSpec { allows_negative_scale: self.symmetric, used_bits: self.used_bits, ..spec }
    }

    /// The integers, `width` × [`blocks`](Self::blocks) × [`blob_len`](Self::blob_len), with their
    /// scales, zero points and metrics.
    ///
    /// # Errors
    ///
    /// As [`quantize_into`](Self::quantize_into).
    pub fn quantize<'a>(
        &self,
        data: impl Into<FloatSource<'a>>,
    ) -> Result<(Vec<u8>, ColumnParams), MathError> {
        let mut blobs = vec![0; self.width * self.blocks() * self.blob_len()];
        let columns = self.quantize_into(data, &mut blobs)?;
        Ok((blobs, columns))
    }

    /// [`quantize`](Self::quantize) into `blobs`, whose bytes must all be 0.
    ///
    /// # Errors
    ///
    /// An element is NaN or infinite, or the length of a slice differs from the shape.
    pub fn quantize_into<'a>(
        &self,
        data: impl Into<FloatSource<'a>>,
        blobs: &mut [u8],
    ) -> Result<ColumnParams, MathError> {
        let data = data.into();
        if self.block_size == 0 {
            return Err(MathError::BlockSize);
        }
        for (what, found, expected) in [
            ("elements", data.len(), self.depth * self.width),
            ("bytes", blobs.len(), self.width * self.blocks() * self.blob_len()),
        ] {
            if found != expected {
                return Err(MathError::Length { what, found, expected });
            }
        }
        let columns = match data {
            FloatSource::Slice(values) => self.encode(values, blobs),
            FloatSource::LittleEndian(values) => self.encode(values, blobs),
        };
        if let Some(columns) = columns {
            return Ok(columns);
        }
        match first_non_finite(data) {
            Some(index) => Err(MathError::NonFinite { index, value: data.get(index).to_string() }),
            None => Ok(ColumnParams::none()),
        }
    }

    /// A matrix with integer zero points, quantized by the caller: `shape` is its depth and width.
    pub fn plain(
        spec: &QSpec,
        block_size: usize,
        (depth, width): (usize, usize),
        transposed: bool,
    ) -> MatMulNBitsSpec {
        MatMulNBitsSpec {
            depth,
            width,
            transposed,
            block_size,
            qtype: spec.qtype,
            used_bits: spec.used_bits,
            symmetric: spec.symmetric,
            method: WeightMethod::MinMax,
            params: BlockParamTypes::Plain,
        }
    }

    /// Stores integers that were found otherwise: one byte for each element of the matrix in C
    /// order, and the parameters of each block in the order of a [`Layout`](crate::Layout). The
    /// metrics are those of no elements.
    pub fn pack_columns(&self, integers: &[u8], params: &[Params]) -> (Vec<u8>, ColumnParams) {
        let (blocks, blob, points_len) = (self.blocks(), self.blob_len(), self.zero_points_len());
        assert_eq!(integers.len(), self.depth * self.width, "integers of the matrix");
        assert_eq!(params.len(), blocks * self.width, "parameters of the blocks");
        let bits = self.qtype.bits();
        let mut blobs = vec![0; self.width * blocks * blob];
        let mut scales = Vec::with_capacity(self.width * blocks);
        let mut packed = vec![0; self.width * points_len];
        let middle = QSpec { symmetric: true, ..self.spec() }.zero_point_midpoint() as u8;
        let mut points = Vec::new();
        let mut codes = vec![0; self.block_size];
        for column in 0..self.width {
            points.clear();
            for block in 0..blocks {
                let first = block * self.block_size;
                codes.fill(0);
                for (code, row) in codes.iter_mut().zip(first..self.depth) {
                    let (row, column, along) = if self.transposed {
                        (column, row, self.depth)
                    } else {
                        (row, column, self.width)
                    };
                    *code = integers[row * along + column];
                }
                let at = column * blocks + block;
                pack_into(&codes, bits, &mut blobs[at * blob..][..blob]);
                let group = if self.transposed { at } else { block * self.width + column };
                scales.push(params[group].scale);
                points.push(params[group].zero_point as u8);
            }
            // Unused bits of the last byte have the midpoint of the grid.
            points.resize(blocks.next_multiple_of(4), middle);
            pack_into(&points, bits, &mut packed[column * points_len..][..points_len]);
        }
        let metrics = Sums::default().metrics(0);
        (blobs, ColumnParams { scales, zero_points: ZeroPoints::Packed(packed), metrics })
    }
}

#[cfg(test)]
mod tests;
