//! Items of an iterable: each is one sample, or a batch of samples.

use quantize_rs::{CalibrationError, InputSpec, Sample, Samples};
use quantize_rs_onnx::{DataType, Model, Raw, Tensor, ValueInfoProto};

use super::convert::{self, convert};
use super::{BoxedSamples, batching, from_arrays};
use crate::inputs::{elements, fits};

/// Converts the items of an iterable, which are arrays for the inputs of a model, to samples.
///
/// A single array has its samples along the first axis. An item of an iterable may be a batch or a
/// sample, and its shape alone does not distinguish them: `[40, 1, 13]` is forty images or one
/// sequence of forty steps. So the model decides:
///
/// - Arrays with one axis less than the inputs are one sample without its first axis.
/// - Arrays with exactly the shapes of the inputs are divided into samples if the first axis of
///   every input is a batch axis and all arrays have the same length along it. An axis is a batch
///   axis if it is dynamic and its name says so (`N`, `B`, or anything with `batch` in it), or if
///   it has no meaningful name (none, or a numbered one as exporters generate) and the input has
///   four axes or more, as images do. Otherwise the arrays are one sample: dividing a sequence into
///   its steps would give other values, whereas running a batch as a whole gives the same. They are
///   also one sample if rows depend on each other: no output has a dynamic first axis, or an input
///   has the same axis in another position too.
/// - All others are divided as [`from_arrays`] does.
///
/// ```
/// use quantize_rs::Samples;
/// use quantize_rs_onnx::{Model, Tensor};
/// use quantize_rs_runner::samples::Items;
///
/// let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
/// let count = |model: &str, shape: &[usize]| {
///     let items = Items::of(&Model::open(format!("{models}/{model}.onnx"))?);
///     let zeros = vec![0.0; shape.iter().product()];
///     let item = vec![("x".to_owned(), Tensor::from_f32(shape.to_vec(), &zeros))];
///     Ok::<_, Box<dyn std::error::Error>>(items.samples(item)?.len_hint())
/// };
/// assert_eq!(count("conv2d_relu", &[4, 3, 12, 12])?, Some(4)); // its first axis is `batch`
/// assert_eq!(count("lstm", &[4, 1, 10])?, Some(1)); // its first axis is `seq`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Items {
    inputs: Vec<InputSpec>,
    /// Whether the first axis of every input is a batch axis.
    batched: bool,
}

impl Items {
    /// Items for this model.
    pub fn of(model: &Model) -> Items {
        let inputs = InputSpec::of(model);
        let batched = first_axes_are_batches(model, &inputs) && rows_are_independent(model);
        Items { inputs, batched }
    }

    /// The samples of one item: arrays with the names of their inputs, or a single one called `""`.
    ///
    /// # Errors
    /// As [`from_arrays`].
    pub fn samples(&self, arrays: Vec<(String, Tensor)>) -> Result<BoxedSamples, CalibrationError> {
        let mut arrays = batching::in_order(arrays, &self.inputs)?;
        let mut pairs = self.inputs.iter().zip(&arrays);
        if pairs.all(|(input, (_, array))| lacks_first_axis(input, array)) {
            for (_, array) in &mut arrays {
                array.shape.insert(0, 1);
            }
        }
        if self.are_one_sample(&arrays) {
            let pairs = self.inputs.iter().zip(&arrays);
            let conversions = pairs
                .filter_map(|(input, (_, array))| convert::warning(input, array.dtype))
                .collect();
            let values = self.inputs.iter().zip(arrays).map(|(input, (_, array))| {
                (input.name.clone(), input.dtype.unwrap_or(array.dtype), array)
            });
            return Ok(Box::new(SingleSample { values: Some(values.collect()), conversions }));
        }
        from_arrays(arrays, &self.inputs, None)
    }

    /// Whether these arrays, one per input, are one sample.
    fn are_one_sample(&self, arrays: &[(String, Tensor)]) -> bool {
        let fit = self.inputs.iter().zip(arrays).all(|(input, (_, array))| {
            input.shape.as_deref().is_none_or(|shape| fits(shape, &array.shape))
        });
        let empty = arrays.iter().all(|(_, array)| elements(&array.shape) == Some(0));
        let mut lengths = arrays.iter().map(|(_, array)| array.shape.first());
        let first = lengths.next();
        let is_batch = self.batched && lengths.all(|length| Some(length) == first);
        fit && !is_batch && !empty
    }
}

fn lacks_first_axis(input: &InputSpec, array: &Tensor) -> bool {
    input.shape.as_ref().is_some_and(|shape| shape.len() == array.shape.len() + 1)
}

/// Whether the name of the first axis of every input says that it is a batch axis.
fn first_axes_are_batches(model: &Model, inputs: &[InputSpec]) -> bool {
    let axes = || {
        inputs.iter().map(|input| match input.shape.as_deref() {
            Some([None, rest @ ..]) => (Said::of(&first_axis(model, &input.name)), rest.len() + 1),
            _ => (Said::SomethingElse, 0),
        })
    };
    let images = |(said, rank)| said == Said::Nothing && rank >= 4;
    axes().all(|(said, _)| said == Said::Batch) || axes().all(images)
}

/// Whether rows along the first axes of the inputs may be independent: an output with one row for
/// each has a first axis of unknown length, and no matrix of rows by rows is computed.
fn rows_are_independent(model: &Model) -> bool {
    let shape = |info: &ValueInfoProto| info.tensor_type()?.shape.clone();
    let graph = model.graph();
    let is_fixed = |info: &Raw<ValueInfoProto>| {
        shape(info).is_some_and(|shape| shape.dim.first().is_none_or(|first| first.value.is_some()))
    };
    let shapes: Vec<_> = graph.input.iter().filter_map(|info| shape(info)).collect();
    let firsts: Vec<&String> =
        shapes.iter().filter_map(|shape| shape.dim.first()?.param.as_ref()).collect();
    let rows_by_rows = shapes.iter().any(|shape| {
        let mut others = shape.dim.iter().skip(1).filter_map(|axis| axis.param.as_ref());
        others.any(|name| !name.is_empty() && firsts.contains(&name))
    });
    !rows_by_rows && !graph.output.iter().any(is_fixed)
}

/// The name of the first axis of an input; `""` where it has none.
fn first_axis(model: &Model, input: &str) -> String {
    let info = model.graph().input.iter().find(|info| info.name == input);
    let shape = info.and_then(|info| info.tensor_type()).and_then(|tensor| tensor.shape.as_ref());
    let first = shape.and_then(|shape| shape.dim.first());
    first.and_then(|first| first.param.clone()).unwrap_or_default()
}

/// What the name of an axis says about it.
#[derive(Clone, Copy, PartialEq)]
enum Said {
    Batch,
    Nothing,
    SomethingElse,
}

impl Said {
    fn of(name: &str) -> Said {
        let name = name.to_lowercase();
        let is_made_up = name.contains(|c: char| c.is_ascii_digit())
            || !name.contains(char::is_alphabetic)
            || name == "none";
        match name.as_str() {
            "n" | "b" | "bs" => Said::Batch,
            name if name.contains("batch") => Said::Batch,
            _ if is_made_up => Said::Nothing,
            _ => Said::SomethingElse,
        }
    }
}

/// A single sample: the name of each input, its type, and the array to convert.
struct SingleSample {
    values: Option<Vec<(String, DataType, Tensor)>>,
    conversions: Vec<String>,
}

impl Samples for SingleSample {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let values = self.values.take()?.into_iter();
        let inputs = values.map(|(name, dtype, array)| {
            let value = convert(array, dtype, &name)?;
            Ok((name, value))
        });
        Some(inputs.collect::<Result<_, _>>().map(|inputs| Sample { inputs }))
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        self.values.take().map(|_| Ok(()))
    }

    fn len_hint(&self) -> Option<usize> {
        Some(usize::from(self.values.is_some()))
    }

    fn conversions(&self) -> Vec<String> {
        self.conversions.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_a_batch_by_its_name() {
        let cases = [
            ("N", Said::Batch),
            ("n", Said::Batch),
            ("B", Said::Batch),
            ("batch_size", Said::Batch),
            ("Batch1", Said::Batch),
            ("", Said::Nothing),
            ("?", Said::Nothing),
            ("None", Said::Nothing),
            ("s77", Said::Nothing),
            ("unk__616", Said::Nothing),
            ("input_dynamic_axes_1", Said::Nothing),
            ("seq", Said::SomethingElse),
            ("time", Said::SomethingElse),
            ("T", Said::SomethingElse),
        ];
        for (name, expected) in cases {
            assert!(Said::of(name) == expected, "{name}");
        }
    }

    fn counts(model: &str, items: &[(&str, &[usize])]) -> Option<usize> {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
        let model = Model::open(format!("{models}/{model}.onnx")).expect("a fixture");
        let arrays = items.iter().map(|(name, shape)| {
            let zeros = vec![0.0; shape.iter().product()];
            ((*name).to_owned(), Tensor::from_f32(shape.to_vec(), &zeros))
        });
        let mut samples = Items::of(&model).samples(arrays.collect()).ok()?;
        let hint = samples.len_hint();
        let count = std::iter::from_fn(|| samples.next_sample()).count();
        assert_eq!(hint, Some(count));
        Some(count)
    }

    #[test]
    fn an_item_is_a_batch_or_a_sample_whether_or_not_it_has_a_name() {
        for name in ["", "x"] {
            let of = |model: &str, shape: &[usize]| counts(model, &[(name, shape)]);
            assert_eq!(of("conv2d_relu", &[4, 3, 12, 12]), Some(4));
            assert_eq!(of("conv2d_relu", &[1, 3, 12, 12]), Some(1));
            assert_eq!(of("conv2d_relu", &[3, 12, 12]), Some(1), "without its first axis");
            assert_eq!(of("conv2d_relu", &[5, 2, 3, 12, 12]), Some(5), "whole inputs");
            assert_eq!(of("conv2d_relu", &[0, 3, 12, 12]), None);
            assert_eq!(of("lstm", &[7, 1, 10]), Some(1), "a sequence");
            assert_eq!(of("lstm", &[0, 1, 10]), None);
            assert_eq!(of("fixed_batch4", &[4, 3, 12, 12]), Some(1));
            assert_eq!(of("fixed_batch4", &[8, 3, 12, 12]), Some(2));
        }
        let two = |x: usize, extra: usize| {
            counts("two_inputs", &[("x", &[x, 3, 12, 12]), ("extra", &[extra, 6])])
        };
        assert_eq!(two(4, 4), Some(4));
        assert_eq!(two(4, 1), Some(1), "no batch: not equally long");
        // One input has a fixed length: the other array is not a batch.
        let styled = counts("conv_dynamic_weight", &[("x", &[4, 3, 12, 12]), ("style", &[1, 6])]);
        assert_eq!(styled, Some(1));
    }
}
