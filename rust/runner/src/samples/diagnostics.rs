//! Checks samples for signs that they are not representative of production inputs.

use quantize_rs::{
    CalibrationError, InputEvidence, InputSpec, Sample, SampleEvidence, Samples, rows_at_once,
};
use quantize_rs_onnx::Tensor;

use super::BoxedSamples;

/// The minimum correlation of neighbouring pixels in images; in natural images it is nearly 1.
const MIN_PIXEL_CORRELATION: f64 = 0.1;

/// The minimum number of values of an image for this check.
const MIN_IMAGE_VALUES: usize = 1024;

/// The number of spans, evenly distributed over the values, that are checked in larger images.
const SPANS: usize = 16;

/// Passes samples on unchanged, and collects statistics for [`SampleDiagnostics::warnings`].
///
/// The statistics have a fixed size, and a check stops once it is certain that there is nothing to
/// report. The warnings do not depend on the order of the samples.
///
/// ```
/// use quantize_rs::{InputSpec, Samples};
/// use quantize_rs_onnx::Tensor;
/// use quantize_rs_runner::samples::{self, SampleDiagnostics};
///
/// let input = InputSpec { name: "x".into(), dtype: None, shape: None };
/// let same = Tensor::from_f32(vec![3, 2], &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
/// let inputs = [input];
/// let samples = samples::from_arrays(vec![("x".into(), same)], &inputs, None)?;
/// let mut samples = SampleDiagnostics::new(samples, &inputs);
/// while samples.next_sample().is_some() {}
/// assert!(samples.warnings()[0].starts_with("only 3 samples"));
/// assert_eq!(samples.warnings()[1], "all 3 samples are identical");
/// # Ok::<(), quantize_rs::CalibrationError>(())
/// ```
pub struct SampleDiagnostics {
    samples: BoxedSamples,
    /// Rows per sample, if the model has a fixed batch size.
    batch: usize,
    count: usize,
    evidence: SampleEvidence,
}

impl SampleDiagnostics {
    /// Checks these samples for a model with these inputs.
    pub fn new(samples: BoxedSamples, inputs: &[InputSpec]) -> SampleDiagnostics {
        let (batch, evidence) = (rows_at_once(inputs), SampleEvidence::new());
        SampleDiagnostics { samples, batch, count: 0, evidence }
    }

    /// The warnings about the samples so far, as sentences without a full stop.
    pub fn warnings(&self) -> Vec<String> {
        self.evidence().warnings(self.count, self.batch)
    }

    /// What the samples so far show about themselves.
    pub fn evidence(&self) -> SampleEvidence {
        if self.count == 0 {
            return SampleEvidence::default();
        }
        let mut evidence = self.evidence.clone();
        evidence.conversions = self.samples.conversions();
        evidence.sort();
        evidence
    }

    fn look_at(&mut self, sample: &Sample) {
        if self.count == 0 {
            let inputs = sample.inputs.iter();
            self.evidence.inputs = inputs.map(|(name, value)| suspected(name, value)).collect();
        }
        self.count += 1;
        self.evidence.add(&sample.inputs);
        self.evidence.inputs.retain_mut(|input| {
            if let Some(value) = sample.get(&input.name) {
                look_at(input, value);
            }
            input.is_suspect()
        });
    }
}

impl Samples for SampleDiagnostics {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let sample = self.samples.next_sample()?;
        if let Ok(sample) = &sample {
            self.look_at(sample);
        }
        Some(sample)
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        self.samples.skip_sample()
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }

    fn count(&mut self) -> Option<usize> {
        self.samples.count()
    }

    fn conversions(&self) -> Vec<String> {
        self.samples.conversions()
    }
}

/// The suspicions about an input, each until a sample disproves it.
fn suspected(name: &str, value: &Tensor) -> InputEvidence {
    // Masks and token types are often constant, and so are flags.
    let may_vary = value.dtype.is_float() && value.elements() > 1;
    let first = value.data[..value.data.len().min(size(value))].to_vec();
    InputEvidence { name: name.to_owned(), constant: may_vary.then_some(first), noise: true }
}

fn look_at(input: &mut InputEvidence, value: &Tensor) {
    let constant = input.constant.take();
    input.constant = constant
        .filter(|one| value.data.chunks(size(value)).all(|element| element == one.as_slice()));
    input.noise = input.noise && is_noise(value);
}

/// Bytes per element.
fn size(value: &Tensor) -> usize {
    (value.dtype.bits() / 8).max(1)
}

/// Whether these are images whose neighbouring pixels are uncorrelated.
fn is_noise(value: &Tensor) -> bool {
    let apart = match value.shape[..] {
        [_, 1 | 3, _, _] => 1,
        [_, _, _, channels @ (1 | 3)] => channels,
        _ => return false,
    };
    let values = sampled_values(value);
    values.len() >= MIN_IMAGE_VALUES
        && correlation(&values, apart).is_some_and(|c| c.abs() < MIN_PIXEL_CORRELATION)
}

/// The values of an image, or spans of them if there are many.
fn sampled_values(value: &Tensor) -> Vec<f32> {
    let size = size(value);
    let count = value.data.len() / size;
    if count <= SPANS * MIN_IMAGE_VALUES {
        return value.to_f32().unwrap_or_default();
    }
    let stretch = |at: usize| {
        let from = at * (count - MIN_IMAGE_VALUES) / (SPANS - 1);
        let data = value.data.slice(from * size..(from + MIN_IMAGE_VALUES) * size);
        Tensor { dtype: value.dtype, shape: vec![MIN_IMAGE_VALUES], data }
            .to_f32()
            .unwrap_or_default()
    };
    (0..SPANS).flat_map(stretch).collect()
}

/// The correlation of values `apart` positions from each other; `None` when all are equal.
fn correlation(values: &[f32], apart: usize) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)] // a length
    let mean = values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
    let off = |value: f32| f64::from(value) - mean;
    let variance: f64 = values.iter().map(|value| off(*value).powi(2)).sum();
    let pairs = values.iter().zip(values.get(apart..)?);
    let covariance: f64 = pairs.map(|(a, b)| off(*a) * off(*b)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{from_arrays, random};

    fn warnings(mut samples: SampleDiagnostics) -> Vec<String> {
        while let Some(sample) = samples.next_sample() {
            sample.expect("a sample");
        }
        samples.warnings()
    }

    /// The warnings about samples of 4 numbers each; `number` is called with sample and position.
    fn about(count: u16, number: impl Fn(u16, u16) -> f32) -> Vec<String> {
        let values: Vec<f32> = (0..count)
            .flat_map(|sample| (0..4).map(move |place| (sample, place)))
            .map(|(sample, place)| number(sample, place))
            .collect();
        let rows = Tensor::from_f32(vec![count.into(), 4], &values);
        let inputs = [InputSpec { name: "x".into(), dtype: None, shape: None }];
        let samples = from_arrays(vec![("x".into(), rows)], &inputs, None);
        warnings(SampleDiagnostics::new(samples.expect("samples"), &inputs))
    }

    #[test]
    fn rows_of_a_fixed_batch_are_counted_individually() {
        let of = |name: &str, first: Option<usize>| InputSpec {
            name: name.to_owned(),
            dtype: None,
            shape: Some(vec![first, Some(2)]),
        };
        let about = |inputs: &[InputSpec], rows: u16| {
            let arrays = inputs.iter().map(|input| {
                let values: Vec<f32> = (0..rows * 2).map(f32::from).collect();
                (input.name.clone(), Tensor::from_f32(vec![rows.into(), 2], &values))
            });
            let samples = from_arrays(arrays.collect(), inputs, None).expect("samples");
            warnings(SampleDiagnostics::new(samples, inputs))
        };
        assert!(about(&[of("x", Some(8))], 32).is_empty());
        assert!(about(&[of("x", Some(8)), of("y", Some(8))], 32).is_empty());
        assert!(about(&[of("x", Some(8))], 24)[0].starts_with("only 3 samples of 8 rows: "));
        assert!(about(&[of("x", Some(1)), of("y", None)], 31)[0].starts_with("only 31 samples: "));
    }

    #[test]
    fn enough_distinct_samples_have_no_warnings() {
        for count in [32, 33, 1000] {
            assert!(about(count, |sample, place| f32::from(sample + place)).is_empty());
        }
        // duplicates of many samples are accepted
        assert!(about(200, |sample, place| f32::from(sample % 40 + place)).is_empty());
    }

    #[test]
    fn few_duplicate_and_constant_samples_are_reported() {
        let few = |n: &str| format!("only {n}: give at least 128, as varied as production inputs");
        let ramp = |sample: u16, place: u16| f32::from(sample + place);
        assert_eq!(about(1, ramp), [few("1 sample")]);
        assert_eq!(about(31, ramp), [few("31 samples")]);
        assert_eq!(about(40, |_, place| f32::from(place)), ["all 40 samples are identical"]);
        let some = about(90, |sample, place| f32::from(sample % 9 + place));
        assert_eq!(some, ["only 9 of 90 samples are distinct"]);
        let constant = "all values of input `x` are the same in all samples";
        assert_eq!(about(40, |_, _| 0.5), ["all 40 samples are identical", constant]);
        // each sample is constant, but they differ
        assert!(about(40, |sample, _| f32::from(sample)).is_empty());
    }

    #[test]
    fn noise_is_distinguished_from_images() {
        for shape in
            [vec![Some(1), Some(3), Some(32), Some(32)], vec![Some(1), Some(32), Some(32), Some(3)]]
        {
            let input = InputSpec {
                name: "x".into(),
                dtype: Some(quantize_rs_onnx::DataType::Float),
                shape: Some(shape),
            };
            let noise = random(std::slice::from_ref(&input), 40, None, 0).expect("samples");
            let found = warnings(SampleDiagnostics::new(noise, std::slice::from_ref(&input)));
            assert!(
                found.len() == 1 && found[0].starts_with("input `x` looks like noise"),
                "{found:?}"
            );
        }
        // Large images are checked from top to bottom: the margin of these is nearly empty, with
        // noise.
        let shape = vec![Some(1), Some(1), Some(512), Some(512)];
        let input = [InputSpec { name: "x".into(), dtype: None, shape: Some(shape) }];
        for (margin, is_noise) in [(32, false), (512, true)] {
            let number = |row: u16, column: u16| {
                let mixed = u32::from(row) * 512 + u32::from(column);
                let mixed = mixed.wrapping_mul(2_654_435_761);
                let [.., noise] = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519).to_le_bytes();
                if row < margin {
                    f32::from(noise) / 2560.0
                } else {
                    (f32::from(column) / 9.0).sin()
                }
            };
            let pixels = (0..512).flat_map(|row| (0..512).map(move |column| number(row, column)));
            let image = Tensor::from_f32(vec![1, 1, 512, 512], &pixels.collect::<Vec<f32>>());
            let images = from_arrays(vec![("x".to_owned(), image)], &input, None);
            let said =
                warnings(SampleDiagnostics::new(images.expect("samples"), &input)).join("\n");
            assert_eq!(said.contains("looks like noise"), is_noise, "{said}");
        }
        let inputs = [InputSpec {
            name: "x".into(),
            dtype: None,
            shape: Some(vec![None, Some(1), Some(32), Some(32)]),
        }];
        let smooth: Vec<f32> = (0..40_u16 * 1024).map(|i| (f32::from(i) / 9.0).sin()).collect();
        let images = vec![("x".to_owned(), Tensor::from_f32(vec![40, 1, 32, 32], &smooth))];
        let samples = from_arrays(images, &inputs, None).expect("samples");
        assert!(warnings(SampleDiagnostics::new(samples, &inputs)).is_empty());
    }

    #[test]
    fn no_samples_have_no_warnings() {
        let inputs = [InputSpec { name: "x".into(), dtype: None, shape: None }];
        let rows = Tensor::from_f32(vec![1, 1], &[1.0]);
        let samples = from_arrays(vec![("x".into(), rows)], &inputs, None).expect("samples");
        assert!(SampleDiagnostics::new(samples, &inputs).warnings().is_empty());
    }
}
