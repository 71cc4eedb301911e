//! Operators that run bodies, and the types of what they pass in and out.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{NodeProto, Raw, ValueInfoProto};

use super::decide::{Decisions, Given, Kind, Settings};
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
pub(super) fn given_to_main<'s>(
    scope: &Scope<'s>,
    settings: &Settings<'_>,
    keep_io: bool,
) -> Given<'s> {
    let too_large = |name: &str| {
        let magnitude = settings.magnitudes.and_then(|all| all.get(name));
        magnitude.is_some_and(|magnitude| *magnitude > settings.half.largest())
    };
    let kinds = |infos: &'s [Raw<ValueInfoProto>]| -> HashMap<&'s str, Kind> {
        let floats = infos.iter().map(|info| info.name.as_str());
        let floats = floats.filter(|name| scope.is_float(name));
        let given = |name: &str| scope.graph.initializer.iter().any(|tensor| tensor.name == name);
        let kind = |name: &'s str| {
            let float = keep_io || too_large(name) || given(name);
            if float { Kind::Float } else { Kind::Half }
        };
        floats.map(|name| (name, kind(name))).collect()
    };
    let without_constants = |mut kinds: HashMap<&'s str, Kind>| {
        kinds.retain(|name, _| scope.initializer(name).is_none());
        kinds
    };
    Given {
        inputs: without_constants(kinds(&scope.graph.input)),
        outputs: kinds(&scope.graph.output),
        carried: HashSet::new(),
        all_float: false,
        outer: &|_: &str| None,
    }
}

/// What is known of a body before its nodes are looked at.
pub(super) fn given_to<'b>(
    body: &Scope<'b>,
    node: &NodeProto,
    control: Control,
    decisions: &Decisions<'_>,
    outer: &'b (dyn Fn(&str) -> Option<Kind> + 'b),
) -> Given<'b> {
    let mut given = Given {
        inputs: HashMap::new(),
        outputs: HashMap::new(),
        carried: HashSet::new(),
        all_float: control == Control::Other,
        outer,
    };
    let graph = body.graph;
    let named = |infos: &'b [Raw<ValueInfoProto>]| infos.iter().map(|info| info.name.as_str());
    let first = match control {
        // The body of a loop computes a condition, too.
        Control::Loop { first_output, .. } => first_output,
        _ => 0,
    };
    for (input, name) in named(&graph.input).enumerate() {
        if body.is_float(name) {
            let read = node.input.get(input).map_or("", String::as_str);
            let own = || decisions.kinds.get(read).copied().or_else(|| outer(read));
            let kind = control.input(input).or_else(own).unwrap_or(Kind::Half);
            given.inputs.insert(name, kind);
        }
    }
    for (output, name) in named(&graph.output).enumerate() {
        if !body.is_float(name) {
            continue;
        }
        let made = output.checked_sub(first).and_then(|at| node.output.get(at));
        let kind = made.and_then(|made| decisions.kinds.get(made.as_str()).copied());
        let by_default = output.checked_sub(first).map_or(Kind::Float, |at| control.output(at));
        given.outputs.insert(name, kind.unwrap_or(by_default));
        if let Control::Loop { carried, .. } = control
            && (first..first + carried).contains(&output)
        {
            given.carried.insert(name);
        }
    }
    given
}
