//! A model made ready for the plan that is asked for: passes run, and its operator set is new enough.

use quantize_rs_onnx::Model;
use serde::Serialize;

use super::minimum_opset::{self, PlannedModel};
use super::{Plan, names_removed_by_passes};
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::graph::interface::same_interface;
use crate::transform::{
    Prune, STORE_INTEGERS, Step, WIDEN_FLOATS, named, planning, prune_only, run,
};
use crate::{Config, QuantizeError};

/// A model made ready for planning.
#[derive(Clone, Debug)]
pub struct PreprocessedModel {
    /// The model: the one given, where there was nothing to do.
    pub model: Model,
    /// What was done to it.
    pub steps: Vec<Step>,
    plan: Plan,
}

/// The model that a plan goes back to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Origin {
    /// Its fingerprint, which ranges carry: they fit however it was prepared.
    pub(crate) fingerprint: String,
    /// Its bytes, with the data beside it.
    pub(crate) bytes: u64,
}

impl Origin {
    pub(crate) fn of(model: &Model) -> Origin {
        Origin { fingerprint: fingerprint(model), bytes: model.byte_len() }
    }
}

impl PreprocessedModel {
    /// Makes a model ready for the plan that `config` asks for: weights are pruned where that is asked
    /// for, passes run, and a model whose operator set is too old for the result is converted.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, PreprocessedModel};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let prepared = PreprocessedModel::of(&Model::open(path)?, Config::default())?;
    /// let plan = prepared.plan();
    /// let quantized = plan.apply(&prepared.model, None)?;
    /// # assert!(quantized.report().ratio() > 3.0);
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    ///
    /// # Errors
    /// A pass that there is none of, what [`Plan::of`] refuses, or a node that cannot be converted
    /// to the operator set that the result needs.
    pub fn of(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        config.check()?;
        let Some(below) = config.prune else { return PreprocessedModel::ready(model, config) };
        let how = Prune { below, per_channel: false, exclude: config.exclude.clone() };
        let (pruned, pruning) = prune_only(model, &how, config.include.as_ref())?;
        let mut prepared = PreprocessedModel::ready(&pruned, config)?;
        prepared.plan.origin.bytes = model.byte_len();
        let step = pruning.step();
        if !step.did.is_empty() {
            prepared.steps.insert(0, step);
            prepared.plan.steps.clone_from(&prepared.steps);
        }
        Ok(prepared)
    }

    /// As [`PreprocessedModel::of`], of a model whose weights stay what they are.
    fn ready(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        let integers = config.computes_on_integers();
        PreprocessedModel::with(model, config, integers)
    }

    /// As [`PreprocessedModel::ready`], for products of integers or none.
    fn with(
        model: &Model,
        config: Config,
        integers: bool,
    ) -> Result<PreprocessedModel, QuantizeError> {
        let wishes = config.clone();
        let asked = config.passes.is_some();
        let passes = match &config.passes {
            Some(names) => named(names)?,
            None => planning(integers),
        };
        let (mut prepared, mut steps) = run(model, &passes, !asked)?;
        let (config, gone) = if steps.is_empty() {
            (config, Vec::new())
        } else {
            names_removed_by_passes(&Graph::of(model)?, &Graph::of(&prepared)?, config)
        };
        let PlannedModel { mut plan, converted } = minimum_opset::ready(&prepared, config)?;
        plan.warnings.extend(gone);
        if let Some((converted, step)) = converted {
            same_interface(&prepared, &converted)?;
            prepared = converted;
            steps.push(step);
        }
        plan.steps.clone_from(&steps);
        plan.origin = Origin::of(model);
        let did = |name: &str| steps.iter().any(|step| step.pass == name);
        if !asked && did(WIDEN_FLOATS) && !plan.computes_on_integers() {
            return PreprocessedModel::with(model, wishes, false);
        }
        let idle = plan.quantized().next().is_none();
        let stored = did(STORE_INTEGERS);
        // What served nothing is not done: the model then comes out as it went in.
        if idle
            && !stored
            && !asked
            && !steps.is_empty()
            && let as_it_is = (Config { passes: Some(Vec::new()), ..wishes })
            && let Ok(prepared) = PreprocessedModel::ready(model, as_it_is)
        {
            return Ok(prepared);
        }
        Ok(PreprocessedModel { model: prepared, steps, plan })
    }

    /// The plan for it.
    pub fn plan(&self) -> Plan {
        self.plan.clone()
    }
}
