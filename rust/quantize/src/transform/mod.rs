//! Preprocesses a model before planning: passes that rewrite the float graph without changing what
//! it computes.
//!
//! Input: a model. Output: a model that computes the same, and a [`Step`] for each pass. This
//! module imports the modules up to `graph`; pruning also asks `plan` which weights are excluded.
//!
//! A pass reads a graph and returns edits; [`Model::apply`] applies them. The passes run in order,
//! repeatedly, until none returns edits.

pub(crate) mod convert_opset;
mod equalize;
mod eval;
mod extract;
mod floats;
mod fold_batch_norm;
mod fold_constants;
mod fold_gemm_factors;
mod fold_shapes;
pub(crate) mod half_precision;
mod inline_functions;
mod lift_carried;
mod lift_weights;
mod merge_duplicates;
mod optimize;
mod pad;
mod pass_edits;
mod precision_guards;
mod prune;
mod remove_identity;
mod remove_unused;
mod remove_weight_inputs;
mod resize;
mod split_fused;
mod store_integers;
mod subtract_bias;
mod widen_floats;

pub(crate) use convert_opset::NEWEST_OPSET;
pub use convert_opset::{OpsetConversion, convert_opset, onnx_op_types};
pub(crate) use equalize::EQUALIZED;
pub use extract::{Extract, extract};

pub(crate) use inline_functions::weights_left;
pub use prune::{Prune, PrunedWeight, Pruning, prune};
pub(crate) use prune::{channels, finite_floats, lifted, prune_only};
pub(crate) use subtract_bias::NEGATED;

use std::fmt;

use quantize_rs_onnx::{Edit, Model};
use serde::{Deserialize, Serialize};

use crate::QuantizeError;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::interface::same_interface;

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
    /// The variant that runs before planning if weights get one scale per tensor, if there is one.
    pub(crate) per_tensor: Option<Run>,
    /// The variant that runs before planning if `Attention` becomes `QAttention`, if there is one.
    pub(crate) attention: Option<Run>,
}

/// What passes run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Optimizing the float model, or passes that the caller chose.
    Optimizing,
    /// Planning.
    Planning {
        /// Whether weights get one scale per tensor.
        per_tensor: bool,
        /// Whether `Attention` becomes `QAttention`, where it can.
        attention: bool,
    },
}

impl Pass {
    /// A pass without variants.
    const fn new(name: &'static str, about: &'static str, stage: PassStage, run: Run) -> Self {
        Self { name, about, stage, run, minimal: None, per_tensor: None, attention: None }
    }

    fn variant(&self, purpose: Purpose) -> Run {
        let Purpose::Planning { per_tensor, attention } = purpose else { return self.run };
        let by_tensor = self.per_tensor.filter(|_| per_tensor);
        let by_attention = self.attention.filter(|_| attention);
        by_tensor.or(by_attention).or(self.minimal).unwrap_or(self.run)
    }
}

/// When a pass runs by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassStage {
    /// Before planning, and when optimizing a model.
    Always,
    /// Only when optimizing a model.
    Optimizing,
    /// Only before planning.
    Quantizing,
    /// Only before planning, if the model will compute on integers.
    Integers,
    /// Only before planning, if it will not.
    Floats,
}

type Run = fn(&Graph<'_>) -> Result<Changes, QuantizeError>;

/// The pass that stores weights that the model itself quantizes.
pub(crate) const STORE_INTEGERS: &str = "store_integers";

/// The pass that scales channels between weights.
pub(crate) const EQUALIZE: &str = "equalize";

/// The pass that removes unused nodes and constants.
const REMOVE_UNUSED: &str = "dead";

/// The pass that converts 16-bit floats to float32, since integer operators require float32.
pub(crate) const WIDEN_FLOATS: &str = "widen_floats";

/// The pass that moves weights out of subgraphs.
pub(crate) const LIFT_WEIGHTS: &str = "lift_weights";

/// The pass that makes initializers constants that are all inputs too.
pub(crate) const REMOVE_WEIGHT_INPUTS: &str = "remove_weight_inputs";

/// The pass that replaces calls of functions by their nodes.
pub(crate) const INLINE_FUNCTIONS: &str = "inline_functions";

/// All passes, in the order in which they run.
///
/// No pass that runs before planning merges constants: equal constants may need scales along
/// different axes.
pub const ALL: &[Pass] = &[
    Pass::new(
        REMOVE_WEIGHT_INPUTS,
        "makes initializers constants where all of them are inputs too",
        PassStage::Always,
        remove_weight_inputs::run,
    ),
    Pass {
        minimal: Some(inline_functions::with_weights),
        ..Pass::new(
            INLINE_FUNCTIONS,
            "replaces calls of model-local functions with the nodes of the functions",
            PassStage::Always,
            inline_functions::all,
        )
    },
    Pass::new(
        "lift_carried",
        "takes values out of Loop and Scan that each iteration passes on unchanged",
        PassStage::Always,
        lift_carried::run,
    ),
    Pass::new(
        LIFT_WEIGHTS,
        "moves weights out of subgraphs (bodies of If, Loop, Scan)",
        PassStage::Always,
        lift_weights::run,
    ),
    Pass {
        attention: Some(split_fused::unless_qattention),
        ..Pass::new(
            "split_fused",
            "replaces operators that ONNX Runtime fused by a product and the rest",
            PassStage::Always,
            split_fused::run,
        )
    },
    Pass::new(
        "remove_identity",
        "removes nodes whose output equals their input",
        PassStage::Always,
        remove_identity::run,
    ),
    Pass::new(
        STORE_INTEGERS,
        "replaces weights that the model quantizes itself with the quantized integers",
        PassStage::Always,
        store_integers::run,
    ),
    Pass::new(
        "fold_constants",
        "evaluates constant expressions",
        PassStage::Always,
        fold_constants::run,
    ),
    Pass::new(
        "fold_shapes",
        "replaces computed shapes of a Reshape with constants",
        PassStage::Always,
        fold_shapes::run,
    ),
    Pass {
        per_tensor: Some(fold_batch_norm::unless_coarser),
        ..Pass::new(
            "fold_batch_norm",
            "folds scales and shifts of channels into the preceding weights",
            PassStage::Always,
            fold_batch_norm::run,
        )
    },
    Pass {
        minimal: Some(fold_batch_norm::even),
        ..Pass::new(
            "fold_batch_norm_forward",
            "folds scales and shifts of channels into the following weights",
            PassStage::Always,
            fold_batch_norm::forward,
        )
    },
    Pass::new(
        "fold_gemm_factors",
        "folds alpha and beta of a Gemm, and makes its bias a vector, for integer kernels",
        PassStage::Always,
        fold_gemm_factors::run,
    ),
    Pass {
        per_tensor: Some(equalize::per_tensor),
        ..Pass::new(
            EQUALIZE,
            "scales channels between two weights, so that one scale covers all of them well",
            PassStage::Quantizing,
            equalize::run,
        )
    },
    Pass::new(
        "subtract_bias",
        "subtracts negated biases of products, so that ONNX Runtime multiplies by integers",
        PassStage::Floats,
        subtract_bias::run,
    ),
    Pass::new(
        "resize_all_axes",
        "makes a Resize with an axes attribute list all axes, for integer runtimes",
        PassStage::Always,
        resize::all_axes,
    ),
    Pass::new(
        "pad_all_axes",
        "makes a Pad with an axes input list all axes, for integer runtimes",
        PassStage::Always,
        pad::all_axes,
    ),
    Pass::new(
        WIDEN_FLOATS,
        "converts float16 and bfloat16 computations to float32, for integer kernels",
        PassStage::Integers,
        widen_floats::run,
    ),
    Pass::new(
        "merge_duplicates",
        "merges equal constants",
        PassStage::Optimizing,
        merge_duplicates::run,
    ),
    Pass::new(
        REMOVE_UNUSED,
        "removes unused nodes and constants",
        PassStage::Optimizing,
        remove_unused::run,
    ),
];

/// Removes casts that have no effect, and no other nodes. No option selects it.
const REMOVE_CASTS: Pass = Pass::new(
    "remove_casts",
    "removes casts to the type that a value has",
    PassStage::Optimizing,
    remove_identity::casts,
);

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

/// The passes that run before planning. `integers` says whether the model will compute on integers.
pub(crate) fn planning(integers: bool) -> Vec<&'static Pass> {
    let runs = |pass: &&Pass| match pass.stage {
        PassStage::Always | PassStage::Quantizing => true,
        PassStage::Optimizing => false,
        PassStage::Integers => integers,
        PassStage::Floats => !integers,
    };
    ALL.iter().filter(runs).collect()
}

/// The passes that run when a model is optimized.
pub(crate) fn optimizing() -> Vec<&'static Pass> {
    let by_default = |pass: &&Pass| matches!(pass.stage, PassStage::Always | PassStage::Optimizing);
    ALL.iter().filter(by_default).collect()
}

/// The model without nodes and constants that nothing reads.
pub(crate) fn without_unused(model: &Model) -> Result<Model, QuantizeError> {
    Ok(run(model, &these(&[REMOVE_UNUSED]), Purpose::Optimizing)?.0)
}

/// The model with all 16-bit float computations converted to float32.
pub(crate) fn widened(model: &Model) -> Result<Model, QuantizeError> {
    let purpose = Purpose::Planning { per_tensor: false, attention: false };
    Ok(run(model, &these(&[WIDEN_FLOATS]), purpose)?.0)
}

/// The model with all 16-bit float computations converted to float32, and without the casts that
/// have no effect then.
pub(crate) fn widened_without_casts(model: &Model) -> Result<Model, QuantizeError> {
    let passes = [these(&[WIDEN_FLOATS]), vec![&REMOVE_CASTS]].concat();
    Ok(run(model, &passes, Purpose::Optimizing)?.0)
}

/// The passes with these names, which an option gives, in the order in which they run.
pub(crate) fn named(
    option: &'static str,
    names: &[String],
) -> Result<Vec<&'static Pass>, QuantizeError> {
    for name in names {
        if !ALL.iter().any(|pass| pass.name == name) {
            let known: Vec<&str> = ALL.iter().map(|pass| pass.name).collect();
            let what = format!("names `{name}`, expected some of {}", known.join(", "));
            return Err(QuantizeError::option(option, what));
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(these(&names))
}

/// The passes with these names, in the order in which they run.
pub(crate) fn these(names: &[&str]) -> Vec<&'static Pass> {
    ALL.iter().filter(|pass| names.contains(&pass.name)).collect()
}

/// The maximum number of rounds. Each round works on the result of the previous one.
const MAX_ROUNDS: usize = 16;

/// The first pass that returns edits for the current model, with its edits.
fn first(
    model: &Model,
    passes: &mut impl Iterator<Item = &'static Pass>,
    purpose: Purpose,
) -> Result<Option<(&'static Pass, Changes)>, QuantizeError> {
    let graph = Graph::of(model)?;
    for pass in passes {
        let changes = pass.variant(purpose)(&graph)?;
        if !changes.edits.is_empty() {
            return Ok(Some((pass, changes)));
        }
    }
    Ok(None)
}

/// Runs passes until none returns edits.
pub(crate) fn run(
    before: &Model,
    passes: &[&'static Pass],
    purpose: Purpose,
) -> Result<(Model, Vec<Step>), QuantizeError> {
    let mut model = before.clone();
    let mut steps: Vec<Step> = Vec::new();
    let rounds = if passes.is_empty() { 0 } else { MAX_ROUNDS };
    for _ in 0..rounds {
        let mut idle = true;
        let mut left = passes.iter().copied();
        while let Some((pass, changes)) = first(&model, &mut left, purpose)? {
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
    same_interface(before, &model)?;
    Ok((model, steps))
}
