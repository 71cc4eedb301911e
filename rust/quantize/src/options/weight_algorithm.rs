//! How the integers of weights are chosen where there are samples.

use quantize_rs_math::Algorithm;
use serde::{Deserialize, Serialize};

use super::named::named;

/// The most that is tried to round a weight with the help of samples.
///
/// ```
/// use quantize_rs::WeightAlgorithm;
/// assert_eq!("gptq".parse::<WeightAlgorithm>()?, WeightAlgorithm::Gptq);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightAlgorithm {
    /// All algorithms, unless other options say how weights are rounded.
    #[default]
    Auto,
    /// Samples are not used.
    Nearest,
    /// Scales of the least error weighted by the mean square of each input.
    Scales,
    /// Also GPTQ.
    Gptq,
    /// Also coordinate descent.
    Descent,
    /// Also a relaxed choice between the integers around each element.
    #[serde(rename = "adaround")]
    AdaRound,
}

struct Row {
    value: WeightAlgorithm,
    name: &'static str,
    about: &'static str,
    /// The last algorithm that is tried.
    last: Algorithm,
}

const ROWS: &[Row] = &[
    Row {
        value: WeightAlgorithm::Auto,
        name: "auto",
        about: "all algorithms; the best of them for each weight",
        last: Algorithm::Descent,
    },
    Row {
        value: WeightAlgorithm::Nearest,
        name: "nearest",
        about: "as without samples",
        last: Algorithm::Nearest,
    },
    Row {
        value: WeightAlgorithm::Scales,
        name: "scales",
        about: "scales weighted by the mean square of each input",
        last: Algorithm::Scales,
    },
    Row {
        value: WeightAlgorithm::Gptq,
        name: "gptq",
        about: "also rounding errors made good in elements that are rounded later",
        last: Algorithm::Gptq,
    },
    Row {
        value: WeightAlgorithm::Descent,
        name: "descent",
        about: "also integers and scales changed in turn as long as the output error falls",
        last: Algorithm::Descent,
    },
    Row {
        value: WeightAlgorithm::AdaRound,
        name: "adaround",
        about: "also a relaxed choice between the integers around each element, which takes long",
        last: Algorithm::AdaRound,
    },
];

impl WeightAlgorithm {
    /// All values.
    pub const ALL: &'static [WeightAlgorithm] = &[
        WeightAlgorithm::Auto,
        WeightAlgorithm::Nearest,
        WeightAlgorithm::Scales,
        WeightAlgorithm::Gptq,
        WeightAlgorithm::Descent,
        WeightAlgorithm::AdaRound,
    ];

    /// The last algorithm that is tried.
    pub(crate) fn last(self) -> Algorithm {
        self.row().last
    }
}

named!(WeightAlgorithm, "weight_algorithm");
