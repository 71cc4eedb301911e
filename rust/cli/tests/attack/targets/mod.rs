//! The targets: what is attacked, one row each.

mod config_files;
mod images;
mod models;
mod options;
mod ranges;
mod resume;
mod samples;

use crate::corpus::Corpus;
use crate::random::Random;

/// Runs one input: whether it was taken and not refused.
pub(crate) type Attack = Box<dyn FnMut(&mut Random) -> bool>;

/// Something that takes input from outside.
pub(crate) struct Target {
    /// The name in `TARGET=`.
    pub(crate) name: &'static str,
    /// How many inputs it gets of those of all targets; fast ones get more.
    pub(crate) share: u64,
    /// Prepares seeds and a folder for one thread.
    pub(crate) begin: fn(&Corpus) -> Attack,
}

/// A row of the table.
const fn target(name: &'static str, share: u64, begin: fn(&Corpus) -> Attack) -> Target {
    Target { name, share, begin }
}

/// Every target.
pub(crate) const ALL: &[Target] = &[
    target("open", 20, models::open),
    target("external", 5, models::external),
    target("convert", 10, models::convert),
    target("quantize", 10, models::quantize),
    target("calibrate", 10, models::calibrate),
    target("validate", 2, models::validate),
    target("options", 10, options::options),
    target("overrides", 10, options::overrides),
    target("config", 1, config_files::config),
    target("ranges", 1, ranges::ranges),
    target("tensorrt", 40, ranges::tensorrt),
    target("npy", 60, samples::npy),
    target("npz", 60, samples::npz),
    target("safetensors", 60, samples::safetensors),
    target("png", 20, images::png),
    target("jpeg", 5, images::jpeg),
    target("sensitivity", 5, resume::sensitivity),
    target("rounding", 3, resume::rounding),
];
