//! A model in Python's hands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use quantize_rs::{Config, Graph, ModelInfo, QType, QuantizeError};

use crate::plan::Plan;
use crate::work;

/// A model: what is in the file.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Model {
    model: Arc<quantize_rs::Model>,
}

/// What a caller wants; every key of the dict is an option of the Python functions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wishes {
    bits: Option<u8>,
    weights: Option<String>,
    activations: Option<String>,
    per_channel: bool,
    symmetric: bool,
    activation_symmetric: bool,
    block_size: Option<usize>,
    native_int4: Option<bool>,
    exclude: Vec<String>,
    min_elements: usize,
    layer_bits: BTreeMap<String, u8>,
}

#[pymethods]
impl Model {
    /// Opens a file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Model> {
        let model = work::detached(py, Some(&path), || quantize_rs::Model::open(&path))?;
        Ok(Model { model: Arc::new(model) })
    }

    /// Reads the bytes of a file, which are held and not copied.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Model> {
        let model =
            work::detached(py, None, || quantize_rs::Model::from_bytes(Bytes::from_owner(data)))?;
        Ok(Model { model: Arc::new(model) })
    }

    /// Where it was opened from.
    #[getter]
    fn path(&self) -> Option<&Path> {
        self.model.path()
    }

    /// Facts about the model, as JSON.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        work::json(py, &ModelInfo::of(&self.model))
    }

    /// Decides what to quantize.
    fn plan(&self, py: Python<'_>, wishes: Wishes) -> PyResult<Plan> {
        let plan = work::detached(py, self.model.path(), || {
            let config = wishes.config()?;
            quantize_rs::Plan::of(&Graph::of(&self.model)?, config)
        })?;
        Ok(Plan::new(Arc::clone(&self.model), plan))
    }
}

impl Wishes {
    fn config(self) -> Result<Config, QuantizeError> {
        let base = self.bits.map_or_else(|| Ok(Config::default()), Config::with_bits)?;
        let weights = match self.weights {
            None => base.weights,
            Some(name) => of_bits(qtype("weights", &name)?, self.bits)?,
        };
        let activations = self.activations.map(|name| qtype("activations", &name)).transpose()?;
        Ok(Config {
            weights,
            activations,
            per_channel: self.per_channel,
            symmetric: self.symmetric,
            activation_symmetric: self.activation_symmetric,
            block_size: self.block_size,
            native_int4: self.native_int4,
            exclude: self.exclude,
            min_elements: self.min_elements,
            layer_bits: self.layer_bits,
        })
    }
}

fn qtype(option: &str, name: &str) -> Result<QType, QuantizeError> {
    QType::parse(name).ok_or_else(|| {
        let known: Vec<&str> = QType::ALL.iter().map(|qtype| qtype.name()).collect();
        QuantizeError::option(option, format!("is `{name}`, expected one of {}", known.join(", ")))
    })
}

/// The type, unless other bits were asked for in the same breath; 8 are nobody's wish but the
/// default.
fn of_bits(qtype: QType, bits: Option<u8>) -> Result<QType, QuantizeError> {
    let default = Config::default().weights.bits();
    match bits.map(u32::from) {
        Some(bits) if bits != default && bits != qtype.bits() => {
            let what = format!("is {bits}, but weights is {}: give one of them", qtype.name());
            Err(QuantizeError::option("bits", what))
        }
        _ => Ok(qtype),
    }
}
