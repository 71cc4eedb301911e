//! What a caller can ask for: the options of quantization, their types and their defaults.
//!
//! In: text or typed values from a user. Out: a checked [`Config`](config::Config).
//! Imports: `error`.

pub mod config;
pub(crate) mod format;
pub(crate) mod method;
pub(crate) mod pruning;
pub(crate) mod rounding;
pub(crate) mod target;
pub(crate) mod weight_type;

pub use config::Config;
pub use format::{Format, FormatRow};
pub use method::Method;
pub use pruning::Below;
pub use rounding::Rounding;
pub use target::{Bias, Placement, Profile, Target};
pub use weight_type::{MicroLayout, MicroRow, WeightType};
