//! The types in which constants are read.

use std::collections::HashMap;

use quantize_rs_onnx::TensorProto;

use super::decide::{Decisions, Kind};
use super::scope::Scope;
use crate::QuantizeError;

/// Whether each constant is read in float32 and in 16 bits, in its graph and in bodies.
pub(super) struct ConstantKinds(HashMap<*const TensorProto, [bool; 2]>);

impl ConstantKinds {
    /// The types in which the nodes and outputs of a graph read constants.
    pub(super) fn of(
        scope: &Scope<'_>,
        decisions: &Decisions,
    ) -> Result<ConstantKinds, QuantizeError> {
        let mut found = ConstantKinds(HashMap::new());
        found.add(scope, decisions)?;
        Ok(found)
    }

    /// Whether a constant is read in float32, and whether in 16 bits, which it has if any type will
    /// do for all.
    pub(super) fn of_constant(&self, tensor: &TensorProto) -> [bool; 2] {
        match self.0.get(&std::ptr::from_ref(tensor)) {
            Some([false, false]) => [false, true],
            found => found.copied().unwrap_or_default(),
        }
    }

    fn add(&mut self, scope: &Scope<'_>, decisions: &Decisions) -> Result<(), QuantizeError> {
        for (index, node) in scope.graph.node.iter().enumerate() {
            for (input, name) in node.input.iter().enumerate() {
                self.read(scope, name, decisions.wants(scope, index, input));
            }
            for graph in node.subgraphs() {
                if let Some(inner) = decisions.body(graph) {
                    self.add(&scope.body(graph)?, inner)?;
                }
            }
        }
        for output in &scope.graph.output {
            self.read(scope, &output.name, decisions.given.outputs.get(&output.name).copied());
        }
        Ok(())
    }

    /// Notes that a value is read in a type, or that any will do.
    fn read(&mut self, scope: &Scope<'_>, name: &str, wants: Option<Kind>) {
        if let Some(tensor) = scope.initializer(name).filter(|_| scope.is_float(name)) {
            let [float, half] = self.0.entry(std::ptr::from_ref(tensor)).or_default();
            *float |= wants == Some(Kind::Float);
            *half |= wants == Some(Kind::Half);
        }
    }
}
