//! From what was seen of a tensor to the range its grid is laid over: one file for each way of choosing.
//!
//! Clipping the rarest values makes the steps of all others finer. How much to clip, or what to leave room for, is what
//! the methods differ in.
//!
//! ```
//! use quantize_rs_math::stats::Sketch;
//! use quantize_rs_math::{Granularity, QSpec, QType, range};
//!
//! let mut seen = Sketch::default();
//! seen.observe(&(0..20_000_u16).map(|i| f32::from(i % 200)).collect::<Vec<_>>());
//! seen.observe(&[1e5]); // an outlier
//! let spec = QSpec::new(QType::UInt8, false, Granularity::PerTensor);
//! let chosen = |method| range::find(method).unwrap().range(&seen, &spec).range;
//! assert_eq!(chosen("minmax").max, 1e5);
//! assert!(chosen("percentile:99.9").max < 250.0);
//! ```

mod density;
mod entropy;
mod minmax;
mod moving_average;
mod mse;
mod percentile;
mod tail;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::{Distribution, Sketch};
use crate::{MathError, QSpec, Range};
use density::Density;

/// A way of choosing the range of a tensor from what was seen of it.
pub trait RangeFinder: fmt::Debug + Send + Sync {
    /// The name under which [`find`] finds it, with its parameter if that is not the usual one: `percentile:99.9`.
    fn name(&self) -> Cow<'static, str>;

    /// What it does, in one line.
    fn about(&self) -> &'static str;

    /// The range for a grid of `spec`: empty only if that of the values seen is, and within it, but for what samples that
    /// were not seen may hold beyond it.
    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange;

    /// What it cuts off.
    fn clipping(&self) -> Clipping {
        Clipping::Rare
    }

    /// What may stand behind a colon after the name, if anything: `NN`.
    fn parameter(&self) -> Option<&'static str> {
        None
    }

    /// The same way with another parameter.
    ///
    /// # Errors
    ///
    /// There is no parameter, or it cannot have this value.
    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        Err(MathError::UnknownMethod { name: format!("{}:{parameter}", self.name()) })
    }
}

/// Every way there is, with its usual parameter; the last is what to take where nothing speaks for another.
pub const ALL: &[&dyn RangeFinder] = &[
    &minmax::MinMax,
    &moving_average::MovingAverage,
    &percentile::Percentile::USUAL,
    &entropy::Entropy,
    &mse::Mse,
];

/// What a way of choosing cuts off of the values that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clipping {
    /// Nothing.
    Nothing,
    /// Values that are rare.
    Rare,
    /// A part of most samples.
    MostSamples,
}

/// A chosen range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundRange {
    /// The range.
    pub range: Range,
    /// Why there was no choice, if there was none.
    pub note: Option<Degenerate>,
}

/// Why there was nothing to choose: what a method would have done on other data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Degenerate {
    /// The range is empty.
    #[error("no finite value was seen")]
    Nothing,
    /// The range has no width.
    #[error("every value is the same")]
    Constant,
    /// The mean over samples is that of one.
    #[error("a single sample has no average: its range, as with minmax")]
    OneSample,
    /// There is not enough to tell what is rare.
    #[error("{values} values do not tell what is rare: the full range, as with minmax")]
    TooFew {
        /// How many values there are.
        values: u64,
    },
    /// Without the rare values, only 0 would be left.
    #[error("nearly all values are 0: the full range, as with minmax")]
    MostlyZero,
    /// Steps are finer than the bins in which values are counted.
    #[error("the type has finer steps than the histogram: the full range, as with minmax")]
    TooFine,
    /// The grid is fine near zero whatever the range.
    #[error("the steps of floats are finer for smaller values: the full range, as with minmax")]
    Floats,
    /// The best range is the full one.
    #[error("nothing is gained by clipping: the full range, as with minmax")]
    FullRange,
}

/// The way with this name: one of [`ALL`], with a parameter of its own behind a colon where it takes one.
///
/// # Errors
///
/// There is no such way, or the parameter is not possible.
pub fn find(name: &str) -> Result<Box<dyn RangeFinder>, MathError> {
    let (method, parameter) = name.split_once(':').map_or((name, None), |(m, p)| (m, Some(p)));
    let unknown = || MathError::UnknownMethod { name: name.to_owned() };
    let &finder = ALL.iter().find(|finder| finder.name() == method).ok_or_else(unknown)?;
    match parameter {
        Some(parameter) => finder.with(parameter),
        None => Ok(Box::new(finder)),
    }
}

/// The mean of the squares of the errors that quantizing over `range` makes, judged by the histogram: values spread
/// evenly over their bin, and zeros exact. 0 when nothing was seen.
pub fn expected_error(seen: &Sketch, spec: &QSpec, range: Range) -> f64 {
    Density::of(&seen.values()).error(spec, range)
}

/// The names of all ways, for people.
pub(crate) fn names() -> String {
    let mut names = Vec::new();
    for finder in ALL {
        names.push(finder.name().into_owned());
        names.extend(finder.parameter().map(|parameter| format!("{}:{parameter}", finder.name())));
    }
    names.join(", ")
}

impl<F: RangeFinder + ?Sized> RangeFinder for &F {
    fn name(&self) -> Cow<'static, str> {
        (**self).name()
    }

    fn about(&self) -> &'static str {
        (**self).about()
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange {
        (**self).range(seen, spec)
    }

    fn clipping(&self) -> Clipping {
        (**self).clipping()
    }

    fn parameter(&self) -> Option<&'static str> {
        (**self).parameter()
    }

    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        (**self).with(parameter)
    }
}

impl FoundRange {
    /// A range that was chosen for a reason; if it is the full one, that is said.
    fn of(range: Range, full: Range) -> FoundRange {
        FoundRange { range, note: (range == full).then_some(Degenerate::FullRange) }
    }

    /// The full range, since there was no choice.
    fn full(range: Range, note: Degenerate) -> FoundRange {
        FoundRange { range, note: Some(note) }
    }

    /// What there is to say about values that differ in nothing.
    fn trivial(range: Range) -> Option<FoundRange> {
        if range.is_empty() {
            Some(FoundRange::full(range, Degenerate::Nothing))
        } else if range.min == range.max {
            Some(FoundRange::full(range, Degenerate::Constant))
        } else {
            None
        }
    }
}

/// Both ends no further from zero than `absmax`, nor beyond the values.
fn clipped(full: Range, absmax: f32) -> Range {
    within(full, Range { min: full.min.max(-absmax), max: full.max.min(absmax) })
}

/// The range without what is beyond all values; if they all are beyond it, the end that is nearest to it.
fn within(full: Range, range: Range) -> Range {
    Range { min: range.min.clamp(full.min, full.max), max: range.max.clamp(full.min, full.max) }
}

/// The values that are not 0, which every grid has a place for: they have no say in the choice.
fn not_zero(values: &Distribution) -> u64 {
    values.count().saturating_sub(values.zeros())
}
