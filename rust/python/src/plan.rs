//! A plan in Python's hands: shown, calibrated, applied.

use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::{Method, Model, QuantizeError};

use crate::calibrate;
use crate::errors;
use crate::quantized::Quantized;
use crate::ranges::Ranges;
use crate::source::Source;
use crate::work;

/// What will be done to each value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Plan {
    model: Arc<Model>,
    plan: Arc<quantize_rs::Plan>,
}

impl Plan {
    pub(crate) fn new(model: Arc<Model>, plan: quantize_rs::Plan) -> Plan {
        Plan { model, plan: Arc::new(plan) }
    }
}

#[pymethods]
impl Plan {
    /// The plan as a table for people.
    fn __str__(&self) -> String {
        self.plan.to_string()
    }

    /// The plan as JSON.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        work::json(py, &*self.plan)
    }

    /// Runs the model on samples.
    #[allow(clippy::too_many_arguments)] // they have names in Python
    #[pyo3(signature = (source, *, method, engine, limit, threads, progress))]
    fn calibrate(
        &self,
        py: Python<'_>,
        source: &Source,
        method: &str,
        engine: &str,
        limit: Option<usize>,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Ranges> {
        let method = method.parse::<Method>().map_err(|error| errors::raised(py, &error, None))?;
        one_of(py, "engine", engine, &["tract", "auto"])?;
        let run = calibrate::Run {
            model: &self.model,
            plan: &self.plan,
            method,
            limit,
            threads,
            progress,
        };
        run.on(py, source)
    }

    /// Makes the quantized model.
    fn apply(&self, py: Python<'_>, ranges: Option<&Ranges>) -> PyResult<Quantized> {
        let (plan, model) = (Arc::clone(&self.plan), Arc::clone(&self.model));
        let seconds = ranges.map_or(0.0, |ranges| ranges.seconds);
        let ranges = ranges.map(|ranges| Arc::clone(&ranges.ranges));
        let quantized = work::interruptible(py, self.model.path(), move || {
            plan.apply(&model, ranges.as_deref())
        })?;
        Ok(Quantized::new(quantized, seconds))
    }
}

fn one_of(py: Python<'_>, option: &str, name: &str, known: &[&str]) -> PyResult<()> {
    if known.contains(&name) {
        return Ok(());
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let what = format!("is `{name}`, this version knows {}", known.join(" and "));
    Err(errors::raised(py, &QuantizeError::option(option, what), None))
}
