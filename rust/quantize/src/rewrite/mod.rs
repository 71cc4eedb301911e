//! What will change in the file: one module an output format, none of which decides anything.

mod bodies;
mod corrections;
mod dynamic;
mod fake;
mod lstm;
pub(crate) mod names;
mod nbits;
mod products;
mod qdq;
mod share;
mod tables;

pub use qdq::rewrite as qdq;
pub use share::share;
