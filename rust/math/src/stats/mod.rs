//! Statistics of values observed in batches. They can be merged, and do not depend on the order of
//! batches.
//!
//! ```
//! use quantize_rs_math::stats::Sketch;
//!
//! let (mut one, mut other) = (Sketch::default(), Sketch::default());
//! one.observe(&[0.5, -1.0, 0.0]);
//! other.observe(&[2.0, f32::NAN]);
//! one.merge(&other);
//! assert_eq!((one.range().min, one.range().max), (-1.0, 2.0));
//! assert_eq!((one.samples(), one.nan()), (2, 1));
//! ```

mod channels;
mod distribution;
mod exact_sum;
mod histogram;
mod histogram_scratch;
mod json;
mod min_max;
mod sketch;

pub use channels::ChannelStats;
pub use distribution::{Bin, Distribution};
pub use exact_sum::Sum;
pub use histogram::Histogram;
pub(crate) use json::{null_is_inf, null_is_negative_inf};
pub use min_max::MinMax;
pub(crate) use sketch::{KEPT_SAMPLE_ENDS, SampleEnds};
pub use sketch::{MaskedValues, Sketch};
