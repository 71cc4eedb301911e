//! What tract cannot run, or is known to run wrong, found before it is tried.
//!
//! tract looks operators up by name alone, whatever their domain, and reports an unknown one only
//! when it types the graph, one at a time. Here everything is found at once and by name.

use std::collections::BTreeMap;

use quantize_rs::{CalibrationError, CalibrationErrorKind};
use quantize_rs_onnx::DataType;
use tract_onnx::Onnx;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};

use super::datum_type;
use super::names::node_name;
use crate::inputs::listed;

/// Opsets before this one broadcast by an attribute that tract does not read.
const OLDEST_OPSET: i64 = 7;

/// An operator that tract knows and computes wrong in some form.
struct Defect {
    op_types: &'static [&'static str],
    /// What is wrong, in the words of the error.
    what: &'static str,
    /// Whether this node has the form.
    concerns: fn(&NodeProto) -> bool,
}

/// Measured with ONNX's own conformance suite on tract 0.23.9; look again with every new version.
const DEFECTS: &[Defect] = &[
    Defect {
        op_types: &["LSTM", "GRU", "RNN"],
        what: "with `direction` reverse is run forward",
        concerns: |node| text(node, "direction") == b"reverse",
    },
    Defect {
        op_types: &["SpaceToDepth"],
        what: "with `mode` CRD is run as DCR",
        concerns: |node| text(node, "mode") == b"CRD",
    },
    Defect {
        op_types: &["BatchNormalization"],
        what: "with `training_mode` is run as inference",
        concerns: |node| int(node, "training_mode") != 0,
    },
    Defect {
        op_types: &["Attention"],
        what: "with a causal mask over a past, a window or `softcap` is computed wrong",
        concerns: |node| {
            let past = node.input.get(4).is_some_and(|name| !name.is_empty());
            let window = node.attribute.iter().any(|a| a.name.contains("window") && a.i != -1);
            let softcap = attribute(node, "softcap").is_some_and(|a| a.f != 0.0);
            (int(node, "is_causal") != 0 && past) || window || softcap
        },
    },
    Defect {
        op_types: &["QuantizeLinear", "DequantizeLinear"],
        what: "with blocks is not supported",
        concerns: |node| int(node, "block_size") != 0,
    },
];

/// Finds everything in the model that tract must not be given.
///
/// # Errors
/// Of kind `Unsupported`, listing all of it with the names of the nodes and the mend.
pub(super) fn check(framework: &Onnx, model: &ModelProto) -> Result<(), CalibrationError> {
    let mut found = Found { framework, problems: BTreeMap::new() };
    found.opset(model);
    if let Some(graph) = &model.graph {
        found.graph(graph);
    }
    if found.problems.is_empty() {
        return Ok(());
    }
    let problems = found.problems.iter().map(|(problem, places)| {
        format!("{problem} ({})", listed(places.iter().map(String::as_str), 5))
    });
    let problems: Vec<String> = problems.collect();
    Err(CalibrationError::new(CalibrationErrorKind::Unsupported(format!(
        "tract cannot run this model: {}; export it without them, in float32 and for opset 13 or \
         later, or quantize without calibration data",
        problems.join("; ")
    ))))
}

/// Problems and where they are.
struct Found<'a> {
    framework: &'a Onnx,
    problems: BTreeMap<String, Vec<String>>,
}

impl Found<'_> {
    fn add(&mut self, problem: impl Into<String>, place: &str) {
        self.problems.entry(problem.into()).or_default().push(place.to_owned());
    }

    fn opset(&mut self, model: &ModelProto) {
        let default = model.opset_import.iter().find(|opset| is_default(&opset.domain));
        let version = default.map_or(0, |opset| opset.version);
        if version < OLDEST_OPSET {
            self.add(format!("opset older than {OLDEST_OPSET}"), &version.to_string());
        }
    }

    fn graph(&mut self, graph: &GraphProto) {
        for initializer in &graph.initializer {
            self.tensor(initializer, &initializer.name);
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| &values.name);
            self.add("sparse initializers", name);
        }
        for node in &graph.node {
            self.node(node);
        }
    }

    fn node(&mut self, node: &NodeProto) {
        let (name, op_type) = (node_name(node), node.op_type.as_str());
        if !is_default(&node.domain) {
            self.add(format!("operator {op_type} of domain {}", node.domain), name);
        } else if !self.framework.op_register.0.contains_key(op_type) {
            self.add(format!("operator {op_type}"), name);
        }
        for defect in DEFECTS {
            if defect.op_types.contains(&op_type) && (defect.concerns)(node) {
                self.add(format!("operator {op_type}, which {}", defect.what), name);
            }
        }
        if op_type == "Cast" {
            self.dtype(i32::try_from(int(node, "to")).unwrap_or(0), name);
        }
        for attribute in &node.attribute {
            for tensor in attribute.t.iter().chain(&attribute.tensors) {
                self.tensor(tensor, name);
            }
            for body in attribute.g.iter().chain(&attribute.graphs) {
                self.graph(body);
            }
        }
    }

    fn tensor(&mut self, tensor: &TensorProto, place: &str) {
        self.dtype(tensor.data_type, place);
    }

    fn dtype(&mut self, number: i32, place: &str) {
        let dtype = DataType::from_number(number);
        if dtype.and_then(datum_type).is_none() {
            let name = dtype.map_or_else(|| format!("number {number}"), |d| d.name().to_owned());
            self.add(format!("element type {name}"), place);
        }
    }
}

fn is_default(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

fn int(node: &NodeProto, name: &str) -> i64 {
    attribute(node, name).map_or(0, |attribute| attribute.i)
}

fn text<'n>(node: &'n NodeProto, name: &str) -> &'n [u8] {
    attribute(node, name).map_or(&[], |attribute| &attribute.s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_onnx::pb::OperatorSetIdProto;

    fn node(op_type: &str, name: &str) -> NodeProto {
        NodeProto { op_type: op_type.into(), name: name.into(), ..NodeProto::default() }
    }

    fn with(mut node: NodeProto, attribute: AttributeProto) -> NodeProto {
        node.attribute.push(attribute);
        node
    }

    fn model(opset: i64, nodes: Vec<NodeProto>) -> ModelProto {
        let opset = OperatorSetIdProto { domain: String::new(), version: opset };
        let graph = GraphProto { node: nodes, ..GraphProto::default() };
        ModelProto { opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
    }

    fn problems(model: &ModelProto) -> String {
        let error = check(&tract_onnx::onnx(), model).expect_err("a problem");
        assert!(matches!(error.kind(), CalibrationErrorKind::Unsupported(_)));
        error.to_string()
    }

    #[test]
    fn a_plain_model_passes() {
        let model = model(17, vec![node("Conv", "a"), node("Relu", "b"), node("LSTM", "c")]);
        assert!(check(&tract_onnx::onnx(), &model).is_ok());
    }

    #[test]
    fn everything_unsupported_is_listed_at_once_bodies_included() {
        let body =
            GraphProto { node: vec![node("SequenceEmpty", "deep")], ..GraphProto::default() };
        let body = AttributeProto { name: "body".into(), g: Some(body), ..Default::default() };
        let custom = NodeProto { domain: "com.acme".into(), ..node("Relu", "mine") };
        let looped = with(node("Loop", "loop"), body);
        let nodes = vec![node("Unique", "u1"), custom, node("Unique", "u2"), looped];
        let error = problems(&model(6, nodes));
        for expected in [
            "opset older than 7 (`6`)",
            "operator Loop (`loop`)",
            "operator Relu of domain com.acme (`mine`)",
            "operator SequenceEmpty (`deep`)",
            "operator Unique (`u1`, `u2`)",
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn forms_that_tract_computes_wrong_are_refused() {
        let attribute = |name: &str| AttributeProto { name: name.into(), ..Default::default() };
        let reverse = AttributeProto { s: b"reverse".to_vec(), ..attribute("direction") };
        let crd = AttributeProto { s: b"CRD".to_vec(), ..attribute("mode") };
        let training = AttributeProto { i: 1, ..attribute("training_mode") };
        let softcap = AttributeProto { f: 2.0, ..attribute("softcap") };
        let block = AttributeProto { i: 32, ..attribute("block_size") };
        let bfloat = AttributeProto { i: 16, ..attribute("to") };
        let cases = [
            (with(node("GRU", "n"), reverse), "GRU, which with `direction` reverse"),
            (with(node("SpaceToDepth", "n"), crd), "SpaceToDepth, which with `mode` CRD"),
            (with(node("BatchNormalization", "n"), training), "`training_mode`"),
            (with(node("Attention", "n"), softcap), "Attention, which"),
            (with(node("DequantizeLinear", "n"), block), "DequantizeLinear, which with blocks"),
            (with(node("Cast", "n"), bfloat), "element type bfloat16 (`n`)"),
        ];
        for (node, expected) in cases {
            let error = problems(&model(21, vec![node]));
            assert!(error.contains(expected), "{error}");
        }
    }
}
