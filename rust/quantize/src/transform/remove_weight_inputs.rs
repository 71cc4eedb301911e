//! Makes initializers constants that an exporter listed as inputs too.
//!
//! Since IR version 4 (onnx/docs/IR.md, section "Graphs"), an initializer that is an input too is
//! the default of that input, and callers may replace it. Exporters from before go on listing every
//! initializer, as PyTorch does with `keep_initializers_as_inputs=True`. A call does not replace
//! all weights of a model; a model with inputs that have a default lists those alone.

use std::collections::HashSet;

use quantize_rs_onnx::Edit;

use super::Changes;
use crate::QuantizeError;
use crate::graph::{Graph, Producer};

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let proto = graph.model.graph();
    let mut all = graph.values.iter().filter_map(|value| match value.producer {
        Producer::Initializer { tensor, overridable } => Some((tensor, overridable)),
        _ => None,
    });
    let has_matrix = proto.initializer.iter().any(|tensor| tensor.dims.len() > 1);
    let listed = proto.initializer.len() > 1 && all.all(|(_, overridable)| overridable);
    if !listed || !has_matrix {
        return Ok(Changes::default());
    }
    let stored: HashSet<&str> = proto.initializer.iter().map(|it| it.name.as_str()).collect();
    let inputs = proto.input.iter().filter(|input| stored.contains(input.name.as_str()));
    let edits: Vec<Edit> = inputs.map(|input| Edit::RemoveInput(input.name.clone())).collect();
    let did = vec![format!(
        "removed {} inputs that are initializers too: all initializers are, so that they are \
         constants",
        edits.len()
    )];
    Ok(Changes { edits, did })
}
