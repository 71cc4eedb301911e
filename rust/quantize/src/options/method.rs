//! How ranges follow from what was seen, by name.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use quantize_rs_math::MathError;
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
     mse, which counts clipping twice for inputs of convolutions, with one minmax",
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

    /// In lower or upper case.
    fn from_str(text: &str) -> Result<Method, QuantizeError> {
        let lower = text.to_lowercase();
        if lower == AUTO.0 {
            return Ok(Method::Auto);
        }
        range::find(&lower).map(|finder| Method::Finder(finder.into())).map_err(|error| {
            let what = match error {
                MathError::UnknownMethod { .. } => unknown(text),
                other => format!("is `{text}`: {other}"),
            };
            QuantizeError::option("method", what)
        })
    }
}

/// What is wrong with the name of no method, and the name that it resembles.
fn unknown(text: &str) -> String {
    const SIMILAR: f64 = 0.75;
    let names: Vec<Cow<'_, str>> = Method::all().map(|(name, _)| name).collect();
    let typed = text.split(':').next().unwrap_or_default().to_lowercase();
    let scored = names.iter().map(|name| (strsim::jaro_winkler(&typed, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score >= SIMILAR);
    let near = best.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"));
    format!("is `{text}`, expected one of {}{near}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_gets_the_right_one() {
        let said = |text: &str| text.parse::<Method>().expect_err(text).to_string();
        let names = "minmax, moving_average, percentile, entropy, mse, auto";
        for (typed, near) in [
            ("min", "; did you mean `minmax`?"),
            ("Minmaxx", "; did you mean `minmax`?"),
            ("percentil:99", "; did you mean `percentile`?"),
            ("moving-average", "; did you mean `moving_average`?"),
            ("kl", ""),
        ] {
            let expected = format!("method is `{typed}`, expected one of {names}{near}");
            assert_eq!(said(typed), expected);
        }
        for (typed, name) in [("MinMax", "minmax"), ("Percentile:99", "percentile:99")] {
            assert_eq!(typed.parse::<Method>().expect(typed).name(), name);
        }
        assert!(said("percentile:10").starts_with("method is `percentile:10`: "));
    }
}
