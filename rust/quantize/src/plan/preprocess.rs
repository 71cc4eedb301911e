//! Prepares a model for a plan: runs passes, and converts it to a newer operator set if needed.

use quantize_rs_onnx::{Model, Span};
use serde::Serialize;

use super::minimum_opset::{self, PlannedModel};
use super::{Plan, names_removed_by_passes};
use crate::error::while_unchanged;
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::graph::interface::same_interface;
use crate::transform::{
    EQUALIZE, OpsetConversion, Pass, PassStage, Prune, Purpose, STORE_INTEGERS, Step, WIDEN_FLOATS,
    convert_opset, named, planning, prune_only, run,
};
use crate::{Config, Format, QuantizeError};

/// A model that is prepared for planning.
#[derive(Clone, Debug)]
pub struct PreprocessedModel {
    /// The prepared model; the given one if there was nothing to do.
    pub model: Model,
    /// The changes that were made.
    pub steps: Vec<Step>,
    plan: Plan,
}

/// The model that a plan was made for, before it was prepared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Origin {
    /// Its fingerprint. Ranges refer to it, so that they fit however the model is prepared.
    pub(crate) fingerprint: String,
    /// Its size in bytes, including external data.
    pub(crate) bytes: u64,
}

impl Origin {
    pub(crate) fn of(model: &Model) -> Origin {
        Origin { fingerprint: fingerprint(model), bytes: model.byte_len() }
    }
}

impl PreprocessedModel {
    /// Prepares a model for the plan that `config` describes: prunes weights if requested, runs
    /// passes, and converts a model whose operator set is too old for the result.
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
    /// An unknown pass, an error of [`Plan::of`], or a node that cannot be converted to the
    /// operator set that the result needs.
    pub fn of(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        PreprocessedModel::leaving(model, config, &[])
    }

    /// As [`PreprocessedModel::of`], with more weights and nodes left in float. Pruning ignores
    /// that, so that the model is the same whichever these are.
    pub(crate) fn leaving(
        model: &Model,
        mut config: Config,
        float: &[String],
    ) -> Result<PreprocessedModel, QuantizeError> {
        while_unchanged(&[model], || {
            config.check()?;
            let _span = Span::stage("plan");
            let how = config.prune.map(|below| {
                let exclude = config.exclude.clone();
                Prune { below, per_channel: false, exclude }
            });
            config.exclude.extend_from_slice(float);
            let Some(how) = how else { return PreprocessedModel::ready(model, config) };
            let (pruned, pruning) = prune_only(model, &how, config.include.as_ref())?;
            let mut prepared = PreprocessedModel::ready(&pruned, config)?;
            prepared.plan.origin.bytes = model.byte_len();
            let step = pruning.step();
            if !step.did.is_empty() {
                prepared.steps.insert(0, step);
                prepared.plan.steps.clone_from(&prepared.steps);
            }
            Ok(prepared)
        })
    }

    /// As [`PreprocessedModel::of`], without pruning.
    fn ready(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        let integers = config.computes_on_integers();
        PreprocessedModel::with(model, config, integers)
    }

    /// As [`PreprocessedModel::ready`]; `integers` says whether the plan is expected to compute on
    /// integers.
    fn with(
        model: &Model,
        config: Config,
        integers: bool,
    ) -> Result<PreprocessedModel, QuantizeError> {
        if let Some((newer, step)) = broadcasting(model, &config)
            && let Ok(prepared) = PreprocessedModel::with(&newer, config.clone(), integers)
            && prepared.model.opset("") != newer.opset("")
        {
            // The result needs a newer opset in any case.
            return Ok(prepared.after(model, step));
        }
        let requested = config.clone();
        let asked = config.passes.is_some();
        let mut passes = match &config.passes {
            Some(names) => named("optimize", names)?,
            None => planning(integers),
        };
        // Training updates biases, and `MatMulNBits` adds its own.
        let is_qdq = matches!(config.output_format, Format::Qdq | Format::QOperator);
        passes.retain(|pass| asked || is_qdq || pass.stage != PassStage::Floats);
        passes.retain(|pass| asked || config.equalize || pass.name != EQUALIZE);
        // What stays outside of a product would keep its output from integers. Equalizing makes up
        // for most of what factors of channels cost that are folded into one scale.
        let one_scale = !config.scales_per_channel() && config.block_size.is_none();
        let folds_all = config.activations.is_some() && config.equalize;
        let per_tensor = one_scale && !folds_all;
        let attention = config.writes_qattention();
        let planning = Purpose::Planning { per_tensor, attention };
        let purpose = if asked { Purpose::Optimizing } else { planning };
        let (mut prepared, mut steps) = run(model, &passes, purpose)?;
        let (mut config, mut gone) = still_named(model, &prepared, &steps, config)?;
        // A bias or a value that an option names keeps its name.
        let renames = |pass: &&Pass| pass.stage == PassStage::Floats || pass.name == EQUALIZE;
        if !asked && !gone.is_empty() && passes.iter().any(renames) {
            passes.retain(|pass| !renames(pass));
            (prepared, steps) = run(model, &passes, purpose)?;
            (config, gone) = still_named(model, &prepared, &steps, requested.clone())?;
        }
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
            return PreprocessedModel::with(model, requested, false);
        }
        let idle = plan.quantized().next().is_none();
        let stored = did(STORE_INTEGERS);
        // Nothing was quantized, so the passes are not needed: return the model unchanged.
        if idle
            && !stored
            && !asked
            && !steps.is_empty()
            && let as_it_is = (Config { passes: Some(Vec::new()), ..requested })
            && let Ok(mut prepared) = PreprocessedModel::ready(model, as_it_is)
        {
            // No option left the passes out.
            prepared.plan.warnings = plan.warnings;
            return Ok(prepared);
        }
        Ok(PreprocessedModel { model: prepared, steps, plan })
    }

    /// The same, made from an older model by this conversion.
    fn after(mut self, model: &Model, conversion: OpsetConversion) -> PreprocessedModel {
        let from = conversion.from;
        let again = format!("opset {} → ", conversion.to);
        let mut did = conversion.changed;
        let to = match self.steps.iter().position(|step| step.pass.starts_with(&again)) {
            Some(at) => {
                let step = self.steps.remove(at);
                did.extend(step.did);
                step.pass[again.len()..].to_owned()
            }
            None => conversion.to.to_string(),
        };
        self.steps.insert(0, Step { pass: format!("opset {from} → {to}"), did });
        self.plan.steps.clone_from(&self.steps);
        self.plan.origin = Origin::of(model);
        self
    }

    /// The plan for the prepared model.
    pub fn plan(&self) -> Plan {
        self.plan.clone()
    }
}

/// The first opset in which the operands of all operators broadcast by their shapes. Passes do not
/// know the attributes that were there before.
const BROADCASTING: i64 = 8;

/// A model of an older opset, converted to that one; `None` for newer models, where passes are
/// named, and where a node cannot be converted.
fn broadcasting(model: &Model, config: &Config) -> Option<(Model, OpsetConversion)> {
    let is_old = model.opset("").is_some_and(|have| have < BROADCASTING);
    let may_be = config.passes.is_none() && config.opset.is_none_or(|asked| asked >= BROADCASTING);
    if !is_old || !may_be {
        return None;
    }
    let (newer, conversion) = convert_opset(model, BROADCASTING).ok()?;
    same_interface(model, &newer).ok()?;
    Some((newer, conversion))
}

/// The options that apply after the passes, and warnings about those that name something that the
/// passes removed.
fn still_named(
    model: &Model,
    prepared: &Model,
    steps: &[Step],
    config: Config,
) -> Result<(Config, Vec<String>), QuantizeError> {
    if steps.is_empty() {
        return Ok((config, Vec::new()));
    }
    Ok(names_removed_by_passes(&Graph::of(model)?, &Graph::of(prepared)?, config))
}
