//! What will change in the file: one module an output format, none of which decides anything.

mod corrections;
pub(crate) mod names;
mod qdq;

pub use qdq::rewrite as qdq;
