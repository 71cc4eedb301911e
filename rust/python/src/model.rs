//! Models in Python.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quantize_rs::{
    Below, Config, ModelInfo, PreprocessedModel, Prune, QType, QuantizeError, SampleSource, Target, Wanted,
    WeightType, config,
};

use crate::gil;
use crate::module_options::{ModuleConfigs, ModuleOptions};
use crate::optimized::Optimized;
use crate::option_dict::OptionDict;
use crate::outcome::Outcome;
use crate::plan::Plan;

/// A model, as read from its file.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Model {
    pub(crate) model: Arc<quantize_rs::Model>,
}

/// What a caller wants; every key of the dict is an option of the Python functions.
#[derive(FromPyObject)]
#[allow(clippy::struct_excessive_bools)] // people say yes or no to them
#[pyo3(from_item_all)]
pub(crate) struct Wishes {
    bits: Option<u8>,
    weights: Option<String>,
    with_activations: bool,
    activations: Option<String>,
    activation_types: BTreeMap<String, String>,
    per_channel: bool,
    symmetric: bool,
    activation_symmetric: bool,
    narrow_range: Option<bool>,
    block_size: Option<usize>,
    weight_method: Option<String>,
    rounding: Option<String>,
    native_int4: Option<bool>,
    exclude: Vec<String>,
    include: Option<Vec<String>>,
    min_elements: usize,
    layer_bits: BTreeMap<String, u8>,
    layer_types: BTreeMap<String, String>,
    target: Option<String>,
    op_types: Option<Vec<String>>,
    prune: Option<(String, f64)>,
    bias_correction: bool,
    smooth: bool,
    passes: Option<Vec<String>>,
    opset: Option<i64>,
    output_format: String,
    accuracy_level: Option<usize>,
    dynamic_lstm: bool,
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

    /// Facts about the model.
    fn info(&self) -> Outcome {
        Outcome::new(ModelInfo::of(&self.model))
    }

    /// The model in a newer opset, and the changes.
    fn converted(&self, py: Python<'_>, opset: i64) -> PyResult<(Model, Outcome)> {
        let (model, conversion) = gil::detached(py, self.model.path(), || {
            quantize_rs::convert_opset(&self.model, opset)
        })?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(conversion)))
    }

    /// The model with the types and shapes of its values, and how many are known.
    fn inferred(&self, py: Python<'_>) -> PyResult<(Model, Outcome)> {
        let (model, inference) =
            gil::detached(py, self.model.path(), || quantize_rs::infer_shapes(&self.model))?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(inference)))
    }

    /// How to quantize the model.
    fn recommended(
        &self,
        py: Python<'_>,
        target: Option<String>,
        samples: Option<String>,
        in_memory: bool,
    ) -> PyResult<Outcome> {
        let model = Arc::clone(&self.model);
        let found = gil::interruptible(py, self.model.path(), move || {
            let target = target.map(|name| name.parse::<Target>()).transpose()?;
            let samples = match samples.as_deref() {
                _ if in_memory => Some(SampleSource::Memory),
                path => path.map(SampleSource::File),
            };
            quantize_rs::recommend(&model, Wanted { target, samples })
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
        let (model, report) = gil::detached(py, self.model.path(), || {
            let below = Below::parse(&below.0, below.1)?;
            quantize_rs::prune(&self.model, &Prune { below, per_channel, exclude })
        })?;
        Ok((Model { model: Arc::new(model) }, Outcome::new(report)))
    }

    /// Writes the model, completely or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        // After Ctrl-C nothing is written.
        py.check_signals()?;
        gil::detached(py, Some(&path), || self.model.save(&path).map(|_| ()))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = gil::detached(py, self.model.path(), || self.model.to_bytes())?;
        Ok(PyBytes::new(py, &bytes))
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
    fn plan(&self, py: Python<'_>, wishes: OptionDict<Wishes>) -> PyResult<Plan> {
        let (prepared, plan) = gil::detached(py, self.model.path(), || {
            let prepared = PreprocessedModel::of(&self.model, wishes.0.config()?)?;
            let plan = prepared.plan();
            Ok::<_, QuantizeError>((prepared, plan))
        })?;
        Ok(Plan::new(Arc::new(prepared.model), plan))
    }
}

impl Wishes {
    /// What a target brings gives way to what is asked for, except where it takes nothing else.
    pub(crate) fn config(self) -> Result<Config, QuantizeError> {
        let target = self.target.as_deref().map(str::parse::<Target>).transpose()?;
        let base = target.map_or_else(Config::default, Config::for_target);
        let weights = match (self.weights, self.bits) {
            (Some(name), bits) => of_bits(WeightType::of_option("weights", &name)?, bits)?,
            (None, Some(bits)) if u32::from(bits) != base.weights.bits() => {
                Config::with_bits(bits)?.weights
            }
            (None, _) => base.weights,
        };
        let activations = match self.activations {
            Some(name) => qtype("activations", &name)?,
            None => base.profile().activations[0],
        };
        // People write both in one place.
        let (layer_float, layer_types): (BTreeMap<_, _>, BTreeMap<_, _>) = self
            .layer_types
            .into_iter()
            .partition(|(_, found)| config::FLOAT32.contains(&found.as_str()));
        let layer_types = layer_types
            .into_iter()
            .map(|(name, found)| Ok((name, WeightType::of_option("layer_bits", &found)?)))
            .collect::<Result<_, QuantizeError>>()?;
        Ok(Config {
            weights,
            activations: self.with_activations.then_some(activations),
            activation_types: by_name(self.activation_types)?,
            per_channel: self.per_channel,
            symmetric: self.symmetric || base.symmetric,
            activation_symmetric: self.activation_symmetric || base.activation_symmetric,
            narrow_range: self.narrow_range,
            block_size: self.block_size,
            weight_method: self.weight_method.as_deref().map(config::weight_method).transpose()?,
            rounding: self.rounding.map(|name| name.parse()).transpose()?,
            native_int4: self.native_int4,
            exclude: self.exclude,
            include: self.include,
            min_elements: self.min_elements,
            layer_bits: self.layer_bits,
            layer_types,
            layer_float: layer_float.into_keys().collect(),
            target,
            op_types: self.op_types,
            prune: self.prune.map(|(how, number)| Below::parse(&how, number)).transpose()?,
            bias_correction: self.bias_correction,
            smooth: self.smooth,
            passes: self.passes,
            opset: self.opset,
            output_format: self.output_format.parse()?,
            dynamic_lstm: self.dynamic_lstm,
            // What fits no byte is refused like what is too high.
            accuracy_level: self.accuracy_level.map(|l| u8::try_from(l).unwrap_or(u8::MAX)),
        })
    }
}

/// Types of activations by the names that they are asked for.
fn by_name(types: BTreeMap<String, String>) -> Result<BTreeMap<String, QType>, QuantizeError> {
    let of = |(name, found): (String, String)| Ok((name, qtype("activation_types", &found)?));
    types.into_iter().map(of).collect()
}

fn qtype(option: &str, name: &str) -> Result<QType, QuantizeError> {
    QType::parse(name).ok_or_else(|| {
        let known: Vec<&str> = QType::ALL.iter().map(|qtype| qtype.name()).collect();
        QuantizeError::option(option, format!("is `{name}`, expected one of {}", known.join(", ")))
    })
}

/// The type, unless other bits were asked for in the same breath; 8 are nobody's wish but the
/// default.
fn of_bits(asked: WeightType, bits: Option<u8>) -> Result<WeightType, QuantizeError> {
    let default = Config::default().weights.bits();
    match bits.map(u32::from) {
        Some(bits) if bits != default && bits != asked.bits() => {
            let what = format!("is {bits}, but weights is {asked}: give one of them");
            Err(QuantizeError::option("bits", what))
        }
        _ => Ok(asked),
    }
}
