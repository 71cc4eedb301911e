//! Small things that know nothing of models: texts for people, a hash, the processor.
//!
//! Imports: nothing of this crate.

pub(crate) mod cpu;
pub(crate) mod fnv;
pub mod text;
