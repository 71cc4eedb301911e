//! The configs of modules, as `QConfigDict` of Python holds them, and the options they stand for.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use quantize_rs::{Model, QConfig, QConfigDict, QType, QuantizeError, WeightType, config};

/// The types of a module: an object with these attributes.
#[derive(FromPyObject)]
struct ModuleConfig {
    weight: Option<String>,
    activation: Option<String>,
}

/// The configs of modules; each key of the dict is a kind of selector.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ModuleConfigs {
    /// The config of all modules that no other entry matches.
    all: ModuleConfig,
    /// Names and patterns, with their configs.
    names: Vec<(String, ModuleConfig)>,
    /// Operator types, with their configs.
    types: Vec<(String, ModuleConfig)>,
}

/// Options of `Model.plan`; a dict in Python.
#[derive(IntoPyObject)]
pub(crate) struct ModuleOptions {
    weights: &'static str,
    activations: Option<&'static str>,
    layer_bits: BTreeMap<String, &'static str>,
    activation_types: BTreeMap<String, &'static str>,
    exclude: Vec<String>,
}

impl ModuleConfig {
    fn parse(self) -> Result<QConfig, QuantizeError> {
        let qtype = |name: Option<String>| {
            let unknown = |name: &str| {
                QuantizeError::option("config", format!("has the unknown type `{name}`"))
            };
            name.map(|name| QType::parse(&name).ok_or_else(|| unknown(&name))).transpose()
        };
        Ok(QConfig { weight: qtype(self.weight)?, activation: qtype(self.activation)? })
    }
}

impl ModuleConfigs {
    /// The options that these configs stand for in a model.
    pub(crate) fn options(self, model: &Model) -> Result<ModuleOptions, QuantizeError> {
        let mut modules = QConfigDict::default().set_global(self.all.parse()?);
        for (name, config) in self.names {
            modules = modules.set_module_name(name, config.parse()?);
        }
        for (op_type, config) in self.types {
            modules = modules.set_module_type(op_type, config.parse()?);
        }
        let config = modules.config(model)?;
        let named = |(name, found): (String, WeightType)| (name, found.name());
        let mut layer_bits: BTreeMap<_, _> = config.layer_types.into_iter().map(named).collect();
        let float = config.layer_float.into_iter();
        layer_bits.extend(float.map(|name| (name, config::FLOAT32[0])));
        let types = config.activation_types.into_iter();
        Ok(ModuleOptions {
            weights: config.weights.name(),
            activations: config.activations.map(QType::name),
            layer_bits,
            activation_types: types.map(|(name, qtype)| (name, qtype.name())).collect(),
            exclude: config.exclude,
        })
    }
}
