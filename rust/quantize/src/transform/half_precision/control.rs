//! Operators that run bodies, and the types of what they pass in and out.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{NodeProto, Raw, ValueInfoProto};

use super::decide::{Given, Kind, Settings};
use super::scope::Scope;

/// The operators that run bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    If,
    /// A loop: values that one iteration passes on to the next are the first ones.
    Loop {
        /// The position of the first of them among the inputs of the node.
        first_input: usize,
        /// The same among the outputs of the body.
        first_output: usize,
        /// How many there are.
        carried: usize,
    },
    /// Another one, whose bodies stay float32.
    Other,
}

impl Control {
    pub(super) fn of(node: &NodeProto) -> Option<Control> {
        let body = node.subgraphs().next()?;
        // A `Scan` of opset 8 has one input more than its body, before the others.
        let same = body.input.len() == node.input.len();
        Some(match node.op_type.as_str() {
            "If" if node.is_onnx() => Control::If,
            "Loop" if node.is_onnx() && same => {
                let carried = node.input.len().saturating_sub(2);
                Control::Loop { first_input: 2, first_output: 1, carried }
            }
            "Scan" if node.is_onnx() && same => {
                let scanned = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(0);
                let carried = node.input.len().saturating_sub(scanned);
                Control::Loop { first_input: 0, first_output: 0, carried }
            }
            _ => Control::Other,
        })
    }

    /// The type of a float that the node reads. `None` is any: what a loop scans.
    pub(super) fn input(self, input: usize) -> Option<Kind> {
        match self {
            Control::Loop { first_input, carried, .. } if input >= first_input + carried => None,
            _ => Some(Kind::Float),
        }
    }

    /// The type of a float that the node computes, without samples.
    pub(super) fn output(self, output: usize) -> Kind {
        match self {
            Control::Loop { carried, .. } if output < carried => Kind::Float,
            Control::Other => Kind::Float,
            _ => Kind::Half,
        }
    }
}

/// The types of the inputs and outputs of the model.
pub(super) fn given_to_main(scope: &Scope<'_>, settings: &Settings<'_>, keep_io: bool) -> Given {
    let too_large = |name: &str| {
        let magnitude = settings.magnitudes.and_then(|all| all.get(name));
        magnitude.is_some_and(|magnitude| *magnitude > settings.half.largest())
    };
    let initializers: HashSet<&str> =
        scope.graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let kinds = |infos: &[Raw<ValueInfoProto>]| -> HashMap<String, Kind> {
        let floats = infos.iter().map(|info| &info.name).filter(|name| scope.is_float(name));
        let kind = |name: &String| {
            let float = keep_io || too_large(name) || initializers.contains(name.as_str());
            (name.clone(), if float { Kind::Float } else { Kind::Half })
        };
        floats.map(kind).collect()
    };
    let mut inputs = kinds(&scope.graph.input);
    inputs.retain(|name, _| scope.initializer(name).is_none());
    inputs.extend(sparse(scope));
    Given { inputs, outputs: kinds(&scope.graph.output), ..Given::default() }
}

/// Sparse constants, which stay float32.
fn sparse(scope: &Scope<'_>) -> impl Iterator<Item = (String, Kind)> {
    let names = scope.graph.sparse_initializer.iter().filter_map(|sparse| sparse.name());
    names.filter(|name| scope.is_float(name)).map(|name| (name.to_owned(), Kind::Float))
}

/// What is known of a body before its nodes are looked at. `outer` is the type of a float of the
/// graph of the node, or around it.
pub(super) fn given_to(
    body: &Scope<'_>,
    node: &NodeProto,
    control: Control,
    outer: &dyn Fn(&str) -> Option<Kind>,
) -> Given {
    let mut given = Given { all_float: control == Control::Other, ..Given::default() };
    let graph = body.graph;
    let first = match control {
        // The body of a loop computes a condition, too.
        Control::Loop { first_output, .. } => first_output,
        _ => 0,
    };
    let named = |infos: &[Raw<ValueInfoProto>]| -> Vec<(usize, String)> {
        let names = infos.iter().map(|info| info.name.clone()).enumerate();
        names.filter(|(_, name)| body.is_float(name)).collect()
    };
    for (input, name) in named(&graph.input) {
        let own = || outer(node.input.get(input)?);
        let kind = control.input(input).or_else(own).unwrap_or(Kind::Half);
        given.inputs.insert(name, kind);
    }
    given.inputs.extend(sparse(body));
    for (output, name) in named(&graph.output) {
        let at = output.checked_sub(first);
        let made = at.and_then(|at| outer(node.output.get(at)?));
        let by_default = at.map_or(Kind::Float, |at| control.output(at));
        if let Control::Loop { carried, .. } = control
            && (first..first + carried).contains(&output)
        {
            given.carried.insert(name.clone());
        }
        given.outputs.insert(name, made.unwrap_or(by_default));
    }
    given
}
