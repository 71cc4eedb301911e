//! Checks of quantized models: the postconditions of a result, conformance to a target, and the
//! comparison of two models.
//!
//! In: a plan and the model that was written for it, or two models. Out: nothing, or the problems.
//! Imports: everything up to `rewrite`.

pub(crate) mod conformance;
pub(crate) mod postconditions;
pub(crate) mod validate;

pub use conformance::{Rule, Violation, conformance};
pub use validate::{Check, Problem, StoredWeight, Uncompared, Validation, validate};
