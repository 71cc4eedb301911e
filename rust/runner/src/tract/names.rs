//! Node names for tract, and their mapping to ONNX nodes.
//!
//! tract requires node names to be unique, and different from the names of inputs and initializers;
//! ONNX requires neither. So each node gets a token, `q0_0`, `q0_1`, …, and a message of tract
//! about `q0_17.bias` is about the 18th node.

use std::collections::BTreeSet;

use quantize_rs::CalibrationError;
use tract_onnx::pb::{GraphProto, NodeProto};
use tract_onnx::prelude::TractError;

use super::failed;

/// The maximum length of a message of tract in an error: some include whole tensors.
const MAX_MESSAGE_LENGTH: usize = 600;

/// The nodes of the tokens.
pub(super) struct NodeNames {
    prefix: String,
    /// Operator and name of each node, in the order of the tokens.
    nodes: Vec<(String, String)>,
}

impl NodeNames {
    /// Replaces the name of every node of `graph`, subgraphs included, with a token.
    pub(super) fn rename(graph: &mut GraphProto) -> NodeNames {
        let mut taken = BTreeSet::new();
        collect_taken(graph, &mut taken);
        let free = (0..=u64::MAX).find(|number| !taken.contains(number)).unwrap_or_default();
        let mut names = NodeNames { prefix: format!("q{free}_"), nodes: Vec::new() };
        names.rename_graph(graph);
        names
    }

    fn rename_graph(&mut self, graph: &mut GraphProto) {
        for node in &mut graph.node {
            let token = format!("{}{}", self.prefix, self.nodes.len());
            let name = node_name(node).to_owned();
            node.name = token;
            self.nodes.push((node.op_type.clone(), name));
            for body in node.attribute.iter_mut().flat_map(|a| a.g.iter_mut().chain(&mut a.graphs))
            {
                self.rename_graph(body);
            }
        }
    }

    /// The error with the node that it is about: the one in the innermost message that names one.
    pub(super) fn locate(&self, error: &TractError) -> CalibrationError {
        let links: Vec<String> = error.chain().map(ToString::to_string).collect();
        let place = links.iter().rev().find(|link| self.find(link).is_some());
        self.locate_text(place.map_or("", String::as_str), &links.join(": "))
    }

    /// An error at the node that `place` names, if any.
    pub(super) fn locate_text(&self, place: &str, message: &str) -> CalibrationError {
        let mut message = self.readable(message);
        if let Some((cut, _)) = message.char_indices().nth(MAX_MESSAGE_LENGTH) {
            message.truncate(cut);
            message.push('…');
        }
        match self.find(place) {
            Some((_, _, (op_type, name))) => {
                failed(format!("node `{name}` ({op_type}): tract: {message}")).at_value(name)
            }
            None => failed(format!("tract: {message}")),
        }
    }

    /// The first token in `text`: its position and its node.
    fn find(&self, text: &str) -> Option<(usize, usize, &(String, String))> {
        for (start, _) in text.match_indices(self.prefix.as_str()) {
            let inside_a_word = text[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let digits = &text[start + self.prefix.len()..];
            let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let node = digits[..length].parse().ok().and_then(|index: usize| self.nodes.get(index));
            if let (false, Some(node)) = (inside_a_word, node) {
                return Some((start, start + self.prefix.len() + length, node));
            }
        }
        None
    }

    /// `text` with tokens replaced by node names.
    fn readable(&self, mut text: &str) -> String {
        let mut readable = String::new();
        while let Some((start, end, (_, name))) = self.find(text) {
            readable.push_str(&text[..start]);
            readable.push_str(name);
            text = &text[end..];
        }
        readable + text
    }
}

/// The name of a node, or of its first output if it has none.
pub(super) fn node_name(node: &NodeProto) -> &str {
    match node.name.as_str() {
        "" => node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str),
        name => name,
    }
}

/// The numbers `n` for which the name of a value begins with `q{n}_`.
fn collect_taken(graph: &GraphProto, taken: &mut BTreeSet<u64>) {
    let inputs = graph.input.iter().map(|value| &value.name);
    let initializers = graph.initializer.iter().map(|value| &value.name);
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let values = inputs.chain(initializers).chain(outputs);
    let number = |name: &String| name.strip_prefix('q')?.split_once('_')?.0.parse::<u64>().ok();
    taken.extend(values.filter_map(number));
    for attribute in graph.node.iter().flat_map(|node| &node.attribute) {
        for body in attribute.g.iter().chain(&attribute.graphs) {
            collect_taken(body, taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, op_type: &str, output: &str) -> NodeProto {
        NodeProto {
            name: name.into(),
            op_type: op_type.into(),
            output: vec![output.into()],
            ..NodeProto::default()
        }
    }

    #[test]
    fn a_message_about_a_token_is_about_its_node() {
        let nodes = vec![node("", "Conv", "conv_out"), node("same", "Relu", "q0_1")];
        let mut graph = GraphProto { node: nodes, ..GraphProto::default() };
        let names = NodeNames::rename(&mut graph);
        assert_eq!(graph.node[1].name, "q1_1"); // a value is called `q0_1`
        let cases = [
            ("Failed analyse for node #2 \"q1_1\" Relu", "node `same` (Relu): tract: "),
            ("Evaluating #3 \"q1_0.bias\" Add", "node `conv_out` (Conv): tract: "),
            ("nothing of q1_2 or xq1_1 is known", "tract: "),
        ];
        for (message, begins) in cases {
            let error = names.locate(&TractError::msg(message).context("outer")).to_string();
            assert!(error.starts_with(begins), "{error}");
            assert!(error.contains("outer: "), "{error}");
        }
    }
}
