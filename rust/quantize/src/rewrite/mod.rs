//! What will change in the file: one module an output format, none of which decides anything.

mod corrections;
mod dedup_constants;
mod dynamic;
mod fake_quant;
mod gather;
mod lstm;
mod matmul_common;
mod matmul_nbits;
mod qdq;
mod subgraphs;

pub use dedup_constants::share;
pub use qdq::rewrite as qdq;
