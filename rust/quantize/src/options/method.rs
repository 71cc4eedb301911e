//! How ranges follow from what was seen, by name.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use quantize_rs_math::range::{self, RangeFinder};

use crate::QuantizeError;

/// How ranges follow from what was seen.
///
/// ```
/// use quantize_rs::Method;
/// let method: Method = "percentile:99.9".parse()?;
/// assert_eq!(method.name(), "percentile:99.9");
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// The more accurate, on samples held out, of the full range and the last of the finders,
    /// unless another is significantly more accurate. For the inputs of matrix multiplications also
    /// the finder whose quantized result is closest, where the whole model is closer with it.
    #[default]
    Auto,
    /// One method for all values.
    Finder(Arc<dyn RangeFinder>),
}

/// The name of [`Method::Auto`], and what it does.
const AUTO: (&str, &str) = (
    "auto",
    "with 128 samples or more the method that is most accurate on samples held out; with fewer \
     mse, with one minmax",
);

impl Method {
    /// Every method: its name, and what it does in a few words.
    pub fn all() -> impl Iterator<Item = (Cow<'static, str>, &'static str)> {
        let finders = range::ALL.iter().map(|finder| (finder.name(), finder.about()));
        finders.chain(std::iter::once((Cow::Borrowed(AUTO.0), AUTO.1)))
    }

    /// The full range of what was seen, which clips nothing.
    pub fn full_range() -> Method {
        Method::Finder(Arc::new(range::ALL[0]))
    }

    /// Its name, with its parameter: `percentile:99.9`.
    pub fn name(&self) -> String {
        match self {
            Method::Auto => AUTO.0.to_owned(),
            Method::Finder(finder) => finder.name().into_owned(),
        }
    }
}

impl FromStr for Method {
    type Err = QuantizeError;

    fn from_str(text: &str) -> Result<Method, QuantizeError> {
        if text == AUTO.0 {
            return Ok(Method::Auto);
        }
        range::find(text).map(|finder| Method::Finder(finder.into())).map_err(|error| {
            QuantizeError::option("method", format!("is `{text}`: {error}, or `{}`", AUTO.0))
        })
    }
}
