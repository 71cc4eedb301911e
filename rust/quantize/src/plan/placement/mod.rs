//! Which activations are quantized, by what the target wants.

pub(crate) mod all_ops;
pub(crate) mod cpu;
