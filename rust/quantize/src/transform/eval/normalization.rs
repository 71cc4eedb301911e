//! Normalization of float32 weights, as weight standardization does.
//!
//! Computed in float64 and rounded once.

use quantize_rs_onnx::Tensor;

use super::elements::{tensor, values};
use super::numbers::rounded;
use super::reductions::{mean, with_axes_last};
use super::{Call, Evaluate};

pub(super) const ALL: &[(&str, Evaluate)] =
    &[("BatchNormalization", batch), ("InstanceNormalization", instance)];

/// The mean and the variance of each channel, or of each channel of each row.
type Moments = Vec<(f64, f64)>;

fn batch(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    // Before opset 9, each element could have its own statistics. Before opset 14, a node with more
    // outputs trains.
    let trains = call.opset < 14 && call.node.output.len() > 1;
    if call.opset < 9 || trains || source.shape.len() < 2 {
        return None;
    }
    let moments = if call.node.int("training_mode", 0) == 0 {
        let (means, variances) = (channels(call, 3)?, channels(call, 4)?);
        means.into_iter().zip(variances).collect()
    } else {
        let axes: Vec<usize> = (0..source.shape.len()).filter(|axis| *axis != 1).collect();
        moments(call, source, &axes)?
    };
    normalized(call, source, &moments)
}

fn instance(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0).filter(|source| source.shape.len() > 2)?;
    let axes: Vec<usize> = (2..source.shape.len()).collect();
    normalized(call, source, &moments(call, source, &axes)?)
}

/// An input with a number for each channel.
fn channels(call: &Call<'_>, input: usize) -> Option<Vec<f64>> {
    let found: Vec<f32> = values(call.input(input)?)?;
    let fits = found.len() == *call.input(0)?.shape.get(1)?;
    fits.then(|| found.into_iter().map(f64::from).collect())
}

/// The moments along some axes, with the variance of the whole population.
fn moments(call: &Call<'_>, source: &Tensor, axes: &[usize]) -> Option<Moments> {
    let (sorted, run) = with_axes_last(call, source, axes)?;
    let of_run = |run: &[f32]| {
        let wide: Vec<f64> = run.iter().map(|it| f64::from(*it)).collect();
        let center = mean(&wide);
        let squares: Vec<f64> = wide.iter().map(|it| (it - center).powi(2)).collect();
        (center, mean(&squares))
    };
    Some(values::<f32>(&sorted)?.chunks(run).map(of_run).collect())
}

/// Each element normalized, scaled and shifted. The moments repeat along the first axis if there
/// are too few.
fn normalized(call: &Call<'_>, source: &Tensor, moments: &Moments) -> Option<Tensor> {
    let (scales, shifts) = (channels(call, 1)?, channels(call, 2)?);
    let epsilon = f64::from(call.node.float("epsilon", 1e-5));
    call.fits(&source.shape, 4)?;
    let run: usize = source.shape[2..].iter().product();
    let elements: Vec<f32> = values(source)?;
    if run == 0 || moments.is_empty() {
        return None;
    }
    let mut made = Vec::with_capacity(elements.len());
    for (at, run) in elements.chunks(run).enumerate() {
        let (mean, variance) = moments[at % moments.len()];
        let (scale, shift) = (scales[at % scales.len()], shifts[at % shifts.len()]);
        let factor = scale / (variance + epsilon).sqrt();
        for element in run {
            made.push(rounded((f64::from(*element) - mean).mul_add(factor, shift))?);
        }
    }
    Some(tensor(source.shape.clone(), made))
}
