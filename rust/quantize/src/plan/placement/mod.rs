//! Decides which activations are quantized, for each placement of a target.

pub(crate) mod all_ops;
pub(crate) mod cpu;
pub(crate) mod op_inputs;
