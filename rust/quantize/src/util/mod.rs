//! Helpers that do not depend on models: number formatting, a hash, processor detection.
//!
//! Imports: nothing of this crate.

pub(crate) mod chrome_trace;
pub(crate) mod cpu;
pub(crate) mod fnv;
pub mod text;
