//! What is done to a model before a plan is made for it: passes from float to float, after which
//! it computes what it did.
//!
//! A pass looks at a graph and says what to change; [`Model::apply`] changes it. The passes run in
//! their order, over and over, until none finds anything to do.

pub(crate) mod convert_opset;
mod draft;
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
mod precision_guards;
mod prune;
mod remove_identity;
mod remove_unused;
mod resize;
mod store_integers;
mod widen_floats;

pub use convert_opset::{Conversion, convert_opset};

pub(crate) use inline_functions::weights_left;
pub use prune::{Below, Prune, PrunedWeight, Pruning, prune};
pub(crate) use prune::{channels, floats, lifted};

use std::fmt;

use quantize_rs_onnx::{Edit, Model};
use serde::{Deserialize, Serialize};

use minimum_opset::Ready;

use crate::check::postconditions;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::plan::names_removed_by_passes;
use crate::{Config, Plan, QuantizeError};

pub use optimize::{Optimization, Optimized, optimize};

/// A pass from float to float.
pub struct Pass {
    /// Its name, by which it is asked for or left out.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// When it runs without being asked for by name.
    pub when: When,
    /// What it would change.
    pub(crate) run: Run,
    /// The same before planning, where that is less.
    pub(crate) needed: Option<Run>,
}

/// When a pass runs without being asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before planning, and where a model is only optimized.
    Always,
    /// Where a model is only optimized.
    Optimizing,
    /// Before planning, where products are computed on integers.
    Integers,
}

type Run = fn(&Graph<'_>) -> Result<Changes, QuantizeError>;

/// The pass that stores what the model quantizes itself.
pub(crate) const STORE_INTEGERS: &str = "store_integers";

/// The pass that widens what integers do not go with.
pub(crate) const WIDEN_FLOATS: &str = "widen_floats";

/// Every pass, in the order in which they run.
///
/// Before a plan is made, nothing is done that would change what can be said of a constant: two
/// that are equal may be read along different axes.
pub const ALL: &[Pass] = &[
    Pass {
        name: "inline_functions",
        about: "puts the nodes of the model's own functions in the place of their calls",
        when: When::Always,
        run: inline_functions::all,
        needed: Some(inline_functions::with_weights),
    },
    Pass {
        name: "lift_weights",
        about: "lifts weights out of the graphs inside nodes (If, Loop, Scan)",
        when: When::Always,
        run: lift_weights::run,
        needed: None,
    },
    Pass {
        name: "remove_identity",
        about: "takes out nodes that make of a value what it is already",
        when: When::Always,
        run: remove_identity::run,
        needed: None,
    },
    Pass {
        name: STORE_INTEGERS,
        about: "stores weights that the model quantizes itself as the integers it makes of them",
        when: When::Always,
        run: store_integers::run,
        needed: None,
    },
    Pass {
        name: "fold_constants",
        about: "computes what is the same in every run",
        when: When::Always,
        run: fold_constants::run,
        needed: None,
    },
    Pass {
        name: "fold_shapes",
        about: "writes shapes that a Reshape computes as constants",
        when: When::Always,
        run: fold_shapes::run,
        needed: None,
    },
    Pass {
        name: "fold_batch_norm",
        about: "takes what scales and shifts channels into the weights before it",
        when: When::Always,
        run: fold_batch_norm::run,
        needed: None,
    },
    Pass {
        name: "fold_batch_norm_forward",
        about: "takes what scales and shifts channels into the weights after it",
        when: When::Always,
        run: fold_batch_norm::forward,
        needed: Some(fold_batch_norm::even),
    },
    Pass {
        name: "fold_gemm_factors",
        about: "takes alpha and beta of a Gemm into its weight and its bias, as integers need it",
        when: When::Always,
        run: fold_gemm_factors::run,
        needed: None,
    },
    Pass {
        name: "resize_all_axes",
        about: "lets a Resize that names its axes speak of all, as runtimes with integers need it",
        when: When::Always,
        run: resize::all_axes,
        needed: None,
    },
    Pass {
        name: WIDEN_FLOATS,
        about: "lets what computes in float16 or bfloat16 compute in float32, as integers need it",
        when: When::Integers,
        run: widen_floats::run,
        needed: None,
    },
    Pass {
        name: "merge_duplicates",
        about: "keeps constants that hold the same once",
        when: When::Optimizing,
        run: merge_duplicates::run,
        needed: None,
    },
    Pass {
        name: "dead",
        about: "takes out what nothing reads",
        when: When::Optimizing,
        run: remove_unused::run,
        needed: None,
    },
];

/// What a pass would change.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The changes.
    pub(crate) edits: Vec<Edit>,
    /// What they come to, a line for each.
    pub(crate) did: Vec<String>,
}

/// What was done to a model before a plan was made for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The pass.
    pub pass: String,
    /// What it changed, a line for each change.
    pub did: Vec<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.did.len() == 1 { "" } else { "s" };
        write!(f, "{}, {} change{plural}", self.pass, self.did.len())
    }
}

/// A model made ready for planning.
#[derive(Clone, Debug)]
pub struct Prepared {
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

impl Prepared {
    /// Makes a model ready for the plan that `config` asks for: weights are pruned where that is asked
    /// for, passes run, and a model whose operator set is too old for the result is converted.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, Prepared};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let prepared = Prepared::of(&Model::open(path)?, Config::default())?;
    /// let plan = prepared.plan();
    /// let quantized = plan.apply(&prepared.model, None)?;
    /// # assert!(quantized.report().ratio() > 3.0);
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    ///
    /// # Errors
    /// A pass that there is none of, what [`Plan::of`] refuses, or a node that cannot be converted
    /// to the operator set that the result needs.
    pub fn of(model: &Model, config: Config) -> Result<Prepared, QuantizeError> {
        config.check()?;
        let Some(below) = config.prune else { return Prepared::ready(model, config) };
        let how = Prune { below, per_channel: false, exclude: config.exclude.clone() };
        let (pruned, pruning) = prune::prune_only(model, &how, config.include.as_ref())?;
        let mut prepared = Prepared::ready(&pruned, config)?;
        prepared.plan.origin.bytes = model.byte_len();
        let step = pruning.step();
        if !step.did.is_empty() {
            prepared.steps.insert(0, step);
            prepared.plan.steps.clone_from(&prepared.steps);
        }
        Ok(prepared)
    }

    /// As [`Prepared::of`], of a model whose weights stay what they are.
    fn ready(model: &Model, config: Config) -> Result<Prepared, QuantizeError> {
        let integers = config.computes_on_integers();
        Prepared::with(model, config, integers)
    }

    /// As [`Prepared::ready`], for products of integers or none.
    fn with(model: &Model, config: Config, integers: bool) -> Result<Prepared, QuantizeError> {
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
        let Ready { mut plan, converted } = minimum_opset::ready(&prepared, config)?;
        plan.warnings.extend(gone);
        if let Some((converted, step)) = converted {
            postconditions::same_interface(&prepared, &converted)?;
            prepared = converted;
            steps.push(step);
        }
        plan.steps.clone_from(&steps);
        plan.origin = Origin::of(model);
        let did = |name: &str| steps.iter().any(|step| step.pass == name);
        if !asked && did(WIDEN_FLOATS) && !plan.computes_on_integers() {
            return Prepared::with(model, wishes, false);
        }
        let idle = plan.quantized().next().is_none();
        let stored = did(STORE_INTEGERS);
        // What served nothing is not done: the model then comes out as it went in.
        if idle
            && !stored
            && !asked
            && !steps.is_empty()
            && let as_it_is = (Config { passes: Some(Vec::new()), ..wishes })
            && let Ok(prepared) = Prepared::ready(model, as_it_is)
        {
            return Ok(prepared);
        }
        Ok(Prepared { model: prepared, steps, plan })
    }

    /// The plan for it.
    pub fn plan(&self) -> Plan {
        self.plan.clone()
    }
}

/// The passes that run before planning, for products of integers or none.
pub(crate) fn planning(integers: bool) -> Vec<&'static Pass> {
    let runs = |pass: &&Pass| match pass.when {
        When::Always => true,
        When::Optimizing => false,
        When::Integers => integers,
    };
    ALL.iter().filter(runs).collect()
}

/// A model that computes in float32 where it computed in 16 bits.
pub(crate) fn widened(model: &Model) -> Result<Model, QuantizeError> {
    Ok(run(model, &named(&[WIDEN_FLOATS.to_owned()])?, true)?.0)
}

/// The passes of these names, in the order in which they run.
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

/// How often all passes run at most: each round works on what the one before left.
const ROUNDS: usize = 16;

/// The first of these passes that finds something to do, and what it would change: they look at the
/// model as it is by now.
fn first(
    model: &Model,
    passes: &mut impl Iterator<Item = &'static Pass>,
    sparing: bool,
) -> Result<Option<(&'static Pass, Changes)>, QuantizeError> {
    let graph = Graph::of(model)?;
    for pass in passes {
        let run = pass.needed.filter(|_| sparing).unwrap_or(pass.run);
        let changes = run(&graph)?;
        if !changes.edits.is_empty() {
            return Ok(Some((pass, changes)));
        }
    }
    Ok(None)
}

/// Runs passes until none finds anything to do; `sparing`: no more than a plan needs.
pub(crate) fn run(
    before: &Model,
    passes: &[&'static Pass],
    sparing: bool,
) -> Result<(Model, Vec<Step>), QuantizeError> {
    let mut model = before.clone();
    let mut steps: Vec<Step> = Vec::new();
    let rounds = if passes.is_empty() { 0 } else { ROUNDS };
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
