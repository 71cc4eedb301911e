//! The form of a graph while it is written: its values in both types, and its nodes.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, NodeProto, Raw, TensorProto, ValueInfoProto};

use super::decide::Kind;
use crate::options::HalfType;

/// The values of a graph as they are written.
pub(super) struct Values<'v> {
    pub(super) outer: Option<&'v Values<'v>>,
    /// The names of values that have 16 bits now.
    pub(super) halves: HashSet<String>,
    /// The type of each float, and the name under which it has that type.
    pub(super) floats: HashMap<String, (Kind, String)>,
    /// The names of floats in the other type.
    pub(super) others: HashMap<String, String>,
}

impl Values<'_> {
    pub(super) fn float(&self, name: &str) -> Option<&(Kind, String)> {
        self.floats.get(name).or_else(|| self.outer?.float(name))
    }

    pub(super) fn other(&self, name: &str) -> Option<&String> {
        self.others.get(name).or_else(|| {
            // A value of this graph hides one of the same name around it.
            let outer = self.outer.filter(|_| !self.floats.contains_key(name))?;
            outer.other(name)
        })
    }

    pub(super) fn is_half(&self, name: &str) -> bool {
        self.halves.contains(name) || self.outer.is_some_and(|outer| outer.is_half(name))
    }
}

/// A node of the graph that is written.
pub(super) enum Item {
    Kept(usize),
    Replaced(usize, NodeProto),
    Added(NodeProto),
    Removed(usize),
}

/// A graph as it is written.
pub(super) struct Written {
    pub(super) items: Vec<Item>,
    /// Constants to replace, by name, and to add.
    pub(super) replaced: Vec<TensorProto>,
    pub(super) added: Vec<TensorProto>,
    /// The names of values that have 16 bits now.
    pub(super) halves: HashSet<String>,
    /// Values that are gone.
    pub(super) removed: HashSet<String>,
    /// The names of the outputs, by position, if they change.
    pub(super) outputs: Vec<(usize, String)>,
}

/// The value info of a float32 value with another type; `None` for one of another type.
pub(super) fn with_type(info: &ValueInfoProto, dtype: DataType) -> Option<ValueInfoProto> {
    info.tensor_type().filter(|tensor| tensor.elem_type == DataType::Float.number())?;
    let mut info = info.clone();
    info.value_type.as_mut()?.edit().tensor.as_mut()?.edit().elem_type = dtype.number();
    Some(info)
}

/// A body as it is written.
pub(super) fn rebuilt(graph: &GraphProto, written: Written, half: Option<HalfType>) -> GraphProto {
    let mut body = graph.clone();
    let mut nodes = Vec::with_capacity(written.items.len());
    for item in written.items {
        match item {
            Item::Kept(index) => nodes.push(graph.node[index].clone()),
            Item::Replaced(_, with) | Item::Added(with) => nodes.push(Raw::new(with)),
            Item::Removed(_) => {}
        }
    }
    body.node = nodes;
    for tensor in written.replaced {
        if let Some(old) = body.initializer.iter_mut().find(|old| old.name == tensor.name) {
            *old = Raw::new(tensor);
        }
    }
    body.initializer.extend(written.added.into_iter().map(Raw::new));
    for (at, name) in written.outputs {
        body.output[at].edit().name = name;
    }
    body.value_info.retain(|info| !written.removed.contains(&info.name));
    let infos = body.value_info.iter_mut().chain(&mut body.input).chain(&mut body.output);
    for info in infos.filter(|info| written.halves.contains(&info.name)) {
        if let Some(half) = half
            && let Some(typed) = with_type(info, half.data_type())
        {
            *info = Raw::new(typed);
        }
    }
    body
}
