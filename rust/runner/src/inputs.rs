//! Checks values against inputs, and samples against models.

use quantize_rs::{CalibrationError, CalibrationErrorKind as Kind, InputSpec, Sample};
use quantize_rs_onnx::{DataType, Tensor};

/// The error for an input with the wrong name, rank, shape or type.
pub(crate) fn mismatch(message: impl Into<String>) -> CalibrationError {
    CalibrationError::input_mismatch(message)
}

/// Whether `shape` matches `expected`: fixed dimensions must be equal.
pub(crate) fn fits(expected: &[Option<usize>], shape: &[usize]) -> bool {
    expected.len() == shape.len()
        && expected.iter().zip(shape).all(|(want, have)| want.is_none_or(|want| want == *have))
}

/// `float32 [1, 3, ?, ?]`
pub(crate) fn describe(spec: &InputSpec) -> String {
    let dtype = spec.dtype.map_or("any type", DataType::name);
    format!("{dtype} {}", spec.shape.as_deref().map_or("of any shape".into(), dims))
}

/// `[1, 3, ?, ?]`
pub(crate) fn dims(shape: &[Option<usize>]) -> String {
    let dims: Vec<String> =
        shape.iter().map(|dim| dim.map_or("?".into(), |dim| dim.to_string())).collect();
    format!("[{}]", dims.join(", "))
}

/// A hint, if a value has one sample along an axis where the model takes several at a time. Such an
/// axis is one of the first two, as recurrent operators have it.
pub(crate) fn batch_hint(expected: &[Option<usize>], shape: &[usize]) -> String {
    let mut axes = expected.iter().zip(shape).enumerate();
    let differs = |(_, (want, have)): &(usize, (&Option<usize>, &usize))| {
        want.is_some_and(|want| want != **have)
    };
    let (first, second) = (axes.find(differs), axes.find(differs));
    match (first, second) {
        (Some((axis @ (0 | 1), (Some(length), 1))), None)
            if expected.len() == shape.len() && *length > 1 =>
        {
            format!(
                ": the model takes {length} samples at a time along axis {axis}, this is 1; join \
                 {length} of them along that axis, or export the model with a dynamic axis"
            )
        }
        _ => String::new(),
    }
}

/// `` `a`, `b` and 3 more ``
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>, shown: usize) -> String {
    let all: Vec<&str> = names.into_iter().collect();
    let listed: Vec<String> = all.iter().take(shown).map(|name| format!("`{name}`")).collect();
    let more = all.len().saturating_sub(shown);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", listed.join(", "))
}

/// Refuses a model with an input of strings, which no sample can hold.
///
/// # Errors
/// [`CalibrationErrorKind::StringInput`](Kind::StringInput) with the name of the first one.
pub fn refuse_strings(inputs: &[InputSpec]) -> Result<(), CalibrationError> {
    match inputs.iter().find(|input| input.dtype == Some(DataType::String)) {
        Some(InputSpec { name, .. }) => {
            let kind = Kind::StringInput { input: name.clone() };
            Err(CalibrationError::new(kind).at_value(name))
        }
        None => Ok(()),
    }
}

/// Checks that `sample` has exactly the inputs of the model, each of its type and shape.
pub(crate) fn check(specs: &[InputSpec], sample: &Sample) -> Result<(), CalibrationError> {
    let inputs = || listed(specs.iter().map(|spec| spec.name.as_str()), 8);
    for spec in specs {
        let Some(value) = sample.get(&spec.name) else {
            let given = sample.inputs.iter().map(|(name, _)| name.as_str());
            let given = if sample.inputs.is_empty() { "nothing".into() } else { listed(given, 8) };
            let kind = Kind::MissingInput { input: spec.name.clone(), given };
            return Err(CalibrationError::new(kind).at_value(&spec.name));
        };
        check_value(spec, value)?;
    }
    for (position, (name, _)) in sample.inputs.iter().enumerate() {
        if !specs.iter().any(|spec| spec.name == *name) {
            let kind = Kind::UnknownInput { input: name.clone(), expected: inputs() };
            return Err(CalibrationError::new(kind).at_value(name));
        }
        if sample.inputs[..position].iter().any(|(earlier, _)| earlier == name) {
            let kind = Kind::RepeatedInput { input: name.clone() };
            return Err(CalibrationError::new(kind).at_value(name));
        }
    }
    Ok(())
}

fn check_value(spec: &InputSpec, value: &Tensor) -> Result<(), CalibrationError> {
    let fit = spec.shape.as_deref().is_none_or(|shape| fits(shape, &value.shape));
    if spec.dtype.is_some_and(|dtype| dtype != value.dtype) || !fit {
        let hint =
            spec.shape.as_deref().map_or_else(String::new, |shape| batch_hint(shape, &value.shape));
        let found = format!("{} {:?}{hint}", value.dtype, value.shape);
        let expected = describe(spec);
        let kind = Kind::WrongInput { input: spec.name.clone(), expected, found };
        return Err(CalibrationError::new(kind).at_value(&spec.name));
    }
    if Some(value.data.len()) != byte_len(value.dtype, &value.shape) {
        let (bytes, shape) = (value.data.len(), &value.shape);
        let message = format!("input `{}`: {bytes} bytes of data for shape {shape:?}", spec.name);
        return Err(mismatch(message).at_value(&spec.name));
    }
    Ok(())
}

/// Bytes of a tensor; `None` on overflow.
pub(crate) fn byte_len(dtype: DataType, shape: &[usize]) -> Option<usize> {
    dtype.byte_len(elements(shape)?)
}

/// Elements of a tensor; `None` on overflow.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> InputSpec {
        InputSpec {
            name: "x".into(),
            dtype: Some(DataType::Float),
            shape: Some(vec![None, Some(2)]),
        }
    }

    fn sample(inputs: &[(&str, Tensor)]) -> Sample {
        let inputs = inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Sample { inputs: inputs.collect() }
    }

    #[test]
    fn a_sample_that_fits_passes_whatever_the_dynamic_dimension_is() {
        for rows in [0, 1, 5] {
            let value = Tensor::from_f32(vec![rows, 2], &vec![0.0; rows * 2]);
            assert!(check(&[spec()], &sample(&[("x", value)])).is_ok());
        }
    }

    #[test]
    fn every_mismatch_names_the_input_and_what_was_expected_and_found() {
        let good = Tensor::from_f32(vec![1, 2], &[0.0; 2]);
        let ints = Tensor { dtype: DataType::Int32, ..good.clone() };
        let short = Tensor { data: good.data.slice(..4), ..good.clone() };
        let long = Tensor::from_f32(vec![1, 3], &[0.0; 3]);
        let flat = Tensor::from_f32(vec![2], &[0.0; 2]);
        let cases: [(&[(&str, Tensor)], &str); 8] = [
            (&[], "input `x` is missing: the sample has nothing"),
            (&[("X", good.clone())], "input `x` is missing: the sample has `X`"),
            (&[("x", ints)], "input `x`: expected float32 [?, 2], got int32 [1, 2]"),
            (&[("x", long)], "input `x`: expected float32 [?, 2], got float32 [1, 3]"),
            (&[("x", flat)], "input `x`: expected float32 [?, 2], got float32 [2]"),
            (&[("x", short)], "input `x`: 4 bytes of data for shape [1, 2]"),
            (
                &[("x", good.clone()), ("y", good.clone())],
                "the model has no input `y`, its inputs are `x`",
            ),
            (&[("x", good.clone()), ("x", good)], "input `x` is given twice"),
        ];
        for (inputs, message) in cases {
            let error = check(&[spec()], &sample(inputs)).expect_err(message);
            assert_eq!(error.kind().category(), "input_mismatch");
            assert_eq!(error.kind().to_string(), message);
        }
    }
}
