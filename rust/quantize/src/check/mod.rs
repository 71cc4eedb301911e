//! What is checked once a model was written, and whether any two models belong together.
//!
//! In: a plan and the model that was made by it, or two models. Out: nothing, or what is wrong.
//! Imports: the rooms up to `encode`.

pub(crate) mod conformance;
pub(crate) mod postconditions;
pub(crate) mod validate;

pub use conformance::{Rule, Violation, conformance};
pub use validate::{Check, Problem, StoredWeight, Uncompared, Validation, validate};
