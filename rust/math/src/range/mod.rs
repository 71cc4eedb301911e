//! Calibration methods, which choose the range of a tensor from its statistics: one file per
//! method.
//!
//! Clipping rare values makes the steps of all others finer. The methods differ in how much they
//! clip, or how much headroom they add.
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

/// A calibration method: chooses the range of a tensor from its statistics.
pub trait RangeFinder: fmt::Debug + Send + Sync {
    /// The name for [`find`], with its parameter if that is not the default: `percentile:99.9`.
    fn name(&self) -> Cow<'static, str>;

    /// A one-line description.
    fn about(&self) -> &'static str;

    /// The range for a grid of `spec`. It is empty only if no finite values were observed, and lies
    /// within the observed range, except for headroom for values of other samples.
    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange;

    /// Which values it clips.
    fn clipping(&self) -> Clipping {
        Clipping::Rare
    }

    /// The placeholder of the parameter after a colon, if the method has one: `NN`.
    fn parameter(&self) -> Option<&'static str> {
        None
    }

    /// The same method with another parameter.
    ///
    /// # Errors
    ///
    /// The method has no parameter, or the value is not allowed.
    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        Err(MathError::UnknownMethod { name: format!("{}:{parameter}", self.name()) })
    }
}

/// All methods, with their default parameters; the last is the default method.
pub const ALL: &[&dyn RangeFinder] = &[
    &minmax::MinMax,
    &moving_average::MovingAverage,
    &percentile::Percentile::USUAL,
    &entropy::Entropy::USUAL,
    &mse::Mse::USUAL,
];

/// Which observed values a method clips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clipping {
    /// Nothing.
    Nothing,
    /// Rare values.
    Rare,
    /// A part of most samples.
    MostSamples,
}

/// A chosen range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundRange {
    /// The range.
    pub range: Range,
    /// Why the method did not choose a range, if it did not.
    pub note: Option<Degenerate>,
}

/// Why a method returned a range without a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Degenerate {
    /// The range is empty.
    #[error("no finite value was seen")]
    Nothing,
    /// The range has the width 0.
    #[error("every value is the same")]
    Constant,
    /// The average over samples is that of a single one.
    #[error("there is only one sample to average: using its full range, as minmax does")]
    OneSample,
    /// There are too few values to know which are rare.
    #[error(
        "{values} values are too few to tell which are rare: using the full range, as minmax does"
    )]
    TooFew {
        /// The number of values.
        values: u64,
    },
    /// Without the rare values, only 0 would be left.
    #[error("nearly all values are 0: using the full range, as minmax does")]
    MostlyZero,
    /// The steps are finer than the bins of the histogram.
    #[error("the type has finer steps than the histogram: using the full range, as minmax does")]
    TooFine,
    /// The grid is fine near zero for every range.
    #[error("float types have fine steps near 0: using the full range, as minmax does")]
    Floats,
    /// The best range is the full one.
    #[error("clipping does not reduce the error: using the full range, as minmax does")]
    FullRange,
}

/// The method of this name: one of [`ALL`], with a parameter after a colon if it has one.
///
/// # Errors
///
/// There is no method of this name, or the parameter is not allowed.
pub fn find(name: &str) -> Result<Box<dyn RangeFinder>, MathError> {
    let (method, parameter) = name.split_once(':').map_or((name, None), |(m, p)| (m, Some(p)));
    let unknown = || MathError::UnknownMethod { name: name.to_owned() };
    let &finder = ALL.iter().find(|finder| finder.name() == method).ok_or_else(unknown)?;
    match parameter {
        Some(parameter) => finder.with(parameter),
        None => Ok(Box::new(finder)),
    }
}

/// The mean squared error of quantizing with `range`, estimated from the histogram: values are
/// assumed to be spread evenly over their bins, and zeros are exact. 0 when no values were
/// observed.
pub fn expected_error(seen: &Sketch, spec: &QSpec, range: Range) -> f64 {
    Density::of(&seen.values()).error(spec, range)
}

/// The names of all methods, for error messages.
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
    /// A chosen range, with a note if it is the full one.
    fn of(range: Range, full: Range) -> FoundRange {
        FoundRange { range, note: (range == full).then_some(Degenerate::FullRange) }
    }

    /// The full range, with the reason.
    fn full(range: Range, note: Degenerate) -> FoundRange {
        FoundRange { range, note: Some(note) }
    }

    /// The result for an empty or constant tensor.
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

/// The range with both ends limited to `absmax` and to the values.
fn clipped(full: Range, absmax: f32) -> Range {
    within(full, Range { min: full.min.max(-absmax), max: full.max.min(absmax) })
}

/// The range limited to that of the values; if the two do not overlap, the nearest end of the
/// values.
fn within(full: Range, range: Range) -> Range {
    Range { min: range.min.clamp(full.min, full.max), max: range.max.clamp(full.min, full.max) }
}

/// The number of nonzero values. Zeros are exact on every grid, so they do not count in the choice.
fn not_zero(values: &Distribution) -> u64 {
    values.count().saturating_sub(values.zeros())
}
