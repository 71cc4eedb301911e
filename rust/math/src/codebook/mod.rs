//! Weights of 4 bits that stand for 16 fixed numbers between -1 and 1, times the scale of a block.
//!
//! Sources: T. Dettmers et al., "`QLoRA`: Efficient Finetuning of Quantized LLMs" (arXiv
//! 2305.14314), section 3 and appendix E, for the numbers of NF4; ONNX Runtime's contrib operators,
//! `MatMulBnb4`, for those of FP4 and for the layout.

mod search;

use std::ops::Range;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::float_source::Element;
use crate::group_ranges::first_non_finite;
use crate::metrics::Sums;
use crate::simd::vectorized;
use crate::{FloatSource, MathError, Metrics};
use search::{Encode, Search};

/// 16 numbers that 4 bits stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Codebook {
    /// Floats with a sign, two bits of exponent and one of mantissa.
    Fp4,
    /// Quantiles of the normal distribution.
    Nf4,
}

/// What is known of a codebook.
struct Row {
    name: &'static str,
    about: &'static str,
    values: [f32; 16],
}

/// The rows, in the order of the variants, which is also how `MatMulBnb4` counts them.
const TABLE: [Row; 2] = [
    Row {
        name: "fp4",
        about: "floats of 4 bits in blocks, for matmul_bnb4",
        values: [
            0.0,
            0.005_208_333_5,
            0.666_666_7,
            1.0,
            0.333_333_34,
            0.5,
            0.166_666_67,
            0.25,
            0.0,
            -0.005_208_333_5,
            -0.666_666_7,
            -1.0,
            -0.333_333_34,
            -0.5,
            -0.166_666_67,
            -0.25,
        ],
    },
    Row {
        name: "nf4",
        about: "quantiles of the normal distribution in blocks, for matmul_bnb4",
        values: [
            -1.0,
            -0.696_192_8,
            -0.525_073_05,
            -0.394_917_5,
            -0.284_441_38,
            -0.184_773_43,
            -0.091_050_036,
            0.0,
            0.079_580_3,
            0.160_930_2,
            0.246_112_3,
            0.337_915_24,
            0.440_709_83,
            0.562_617,
            0.722_956_84,
            1.0,
        ],
    },
];

impl Codebook {
    /// Every codebook.
    pub const ALL: &'static [Codebook] = &[Codebook::Fp4, Codebook::Nf4];

    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// One line about it, for help texts.
    pub const fn about(self) -> &'static str {
        self.row().about
    }

    /// The numbers, by their code.
    pub const fn values(self) -> &'static [f32; 16] {
        &self.row().values
    }

    /// Its number in the attribute `quant_type` of `MatMulBnb4`.
    pub const fn number(self) -> i64 {
        self as i64
    }

    /// The codebook with this number.
    pub fn of_number(number: i64) -> Option<Codebook> {
        Codebook::ALL.iter().copied().find(|codebook| codebook.number() == number)
    }

    /// The code of the nearest number; of two as near, the smaller one.
    pub fn nearest(self, x: f32) -> u8 {
        Search::of(self).code(x)
    }
}

/// How a `depth` × `width` weight matrix (the right operand of a `MatMul`) is quantized: its
/// columns, one after the other, in blocks of `block_size` elements. The last block may be shorter.
///
/// ```
/// use quantize_rs_math::{Codebook, CodebookSpec};
/// let spec = CodebookSpec {
///     depth: 64,
///     width: 2,
///     transposed: false,
///     block_size: 32,
///     codebook: Codebook::Nf4,
///     least_error: false,
/// };
/// let coded = spec.quantize(&vec![-0.5; 128])?;
/// assert_eq!((coded.codes.len(), coded.scales), (64, vec![0.5; 4]));
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodebookSpec {
    /// Length of the axis that is summed over (K).
    pub depth: usize,
    /// The number of output columns (N).
    pub width: usize,
    /// Whether the data is `width` × `depth`.
    pub transposed: bool,
    /// Elements of a block, an even number.
    pub block_size: usize,
    /// The numbers.
    pub codebook: Codebook,
    /// Whether scales are chosen by the squared error; otherwise each is the largest magnitude.
    pub least_error: bool,
}

/// A matrix of codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Coded {
    /// The codes of a column after another, two in a byte, the first in its high bits.
    pub codes: Vec<u8>,
    /// A scale for each block, in the order of the columns.
    pub scales: Vec<f32>,
    /// The dequantized matrix, compared with the original.
    pub metrics: Metrics,
}

/// Blocks that are quantized together.
const BLOCKS_AT_ONCE: usize = 256;

impl CodebookSpec {
    /// The codes and scales of a matrix.
    ///
    /// # Errors
    ///
    /// An element is NaN or infinite, the number of elements differs from the shape, or the block
    /// size is 0 or odd.
    pub fn quantize<'a>(&self, data: impl Into<FloatSource<'a>>) -> Result<Coded, MathError> {
        let data = data.into();
        let expected = self.depth * self.width;
        if data.len() != expected {
            return Err(MathError::Length { what: "elements", found: data.len(), expected });
        }
        if self.block_size == 0 || !self.block_size.is_multiple_of(2) {
            return Err(MathError::BlockSize);
        }
        if let Some(index) = first_non_finite(data) {
            return Err(MathError::NonFinite { index, value: data.get(index).to_string() });
        }
        let search = Search::of(self.codebook);
        let length = BLOCKS_AT_ONCE * self.block_size;
        let parts: Vec<(Vec<u8>, Vec<f32>, Sums)> = (0..expected.div_ceil(length))
            .into_par_iter()
            .map(|part| {
                let own = part * length..expected.min((part + 1) * length);
                let values = match data {
                    FloatSource::Slice(all) => self.gathered(all, own),
                    FloatSource::LittleEndian(all) => self.gathered(all, own),
                };
                vectorized(Encode { spec: self, values: &values, search: &search })
            })
            .collect();
        let (mut codes, mut scales, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for (own_codes, own_scales, own_sums) in parts {
            codes.extend(own_codes);
            scales.extend(own_scales);
            sums.push(own_sums);
        }
        Ok(Coded { codes, scales, metrics: Sums::total(sums).metrics(expected) })
    }

    /// Some of the elements, counted a column after another. Rows of the data are read as they lie
    /// in memory.
    fn gathered<X: Element>(&self, data: &[X], own: Range<usize>) -> Vec<f32> {
        if self.transposed {
            return data[own].iter().map(|x| x.value()).collect();
        }
        let (first, last) = (own.start / self.depth, (own.end - 1) / self.depth);
        let rows = if first == last {
            own.start % self.depth..(own.end - 1) % self.depth + 1
        } else {
            0..self.depth
        };
        let mut values = vec![0.0; own.len()];
        for row in rows {
            for column in first..=last {
                let at = column * self.depth + row;
                if own.contains(&at) {
                    values[at - own.start] = data[row * self.width + column].value();
                }
            }
        }
        values
    }

    /// The numbers that codes stand for, a column after another. `None` if there are fewer codes or
    /// scales than the shape says.
    pub fn decode(&self, codes: &[u8], scales: &[f32]) -> Option<Vec<f32>> {
        let elements = self.depth.checked_mul(self.width)?;
        let block = Some(self.block_size).filter(|size| *size > 0)?;
        if codes.len() != elements.div_ceil(2) || scales.len() != elements.div_ceil(block) {
            return None;
        }
        let code =
            |at: usize| if at.is_multiple_of(2) { codes[at / 2] >> 4 } else { codes[at / 2] & 15 };
        let value = |code: u8| self.codebook.values()[usize::from(code)];
        Some((0..elements).map(|at| value(code(at)) * scales[at / block]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::search::PARTS;
    use super::*;

    #[test]
    fn codebooks_are_found_by_their_number() {
        for codebook in Codebook::ALL {
            assert_eq!(Codebook::of_number(codebook.number()), Some(*codebook));
        }
        assert_eq!((Codebook::Fp4.name(), Codebook::Nf4.name()), ("fp4", "nf4"));
        assert_eq!(Codebook::of_number(1), Some(Codebook::Nf4));
        assert_eq!(Codebook::of_number(2), None);
    }

    #[test]
    fn the_nearest_number_is_taken() {
        for codebook in Codebook::ALL {
            let values = codebook.values();
            for step in -2200..=2200_i16 {
                let x = f32::from(step) / 2000.0;
                let found = values[usize::from(codebook.nearest(x))];
                let least = values.iter().map(|value| (x - value).abs()).fold(9.0, f32::min);
                assert_eq!((x - found).abs(), least, "{codebook:?} {x}");
            }
            assert_eq!(values[usize::from(codebook.nearest(0.0))], 0.0);
        }
        assert_eq!(Codebook::Fp4.nearest(0.0), 0);
    }

    #[test]
    fn least_error_is_no_worse_and_decodes_to_what_was_measured() {
        let data: Vec<f32> = (0..64 * 5_u16).map(|i| (f32::from(i) * 0.7).sin().powi(3)).collect();
        for codebook in Codebook::ALL {
            for transposed in [false, true] {
                let spec = CodebookSpec {
                    depth: 64,
                    width: 5,
                    transposed,
                    block_size: 16,
                    codebook: *codebook,
                    least_error: false,
                };
                let plain = spec.quantize(&data).unwrap();
                let better = CodebookSpec { least_error: true, ..spec }.quantize(&data).unwrap();
                assert!(better.metrics.mse < plain.metrics.mse);
                let decoded = spec.decode(&better.codes, &better.scales).unwrap();
                let own = |at: usize| {
                    let (column, row) = (at / 64, at % 64);
                    if transposed { data[at] } else { data[row * 5 + column] }
                };
                let original: Vec<f32> = (0..320).map(own).collect();
                let mse = crate::metrics(&original, &decoded).mse;
                assert!((mse - better.metrics.mse).abs() < 1e-9 * mse);
                assert!(spec.decode(&better.codes[1..], &better.scales).is_none());
            }
        }
    }

    /// The scale of a block, step by step.
    fn scale_by_definition(spec: &CodebookSpec, block: &[f32]) -> f32 {
        let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if largest < f32::MIN_POSITIVE || !spec.least_error {
            return largest.max(f32::MIN_POSITIVE);
        }
        let mut best = (f64::INFINITY, largest);
        let mut attempt = |scale: f32| {
            let (mut error, mut products, mut squares) = (0.0_f64, 0.0_f64, 0.0_f64);
            for x in block {
                let code = spec.codebook.nearest(x / scale);
                let value = f64::from(spec.codebook.values()[usize::from(code)]);
                error += (f64::from(*x) - value * f64::from(scale)).powi(2);
                products += f64::from(*x) * value;
                squares += value * value;
            }
            if error < best.0 {
                best = (error, scale);
            }
            (products / squares) as f32
        };
        for part in PARTS {
            let refit = attempt(largest * part);
            if refit >= f32::MIN_POSITIVE && refit.is_finite() {
                attempt(refit);
            }
        }
        best.1
    }

    #[test]
    fn codes_and_scales_are_those_of_the_definition() {
        let mut state = 5_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for (depth, width) in [(64, 40), (50, 23), (16, 1), (3, 37), (700, 2)] {
            let mut data: Vec<f32> = (0..depth * width).map(|_| next() * next() * next()).collect();
            data.iter_mut().step_by(7).for_each(|x| *x = 0.0);
            // Blocks of zeros, of denormals and of the largest numbers.
            for (at, x) in data.iter_mut().enumerate() {
                *x *= [1.0, 0.0, 1e-40, 3e38, 1.0, 1e-37, 1.0][at / 48 % 7];
            }
            for codebook in Codebook::ALL {
                for (transposed, least_error) in [(true, true), (false, true), (true, false)] {
                    let codebook = *codebook;
                    let block_size = 16;
                    let spec = CodebookSpec {
                        depth,
                        width,
                        transposed,
                        block_size,
                        codebook,
                        least_error,
                    };
                    let own = |at: usize| {
                        let (column, row) = (at / depth, at % depth);
                        data[if transposed { at } else { row * width + column }]
                    };
                    let values: Vec<f32> = (0..data.len()).map(own).collect();
                    let scales: Vec<f32> =
                        values.chunks(16).map(|block| scale_by_definition(&spec, block)).collect();
                    let code = |at: usize| codebook.nearest(values[at] / scales[at / 16]);
                    let codes: Vec<u8> = (0..data.len().div_ceil(2))
                        .map(|at| {
                            let second = 2 * at + 1;
                            code(2 * at) << 4 | if second < data.len() { code(second) } else { 0 }
                        })
                        .collect();
                    let found = spec.quantize(&data).unwrap();
                    assert_eq!(found.scales, scales, "{spec:?}");
                    assert_eq!(found.codes, codes, "{spec:?}");
                }
            }
        }
    }

    #[test]
    fn zeros_and_wrong_shapes_are_handled() {
        let spec = CodebookSpec {
            depth: 16,
            width: 1,
            transposed: false,
            block_size: 16,
            codebook: Codebook::Fp4,
            least_error: true,
        };
        let zeros = spec.quantize(&[0.0; 16]).unwrap();
        assert_eq!(spec.decode(&zeros.codes, &zeros.scales).unwrap(), [0.0; 16]);
        assert!(spec.quantize(&[0.0; 15]).is_err());
        assert!(spec.quantize(&[f32::NAN; 16]).is_err());
        assert!(CodebookSpec { block_size: 15, ..spec }.quantize(&[0.0; 16]).is_err());
        // A block that goes on in the next column, and half a byte at the end.
        let odd = CodebookSpec { depth: 3, width: 7, ..spec };
        let data: Vec<f32> = (0..21_u8).map(f32::from).collect();
        let coded = odd.quantize(&data).unwrap();
        assert_eq!((coded.codes.len(), coded.scales.len()), (11, 2));
        assert_eq!(odd.decode(&coded.codes, &coded.scales).unwrap().len(), 21);
    }
}
