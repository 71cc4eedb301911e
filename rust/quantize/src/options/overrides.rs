//! What differs for some layers: an ordered list, of which the first entry that answers wins.

use quantize_rs_math::QType;
use serde::{Deserialize, Serialize};

use super::Width;

/// What differs for the weights, activations and nodes that it matches.
///
/// Each field answers one question; of all entries that match, the first that answers a question
/// decides it.
///
/// ```
/// use quantize_rs::options::Override;
/// let text = r#"{"match": {"pattern": "head/*"}, "weights": "int16"}"#;
/// let entry: Override = serde_json::from_str(text)?;
/// assert_eq!(entry.matches.pattern.as_deref(), Some("head/*"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Override {
    /// What it is for.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Whether what it matches stays float: weights, biases and the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<bool>,
    /// The type of weights, `float32` to leave them float, or their bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Width>,
    /// The type of activations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<QType>,
    /// Whether the zero point of weights is 0, or the middle of the range of an unsigned type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symmetric: Option<bool>,
    /// One scale for each output channel of a weight, or one for the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_channel: Option<bool>,
    /// One scale for each block of this many elements of a weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<usize>,
}

/// What an override is for: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// The name of a weight, activation or node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A pattern of names with `*`, `?` and `[…]`, or a regular expression after `re:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A type of operator: `Conv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op_type: Option<String>,
}

impl Match {
    /// What it names, and by what.
    pub fn text(&self) -> Option<&str> {
        self.name.as_deref().or(self.pattern.as_deref()).or(self.op_type.as_deref())
    }
}
