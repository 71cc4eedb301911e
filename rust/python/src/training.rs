//! Observers and fake quantization for training, on numpy arrays.

use std::sync::Mutex;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use quantize_rs_math::observers::{self, ObserverOptions, Scheme};
use quantize_rs_math::{
    self as math, Gradients, Layout, LearnedParams, LsqOptions, MathError, Params,
};

use crate::kernels::{Cut, Never, Numbers, layout, params, qtype};
use crate::{errors, gil};

/// The smallest and the largest integer.
type Grid = (i32, i32);

/// A new numpy array.
type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// Scales and zero points, one for each group.
type Found<'py> = (Array<'py, f32>, Array<'py, i32>);

/// Observes batches of a tensor.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Observer {
    observer: Mutex<Box<dyn observers::Observer>>,
    scheme: Scheme,
}

#[pymethods]
impl Observer {
    /// The observer of this name; `grid` replaces that of `dtype`.
    #[new]
    #[pyo3(signature = (name, dtype, symmetric, reduce_range, grid, eps, averaging_constant, bins))]
    #[allow(clippy::too_many_arguments)] // the parameters of the Python class
    fn new(
        py: Python<'_>,
        name: &str,
        dtype: &str,
        symmetric: bool,
        reduce_range: bool,
        grid: Option<Grid>,
        eps: f32,
        averaging_constant: f32,
        bins: usize,
    ) -> PyResult<Observer> {
        let qtype = qtype(py, dtype)?;
        let raised = |error: MathError| errors::of_math(py, &error);
        if qtype.is_float() {
            let what = format!("is {qtype}, expected a type of integers");
            return Err(errors::of_option(py, "dtype", &what));
        }
        if !(eps > 0.0 && eps.is_finite()) {
            let what = format!("is {eps}, expected a number above 0");
            return Err(errors::of_option(py, "eps", &what));
        }
        let mut scheme = Scheme::new(qtype, symmetric);
        scheme.eps = eps;
        if let Some((quant_min, quant_max)) = grid {
            scheme = scheme.with_grid(quant_min, quant_max).map_err(raised)?;
        }
        if reduce_range {
            scheme = scheme.reduced();
        }
        let observer =
            observers::find(name, &ObserverOptions { averaging_constant, bins }).map_err(raised)?;
        Ok(Observer { observer: Mutex::new(observer), scheme })
    }

    /// The smallest and the largest integer.
    #[getter]
    fn grid(&self) -> Grid {
        self.scheme.grid
    }

    /// Observes a batch.
    fn observe(
        &self,
        py: Python<'_>,
        x: PyReadonlyArray1<'_, f32>,
        shape: Vec<usize>,
        axis: Option<usize>,
    ) -> PyResult<()> {
        let layout = layout(py, &shape, (axis, None))?;
        let x = x.as_slice()?;
        let outcome =
            gil::arithmetic(py, || Ok::<_, Never>(self.watch(|o| o.observe(x, &layout))))?;
        outcome.map_err(|error| errors::of_math(py, &error))
    }

    /// The minimum and the maximum of each group; empty before the first batch.
    fn ranges(&self) -> Vec<(f32, f32)> {
        let ranges = self.watch(|observer| observer.ranges(&self.scheme));
        ranges.into_iter().map(|range| (range.min, range.max)).collect()
    }

    /// The scale and zero point of each group.
    fn qparams<'py>(&self, py: Python<'py>) -> Found<'py> {
        let ranges = self.watch(|observer| observer.ranges(&self.scheme));
        let found: Vec<Params> = ranges.into_iter().map(|r| self.scheme.params(r)).collect();
        apart(py, &found)
    }

    /// Removes all observations.
    fn reset(&self) {
        self.watch(|observer| observer.reset());
    }
}

impl Observer {
    fn watch<T>(&self, look: impl FnOnce(&mut dyn observers::Observer) -> T) -> T {
        // After a panic, at worst one batch is not counted.
        let mut observer = self.observer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        look(observer.as_mut())
    }
}

/// The dequantized values, and a mask that is true where gradients pass.
#[pyfunction]
pub(crate) fn fake_quantize<'py>(
    py: Python<'py>,
    x: PyReadonlyArray1<'py, f32>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    grid: Grid,
    cut: Cut,
) -> PyResult<(Array<'py, f32>, Array<'py, bool>)> {
    let x = x.as_slice()?;
    let (layout, params) = given(py, x, &shape, &numbers, grid, cut)?;
    let (y, mask) = gil::arithmetic(py, || {
        Ok::<_, Never>(math::fake_quantize_masked(x, &layout, &params, grid))
    })?;
    Ok((y.into_pyarray(py), mask.into_pyarray(py)))
}

/// The same with stochastic rounding.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the parameters of the Python class
pub(crate) fn fake_quantize_stochastic<'py>(
    py: Python<'py>,
    x: PyReadonlyArray1<'py, f32>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    grid: Grid,
    cut: Cut,
    temperature: f64,
    seed: u64,
) -> PyResult<Array<'py, f32>> {
    let x = x.as_slice()?;
    let (layout, params) = given(py, x, &shape, &numbers, grid, cut)?;
    let y = gil::arithmetic(py, || {
        let y = math::fake_quantize_stochastic(x, &layout, &params, grid, temperature, seed);
        Ok::<_, Never>(y)
    })?;
    Ok(y.into_pyarray(py))
}

/// The gradients of `x`, of each scale and of each zero point.
#[pyfunction]
pub(crate) fn fake_quantize_gradients<'py>(
    py: Python<'py>,
    x: PyReadonlyArray1<'py, f32>,
    gradient: PyReadonlyArray1<'py, f32>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    grid: Grid,
    cut: Cut,
) -> PyResult<(Array<'py, f32>, Array<'py, f64>, Array<'py, f64>)> {
    let (x, gradient) = (x.as_slice()?, gradient.as_slice()?);
    let (layout, params) = given(py, x, &shape, &numbers, grid, cut)?;
    if gradient.len() != x.len() {
        let what = format!("has {} elements, x has {}", gradient.len(), x.len());
        return Err(errors::of_option(py, "gradient", &what));
    }
    let Gradients { x, scale, zero_point } = gil::arithmetic(py, || {
        Ok::<_, Never>(math::fake_quantize_gradients(x, gradient, &layout, &params, grid))
    })?;
    Ok((x.into_pyarray(py), scale.into_pyarray(py), zero_point.into_pyarray(py)))
}

/// Optimized scales and zero points, and the mean squared errors before and after.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the parameters of the Python class
pub(crate) fn learn_scale<'py>(
    py: Python<'py>,
    x: PyReadonlyArray1<'py, f32>,
    shape: Vec<usize>,
    numbers: Numbers<'py>,
    grid: Grid,
    cut: Cut,
    steps: usize,
    rates: (f64, f64),
) -> PyResult<(Found<'py>, f64, f64)> {
    let x = x.as_slice()?;
    let (layout, params) = given(py, x, &shape, &numbers, grid, cut)?;
    if let Some(index) = math::first_non_finite(x) {
        let error = MathError::NonFinite { index, value: x[index].to_string() };
        return Err(errors::of_math(py, &error));
    }
    if let Some(bad) = params.iter().find(|it| !it.scale.is_finite() || it.scale == 0.0) {
        let what = format!("has {}, expected finite numbers other than 0", bad.scale);
        return Err(errors::of_option(py, "scale", &what));
    }
    let (scale_lr, zero_point_lr) = rates;
    let learning = LsqOptions { steps, scale_lr, zero_point_lr };
    let LearnedParams { params, mse_before, mse } =
        gil::stoppable(py, |stop| math::learn_scale(x, &layout, &params, grid, learning, stop))?;
    Ok((apart(py, &params), mse_before, mse))
}

/// A tensor with its granularity, scales and zero points.
fn given(
    py: Python<'_>,
    x: &[f32],
    shape: &[usize],
    numbers: &Numbers<'_>,
    grid: Grid,
    cut: Cut,
) -> PyResult<(Layout, Vec<Params>)> {
    let layout = layout(py, shape, cut)?;
    let params = params(py, numbers, &layout, grid)?;
    layout.check(x.len(), params.len()).map_err(|error| errors::of_math(py, &error))?;
    Ok((layout, params))
}

fn apart<'py>(py: Python<'py>, params: &[Params]) -> Found<'py> {
    let scale: Vec<f32> = params.iter().map(|params| params.scale).collect();
    let zero_point: Vec<i32> = params.iter().map(|params| params.zero_point).collect();
    (scale.into_pyarray(py), zero_point.into_pyarray(py))
}
