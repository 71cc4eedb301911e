//! What a caller can ask for: the options of quantization, their types and their defaults.
//!
//! An option is declared once, in [`config`] or, where its value belongs to another stage, in
//! `stages`. The [table](ALL) of all options follows from the declarations, and from the table
//! follow the flags of the command line, the keys of configuration files, the keywords of Python
//! and the documentation.
//!
//! In: text or typed values from a user. Out: a checked [`Config`].
//! Imports: `util`, `error`.

mod check;
pub mod config;
mod declare;
mod effective;
mod flag_names;
pub(crate) mod format;
pub(crate) mod half_type;
pub(crate) mod kv_cache_type;
pub(crate) mod method;
pub(crate) mod mixed_layers;
mod named;
mod overrides;
pub(crate) mod pruning;
mod reference;
mod resolve;
mod rounded_for;
pub(crate) mod rounding;
pub(crate) mod rounding_effort;
mod row;
mod shard;
mod stages;
mod table;
pub(crate) mod target;
mod text;
mod unused_rounding;
mod value;
pub(crate) mod weight_algorithm;
pub(crate) mod weight_type;

pub use config::Config;
pub use flag_names::as_flags;
pub use format::{Format, FormatActivations, FormatRow, StoredWeights};
pub use half_type::HalfType;
pub use kv_cache_type::KvCacheType;
pub use method::Method;
pub use mixed_layers::MixedLayers;
pub use overrides::{Match, Override};
pub use pruning::Below;
pub use reference::reference;
pub use resolve::canonical;
pub use rounded_for::RoundedFor;
pub use rounding::Rounding;
pub use rounding_effort::RoundingEffort;
pub use row::{Choice, Class, Condition, Flag, Group, Kind, OptionRow, Setter, Surface, Verb};
pub use shard::Shard;
pub use table::{ALL, Given, Unused, closest, find, of_group, rows, to_json, unused};
pub use target::{Bias, Placement, Profile, Target};
pub use unused_rounding::{is_for_rounding, unused_without_samples};
pub use value::{Bits, CheckMode, EngineName, Fraction, OptionType, Passes, SamplesPath, Width};
pub use weight_algorithm::WeightAlgorithm;
pub use weight_type::{MicroLayout, MicroRow, PartialRow, PartialType, WeightType};
