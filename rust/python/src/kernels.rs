//! Quantization kernels on numpy arrays.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use quantize_rs::{Granularity, QSpec, QType, Range};
use quantize_rs_math::{self as math, Layout, Params};

use crate::{errors, gil};

/// The granularity of a tensor: the axis, and the block size along it.
pub(crate) type Cut = (Option<usize>, Option<usize>);

/// One scale and one zero point for each group of elements.
pub(crate) type Numbers<'py> = (PyReadonlyArray1<'py, f32>, Vec<usize>, PyReadonlyArray1<'py, i32>);

/// Whether a type is signed in numpy, and its bit width; numpy holds floats as their codes.
#[pyfunction]
pub(crate) fn dtype_of(py: Python<'_>, dtype: &str) -> PyResult<(bool, u32)> {
    qtype(py, dtype).map(|qtype| (qtype.signed() && !qtype.is_float(), qtype.bits()))
}

/// The integers of `x`, little-endian; narrow types are packed.
#[pyfunction]
#[pyo3(signature = (x, shape, numbers, dtype, cut))]
pub(crate) fn quantize_linear<'py>(
    py: Python<'py>,
    x: PyReadonlyArray1<'py, f32>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    dtype: &str,
    cut: Cut,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let (qtype, layout) = (qtype(py, dtype)?, layout(py, &shape, cut)?);
    let params = params(py, &numbers, &layout, grid(qtype))?;
    let x = x.as_slice()?;
    layout.check(x.len(), params.len()).map_err(|error| errors::of_math(py, &error))?;
    let spec = QSpec::new(qtype, false, layout.granularity());
    let bytes = gil::arithmetic(py, || Ok::<_, Never>(math::quantize(x, &layout, &params, &spec)))?;
    Ok(bytes.into_pyarray(py))
}

/// The numbers of packed integers.
#[pyfunction]
#[pyo3(signature = (packed, shape, numbers, dtype, cut))]
pub(crate) fn dequantize_linear<'py>(
    py: Python<'py>,
    packed: PyReadonlyArray1<'py, u8>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    dtype: &str,
    cut: Cut,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let (qtype, layout) = (qtype(py, dtype)?, layout(py, &shape, cut)?);
    let params = params(py, &numbers, &layout, grid(qtype))?;
    let packed = packed.as_slice()?;
    layout
        .check_packed(packed.len(), qtype, params.len())
        .map_err(|error| errors::of_math(py, &error))?;
    let x =
        gil::arithmetic(py, || Ok::<_, Never>(math::dequantize(packed, &layout, &params, qtype)))?;
    Ok(x.into_pyarray(py))
}

/// Values of a narrow type, packed as in ONNX.
#[pyfunction]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, i8>,
    dtype: &str,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let qtype = narrow(py, dtype)?;
    Ok(math::pack::pack(values.as_slice()?, qtype.bits()).into_pyarray(py))
}

/// The values of a narrow type from packed bytes.
#[pyfunction]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    packed: PyReadonlyArray1<'py, u8>,
    dtype: &str,
    elements: usize,
) -> PyResult<Bound<'py, PyArray1<i8>>> {
    let (qtype, packed) = (narrow(py, dtype)?, packed.as_slice()?);
    if packed.len() != qtype.packed_len(elements) {
        let (have, need) = (packed.len(), qtype.packed_len(elements));
        let what = format!("has {have} bytes, {elements} elements of {qtype} take {need}");
        return Err(errors::of_option(py, "packed", &what));
    }
    let signed = qtype.signed() && !qtype.is_float();
    let values = math::pack::unpack(packed, qtype.bits(), signed, elements);
    Ok(values.into_pyarray(py))
}

/// Scale and zero point of a range.
#[pyfunction]
pub(crate) fn scale_zero_point(
    py: Python<'_>,
    min: f32,
    max: f32,
    dtype: &str,
    symmetric: bool,
) -> PyResult<(f32, i32)> {
    let spec = QSpec::new(qtype(py, dtype)?, symmetric, Granularity::PerTensor);
    if !(min <= max && min.is_finite() && max.is_finite()) {
        let what = format!("is {max} beside a min of {min}: expected finite ends, the lower first");
        return Err(errors::of_option(py, "max", &what));
    }
    let Params { scale, zero_point } = math::params(Range { min, max }, &spec);
    Ok((scale, zero_point))
}

/// The error of an operation that cannot fail.
pub(crate) type Never = quantize_rs::QuantizeError;

pub(crate) fn qtype(py: Python<'_>, dtype: &str) -> PyResult<QType> {
    let qtype: QType = dtype.parse().map_err(|error| errors::of_math(py, &error))?;
    if qtype.is_scaled() {
        return Ok(qtype);
    }
    let what = format!("is {qtype}, which has no scale: numbers are cast to it");
    Err(errors::of_option(py, "dtype", &what))
}

fn narrow(py: Python<'_>, dtype: &str) -> PyResult<QType> {
    let qtype = qtype(py, dtype)?;
    if qtype.bits() < 8 {
        return Ok(qtype);
    }
    let what = format!(
        "is {qtype}, which fills whole bytes: expected int2, uint2, int4, uint4 or float4e2m1"
    );
    Err(errors::of_option(py, "dtype", &what))
}

pub(crate) fn layout(py: Python<'_>, shape: &[usize], cut: Cut) -> PyResult<Layout> {
    let granularity = match cut {
        (None, None) => Granularity::PerTensor,
        (Some(axis), None) => Granularity::PerAxis { axis },
        (Some(axis), Some(block_size)) => Granularity::Blocked { axis, block_size },
        (None, Some(_)) => {
            return Err(errors::of_option(py, "block_size", "is given without axis"));
        }
    };
    Layout::of(shape, granularity).map_err(|error| errors::of_math(py, &error))
}

/// The zero points that a type allows.
fn grid(qtype: QType) -> (i32, i32) {
    if qtype.is_float() { (0, 0) } else { (qtype.min(), qtype.max()) }
}

pub(crate) fn params(
    py: Python<'_>,
    (scale, shape, zero_point): &Numbers<'_>,
    layout: &Layout,
    (min, max): (i32, i32),
) -> PyResult<Vec<Params>> {
    let (scale, zero_point) = (scale.as_slice()?, zero_point.as_slice()?);
    let expected = layout.scale_shape();
    if *shape != expected {
        let what = format!("has shape {shape:?}, expected {expected:?}");
        return Err(errors::of_option(py, "scale", &what));
    }
    if zero_point.len() != scale.len() {
        let what = format!("has {} elements, scale has {}", zero_point.len(), scale.len());
        return Err(errors::of_option(py, "zero_point", &what));
    }
    if let Some(bad) = zero_point.iter().find(|zero| !(min..=max).contains(*zero)) {
        let what = format!("is {bad}, expected {min} to {max}");
        return Err(errors::of_option(py, "zero_point", &what));
    }
    let pairs = scale.iter().zip(zero_point);
    Ok(pairs.map(|(&scale, &zero_point)| Params { scale, zero_point }).collect())
}
