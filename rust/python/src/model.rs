//! Models in Python.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quantize_rs::{
    Below, InputSpec, ModelInfo, PreprocessedModel, Prune, QuantizeError, Request, Target,
};
use quantize_rs_onnx::GraphProto;
use quantize_rs_runner::samples;

use crate::gil;
use crate::module_options::{ModuleConfigs, ModuleOptions};
use crate::optimized::Optimized;
use crate::option_dict::ConfigOptions;
use crate::outcome::Outcome;
use crate::plan::Plan;

/// A model, as read from its file.
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

    /// Reads the bytes of a file without copying them.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Model> {
        let model =
            gil::detached(py, None, || quantize_rs::Model::from_bytes(Bytes::from_owner(data)))?;
        Ok(Model { model: Arc::new(model) })
    }

    /// The file of the model; None for a model in memory.
    #[getter]
    fn path(&self) -> Option<&Path> {
        self.model.path()
    }

    /// Refuses a model with an input of strings, for which there are no samples.
    fn refuse_string_inputs(&self, py: Python<'_>) -> PyResult<()> {
        let inputs = InputSpec::of(&self.model);
        gil::detached(py, None, || Ok::<_, QuantizeError>(samples::refuse_strings(&inputs)?))
    }

    /// Facts about the model.
    fn info(&self) -> Outcome {
        Outcome::new(ModelInfo::of(&self.model))
    }

    /// The model in a newer opset, and the changes.
    fn converted(&self, py: Python<'_>, opset: i64) -> PyResult<(Model, Outcome)> {
        let model = Arc::clone(&self.model);
        let (model, conversion) = gil::interruptible(py, self.model.path(), move || {
            quantize_rs::convert_opset(&model, opset)
        })?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(conversion)))
    }

    /// The model with the types and shapes of its values, and how many are known.
    fn inferred(&self, py: Python<'_>) -> PyResult<(Model, Outcome)> {
        let model = Arc::clone(&self.model);
        let (model, inference) =
            gil::interruptible(py, self.model.path(), move || quantize_rs::infer_shapes(&model))?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(inference)))
    }

    /// How to quantize the model, by the file alone.
    fn recommended(&self, py: Python<'_>, target: Option<String>) -> PyResult<Outcome> {
        let model = Arc::clone(&self.model);
        let found = gil::interruptible(py, self.model.path(), move || {
            let target = target.map(|name| name.parse::<Target>()).transpose()?;
            quantize_rs::recommend(&model, Request { target, samples: None })
        })?;
        Ok(Outcome::new(found))
    }

    /// The model with its small weights set to 0, and how many there are.
    fn pruned(
        &self,
        py: Python<'_>,
        below: (String, f64),
        per_channel: bool,
        exclude: Vec<String>,
    ) -> PyResult<(Model, Outcome)> {
        let model = Arc::clone(&self.model);
        let (model, report) = gil::interruptible(py, self.model.path(), move || {
            let below = Below::parse(&below.0, below.1)?;
            quantize_rs::prune(&model, &Prune { below, per_channel, exclude })
        })?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(report)))
    }

    /// The name and the operator of each node, and the names of the constants: initializers and
    /// outputs of `Constant` nodes. Those of subgraphs are included.
    fn names(&self) -> (Vec<(String, String)>, Vec<String>) {
        let mut names = (Vec::new(), Vec::new());
        add_names(self.model.graph(), &mut names);
        names
    }

    /// The name and the operator of each node of the main graph.
    fn nodes(&self) -> Vec<(String, String)> {
        let nodes = self.model.graph().node.iter();
        nodes.map(|node| (node.name.clone(), node.op_type.clone())).collect()
    }

    /// Whether a `Gather` looks rows of floats up in a constant, in subgraphs too.
    fn has_tables(&self) -> bool {
        has_tables(self.model.graph(), &mut Vec::new())
    }

    /// The names of the values of the main graph.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        gil::detached(py, self.model.path(), || {
            let graph = quantize_rs::Graph::of(&self.model)?;
            Ok::<_, QuantizeError>(graph.values.iter().map(|value| value.name.to_owned()).collect())
        })
    }

    /// Writes the model, completely or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (model, to) = (self.model.clone(), path.clone());
        gil::saving(py, &path, move || model.save(to).map(|_| ()))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        gil::detached_bytes(py, self.model.path(), || self.model.to_bytes())
    }

    /// Runs passes that do not change what the model computes.
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

    /// The options that the configs of modules stand for.
    fn module_options(&self, py: Python<'_>, modules: ModuleConfigs) -> PyResult<ModuleOptions> {
        gil::detached(py, self.model.path(), || modules.options(&self.model))
    }

    /// Decides what to quantize.
    fn plan(&self, py: Python<'_>, options: ConfigOptions) -> PyResult<Plan> {
        let config = gil::detached(py, self.model.path(), || options.config())?;
        let model = Arc::clone(&self.model);
        let (prepared, plan) = gil::interruptible(py, self.model.path(), move || {
            let prepared = PreprocessedModel::of(&model, config)?;
            let plan = prepared.plan();
            Ok::<_, QuantizeError>((prepared, plan))
        })?;
        Ok(Plan::new(Arc::new(prepared.model), plan))
    }
}

/// Adds the nodes and constants of a graph and of its subgraphs.
fn add_names(graph: &GraphProto, names: &mut (Vec<(String, String)>, Vec<String>)) {
    names.1.extend(graph.initializer.iter().map(|tensor| tensor.name.clone()));
    for node in &graph.node {
        names.0.push((node.name.clone(), node.op_type.clone()));
        if node.op_type == "Constant" && node.is_onnx() {
            names.1.extend(node.output.iter().cloned());
        }
        node.subgraphs().for_each(|body| add_names(body, names));
    }
}

/// Whether a `Gather` of a graph or its subgraphs reads a float constant of two axes or more.
fn has_tables<'g>(graph: &'g GraphProto, around: &mut Vec<&'g str>) -> bool {
    let known = around.len();
    let tables =
        graph.initializer.iter().filter(|tensor| tensor.dims.len() > 1 && tensor.is_float());
    around.extend(tables.map(|tensor| tensor.name.as_str()));
    for node in &graph.node {
        let value = node.attribute("value").and_then(|found| found.t.as_ref());
        let is_table = value.is_some_and(|tensor| tensor.dims.len() > 1 && tensor.is_float());
        if is_table && node.op_type == "Constant" {
            around.extend(node.output.iter().map(String::as_str));
        }
    }
    let found = graph.node.iter().any(|node| {
        let reads = node.input.first().is_some_and(|name| around.contains(&name.as_str()));
        reads && node.op_type == "Gather" && node.is_onnx()
            || node.subgraphs().any(|body| has_tables(body, around))
    });
    around.truncate(known);
    found
}
