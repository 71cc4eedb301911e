//! Preprocesses a model before planning: passes that rewrite the float graph without changing what
//! it computes.
//!
//! A pass reads a graph and returns edits, which [`Model::apply`] applies. The passes run in a
//! fixed order, repeatedly, until none of them returns edits.

pub(crate) mod convert_opset;
mod eval;
mod floats;
mod fold_batch_norm;
mod fold_constants;
mod fold_gemm_factors;
mod fold_shapes;
mod inline_functions;
mod lift_weights;
mod merge_duplicates;
mod minimum_opset;
mod optimize;
mod pass_edits;
mod precision_guards;
mod prune;
mod remove_identity;
mod remove_unused;
mod resize;
mod store_integers;
mod widen_floats;

pub use convert_opset::{OpsetConversion, convert_opset};

pub(crate) use inline_functions::weights_left;
pub use prune::{Below, Prune, PrunedWeight, Pruning, prune};
pub(crate) use prune::{channels, floats, lifted};

use std::fmt;

use quantize_rs_onnx::{Edit, Model};
use serde::{Deserialize, Serialize};

use minimum_opset::PlannedModel;

use crate::check::postconditions;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::plan::still_there;
use crate::{Config, Plan, QuantizeError};

pub use optimize::{Optimization, Optimized, optimize};

/// A pass that rewrites the float graph.
pub struct Pass {
    /// The name that selects the pass.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// When the pass runs by default.
    pub stage: PassStage,
    /// Returns the edits of the pass.
    pub(crate) run: Run,
    /// A variant with fewer edits that runs before planning, if there is one.
    pub(crate) minimal: Option<Run>,
}

/// When a pass runs by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassStage {
    /// Before planning, and when optimizing a model.
    Always,
    /// Only when optimizing a model.
    Optimizing,
    /// Only before planning, if the model will compute on integers.
    Integers,
}

type Run = fn(&Graph<'_>) -> Result<Changes, QuantizeError>;

/// The pass that stores weights that the model itself quantizes.
pub(crate) const STORE_INTEGERS: &str = "store_integers";

/// The pass that converts 16-bit floats to float32, since integer operators require float32.
pub(crate) const WIDEN_FLOATS: &str = "widen_floats";

/// All passes, in the order in which they run.
///
/// No pass that runs before planning merges constants: equal constants may need scales along
/// different axes.
pub const ALL: &[Pass] = &[
    Pass {
        name: "inline_functions",
        about: "replaces calls of model-local functions with the nodes of the functions",
        stage: PassStage::Always,
        run: inline_functions::all,
        minimal: Some(inline_functions::with_weights),
    },
    Pass {
        name: "lift_weights",
        about: "moves weights out of subgraphs (bodies of If, Loop, Scan)",
        stage: PassStage::Always,
        run: lift_weights::run,
        minimal: None,
    },
    Pass {
        name: "remove_identity",
        about: "removes nodes whose output equals their input",
        stage: PassStage::Always,
        run: remove_identity::run,
        minimal: None,
    },
    Pass {
        name: STORE_INTEGERS,
        about: "replaces weights that the model quantizes itself with the quantized integers",
        stage: PassStage::Always,
        run: store_integers::run,
        minimal: None,
    },
    Pass {
        name: "fold_constants",
        about: "evaluates constant expressions",
        stage: PassStage::Always,
        run: fold_constants::run,
        minimal: None,
    },
    Pass {
        name: "fold_shapes",
        about: "replaces computed shapes of a Reshape with constants",
        stage: PassStage::Always,
        run: fold_shapes::run,
        minimal: None,
    },
    Pass {
        name: "fold_batch_norm",
        about: "folds scales and shifts of channels into the preceding weights",
        stage: PassStage::Always,
        run: fold_batch_norm::run,
        minimal: None,
    },
    Pass {
        name: "fold_batch_norm_forward",
        about: "folds scales and shifts of channels into the following weights",
        stage: PassStage::Always,
        run: fold_batch_norm::forward,
        minimal: Some(fold_batch_norm::even),
    },
    Pass {
        name: "fold_gemm_factors",
        about: "folds alpha and beta of a Gemm into its weight and bias, for integer kernels",
        stage: PassStage::Always,
        run: fold_gemm_factors::run,
        minimal: None,
    },
    Pass {
        name: "resize_all_axes",
        about: "makes a Resize with an axes attribute list all axes, for integer runtimes",
        stage: PassStage::Always,
        run: resize::all_axes,
        minimal: None,
    },
    Pass {
        name: WIDEN_FLOATS,
        about: "converts float16 and bfloat16 computations to float32, for integer kernels",
        stage: PassStage::Integers,
        run: widen_floats::run,
        minimal: None,
    },
    Pass {
        name: "merge_duplicates",
        about: "merges equal constants",
        stage: PassStage::Optimizing,
        run: merge_duplicates::run,
        minimal: None,
    },
    Pass {
        name: "dead",
        about: "removes unused nodes and constants",
        stage: PassStage::Optimizing,
        run: remove_unused::run,
        minimal: None,
    },
];

/// The edits of a pass.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The edits.
    pub(crate) edits: Vec<Edit>,
    /// A description of each change.
    pub(crate) did: Vec<String>,
}

/// The changes that one pass made to a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name of the pass.
    pub pass: String,
    /// A description of each change.
    pub did: Vec<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.did.len() == 1 { "" } else { "s" };
        write!(f, "{}, {} change{plural}", self.pass, self.did.len())
    }
}

/// A model after preprocessing, together with its plan.
#[derive(Clone, Debug)]
pub struct PreprocessedModel {
    /// The model; unchanged if no pass had anything to do.
    pub model: Model,
    /// The passes that changed the model.
    pub steps: Vec<Step>,
    plan: Plan,
}

/// The model before preprocessing, to which a plan refers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Origin {
    /// Its fingerprint. Ranges store it, so they fit the model however it was preprocessed.
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
    /// Preprocesses a model for the plan that `config` describes: prunes weights if requested, runs
    /// the passes, and converts the opset if the result needs a newer one.
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
    /// A pass name is unknown, [`Plan::of`] fails, or a node cannot be converted to the opset that
    /// the result needs.
    pub fn of(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        config.check()?;
        let Some(below) = config.prune else { return PreprocessedModel::ready(model, config) };
        let how = Prune { below, per_channel: false, exclude: config.exclude.clone() };
        let (pruned, pruning) = prune::prune_only(model, &how, config.include.as_ref())?;
        let mut prepared = PreprocessedModel::ready(&pruned, config)?;
        prepared.plan.origin.bytes = model.byte_len();
        let step = pruning.step();
        if !step.did.is_empty() {
            prepared.steps.insert(0, step);
            prepared.plan.steps.clone_from(&prepared.steps);
        }
        Ok(prepared)
    }

    /// Like [`PreprocessedModel::of`], but without pruning.
    fn ready(model: &Model, config: Config) -> Result<PreprocessedModel, QuantizeError> {
        let integers = config.computes_on_integers();
        PreprocessedModel::with(model, config, integers)
    }

    /// Like [`PreprocessedModel::ready`]. `integers` says whether the model will compute on
    /// integers.
    fn with(
        model: &Model,
        config: Config,
        integers: bool,
    ) -> Result<PreprocessedModel, QuantizeError> {
        let original_config = config.clone();
        let explicit = config.passes.is_some();
        let passes = match &config.passes {
            Some(names) => named(names)?,
            None => planning(integers),
        };
        let (mut prepared, mut steps) = run(model, &passes, !explicit)?;
        let (config, name_warnings) = if steps.is_empty() {
            (config, Vec::new())
        } else {
            still_there(&Graph::of(model)?, &Graph::of(&prepared)?, config)
        };
        let PlannedModel { mut plan, converted } = minimum_opset::ready(&prepared, config)?;
        plan.warnings.extend(name_warnings);
        if let Some((converted, step)) = converted {
            postconditions::same_interface(&prepared, &converted)?;
            prepared = converted;
            steps.push(step);
        }
        plan.steps.clone_from(&steps);
        plan.origin = Origin::of(model);
        let did = |name: &str| steps.iter().any(|step| step.pass == name);
        if !explicit && did(WIDEN_FLOATS) && !plan.computes_on_integers() {
            return PreprocessedModel::with(model, original_config, false);
        }
        let idle = plan.quantized().next().is_none();
        let stored = did(STORE_INTEGERS);
        // If nothing is quantized, the passes are of no use: the model is returned unchanged.
        if idle
            && !stored
            && !explicit
            && !steps.is_empty()
            && let as_it_is = (Config { passes: Some(Vec::new()), ..original_config })
            && let Ok(prepared) = PreprocessedModel::ready(model, as_it_is)
        {
            return Ok(prepared);
        }
        Ok(PreprocessedModel { model: prepared, steps, plan })
    }

    /// The plan for the preprocessed model.
    pub fn plan(&self) -> Plan {
        self.plan.clone()
    }
}

/// The passes that run before planning. `integers` says whether the model will compute on integers.
pub(crate) fn planning(integers: bool) -> Vec<&'static Pass> {
    let runs = |pass: &&Pass| match pass.stage {
        PassStage::Always => true,
        PassStage::Optimizing => false,
        PassStage::Integers => integers,
    };
    ALL.iter().filter(runs).collect()
}

/// The model with all 16-bit float computations converted to float32.
pub(crate) fn widened(model: &Model) -> Result<Model, QuantizeError> {
    Ok(run(model, &named(&[WIDEN_FLOATS.to_owned()])?, true)?.0)
}

/// The passes with these names, in the order in which they run.
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Pass>, QuantizeError> {
    for name in names {
        if !ALL.iter().any(|pass| pass.name == name) {
            let known: Vec<&str> = ALL.iter().map(|pass| pass.name).collect();
            let what = format!("names `{name}`, expected some of {}", known.join(", "));
            return Err(QuantizeError::option("optimize", what));
        }
    }
    Ok(ALL.iter().filter(|pass| names.iter().any(|name| name == pass.name)).collect())
}

/// The maximum number of rounds. Each round works on the result of the previous one.
const MAX_ROUNDS: usize = 16;

/// The first pass that returns edits for the current model, with its edits.
fn first(
    model: &Model,
    passes: &mut impl Iterator<Item = &'static Pass>,
    sparing: bool,
) -> Result<Option<(&'static Pass, Changes)>, QuantizeError> {
    let graph = Graph::of(model)?;
    for pass in passes {
        let run = pass.minimal.filter(|_| sparing).unwrap_or(pass.run);
        let changes = run(&graph)?;
        if !changes.edits.is_empty() {
            return Ok(Some((pass, changes)));
        }
    }
    Ok(None)
}

/// Runs passes until none returns edits. If `sparing` is true, uses the variants for planning.
pub(crate) fn run(
    before: &Model,
    passes: &[&'static Pass],
    sparing: bool,
) -> Result<(Model, Vec<Step>), QuantizeError> {
    let mut model = before.clone();
    let mut steps: Vec<Step> = Vec::new();
    let rounds = if passes.is_empty() { 0 } else { MAX_ROUNDS };
    for _ in 0..rounds {
        let mut idle = true;
        let mut left = passes.iter().copied();
        while let Some((pass, changes)) = first(&model, &mut left, sparing)? {
            idle = false;
            let failed = |what: String| {
                let what = format!("pass `{}`: {what}", pass.name);
                QuantizeError::new(QuantizeErrorKind::Verify(what))
            };
            model.apply(changes.edits).map_err(|error| failed(error.to_string()))?;
            match steps.iter_mut().find(|step| step.pass == pass.name) {
                Some(step) => step.did.extend(changes.did),
                None => steps.push(Step { pass: pass.name.to_owned(), did: changes.did }),
            }
        }
        if idle {
            break;
        }
    }
    postconditions::same_interface(before, &model)?;
    Ok((model, steps))
}
