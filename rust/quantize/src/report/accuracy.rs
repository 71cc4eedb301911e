//! Classification accuracy.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::QuantizeError;

/// The top-1 accuracy of the float model and of the quantized one, or their scores in a metric of
/// the caller's.
///
/// In JSON, scores that are not finite are null; reading gives NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// The output with the class scores.
    pub output: String,
    /// Accuracy of the float model, from 0 to 1.
    #[serde(deserialize_with = "or_nan")]
    pub original: f64,
    /// Accuracy of the quantized model.
    #[serde(deserialize_with = "or_nan")]
    pub quantized: f64,
    /// The loss of accuracy; negative for a gain.
    #[serde(deserialize_with = "or_nan")]
    pub drop: f64,
    /// The number of labels; 0 for a metric of the caller's.
    pub labels: usize,
    /// The name of the metric, if it is the caller's. Then `original` and `quantized` are scores of
    /// any size, and `drop` is how much worse the quantized model is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
}

/// A number, or NaN for null.
fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Option::deserialize(deserializer).map(|number| number.unwrap_or(f64::NAN))
}

impl Accuracy {
    /// The accuracy of the classes that the two models predicted for the rows of an output.
    ///
    /// # Errors
    /// The number of labels differs from the number of rows, or a label is not a class.
    pub(crate) fn of(
        output: &str,
        classes: usize,
        found: [&[usize]; 2],
        labels: &[i64],
    ) -> Result<Accuracy, QuantizeError> {
        let rows = found[0].len();
        if rows != labels.len() {
            let what = format!(
                "are {}, expected one for each of the {rows} rows of `{output}`",
                labels.len()
            );
            return Err(QuantizeError::option("labels", what));
        }
        let wrong =
            labels.iter().position(|label| !usize::try_from(*label).is_ok_and(|at| at < classes));
        if let Some(row) = wrong {
            let what = format!(
                "of row {row} is {}, but `{output}` has {classes} classes: expected 0 to {}",
                labels[row],
                classes.saturating_sub(1)
            );
            return Err(QuantizeError::option("labels", what));
        }
        let [original, quantized] = found.map(|found| {
            let pairs = found.iter().zip(labels);
            part(pairs.map(|(found, label)| usize::try_from(*label) == Ok(*found))).unwrap_or(0.0)
        });
        Ok(Accuracy {
            output: output.to_owned(),
            original,
            quantized,
            drop: original - quantized,
            labels: labels.len(),
            metric: None,
        })
    }
}

impl Accuracy {
    /// `an accuracy of 97.10 % instead of 97.50 %`, or `a score of 4.95 instead of 4.94 (kl)`
    pub(crate) fn instead(&self) -> String {
        let Accuracy { original, quantized, metric, .. } = self;
        match metric {
            Some(metric) => {
                format!("a score of {quantized:.5} instead of {original:.5} ({metric})")
            }
            None => format!(
                "an accuracy of {:.2} % instead of {:.2} %",
                quantized * 1e2,
                original * 1e2
            ),
        }
    }

    /// `accuracy 97.10 % (-0.40 points)`
    pub(crate) fn short(&self) -> String {
        if let Some(metric) = &self.metric {
            return format!("{metric} {:.5} ({:.5} in float)", self.quantized, self.original);
        }
        let (part, change) = (self.quantized * 1e2, self.change());
        format!("accuracy {part:.2} % ({change} points)")
    }

    /// `-0.40`: the change in percentage points, with its sign; one that rounds to 0 is `+0.00`.
    pub(crate) fn change(&self) -> String {
        let text = format!("{:+.2}", -self.drop * 1e2);
        if text == "-0.00" { "+0.00".to_owned() } else { text }
    }
}

/// The fraction of `true`; `None` for no answers.
#[allow(clippy::cast_precision_loss)] // counts
pub(crate) fn part(answers: impl Iterator<Item = bool>) -> Option<f64> {
    let (mut yes, mut all) = (0_usize, 0_usize);
    for answer in answers {
        yes += usize::from(answer);
        all += 1;
    }
    (all > 0).then(|| yes as f64 / all as f64)
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Accuracy { output, original, quantized, drop, labels, metric } = self;
        if let Some(metric) = metric {
            return write!(
                f,
                "{metric}: {original:.5} float, {quantized:.5} quantized ({drop:.5} worse)"
            );
        }
        write!(
            f,
            "accuracy of {output}: {:.2} % float, {:.2} % quantized ({} points, {labels} \
                labels)",
            original * 1e2,
            quantized * 1e2,
            self.change()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_are_not_finite_are_read_again() {
        let found = Accuracy {
            output: "y".to_owned(),
            original: 0.5,
            quantized: f64::NAN,
            drop: f64::INFINITY,
            labels: 0,
            metric: Some("kl".to_owned()),
        };
        let read: Accuracy = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(read.original.to_bits(), found.original.to_bits());
        assert!(read.quantized.is_nan() && read.drop.is_nan());
    }
}
