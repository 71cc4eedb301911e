//! Checks of quantized models: the postconditions of a result, conformance to a target, and the
//! comparison of two models.
//!
//! Input: a plan and the model that was written for it, or two models. Output: the problems, if
//! any. This module imports the modules up to `rewrite`.

pub(crate) mod conformance;
pub(crate) mod postconditions;
pub(crate) mod validate;

pub use conformance::{Rule, Violation, conformance};
pub use validate::{Check, Problem, StoredWeight, Uncompared, Validation, validate};
