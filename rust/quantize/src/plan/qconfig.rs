//! Types for the modules of a network, as training frameworks name them, and the equivalent options
//! for a model.

use std::collections::{BTreeMap, HashSet};

use quantize_rs_math::QType;
use serde::{Deserialize, Serialize};

use super::pattern::{Known, Pattern, Subject};
use crate::graph::Graph;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::{Config, QuantizeError};

/// The types to which a module is quantized; `None` stays float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QConfig {
    /// The type of weights.
    pub weight: Option<QType>,
    /// The type of the outputs of its operators.
    pub activation: Option<QType>,
}

/// Types for modules, by name, by pattern, by operator type, and for all others.
///
/// A name takes precedence over a pattern, and a pattern over an operator type. The name of a
/// module matches the module and all in it: `features.0` matches the weight `features.0.weight` and
/// the node `/features/features.0/Conv`, as exporters name them. Of several names, the longest
/// decides; of several patterns or operator types, the one that was set last.
///
/// ```
/// use quantize_rs::{Model, Plan, PreprocessedModel, QConfig, QConfigDict, QType};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let all = QConfig { weight: Some(QType::Int8), activation: None };
/// let modules = QConfigDict::default()
///     .set_global(all)
///     .set_module_name("conv1", QConfig { weight: Some(QType::Int16), ..all })
///     .set_module_type("Gemm", QConfig::default());
/// let model = Model::open(path)?;
/// let prepared = PreprocessedModel::of(&model, modules.config(&model)?)?;
/// assert!(prepared.plan().quantized().any(|(_, how)| how.stored == QType::Int16));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QConfigDict {
    global: QConfig,
    names: BTreeMap<String, QConfig>,
    patterns: Vec<(String, QConfig)>,
    types: Vec<(String, QConfig)>,
}

impl QConfigDict {
    /// Sets the types of all modules that nothing else matches.
    #[must_use]
    pub fn set_global(self, config: QConfig) -> QConfigDict {
        QConfigDict { global: config, ..self }
    }

    /// Sets the types of a module, or of all that match a pattern: `*`, `?`, `[…]`, or a regular
    /// expression after `re:`.
    #[must_use]
    pub fn set_module_name(mut self, name: impl Into<String>, config: QConfig) -> QConfigDict {
        let name = name.into();
        if name.starts_with("re:") || name.contains(['*', '?', '[']) {
            self.patterns.push((name, config));
        } else {
            self.names.insert(name, config);
        }
        self
    }

    /// Sets the types of all operators of a type: `Conv`.
    #[must_use]
    pub fn set_module_type(mut self, op_type: impl Into<String>, config: QConfig) -> QConfigDict {
        self.types.push((op_type.into(), config));
        self
    }

    /// The equivalent options for a model; all others have their defaults.
    ///
    /// # Errors
    /// A name, pattern or type that matches nothing in the model; a type for the activations of
    /// some modules while those of all others stay float; or a type for the weights alone of some
    /// modules while activations are quantized.
    pub fn config(&self, model: &quantize_rs_onnx::Model) -> Result<Config, QuantizeError> {
        let graph = Graph::of(model)?;
        let constants = uses::constants(&graph);
        let modules = Modules::of(&graph, &constants);
        let found = Found::of(self, &modules)?;
        let mut config = Config { activations: self.global.activation, ..Config::default() };
        config.weights = self.global.weight.map_or(config.weights, Into::into);
        for constant in constants.iter().filter(|constant| constant.is_weight()) {
            let name = graph.values[constant.anchor].name.to_owned();
            let nodes = constant.multipliers(&graph);
            let labels = nodes.map(|node| (node.name.as_str(), node.op_type.as_str()));
            match found.of_subject(&Module::of(&name, labels)).weight {
                None => drop(config.layer_float.insert(name)),
                Some(qtype) if Some(qtype) == self.global.weight => {}
                Some(qtype) => drop(config.layer_types.insert(name, qtype.into())),
            }
        }
        for module in &modules.nodes {
            found.activation(module, &mut config)?;
        }
        Ok(config)
    }
}

/// A node or a weight, with all its names.
struct Module<'m> {
    /// Its name in options: its own name, or that of its output.
    key: &'m str,
    named: bool,
    names: Vec<String>,
    op_types: Vec<&'m str>,
    weighs: bool,
}

impl<'m> Module<'m> {
    fn of(key: &'m str, nodes: impl Iterator<Item = (&'m str, &'m str)>) -> Module<'m> {
        let (mut names, mut op_types) = (vec![key.to_owned()], Vec::new());
        for (name, op_type) in nodes {
            names.extend([name.to_owned(), dotted(name)]);
            op_types.push(op_type);
        }
        names.retain(|name| !name.is_empty());
        Module { key, named: true, names, op_types, weighs: true }
    }

    /// The length of `name` if it is the module or contains it.
    fn lies_in(&self, name: &str) -> Option<usize> {
        let inside = |own: &String| {
            own.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
        };
        self.names.iter().any(inside).then_some(name.len())
    }
}

/// The dotted name of a path of scopes, each of which may begin with the one before it:
/// `features.0.Conv` for `/features/features.0/Conv`.
fn dotted(path: &str) -> String {
    let scopes = path.split('/').filter(|scope| !scope.is_empty());
    scopes.fold(String::new(), |outer, scope| {
        let within =
            !outer.is_empty() && scope.strip_prefix(&outer).is_some_and(|s| s.starts_with('.'));
        if outer.is_empty() || within { scope.to_owned() } else { format!("{outer}.{scope}") }
    })
}

/// Everything in a model that a name can match.
struct Modules<'m> {
    nodes: Vec<Module<'m>>,
    weights: Vec<String>,
}

impl<'m> Modules<'m> {
    fn of(graph: &Graph<'m>, constants: &[Constant<'m>]) -> Modules<'m> {
        let weight = |constant: &&Constant<'_>| constant.is_weight();
        let weights: Vec<_> = constants.iter().filter(weight).collect();
        let mut nodes = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if ops::rule(node).is_none() {
                continue;
            }
            let own = weights.iter().filter(|constant| {
                constant.multipliers(graph).any(|consumer| std::ptr::eq(consumer, *node))
            });
            let own: Vec<&str> = own.map(|constant| graph.values[constant.anchor].name).collect();
            let made = graph.output(index, 0).map_or("", |id| graph.values[id].name);
            let named = !node.name.is_empty();
            let key = if named { node.name.as_str() } else { made };
            let mut module =
                Module::of(key, std::iter::once((node.name.as_str(), node.op_type.as_str())));
            module.names.extend(own.iter().map(|name| (*name).to_owned()));
            (module.named, module.weighs) = (named, !own.is_empty());
            nodes.push(module);
        }
        let name = |constant: &&Constant<'m>| graph.values[constant.anchor].name.to_owned();
        Modules { nodes, weights: weights.into_iter().map(|constant| name(&constant)).collect() }
    }
}

/// The types that were set, each of which matches something.
struct Found<'a> {
    set: &'a QConfigDict,
    patterns: Vec<(Pattern, QConfig)>,
}

impl<'a> Found<'a> {
    fn of(set: &'a QConfigDict, modules: &Modules<'_>) -> Result<Found<'a>, QuantizeError> {
        let names: HashSet<&str> = modules
            .nodes
            .iter()
            .flat_map(|module| module.names.iter().map(String::as_str))
            .chain(modules.weights.iter().map(String::as_str))
            .collect();
        let op_types: HashSet<&str> =
            modules.nodes.iter().flat_map(|module| module.op_types.iter().copied()).collect();
        let refused = |option: &str, text: &str, known: &Known<'_>| {
            let what = format!(
                "names `{text}`, which is no {} of the model{}",
                known.what,
                known.hint(text)
            );
            QuantizeError::option(option, what)
        };
        let types = Known { op_types, ..Known::of("operator that can be quantized") };
        for (op_type, _) in &set.types {
            if !types.op_types.contains(op_type.as_str()) {
                return Err(refused("set_module_type", op_type, &types));
            }
        }
        let known = Known { names, ..Known::of("module, node or weight") };
        for name in set.names.keys() {
            let there = known.names.iter().any(|own| {
                let module = Module::of(own, std::iter::empty());
                module.lies_in(name).is_some()
            });
            if !there {
                return Err(refused("set_module_name", name, &known));
            }
        }
        let pattern = |(text, config): &(String, QConfig)| {
            Ok((known.pattern("set_module_name", text)?, *config))
        };
        let patterns =
            set.patterns.iter().rev().map(pattern).collect::<Result<_, QuantizeError>>()?;
        Ok(Found { set, patterns })
    }

    /// The types that were set for a node or weight.
    fn of_subject(&self, module: &Module<'_>) -> QConfig {
        let names = self.set.names.iter();
        let longest = names.filter_map(|(name, config)| Some((module.lies_in(name)?, config)));
        if let Some((_, config)) = longest.max_by_key(|(length, _)| *length) {
            return *config;
        }
        let subject = Subject {
            outputs: Vec::new(),
            names: module.names.iter().map(String::as_str).collect(),
            op_types: module.op_types.clone(),
        };
        if let Some((_, config)) = self.patterns.iter().find(|(pattern, _)| pattern.fits(&subject))
        {
            return *config;
        }
        let mut types = self.set.types.iter().rev();
        let of_type = types.find(|(op_type, _)| module.op_types.contains(&op_type.as_str()));
        of_type.map_or(self.set.global, |(_, config)| *config)
    }

    /// Adds the type that was set for the outputs of a node to the options.
    fn activation(&self, module: &Module<'_>, config: &mut Config) -> Result<(), QuantizeError> {
        let QConfig { weight, activation } = self.of_subject(module);
        let refused = |what: &str| {
            let what = format!("gives `{}` {what}", module.key);
            Err(QuantizeError::option("activation", what))
        };
        match (self.set.global.activation, activation) {
            (global, own) if global == own => Ok(()),
            (None, _) => refused("a type, but set_global leaves activations float"),
            (Some(_), Some(qtype)) => {
                config.activation_types.insert(module.key.to_owned(), qtype);
                Ok(())
            }
            (Some(_), None) if weight.is_some() && module.weighs => refused(
                "no type, but its weight one: where others compute in integers a module is \
                 quantized whole or not at all",
            ),
            (Some(_), None) if module.named => {
                config.exclude.push(module.key.to_owned());
                Ok(())
            }
            // The weight stays float, and so does the node.
            (Some(_), None) if module.weighs => Ok(()),
            (Some(_), None) => refused("no type, but the node has no name to leave it out by"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::dotted;

    #[test]
    fn scopes_are_read_as_exporters_write_them() {
        assert_eq!(dotted("/features/features.0/Conv"), "features.0.Conv");
        assert_eq!(dotted("/layer1/layer1.0/conv1/Conv"), "layer1.0.conv1.Conv");
        assert_eq!(dotted("conv1"), "conv1");
        assert_eq!(dotted("/a/ab/Add"), "a.ab.Add");
        assert_eq!(dotted(""), "");
    }
}
