//! Converts the ONNX domain of a model to a newer opset, node by node.
//!
//! Each node passes through all opset versions that changed its operator ([`steps`]). Most changes
//! are compatible; for others, an adapter rewrites the node. If no adapter is possible, the
//! conversion fails and names the node. Nodes that need no change keep their bytes, and all values
//! keep their names.

// All adapters have the same signature, including those that cannot fail.
#![allow(clippy::unnecessary_wraps)]

mod activation;
mod context;
mod convert;
mod kernels;
mod legacy;
mod norm;
mod resize;
mod sampling;
mod shapes;
mod steps;
mod types;

pub use steps::onnx_op_types;

use std::fmt;

use quantize_rs_onnx::{Edit, FunctionProto, Model};
use serde::Serialize;

use crate::QuantizeError;
use crate::error::while_unchanged;

/// The newest operator set whose rules are known here (ONNX 1.23).
pub(crate) const NEWEST_OPSET: i64 = 28;

/// The result of an opset conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpsetConversion {
    /// The opset version before.
    pub from: i64,
    /// The opset version after.
    pub to: i64,
    /// Descriptions of the nodes that were rewritten, including those in subgraphs and functions.
    pub changed: Vec<String>,
    /// Operators that ONNX Runtime has no CPU kernels for in the newer opset, though it has some in
    /// the older one.
    pub warnings: Vec<String>,
}

impl fmt::Display for OpsetConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = match self.changed.len() {
            0 => "no node".to_owned(),
            1 => "1 node".to_owned(),
            count => format!("{count} nodes"),
        };
        write!(f, "opset {} → {}: {nodes} changed", self.from, self.to)
    }
}

/// Converts a copy of `model` to a newer opset of the ONNX domain. The copy shares its weights with
/// `model`.
///
/// Values keep their names, and nodes that are valid in both opsets keep their bytes. Operators of
/// other domains are unchanged. The IR version is raised to the first version that supports the
/// opset.
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
/// The opset is older than that of the model or unknown, or a node has no equivalent in it.
pub fn convert_opset(model: &Model, opset: i64) -> Result<(Model, OpsetConversion), QuantizeError> {
    while_unchanged(&[model], || {
        if !(1..=NEWEST_OPSET).contains(&opset) {
            let what = format!("is {opset}, expected 1 to {NEWEST_OPSET}");
            return Err(QuantizeError::option("opset", what));
        }
        let have = model.opset("").unwrap_or(opset);
        if have > opset {
            let what =
                format!("is {opset}, the model has {have}: you can only convert to a newer opset");
            return Err(QuantizeError::option("opset", what));
        }
        let (conversion, edits) = conversion(model, opset)?;
        let mut converted = model.clone();
        if !edits.is_empty() {
            converted.apply(edits)?;
        }
        Ok((converted, conversion))
    })
}

/// Converts a function of a model; `None` if nothing changes.
pub(crate) fn convert_function(
    model: &Model,
    function: &FunctionProto,
    to: i64,
) -> Result<Option<FunctionProto>, QuantizeError> {
    convert::function(model, function, to)
}

/// Whether an operator is the same in two opset versions, of which `to` is the newer one.
pub(crate) fn is_unchanged(op_type: &str, from: i64, to: i64) -> bool {
    matches!(steps::next(op_type, from, to), steps::Next::Done)
}

/// The conversion of a model to opset `to`, and its edits. There are none if the opset is already
/// new enough.
pub(crate) fn conversion(
    model: &Model,
    to: i64,
) -> Result<(OpsetConversion, Vec<Edit>), QuantizeError> {
    let from = model.opset("");
    if from.is_some_and(|from| from >= to) {
        let to = from.unwrap_or(to);
        return Ok((OpsetConversion { from: to, to, ..OpsetConversion::default() }, Vec::new()));
    }
    convert::model(model, from, to)
}
