//! A part of the samples, for calibration on several machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::QuantizeError;

/// A part of the samples: every `count`-th, from the `index`-th on, counted from 1.
///
/// ```
/// use quantize_rs::Shard;
/// let shard: Shard = "2/4".parse()?;
/// assert_eq!((shard.index, shard.count), (2, 4));
/// assert!("5/4".parse::<Shard>().is_err());
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// The number of the part, from 1 to `count`.
    pub index: usize,
    /// The number of parts.
    pub count: usize,
}

impl Shard {
    /// The part with this number.
    ///
    /// # Errors
    /// The number is 0, or larger than the number of parts.
    pub fn new(index: usize, count: usize) -> Result<Shard, QuantizeError> {
        if (1..=count).contains(&index) {
            return Ok(Shard { index, count });
        }
        let what = format!("is {index}/{count}, expected a number from 1 to that of the parts");
        Err(QuantizeError::option("shard", what))
    }

    /// Whether the sample at a position, from 0 on, belongs to it.
    pub(crate) fn holds(self, position: usize) -> bool {
        position % self.count.max(1) == self.index - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = QuantizeError;

    fn from_str(text: &str) -> Result<Shard, QuantizeError> {
        let parts = text.split_once('/');
        let numbers =
            parts.and_then(|(i, n)| Some((i.trim().parse().ok()?, n.trim().parse().ok()?)));
        let Some((index, count)) = numbers else {
            let what = format!("is `{text}`, expected a part such as 1/4");
            return Err(QuantizeError::option("shard", what));
        };
        Shard::new(index, count)
    }
}
