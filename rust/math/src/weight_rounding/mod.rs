//! Scales and rounding of weights that minimize the error of a layer's output on samples.
//!
//! A layer computes `X · W`; with quantized weights the squared error of its output over all rows
//! of `X` is `tr(Eᵀ H E)`, where `E` is the error of the weight and `H = XᵀX` are the
//! [second moments](crate::SecondMoments) of its input. All algorithms minimize this quadratic form
//! over integers, scales and zero points. One file per algorithm.

mod adaround;
mod descent;
mod gptq;
mod panel;
mod scales;
mod targets;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, Axis};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{Params, QSpec};
pub use descent::improve as improve_columns;
pub use targets::corrected_targets;

/// A way to choose integers, scales and zero points of a weight from second moments. Each includes
/// the steps of those before it.
///
/// ```
/// use quantize_rs_math::Algorithm;
/// assert_eq!(Algorithm::Gptq.to_string(), "gptq");
/// assert!(Algorithm::Gptq < Algorithm::Descent);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Algorithm {
    /// Rounding to nearest, with scales computed from the weight alone.
    Nearest,
    /// Rounding to nearest, with scales of the least error weighted by `E[x²]`.
    Scales,
    /// Errors are made good in the elements that are rounded later.
    Gptq,
    /// Integers and scales are changed in turn as long as the error falls.
    Descent,
    /// A relaxed choice of the integer below or above each element, then the same.
    AdaRound,
}

impl Algorithm {
    /// The name of the algorithm in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Nearest => "nearest",
            Algorithm::Scales => "scales",
            Algorithm::Gptq => "gptq",
            Algorithm::Descent => "descent",
            Algorithm::AdaRound => "adaround",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How long an algorithm may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How often integers and scales are changed in turn.
    pub rounds: usize,
    /// How often each integer is visited in a round.
    pub passes: usize,
}

/// Columns of a weight that are multiplied by the same inputs, and the moments of these inputs.
///
/// A convolution in groups has one of these for each group.
#[derive(Clone, Debug)]
pub struct WeightColumns {
    /// The number of inputs, which is the number of elements of a column.
    pub depth: usize,
    /// The columns, one after the other.
    pub values: Vec<f32>,
    /// How many elements of a column in a row share a scale. The last block may be shorter.
    pub block: usize,
    /// The index of the scale of each block: those of the first column, then those of the next.
    pub groups: Vec<u32>,
    /// `XᵀX` of the inputs, `depth` × `depth`.
    pub moments: Array2<f64>,
}

impl WeightColumns {
    /// The number of columns.
    pub fn width(&self) -> usize {
        self.values.len().checked_div(self.depth).unwrap_or(0)
    }

    /// The number of blocks of a column.
    pub fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block.max(1))
    }

    /// The blocks of a column: the elements and the index of their scale.
    fn column_blocks(&self, column: usize) -> impl Iterator<Item = (&[f32], usize)> {
        let values = &self.values[column * self.depth..][..self.depth];
        let groups = &self.groups[column * self.blocks()..][..self.blocks()];
        values.chunks(self.block).zip(groups.iter().map(|group| *group as usize))
    }
}

/// The integers of [`WeightColumns`], in the same order.
pub type ColumnIntegers = Vec<i16>;

/// A quantized weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// The algorithm that computed it.
    pub algorithm: Algorithm,
    /// The scale and the zero point of each group.
    pub params: Vec<Params>,
    /// The integers of each part.
    pub integers: Vec<ColumnIntegers>,
}

impl Rounded {
    /// `tr(Eᵀ H E)` over all parts, with the moments of `parts`.
    pub fn quadratic_error(&self, parts: &[WeightColumns]) -> f64 {
        let each = parts.iter().enumerate();
        each.map(|(at, part)| quadratic_error(&self.errors(part, at), part)).sum()
    }

    /// The dequantized weight of `part`, the one at this position, column by column.
    pub fn values(&self, part: &WeightColumns, position: usize) -> Vec<f32> {
        let errors = self.errors(part, position);
        part.values.iter().zip(errors).map(|(value, error)| value + error).collect()
    }

    /// The errors of the weight of `part`, the one at this position, column by column.
    pub fn errors(&self, part: &WeightColumns, position: usize) -> Vec<f32> {
        let mut integers = self.integers[position].iter();
        let mut errors = Vec::with_capacity(part.values.len());
        for column in 0..part.width() {
            for (values, group) in part.column_blocks(column) {
                let Params { scale, zero_point } = self.params[group];
                errors.extend(values.iter().zip(&mut integers).map(|(value, integer)| {
                    (i32::from(*integer) - zero_point) as f32 * scale - value
                }));
            }
        }
        errors
    }
}

/// `tr(Eᵀ H E)` for the errors of the columns of a part, one column after the other.
pub fn quadratic_error(errors: &[f32], part: &WeightColumns) -> f64 {
    let shape = (part.width(), part.depth);
    let Ok(errors) = ArrayView2::from_shape(shape, errors) else { return f64::NAN };
    // Some columns at a time, which bounds the memory.
    let of_columns = |errors: ArrayView2<'_, f32>| {
        let errors = errors.mapv(f64::from);
        (&errors.dot(&part.moments) * &errors).sum()
    };
    let chunks: Vec<_> = errors.axis_chunks_iter(Axis(0), panel::WIDE).collect();
    let sums: Vec<f64> = chunks.into_par_iter().map(of_columns).collect();
    sums.iter().sum()
}

/// The squared error of the outputs for the rows `x`, which have `depth` elements each, and the
/// errors of columns, one after the other.
pub fn output_error(errors: &[f32], depth: usize, x: &[f32]) -> f64 {
    let rows = |all: &[f32]| all.len().checked_div(depth).unwrap_or(0);
    let views = ArrayView2::from_shape((rows(errors), depth), errors)
        .and_then(|errors| Ok((errors, ArrayView2::from_shape((rows(x), depth), x)?)));
    let Ok((errors, x)) = views else { return f64::NAN };
    // Some columns at a time, which bounds the memory.
    let of_columns = |errors: ArrayView2<'_, f32>| {
        let mut outputs = Array2::<f32>::zeros((errors.nrows(), x.nrows()));
        general_mat_mul(1.0, &errors, &x.t(), 0.0, &mut outputs);
        outputs.iter().map(|error| f64::from(*error) * f64::from(*error)).sum::<f64>()
    };
    let chunks: Vec<_> = errors.axis_chunks_iter(Axis(0), panel::WIDE).collect();
    let sums: Vec<f64> = chunks.into_par_iter().map(of_columns).collect();
    sums.iter().sum()
}

/// Bounds on the scales of a weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaleBounds<'a> {
    /// The smallest magnitude of the scale of each group; empty for none.
    pub floors: &'a [f32],
    /// Whether float16 must be able to represent the scales.
    pub halves: bool,
}

impl ScaleBounds<'_> {
    /// The nearest allowed parameters.
    fn allowed(&self, params: Params, group: usize, spec: &QSpec) -> Params {
        let floor = self.floors.get(group).copied().unwrap_or(0.0);
        let scale = params.scale.abs().max(floor).max(f32::MIN_POSITIVE);
        let params = Params { scale: scale.copysign(params.scale), ..params };
        if self.halves { params.in_halves(spec) } else { params }
    }
}

/// Rounds a weight with every algorithm up to `algorithm`, from [`Algorithm::Scales`] on. The
/// results are in the order of the algorithms.
///
/// `groups` is the number of scales. The spec has an integer type of up to 8 bits. Results do not
/// depend on the number of threads. Once `stop` is set, the function returns soon, and its result
/// has no meaning.
///
/// # References
///
/// Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
/// Transformers", ICLR 2023; Behdin et al., "`QuantEase`: Optimization-based Quantization for
/// Language Models", 2023 (coordinate descent).
pub fn round_columns(
    parts: &[WeightColumns],
    groups: usize,
    spec: &QSpec,
    bounds: ScaleBounds<'_>,
    algorithm: Algorithm,
    effort: Effort,
    stop: &AtomicBool,
) -> Vec<Rounded> {
    let mut found = Vec::new();
    if algorithm < Algorithm::Scales || parts.is_empty() {
        return found;
    }
    let params = scales::weighted(parts, groups, spec, bounds, stop);
    let integers = parts.iter().map(|part| scales::nearest(part, &params, spec)).collect();
    found.push(Rounded { algorithm: Algorithm::Scales, params, integers });
    if algorithm < Algorithm::Gptq {
        return found;
    }
    let params = found[0].params.clone();
    let integers = parts.par_iter().map(|part| gptq::round(part, &params, spec, stop));
    let gptq = Rounded { algorithm: Algorithm::Gptq, integers: integers.collect(), params };
    found.push(gptq.clone());
    if algorithm >= Algorithm::Descent {
        let descent = descent::improve(parts, gptq, spec, bounds, effort, stop);
        let params = descent.params.clone();
        found.push(descent);
        if algorithm >= Algorithm::AdaRound {
            // From the scales that descent found.
            let integers = parts.par_iter().map(|part| adaround::round(part, &params, spec, stop));
            let integers = integers.collect();
            let start = Rounded { algorithm: Algorithm::AdaRound, integers, params };
            let improved = descent::improve(parts, start, spec, bounds, effort, stop);
            found.push(Rounded { algorithm: Algorithm::AdaRound, ..improved });
        }
    }
    found
}

/// Whether the caller has set the flag.
fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}
