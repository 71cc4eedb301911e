//! Which layers of a language model get 8 bits where the others get fewer.

use serde::{Deserialize, Serialize};

use super::named::named;

/// Which layers of a language model get 8 bits where the others get fewer.
///
/// ```
/// use quantize_rs::MixedLayers;
/// assert_eq!("last".parse::<MixedLayers>()?, MixedLayers::Last);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MixedLayers {
    /// Those after which no other multiplies: the head.
    Last,
    /// The head, all of the first and the last block, and of more blocks the values of the
    /// attention and the projection back.
    Sensitive,
}

struct Row {
    value: MixedLayers,
    name: &'static str,
    about: &'static str,
}

const ROWS: &[Row] = &[
    Row { value: MixedLayers::Last, name: "last", about: "the head" },
    Row {
        value: MixedLayers::Sensitive,
        name: "sensitive",
        about: "the head; and in the first and the last eighth of the blocks and in each third \
                one between, what makes the values of the attention and what projects back to the \
                width of the model",
    },
];

impl MixedLayers {
    /// All values.
    pub const ALL: &'static [MixedLayers] = &[MixedLayers::Last, MixedLayers::Sensitive];
}

named!(MixedLayers, "mixed_layers");
