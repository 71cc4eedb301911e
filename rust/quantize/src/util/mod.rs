//! Helpers that do not depend on models: number formatting, axes, a hash, processor detection.
//!
//! Imports: nothing of this crate.

pub(crate) mod axes;
pub(crate) mod chrome_trace;
pub(crate) mod cpu;
pub(crate) mod fnv;
pub mod text;
