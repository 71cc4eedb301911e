//! Converts a model in QDQ form to operators on integers: a node between `DequantizeLinear` and
//! `QuantizeLinear` becomes `QLinearConv` or a similar operator, with the same integers, scales and
//! zero points.
//!
//! What has no such operator stays between `QuantizeLinear` and `DequantizeLinear`, which computes
//! the same.

mod fused;
mod quantized;

use std::collections::{BTreeMap, HashMap};

use quantize_rs_onnx::{DataType, Edit, Model, NodeProto, Tensor, TensorProto};

use crate::QuantizeError;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::interface::same_interface;
use crate::graph::names::Names;
use crate::graph::ops::MICROSOFT;
use crate::graph::qlinear::qlinear_of;
use crate::transform;

/// What became of the nodes that compute on quantized values.
#[derive(Debug, Default)]
pub(crate) struct QOperators {
    /// The number of operators on integers, by name.
    pub(crate) written: BTreeMap<String, usize>,
    /// The number of nodes between `DequantizeLinear` and `QuantizeLinear`, by operator.
    pub(crate) left: BTreeMap<String, usize>,
}

/// The nodes that replace others, and the constants that they need.
struct Fusion<'g, 'm> {
    graph: &'g Graph<'m>,
    /// Whether ONNX Runtime's own operators may be used.
    microsoft: bool,
    names: Names<'g>,
    /// Zero points of 0, by type.
    zeros: HashMap<DataType, String>,
    edits: Vec<Edit>,
}

/// Converts a model. `microsoft` says whether ONNX Runtime's own operators may be used, beside
/// those of ONNX.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn converted(
    model: &Model,
    microsoft: bool,
) -> Result<(Model, QOperators), QuantizeError> {
    // Nodes that nothing reads would be removed afterwards.
    let model = &transform::without_unused(model)?;
    let graph = Graph::of(model)?;
    let (zeros, edits) = (HashMap::new(), Vec::new());
    let mut fusion = Fusion { graph: &graph, microsoft, names: Names::of(&graph), zeros, edits };
    let mut found = QOperators::default();
    for node in 0..graph.nodes.len() {
        let proto = graph.nodes[node];
        if fusion.moves(node) {
            continue;
        }
        match fusion.computes(node) {
            Some(written) => *found.written.entry(written.to_owned()).or_default() += 1,
            None if fusion.reads_activations(node) => {
                *found.left.entry(proto.op_type.clone()).or_default() += 1;
            }
            None => {}
        }
    }
    let edits = fusion.edits;
    if edits.is_empty() {
        return Ok((model.clone(), found));
    }
    let mut result = model.clone();
    result.apply(edits)?;
    let result = transform::without_unused(&result)?;
    same_interface(model, &result)?;
    check(&result, &found)?;
    Ok((result, found))
}

/// Checks that every operator that was written is in the result.
fn check(model: &Model, found: &QOperators) -> Result<(), QuantizeError> {
    let nodes = model.graph().node.iter().filter(|node| qlinear_of(node).is_some());
    let (count, expected) = (nodes.count(), found.written.values().sum::<usize>());
    if count >= expected {
        return Ok(());
    }
    let what = format!("{count} operators on integers in the result, expected {expected}");
    Err(QuantizeError::new(QuantizeErrorKind::Verify(what)))
}

impl Fusion<'_, '_> {
    /// Replaces a node, whose output becomes that of the `QuantizeLinear` after it; `gone` are the
    /// nodes that it includes.
    fn replace(&mut self, node: usize, with: NodeProto, gone: &[usize]) {
        if with.domain == MICROSOFT && self.graph.model.opset(MICROSOFT).is_none() {
            let imported = Edit::SetOpset { domain: MICROSOFT.to_owned(), version: 1 };
            let missing = |edit: &Edit| !matches!(edit, Edit::SetOpset { .. });
            if self.edits.iter().all(missing) {
                self.edits.push(imported);
            }
        }
        self.edits.push(Edit::ReplaceNode { node, with });
        self.edits.extend(gone.iter().map(|node| Edit::RemoveNode(*node)));
    }

    /// The name of a zero point of 0.
    fn zero(&mut self, dtype: DataType) -> String {
        if let Some(name) = self.zeros.get(&dtype) {
            return name.clone();
        }
        let name = self.names.fresh("zero", dtype.name());
        let tensor = Tensor { dtype, shape: vec![], data: vec![0u8].into() };
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, &tensor)));
        self.zeros.insert(dtype, name.clone());
        name
    }
}
