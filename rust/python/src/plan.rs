//! Plans in Python: calibrated and applied.

use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::Model;

use crate::calibrate::Run;
use crate::convert;
use crate::gil;
use crate::method_comparison::MethodComparison;
use crate::model;
use crate::quantized::Quantized;
use crate::ranges::Ranges;
use crate::source::Source;

/// The decision for each value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Plan {
    model: Arc<Model>,
    plan: Arc<quantize_rs::Plan>,
}

impl Plan {
    pub(crate) fn new(model: Arc<Model>, plan: quantize_rs::Plan) -> Plan {
        Plan { model, plan: Arc::new(plan) }
    }

    /// The model that the plan is for, and the plan itself.
    pub(crate) fn parts(&self) -> (Arc<Model>, Arc<quantize_rs::Plan>) {
        (Arc::clone(&self.model), Arc::clone(&self.plan))
    }
}

#[pymethods]
impl Plan {
    /// The plan as a table for people.
    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let (model, plan) = self.parts();
        gil::detached(py, self.model.path(), move || {
            let cost = plan.rounding_cost(&model)?;
            Ok::<_, quantize_rs::QuantizeError>(match cost {
                Some(cost) => format!("{plan}{cost}"),
                None => plan.to_string(),
            })
        })
    }

    /// The plan as JSON.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        convert::json(py, &*self.plan)
    }

    /// The plan as plain dicts, lists, strings and numbers.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &*self.plan)
    }

    /// The model that the plan is for.
    #[getter]
    fn model(&self) -> model::Model {
        model::Model { model: Arc::clone(&self.model) }
    }

    /// A plan for calibration alone, which observes what nodes of these types read and write.
    fn observing(&self, py: Python<'_>, op_types: Vec<String>) -> PyResult<Plan> {
        let (model, plan) = self.parts();
        let observing =
            gil::detached(py, self.model.path(), move || plan.observing(&model, &op_types))?;
        Ok(Plan::new(Arc::clone(&self.model), observing))
    }

    /// The same plan, whose calibration also finds the ranges of values that stay float.
    fn observing_all(&self) -> Plan {
        Plan::new(Arc::clone(&self.model), self.plan.observing_all())
    }

    /// The warnings, without building the rest of the plan.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.plan.warnings.clone()
    }

    /// The same plan with other warnings.
    fn with_warnings(&self, warnings: Vec<String>) -> Plan {
        let mut plan = (*self.plan).clone();
        plan.warnings = warnings;
        Plan::new(Arc::clone(&self.model), plan)
    }

    /// The values whose ranges the plan needs and that have none in `ranges`.
    fn missing(&self, py: Python<'_>, ranges: &Ranges) -> PyResult<Vec<String>> {
        gil::detached(py, self.model.path(), || ranges.found.missing(&self.plan))
    }

    /// Runs the model on samples, or on a part of them, and finds ranges. A part is given by its
    /// number, the number of parts, and whether second moments are kept.
    #[pyo3(signature = (source, method, run, keep, shard=None))]
    fn calibrate(
        &self,
        py: Python<'_>,
        source: &Source,
        method: &str,
        run: &Run,
        keep: bool,
        shard: Option<(usize, usize, bool)>,
    ) -> PyResult<Ranges> {
        run.ranges(py, (&self.model, &self.plan), source, (method, keep, shard))
    }

    /// Runs the model on samples and compares all methods.
    fn compare_methods(
        &self,
        py: Python<'_>,
        source: &Source,
        run: &Run,
    ) -> PyResult<MethodComparison> {
        run.comparison(py, (&self.model, &self.plan), source)
    }

    /// Rounds weights, or only some, with the second moments that ranges hold.
    #[pyo3(signature = (ranges, run, only=None))]
    fn round(
        &self,
        py: Python<'_>,
        ranges: &Ranges,
        run: &Run,
        only: Option<Vec<String>>,
    ) -> PyResult<Ranges> {
        run.rounded(py, (&self.model, &self.plan), ranges, only)
    }

    /// The weights that are rounded with samples, and the part of the time that each takes.
    fn rounding_work(&self, py: Python<'_>) -> PyResult<Vec<(String, f64)>> {
        let (plan, model) = (Arc::clone(&self.plan), Arc::clone(&self.model));
        gil::detached(py, self.model.path(), move || plan.rounding_work(&model))
    }

    /// Quantizes the model.
    fn apply(&self, py: Python<'_>, ranges: Option<&Ranges>) -> PyResult<Quantized> {
        let (plan, model) = (Arc::clone(&self.plan), Arc::clone(&self.model));
        let seconds = ranges.map_or(0.0, |ranges| ranges.seconds);
        let ranges = ranges.map(|ranges| Arc::clone(&ranges.found));
        let quantized = gil::interruptible(py, self.model.path(), move || {
            plan.apply(&model, ranges.as_deref())
        })?;
        Ok(Quantized::new(quantized, seconds))
    }
}
