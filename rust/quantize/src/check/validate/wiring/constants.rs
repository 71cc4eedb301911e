//! Constants of the original and what stands for them: stored weights, and constants that other
//! nodes make of constants.

use super::super::stored::base_of;
use super::{Step, Walk, bias_input};
use crate::graph::{Graph, Producer, ValueId};

impl Walk<'_, '_> {
    /// Compares a constant, which may be stored in another form.
    pub(super) fn constant(&mut self, there: ValueId, here: ValueId, step: &Step) {
        let name = self.before.values[there].name;
        let mut leaves = Vec::new();
        if !constants_behind(self.after, here, &mut leaves) {
            return self.wrong(there, here, step);
        }
        // Biases are compared separately, since bias correction may have changed them.
        if let Some((node, input)) = step.consumer
            && bias_input(self.after.nodes[node], input)
        {
            return;
        }
        let through = self.after.values[step.here].name;
        let direct = through == name
            || base_of(through, "dequantized").as_deref() == Some(name)
            || self.half.is_some() && self.is_cast_from(there, through);
        if self.is_transposed(here) || self.is_computed(here) {
            return self.wrong(there, here, step);
        }
        for id in &leaves {
            self.read_as(there, *id);
        }
        if !direct && !leaves.iter().any(|id| self.stands_for(there, *id)) {
            self.wrong(there, here, step);
        }
    }

    /// Whether a value of the original is a constant of this name, cast: a model that computes in
    /// 16 bits needs no cast of what was stored in them.
    fn is_cast_from(&self, there: ValueId, name: &str) -> bool {
        let Producer::Node { node, .. } = self.before.values[there].producer else { return false };
        let source =
            self.before.input(node, 0).filter(|_| self.before.nodes[node].op_type == "Cast");
        source.is_some_and(|source| {
            self.before.constant(source).is_some() && self.before.values[source].name == name
        })
    }

    /// Notes that a node reads a stored weight as the paired node of the original reads a constant:
    /// which one it is, if its name does not tell, as in files of other tools.
    pub(in crate::check::validate) fn read_as(&mut self, there: ValueId, here: ValueId) {
        let before = self.before;
        if before.constant_behind(there).is_some()
            && let Some(names) = self.kept.get_mut(&here)
            && is_unknown(before, names)
        {
            names.push(before.values[there].name.to_owned());
        }
    }

    /// Whether arithmetic makes a value at run time. If the original has a constant there, the
    /// constants that it is made of are compared with a candidate whose constants are not folded.
    fn is_computed(&self, value: ValueId) -> bool {
        let Producer::Node { node, .. } = self.after.values[value].producer else { return false };
        let producer = self.after.nodes[node];
        producer.is_onnx() && matches!(&*producer.op_type, "Add" | "Div" | "Mul" | "Sub")
    }

    /// Whether a value that is derived from constants alone is transposed at run time.
    fn is_transposed(&self, mut value: ValueId) -> bool {
        while let Producer::Node { node, .. } = self.after.values[value].producer {
            if self.after.nodes[node].op_type == "Transpose" {
                return true;
            }
            let Some(next) = self.after.input(node, 0) else { return false };
            value = next;
        }
        false
    }

    /// Whether a constant is one of the original, or its stored form.
    pub(in crate::check::validate) fn stands_for(&self, there: ValueId, here: ValueId) -> bool {
        let (was, is) = (self.before.values[there].name, self.after.values[here].name);
        let kept = self.kept.get(&here).map(Vec::as_slice).unwrap_or_default();
        let half = self.half.and_then(|half| base_of(is, half.name()));
        is == was
            || base_of(is, "quantized").as_deref() == Some(was)
            || half.as_deref() == Some(was)
            || self.equal(there, is)
            || kept.iter().any(|known| known == was || self.equal(there, known))
    }

    /// Whether another constant of the original is equal: equal constants are stored once.
    fn equal(&self, one: ValueId, other: &str) -> bool {
        let tensor = |id: ValueId| -> Option<_> {
            self.before.model.tensor(self.before.constant_behind(id)?).ok()
        };
        let other = self.before.value(other).and_then(tensor);
        other.is_some() && other == tensor(one)
    }
}

/// Whether none of the names that a weight may have in the original is that of a constant.
pub(in crate::check::validate) fn is_unknown(before: &Graph<'_>, names: &[String]) -> bool {
    let constant = |name: &String| before.constant_behind(before.value(name)?);
    !names.iter().any(|name| constant(name).is_some())
}

/// The constants that a value is derived from; `false` and none if it is derived from anything
/// else.
pub(in crate::check::validate) fn constants_behind(
    graph: &Graph<'_>,
    value: ValueId,
    leaves: &mut Vec<ValueId>,
) -> bool {
    let (mut waiting, mut found) = (vec![value], Vec::new());
    let mut steps = 0;
    while let Some(id) = waiting.pop() {
        steps += 1;
        if graph.constant(id).is_some() || sparse(graph, id) {
            found.push(id);
            continue;
        }
        let Producer::Node { node, .. } = graph.values[id].producer else { return false };
        let inputs = (0..graph.nodes[node].input.len()).rev();
        waiting.extend(inputs.filter_map(|input| graph.input(node, input)));
        // A constant is dequantized through fewer nodes.
        if steps > 100 {
            return false;
        }
    }
    leaves.append(&mut found);
    true
}

pub(super) fn sparse(graph: &Graph<'_>, value: ValueId) -> bool {
    matches!(graph.values[value].producer, Producer::Sparse)
}
