//! Divides arrays into samples.

use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Sample, Samples};
use quantize_rs_onnx::Tensor;

use super::convert::{self, convert};
use super::rows::Rows;
use super::{BoxedSamples, data};
use crate::inputs::{batch_hint, describe, dims, elements, fits, listed, mismatch};

/// Which of the arrays called `names` belongs to each input: their positions, in the order of the
/// inputs.
pub(super) fn by_input(
    names: &[String],
    inputs: &[InputSpec],
) -> Result<Vec<usize>, CalibrationError> {
    match (inputs, names) {
        ([_], [name]) if name.is_empty() || name == "arr_0" => return Ok(vec![0]),
        ([input], [_, _, ..]) if names.iter().all(String::is_empty) => {
            let count = names.len();
            let message = format!(
                "a list of {count} arrays of the same shape, but the model has one input: \
                 stack them, or pass them one by one; only the first array of a tuple is used"
            );
            return Err(mismatch(message).at_value(&input.name));
        }
        _ => {}
    }
    let position = |input: &InputSpec| names.iter().position(|name| *name == input.name);
    let missing = || inputs.iter().filter(|input| position(input).is_none());
    let Some(first) = missing().next() else {
        return Ok(inputs.iter().filter_map(position).collect());
    };
    if let Some(other) = missing().find(|input| input.dtype.is_none() && input.shape.is_none()) {
        let kind = CalibrationErrorKind::NoTensorInput { input: other.name.clone() };
        return Err(CalibrationError::new(kind).at_value(&other.name));
    }
    if names.iter().any(String::is_empty) {
        let (count, all) = (inputs.len(), listed(inputs.iter().map(|i| i.name.as_str()), 8));
        let message =
            format!("the model has {count} inputs, {all}: name the one that the array belongs to");
        return Err(mismatch(message).at_value(&first.name));
    }
    let unmatched = names.iter().filter(|name| inputs.iter().all(|input| input.name != **name));
    let unmatched = match listed(unmatched.map(String::as_str), 8) {
        none if none.is_empty() => "none".to_owned(),
        some => some,
    };
    let missing = listed(missing().map(|input| input.name.as_str()), 8);
    let message = format!("no array for input {missing}; arrays that match no input: {unmatched}");
    Err(mismatch(message).at_value(&first.name))
}

/// As [`by_input`], for the arrays of a file: the only one belongs to the only input by any name.
pub(super) fn of_file(
    names: &[String],
    inputs: &[InputSpec],
) -> Result<Vec<usize>, CalibrationError> {
    match (inputs, names) {
        ([input], [_]) if input.dtype.is_some() || input.shape.is_some() => Ok(vec![0]),
        _ => by_input(names, inputs),
    }
}

/// The warning about the only array of a file, if it has another name than the only input.
pub(super) fn renamed(names: &[String], inputs: &[InputSpec]) -> Option<String> {
    let ([input], [name]) = (inputs, names) else { return None };
    let is_named = *name != input.name && name != "arr_0";
    is_named.then(|| {
        format!("the only array of the samples, `{name}`, is taken for input `{}`", input.name)
    })
}

/// The arrays of the inputs, in the order of the inputs, each with a name.
pub(super) fn in_order(
    arrays: Vec<(String, Tensor)>,
    inputs: &[InputSpec],
) -> Result<Vec<(String, Tensor)>, CalibrationError> {
    let (names, arrays): (Vec<String>, Vec<Tensor>) = arrays.into_iter().unzip();
    if names.is_empty() {
        let reason = "no arrays".into();
        return Err(CalibrationError::new(CalibrationErrorKind::NoSamples { reason }));
    }
    let positions = by_input(&names, inputs)?.into_iter().zip(inputs);
    let in_order = positions.map(|(position, input)| {
        let name = if names[position].is_empty() { &input.name } else { &names[position] };
        (name.clone(), arrays[position].clone()) // a handle
    });
    Ok(in_order.collect())
}

/// The samples of arrays, one array per input, by the rules of [`from_arrays`](super::from_arrays).
pub(super) fn samples(
    arrays: Vec<Rows>,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    samples_with(arrays, inputs, limit, None)
}

/// As [`samples`], with a warning about them.
pub(super) fn samples_with(
    arrays: Vec<Rows>,
    inputs: &[InputSpec],
    limit: Option<usize>,
    warning: Option<String>,
) -> Result<BoxedSamples, CalibrationError> {
    if inputs.is_empty() {
        return Err(mismatch("the model has no inputs"));
    }
    let of_inputs = inputs.iter().zip(arrays);
    let (scalars, arrays): (Vec<_>, Vec<_>) = of_inputs.partition(|(input, rows)| {
        input.shape.as_ref().is_some_and(Vec::is_empty) && rows.shape.is_empty()
    });
    let columns = arrays.into_iter().map(|(input, rows)| Column::new(input, rows, limit));
    let columns = columns.collect::<Result<Vec<Column>, CalibrationError>>()?;
    let scalars = scalars.into_iter().map(|(input, rows)| scalar(input, rows));
    let scalars = scalars.collect::<Result<Vec<_>, CalibrationError>>()?;
    // Scalars alone are one sample.
    let count = columns.first().map_or(1, |column| column.samples);
    // A limit does not hide that they differ.
    let whole = |column: &Column| column.rows.shape.first().map_or(0, |rows| rows / column.step);
    let all = columns.first().map_or(0, whole);
    if let Some(other) = columns.iter().find(|column| whole(column) != all) {
        let each = columns.iter().map(|c| format!("`{}` {}", c.rows.what, whole(c)));
        let each: Vec<String> = each.collect();
        let message = format!("the arrays have different numbers of samples: {}", each.join(", "));
        return Err(mismatch(message).at_value(&other.rows.what));
    }
    // With several inputs, one may be empty, such as a cache before the first token.
    if let Some(first) = columns.first()
        && columns.iter().all(|column| elements(&column.shape) == Some(0))
    {
        let message = format!("samples of shape {:?} have no values", first.shape);
        return Err(data(message).at_value(&first.rows.what));
    }
    Ok(Box::new(Batches { columns, scalars, left: count, warning }))
}

/// The name and the value of a scalar input, which all samples share.
fn scalar(input: &InputSpec, mut rows: Rows) -> Result<(String, Tensor), CalibrationError> {
    let value = Tensor { dtype: rows.dtype, shape: Vec::new(), data: rows.take(1)? };
    let value = convert(value, input.dtype.unwrap_or(rows.dtype), &input.name)
        .map_err(|error| in_file(error, &rows.what, input))?;
    Ok((input.name.clone(), value))
}

/// An error of an input's value, with the name of the file or array if it has another.
fn in_file(error: CalibrationError, what: &str, input: &InputSpec) -> CalibrationError {
    if *what == input.name { error } else { error.in_file(what) }
}

/// An input and its array.
struct Column {
    input: InputSpec,
    rows: Rows,
    /// Shape of the input in one sample.
    shape: Vec<usize>,
    /// Rows of the array per sample.
    step: usize,
    samples: usize,
}

impl Column {
    fn new(
        input: &InputSpec,
        rows: Rows,
        limit: Option<usize>,
    ) -> Result<Column, CalibrationError> {
        let limit = limit.unwrap_or(usize::MAX);
        let (shape, step) = sample_shape(input, &rows.what, &rows.shape)?;
        let total = rows.shape.first().copied().unwrap_or(0);
        let whole = total / step;
        if total == 0 || limit == 0 {
            let why = if limit == 0 { "the limit is 0" } else { "the array is empty" };
            let kind = CalibrationErrorKind::NoSamples { reason: why.into() };
            return Err(CalibrationError::new(kind).at_value(&rows.what));
        }
        if total % step != 0 && whole < limit {
            return Err(mismatch(format!(
                "input `{}` takes {step} rows at a time, the array has {total}: {} are left over, \
                 pass a multiple of {step}",
                input.name,
                total % step,
            ))
            .at_value(&rows.what));
        }
        Ok(Column { input: input.clone(), rows, shape, step, samples: whole.min(limit) })
    }

    /// The value of the next sample. The caller knows the number of the sample.
    fn value(&mut self) -> Result<Tensor, CalibrationError> {
        let (shape, dtype) = (self.shape.clone(), self.rows.dtype);
        let value = Tensor { dtype, shape, data: self.rows.take(self.step)? };
        convert(value, self.input.dtype.unwrap_or(dtype), &self.input.name)
            .map_err(|error| in_file(error, &self.rows.what, &self.input))
    }
}

/// The shape of the input in one sample of an array of this shape, and the rows that the sample
/// needs.
fn sample_shape(
    input: &InputSpec,
    what: &str,
    array: &[usize],
) -> Result<(Vec<usize>, usize), CalibrationError> {
    let Some((_, row)) = array.split_first() else {
        let message = "the array is a single number, samples need a first axis";
        return Err(data(message).at_value(what));
    };
    let with_batch = |batch: usize| [&[batch], row].concat();
    let Some(expected) = input.shape.as_deref() else {
        return Ok((with_batch(1), 1)); // of any rank: the array's own
    };
    let batch = expected.first().copied().flatten().unwrap_or(1);
    let (shape, step) = if array.len() == expected.len() + 1 {
        (row.to_vec(), 1)
    } else {
        (with_batch(batch), batch.max(1))
    };
    if fits(expected, &shape) && batch > 0 {
        return Ok((shape, step));
    }
    let expects = describe(input);
    let name = &input.name;
    let message = if array.len() == expected.len() || array.len() == expected.len() + 1 {
        let hint = layout_hint(expected, &shape) + &batch_hint(expected, &shape);
        format!(
            "input `{name}` expects {expects}, samples of the array {array:?} are {shape:?}{hint}"
        )
    } else if let Some(hint) = missing_axis(expected, array) {
        format!("input `{name}` expects {expects}, the array is {array:?}: {hint}")
    } else {
        let ranks = match expected.len() {
            0 => "pass one number for all samples, or an array with one for each".to_owned(),
            rank => {
                let more = rank + 1;
                format!("expected {rank} axes, or {more} with whole inputs along the first")
            }
        };
        format!("input `{name}` expects {expects}, the array is {array:?}: {ranks}")
    };
    Err(mismatch(message).at_value(what))
}

/// A hint, if an axis of length 1 would make the array match.
fn missing_axis(expected: &[Option<usize>], array: &[usize]) -> Option<&'static str> {
    if array.len() + 1 != expected.len() {
        return None;
    }
    let fits_with = |axis: usize| {
        let mut with = array.to_vec();
        with.insert(axis, 1);
        // The first axis is that of the samples.
        fits(&expected[1..], &with[1..])
    };
    if fits_with(0) {
        Some("a single sample needs a first axis, `array[None]`")
    } else if fits_with(1) {
        Some("an axis of length 1 is missing, `array[:, None]`")
    } else if fits_with(array.len()) {
        Some("an axis of length 1 is missing, `array[..., None]`")
    } else {
        None
    }
}

/// A hint, if transposing the channels would make `shape` match.
fn layout_hint(expected: &[Option<usize>], shape: &[usize]) -> String {
    let rank = shape.len();
    if rank < 3 {
        return String::new();
    }
    let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let candidates =
        [(first, "last (NHWC)", "first (NCHW)"), (last, "first (NCHW)", "last (NHWC)")];
    for (axes, has, wants) in candidates {
        let moved: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
        if fits(expected, &moved) {
            let expected = dims(expected);
            return format!(
                ": its channels are {has} and {expected} expects them {wants}, so transpose \
                 the axes of a sample to {axes:?}"
            );
        }
    }
    String::new()
}

/// Samples from arrays with equal numbers of samples.
struct Batches {
    columns: Vec<Column>,
    /// Inputs that have the same value in every sample.
    scalars: Vec<(String, Tensor)>,
    left: usize,
    warning: Option<String>,
}

impl Samples for Batches {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.left = self.left.checked_sub(1)?;
        let inputs = self.columns.iter_mut().map(|column| {
            let value = column.value()?;
            Ok((column.input.name.clone(), value))
        });
        let sample = inputs.collect::<Result<Vec<_>, _>>().map(|mut inputs| {
            inputs.extend(self.scalars.iter().cloned());
            Sample { inputs }
        });
        if sample.is_err() {
            self.left = 0; // the arrays may now be at different samples
        }
        Some(sample)
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        self.left = self.left.checked_sub(1)?;
        let skipped = self.columns.iter_mut().try_for_each(|column| column.rows.skip(column.step));
        if skipped.is_err() {
            self.left = 0;
        }
        Some(skipped)
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.left)
    }

    fn conversions(&self) -> Vec<String> {
        let columns = self.columns.iter();
        let converted = columns.filter_map(|c| convert::warning(&c.input, c.rows.dtype));
        self.warning.clone().into_iter().chain(converted).collect()
    }
}
