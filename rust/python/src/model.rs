//! A model in Python's hands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quantize_rs::{
    Below, ModelInfo, Prepared, Prune, QConfigDict, QType, QuantizeError, SampleSource, Target,
    Wanted, WeightType, config,
};

use crate::gil;
use crate::optimized::Optimized;
use crate::option_dict::ConfigOptions;
use crate::plan::Plan;

/// A model: what is in the file.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Model {
    pub(crate) model: Arc<quantize_rs::Model>,
}

#[pymethods]
impl Model {
    /// Opens a file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Model> {
        let model = gil::detached(py, Some(&path), || quantize_rs::Model::open(&path))?;
        Ok(Model { model: Arc::new(model) })
    }

    /// Reads the bytes of a file, which are held and not copied.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Model> {
        let model =
            gil::detached(py, None, || quantize_rs::Model::from_bytes(Bytes::from_owner(data)))?;
        Ok(Model { model: Arc::new(model) })
    }

    /// Where it was opened from.
    #[getter]
    fn path(&self) -> Option<&Path> {
        self.model.path()
    }

    /// Facts about the model, as JSON.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        gil::json(py, &ModelInfo::of(&self.model))
    }

    /// The model of a newer version of ONNX's operators, and what changed, as JSON and as text.
    fn converted(&self, py: Python<'_>, opset: i64) -> PyResult<(Model, String, String)> {
        let (model, conversion) = gil::detached(py, self.model.path(), || {
            quantize_rs::convert_opset(&self.model, opset)
        })?;
        let text = conversion.to_string();
        Ok((Model { model: Arc::new(model) }, gil::json(py, &conversion)?, text))
    }

    /// The model with the types and shapes of its values, and how much is known, as JSON and as text.
    fn inferred(&self, py: Python<'_>) -> PyResult<(Model, String, String)> {
        let (model, inference) =
            gil::detached(py, self.model.path(), || quantize_rs::infer_shapes(&self.model))?;
        let text = inference.to_string();
        Ok((Model { model: Arc::new(model) }, gil::json(py, &inference)?, text))
    }

    /// How to quantize it, as JSON and as text.
    fn recommended(
        &self,
        py: Python<'_>,
        target: Option<String>,
        samples: Option<String>,
        in_memory: bool,
    ) -> PyResult<(String, String)> {
        let model = Arc::clone(&self.model);
        let found = gil::interruptible(py, self.model.path(), move || {
            let target = target.map(|name| name.parse::<Target>()).transpose()?;
            let samples = match samples.as_deref() {
                _ if in_memory => Some(SampleSource::Memory),
                path => path.map(SampleSource::File),
            };
            quantize_rs::recommend(&model, Wanted { target, samples })
        })?;
        Ok((found.to_json(), found.to_string()))
    }

    /// The model with small weights at 0, and what became of each, as JSON and as text.
    fn pruned(
        &self,
        py: Python<'_>,
        below: (String, f64),
        per_channel: bool,
        exclude: Vec<String>,
    ) -> PyResult<(Model, String, String)> {
        let (model, report) = gil::detached(py, self.model.path(), || {
            let below = Below::parse(&below.0, below.1)?;
            quantize_rs::prune(&self.model, &Prune { below, per_channel, exclude })
        })?;
        let text = report.to_string();
        Ok((Model { model: Arc::new(model) }, gil::json(py, &report)?, text))
    }

    /// Writes the model, complete or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        // Whoever pressed Ctrl-C does not want the file.
        py.check_signals()?;
        gil::detached(py, Some(&path), || self.model.save(&path).map(|_| ()))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = gil::detached(py, self.model.path(), || self.model.to_bytes())?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Runs passes that leave what the model computes as it is.
    fn optimize(
        &self,
        py: Python<'_>,
        passes: Option<Vec<String>>,
        skip: Vec<String>,
    ) -> PyResult<Optimized> {
        let model = Arc::clone(&self.model);
        let path = self.model.path();
        let made = gil::interruptible(py, path, move || {
            quantize_rs::optimize(&model, passes.as_deref(), &skip)
        })?;
        Ok(Optimized::new(made))
    }

    /// The options that types of modules come to: those of weights and activations, for some by
    /// name, and what is left out. `modules` is a `QConfigDict` as JSON.
    #[allow(clippy::type_complexity)] // options, one after the other
    fn module_options(
        &self,
        py: Python<'_>,
        modules: &str,
    ) -> PyResult<(
        &'static str,
        Option<&'static str>,
        BTreeMap<String, &'static str>,
        BTreeMap<String, &'static str>,
        Vec<String>,
    )> {
        let config = gil::detached(py, self.model.path(), || {
            let modules: QConfigDict = serde_json::from_str(modules)
                .map_err(|error| QuantizeError::option("config", error.to_string()))?;
            modules.config(&self.model)
        })?;
        let named = |(name, found): (String, WeightType)| (name, found.name());
        let mut weights: BTreeMap<_, _> = config.layer_types.into_iter().map(named).collect();
        let float = config.layer_float.into_iter();
        weights.extend(float.map(|name| (name, config::FLOAT32[0])));
        let activations = config.activations.map(QType::name);
        let some = config.activation_types.into_iter();
        let some = some.map(|(name, qtype)| (name, qtype.name())).collect();
        Ok((config.weights.name(), activations, weights, some, config.exclude))
    }

    /// Decides what to quantize.
    fn plan(&self, py: Python<'_>, options: ConfigOptions) -> PyResult<Plan> {
        let (prepared, plan) = gil::detached(py, self.model.path(), || {
            let prepared = Prepared::of(&self.model, options.config()?)?;
            let plan = prepared.plan();
            Ok::<_, QuantizeError>((prepared, plan))
        })?;
        Ok(Plan::new(Arc::new(prepared.model), plan))
    }
}
