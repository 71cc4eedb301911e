//! Random samples, for trying things out. They are not suitable for calibration.

use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Sample, Samples};
use quantize_rs_onnx::{DataType, Tensor};

use super::{BoxedSamples, convert, refuse_strings};
use crate::inputs::{describe, elements, fits, mismatch};

/// `count` random samples, which are the same for the same `seed`.
///
/// Floating-point inputs get standard normal values; integers and booleans get 0 and 1, which are
/// valid tokens and masks. `shape` is the shape of a sample without its first axis, such as
/// `[3, 224, 224]`. It is required if the model has dynamic dimensions, and applies to every input
/// that it fits. In the others, such as the state of a recurrent model, dynamic dimensions are 1.
/// The first axis has the model's dimension, or 1 if that is dynamic.
///
/// ```
/// use quantize_rs::InputSpec;
/// use quantize_rs_onnx::DataType;
/// use quantize_rs_runner::samples::random;
///
/// let shape = Some(vec![None, Some(3), None, None]);
/// let input = InputSpec { name: "x".into(), dtype: Some(DataType::Float), shape };
/// let mut samples = random(&[input.clone()], 2, Some(&[3, 8, 8]), 0)?;
/// assert_eq!(samples.next_sample().unwrap()?.get("x").unwrap().shape, [1, 3, 8, 8]);
/// assert!(random(&[input], 2, None, 0).is_err());
/// # Ok::<(), quantize_rs::CalibrationError>(())
/// ```
///
/// # Errors
/// [`CalibrationErrorKind::NoSamples`] if `count` is 0, and [`CalibrationErrorKind::InputMismatch`]
/// with the name of an input whose shape is unknown, whose type is not a plain number, or that
/// `shape` does not fit if it fits none.
pub fn random(
    inputs: &[InputSpec],
    count: usize,
    shape: Option<&[usize]>,
    seed: u64,
) -> Result<BoxedSamples, CalibrationError> {
    if inputs.is_empty() {
        return Err(mismatch("the model has no input to feed"));
    }
    if count == 0 {
        let reason = "0 were requested".into();
        return Err(CalibrationError::new(CalibrationErrorKind::NoSamples { reason }));
    }
    refuse_strings(inputs)?;
    let fits_any = inputs.iter().any(|input| shape.is_some() && sample_shape(input, shape).is_ok());
    let shapes = inputs.iter().map(|input| {
        let Some(dtype) = input.dtype else {
            let kind = CalibrationErrorKind::NoTensorInput { input: input.name.clone() };
            return Err(CalibrationError::new(kind).at_value(&input.name));
        };
        let shape = match sample_shape(input, shape) {
            Err(_) if fits_any && input.shape.is_some() => {
                let rest: Option<Vec<usize>> = input.shape.as_deref().map(open_as_one);
                sample_shape(input, rest.as_deref().filter(|_| !is_scalar(input)))?
            }
            found => found?,
        };
        convert(Tensor::from_f32(vec![0], &[]), dtype, &input.name)?; // can it be fed at all?
        Ok(RandomInput { name: input.name.clone(), dtype, shape })
    });
    let inputs = shapes.collect::<Result<_, CalibrationError>>()?;
    Ok(Box::new(Random { inputs, left: count, bits: SplitMix64(seed) }))
}

fn sample_shape(
    input: &InputSpec,
    given: Option<&[usize]>,
) -> Result<Vec<usize>, CalibrationError> {
    let (name, expects) = (&input.name, describe(input));
    let error = |message: String| Err(mismatch(message).at_value(name));
    let declared = input.shape.as_deref();
    let Some(rest) = given.map(<[usize]>::to_vec).or_else(|| declared.and_then(fixed_rest)) else {
        return error(format!(
            "input `{name}` is {expects}: give the shape of a sample, without the first axis"
        ));
    };
    let shape = match declared {
        Some([]) if given.is_none() => Vec::new(),
        _ => {
            let batch = declared.and_then(|dims| dims.first().copied().flatten()).unwrap_or(1);
            [&[batch], rest.as_slice()].concat()
        }
    };
    if declared.is_some_and(|declared| !fits(declared, &shape)) {
        return error(format!("input `{name}` expects {expects}, random samples are {shape:?}"));
    }
    match elements(&shape).and_then(|elements| elements.checked_mul(8)) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(shape),
        _ => error(format!("samples of shape {shape:?} are larger than any memory")),
    }
}

/// The dimensions after the first axis, with 1 for those that are dynamic.
fn open_as_one(declared: &[Option<usize>]) -> Vec<usize> {
    declared.iter().skip(1).map(|length| length.unwrap_or(1)).collect()
}

fn is_scalar(input: &InputSpec) -> bool {
    input.shape.as_ref().is_some_and(Vec::is_empty)
}

/// The dimensions after the first axis, if all are fixed.
fn fixed_rest(declared: &[Option<usize>]) -> Option<Vec<usize>> {
    declared.iter().skip(1).copied().collect()
}

/// An input and its shape and type.
struct RandomInput {
    name: String,
    dtype: DataType,
    shape: Vec<usize>,
}

struct Random {
    inputs: Vec<RandomInput>,
    left: usize,
    bits: SplitMix64,
}

impl Samples for Random {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.left = self.left.checked_sub(1)?;
        let bits = &mut self.bits;
        let inputs = self.inputs.iter().map(|input| {
            let next = if input.dtype.is_float() { SplitMix64::normal } else { SplitMix64::bit };
            let values = (0..input.shape.iter().product()).map(|_| next(bits));
            let values = Tensor::from_f32(input.shape.clone(), &values.collect::<Vec<f32>>());
            Ok((input.name.clone(), convert(values, input.dtype, &input.name)?))
        });
        Some(inputs.collect::<Result<_, _>>().map(|inputs| Sample { inputs }))
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The generator of Steele, Lea and Flood (2014): small, and good enough for samples.
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in (0, 1].
    #[allow(clippy::cast_precision_loss)] // 53 bits are exact
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A standard normal number, by Box and Muller.
    #[allow(clippy::cast_possible_truncation)] // rounded to float32
    pub(super) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    pub(super) fn bit(&mut self) -> f32 {
        if self.next() >> 63 == 0 { 0.0 } else { 1.0 }
    }

    /// A whole number below `end`, which is at least 1.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // rows of tables
    pub(super) fn below(&mut self, end: usize) -> f32 {
        (self.next() % end as u64) as f32
    }

    /// A whole number from `least` to `most`.
    #[allow(clippy::cast_precision_loss)] // lengths of samples
    pub(super) fn between(&mut self, least: usize, most: usize) -> f32 {
        least as f32 + self.below(most - least + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn spec(dtype: DataType, shape: &[Option<usize>]) -> InputSpec {
        InputSpec { name: "x".into(), dtype: Some(dtype), shape: Some(shape.to_vec()) }
    }

    fn values(inputs: &[InputSpec], seed: u64) -> Vec<Sample> {
        let mut samples = random(inputs, 3, None, seed).expect("samples");
        assert_eq!(samples.len_hint(), Some(3));
        std::iter::from_fn(|| samples.next_sample()).map(|sample| sample.expect("values")).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_samples_and_another_seed_others() {
        let input = [spec(DataType::Float, &[None, Some(5)])];
        assert_eq!(values(&input, 7), values(&input, 7));
        assert_ne!(values(&input, 7), values(&input, 8));
        let all = values(&input, 7);
        assert_eq!(all.len(), 3);
        assert_ne!(all[0], all[1]);
    }

    #[test]
    fn floats_are_standard_normal_and_integers_are_bits() {
        let all = values(&[spec(DataType::Float, &[Some(100), Some(100)])], 1);
        let values_f32 = all[0].get("x").and_then(Tensor::to_f32).expect("float32");
        let mean = values_f32.iter().sum::<f32>() / 1e4;
        let variance = values_f32.iter().map(|value| value * value).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        for dtype in [DataType::UInt8, DataType::Bool, DataType::Int8] {
            let all = values(&[spec(dtype, &[Some(1), Some(100)])], 1);
            let ones = all[0].get("x").expect("x").data.iter().map(|bit| usize::from(*bit)).sum();
            assert!((20_usize..80).contains(&ones), "{dtype}");
        }
    }

    #[test]
    fn a_shape_applies_to_the_inputs_that_it_fits() {
        let inputs: Vec<InputSpec> = [
            ("x", vec![None, None, Some(20)]),
            ("state", vec![Some(1), None, Some(32)]),
            ("length", vec![None]),
            ("rate", vec![]),
            ("scale", vec![Some(2), Some(3)]),
        ]
        .into_iter()
        .map(|(name, shape)| InputSpec { name: name.into(), ..spec(DataType::Float, &shape) })
        .collect();
        let mut samples = random(&inputs, 1, Some(&[4, 20]), 0).expect("samples");
        let sample = samples.next_sample().expect("a sample").expect("values");
        let shapes: Vec<&[usize]> =
            sample.inputs.iter().map(|(_, value)| value.shape.as_slice()).collect();
        let expected: [&[usize]; 5] = [&[1, 4, 20], &[1, 1, 32], &[1], &[], &[2, 3]];
        assert_eq!(shapes, expected);
        let error = random(&inputs, 1, Some(&[9]), 0).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("input `x` expects")));
    }

    #[test]
    fn dynamic_dimensions_and_unsupported_types_are_errors() {
        let image = spec(DataType::Float, &[Some(2), Some(3), None]);
        let cases = [
            (
                random(slice::from_ref(&image), 1, None, 0),
                "input `x` is float32 [2, 3, ?]: give the shape",
            ),
            (random(slice::from_ref(&image), 1, Some(&[4, 4]), 0), "random samples are [2, 4, 4]"),
            (random(slice::from_ref(&image), 1, Some(&[3]), 0), "random samples are [2, 3]"),
            (
                random(slice::from_ref(&image), 1, Some(&[3, usize::MAX]), 0),
                "larger than any memory",
            ),
            (random(&[image], 0, Some(&[3, 4]), 0), "no calibration samples: 0 were requested"),
            (random(&[spec(DataType::String, &[Some(1)])], 1, None, 0), "string"),
            (random(&[], 1, None, 0), "no input"),
        ];
        for (result, message) in cases {
            let error = result.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(message), "{error:?} without {message:?}");
        }
    }
}
