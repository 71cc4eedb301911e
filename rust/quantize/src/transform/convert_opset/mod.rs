//! Conversion to a newer version of ONNX's own operators, node by node.
//!
//! A node goes through every version that changed its operator on the way ([`steps`]): most changes
//! stand as they are, for some an adapter makes another node of it, and what there is no way for is
//! refused by name. Nodes that need no change keep their bytes, and all values keep their names.

// Adapters are alike, those that cannot fail too.
#![allow(clippy::unnecessary_wraps)]

mod activation;
mod convert;
mod legacy;
mod norm;
mod place;
mod resize;
mod sampling;
mod shapes;
mod steps;
mod types;

use std::fmt;

use quantize_rs_onnx::{Edit, FunctionProto, Model};
use serde::Serialize;

use crate::QuantizeError;

/// The newest operator set whose rules are known here (ONNX 1.23).
pub(crate) const NEWEST_OPSET: i64 = 28;

/// What conversion changes in a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conversion {
    /// The version that the model was of.
    pub from: i64,
    /// The version that it is of now.
    pub to: i64,
    /// The nodes that are another now, as a person would look for them; those of graphs inside nodes
    /// and of functions too.
    pub changed: Vec<String>,
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = match self.changed.len() {
            0 => "no node".to_owned(),
            1 => "1 node".to_owned(),
            count => format!("{count} nodes"),
        };
        write!(f, "opset {} → {}: {nodes} changed", self.from, self.to)
    }
}

/// A copy of `model`, which shares its weights, of a newer version of ONNX's own operators.
///
/// Values keep their names, and nodes that mean the same in both versions their bytes. The operators
/// of other domains stay as they are. The IR version is raised to the first that knows the operators.
///
/// ```
/// use quantize_rs::{Model, convert_opset};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let (converted, conversion) = convert_opset(&Model::open(path)?, 21)?;
/// assert_eq!(converted.opset(""), Some(21));
/// assert_eq!(conversion.to_string(), "opset 17 → 21: no node changed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An older version than the model's, one that is not known here, or a node that cannot be said in
/// it.
pub fn convert_opset(model: &Model, opset: i64) -> Result<(Model, Conversion), QuantizeError> {
    if !(1..=NEWEST_OPSET).contains(&opset) {
        let what = format!("is {opset}, expected 1 to {NEWEST_OPSET}");
        return Err(QuantizeError::option("opset", what));
    }
    let have = model.opset("").unwrap_or(opset);
    if have > opset {
        let what = format!("is {opset}, the model has {have}: models are made newer, not older");
        return Err(QuantizeError::option("opset", what));
    }
    let (conversion, edits) = conversion(model, opset)?;
    let mut converted = model.clone();
    if !edits.is_empty() {
        converted.apply(edits)?;
    }
    Ok((converted, conversion))
}

/// A function of a model with its nodes of version `to`; `None` when they are already.
pub(crate) fn convert_function(
    model: &Model,
    function: &FunctionProto,
    to: i64,
) -> Result<Option<FunctionProto>, QuantizeError> {
    convert::function(model, function, to)
}

/// Whether an operator is the same in two versions, of which `to` is the newer.
pub(crate) fn is_unchanged(op_type: &str, from: i64, to: i64) -> bool {
    matches!(steps::next(op_type, from, to), steps::Next::Done)
}

/// What has to change for a model to be of version `to`, and the edits that do it: none when it is
/// already.
pub(crate) fn conversion(model: &Model, to: i64) -> Result<(Conversion, Vec<Edit>), QuantizeError> {
    let from = model.opset("");
    if from.is_some_and(|from| from >= to) {
        let to = from.unwrap_or(to);
        return Ok((Conversion { from: to, to, ..Conversion::default() }, Vec::new()));
    }
    convert::model(model, from, to)
}
