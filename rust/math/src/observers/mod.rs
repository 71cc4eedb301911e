//! Observers, which collect statistics of a tensor in batches while a model is trained, and the
//! grid computed from them: one file per observer.
//!
//! They compute what the PyTorch observers of the same names compute. The calibration methods of
//! [`range`], which do not depend on the order of batches, are available as observers too.
//!
//! ```
//! use quantize_rs_math::observers::{self, Scheme, ObserverOptions};
//! use quantize_rs_math::{Granularity, Layout, QType};
//!
//! let mut observer = observers::find("moving_average_minmax", &ObserverOptions::default())?;
//! let layout = Layout::of(&[2], Granularity::PerTensor)?;
//! observer.observe(&[0.0, 10.0], &layout)?;
//! observer.observe(&[0.0, 20.0], &layout)?; // 10 + 0.01 · (20 - 10)
//! let scheme = Scheme::new(QType::UInt8, false);
//! assert_eq!(observer.ranges(&scheme)[0].max, 10.1);
//! # Ok::<(), quantize_rs_math::MathError>(())
//! ```

mod extremes;
mod histogram;
mod scheme;
mod sketched;

use std::fmt;

use crate::{Layout, MathError, Range, range};
pub use scheme::Scheme;

/// Collects statistics of a tensor in batches.
pub trait Observer: fmt::Debug + Send {
    /// Adds a batch; `layout` is that of `x` and says which elements share a range. A batch without
    /// elements changes nothing.
    ///
    /// # Errors
    ///
    /// An element is NaN or infinite, a length differs from that of the layout, or the number of
    /// groups differs from earlier batches.
    fn observe(&mut self, x: &[f32], layout: &Layout) -> Result<(), MathError>;

    /// The range of each group; empty before the first batch.
    fn ranges(&self, scheme: &Scheme) -> Vec<Range>;

    /// Resets the observer to its initial state.
    fn reset(&mut self);
}

/// The options of observers; each observer uses those that apply to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObserverOptions {
    /// The weight of a new batch in a moving average, above 0 and up to 1.
    pub averaging_constant: f32,
    /// The number of bins of a histogram.
    pub bins: usize,
}

impl Default for ObserverOptions {
    fn default() -> ObserverOptions {
        ObserverOptions { averaging_constant: 0.01, bins: 2048 }
    }
}

/// A kind of observer.
#[derive(Debug)]
pub struct ObserverKind {
    /// The name for [`find`].
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// Whether it can have a range for each index along an axis.
    pub per_channel: bool,
    make: fn(&ObserverOptions) -> Box<dyn Observer>,
}

/// All kinds of observers that have a file here; the names of [`range::ALL`] are observers too.
pub const ALL: &[ObserverKind] = &[
    ObserverKind {
        name: "minmax",
        about: "the smallest and the largest value",
        per_channel: true,
        make: |_| Box::new(extremes::Extremes::new(None)),
    },
    ObserverKind {
        name: "moving_average_minmax",
        about: "the extremes of batches, as an exponential moving average",
        per_channel: true,
        make: |options| Box::new(extremes::Extremes::new(Some(options.averaging_constant))),
    },
    ObserverKind {
        name: "histogram",
        about: "the range with the smallest expected error, from a histogram",
        per_channel: false,
        make: |options| Box::new(histogram::Histogram::new(options.bins)),
    },
];

/// Creates the observer of this name.
///
/// # Errors
///
/// There is no observer of this name, or an option has an invalid value.
pub fn find(name: &str, options: &ObserverOptions) -> Result<Box<dyn Observer>, MathError> {
    let ObserverOptions { averaging_constant, bins } = *options;
    if !(averaging_constant > 0.0 && averaging_constant <= 1.0) {
        let found = averaging_constant.to_string();
        return Err(MathError::Setting { name: "averaging_constant", found, expected: ABOVE_0 });
    }
    if !(2..=MAX_BINS).contains(&bins) {
        let expected = "2 to 1048576";
        return Err(MathError::Setting { name: "bins", found: bins.to_string(), expected });
    }
    if let Some(row) = ALL.iter().find(|row| row.name == name) {
        return Ok((row.make)(options));
    }
    let unknown = |error| match error {
        MathError::UnknownMethod { name } => MathError::UnknownObserver { name },
        other => other,
    };
    Ok(Box::new(sketched::Sketched::new(range::find(name).map_err(unknown)?)))
}

const ABOVE_0: &str = "a number above 0 and up to 1";

/// More bins do not improve the result, and the search visits each of them.
const MAX_BINS: usize = 1 << 20;

/// The names of all observers, for error messages.
pub(crate) fn names() -> String {
    let mut names: Vec<String> = ALL.iter().map(|row| row.name.to_owned()).collect();
    names.extend(range::names().split(", ").filter(|name| *name != "minmax").map(str::to_owned));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QType};

    #[test]
    fn every_name_gives_an_observer_that_finds_a_range() {
        let layout = Layout::of(&[64], Granularity::PerTensor).unwrap();
        let x: Vec<f32> = (0..64_u8).map(|i| f32::from(i) / 8.0 - 2.0).collect();
        let scheme = Scheme::new(QType::UInt8, false);
        for name in names().split(", ") {
            let name = name.replace("NN", "99").replace("WEIGHT", "2").replace("RATIO", "2");
            let mut observer = find(&name, &ObserverOptions::default()).unwrap();
            assert!(observer.ranges(&scheme).is_empty(), "{name}");
            observer.observe(&[], &Layout::of(&[0], Granularity::PerTensor).unwrap()).unwrap();
            assert!(observer.ranges(&scheme).is_empty(), "{name}");
            observer.observe(&x, &layout).unwrap();
            let [range] = observer.ranges(&scheme)[..] else { panic!("{name}") };
            assert!(range.min < -1.9 && range.max > 5.8, "{name} {range:?}");
            assert!(matches!(
                observer.observe(&[f32::NAN; 64], &layout),
                Err(MathError::NonFinite { index: 0, .. })
            ));
            assert_eq!(observer.ranges(&scheme), [range], "{name}");
            observer.reset();
            assert!(observer.ranges(&scheme).is_empty(), "{name}");
        }
    }

    #[test]
    fn invalid_options_are_refused_with_name_and_value() {
        let text =
            |name: &str, options: ObserverOptions| find(name, &options).unwrap_err().to_string();
        let options = ObserverOptions::default();
        let found = text("minmax", ObserverOptions { averaging_constant: 1.5, ..options });
        assert_eq!(found, "averaging_constant is 1.5, expected a number above 0 and up to 1");
        assert!(
            text("minmax", ObserverOptions { bins: 1, ..options })
                .starts_with("bins is 1, expected")
        );
        let unknown = text("median", options);
        assert!(unknown.contains("`median`") && unknown.contains("moving_average_minmax"));
    }
}
