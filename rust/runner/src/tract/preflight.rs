//! Finds operators that tract does not support, or is known to compute incorrectly, before running
//! a model.
//!
//! tract finds operators by name, whatever their domain, and reports an unknown one only during
//! type inference, one at a time. These checks find all of them at once.

use std::collections::{BTreeMap, HashSet};

use quantize_rs::{CalibrationError, CalibrationErrorKind, is_quantized_op};
use quantize_rs_onnx::{DataType, canonical_domain};
use tract_onnx::Onnx;
use tract_onnx::pb::type_proto::Value;
use tract_onnx::pb::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto,
};

use super::datum_type;
use super::names::node_name;
use crate::OF_THE_CALLER;
use crate::inputs::listed;

/// The first opset that does not broadcast by an attribute, which tract does not read.
const MIN_OPSET: i64 = 7;

/// Operators of ONNX Runtime's domain that tract computes like ONNX Runtime.
const CONTRIB_OPS: &[&str] = &["BiasGelu", "FastGelu", "Gelu", "QuickGelu"];

/// An operator that tract supports, but computes incorrectly in some form.
struct KnownDefect {
    op_types: &'static [&'static str],
    /// The defect, as in the error message.
    what: &'static str,
    /// Whether this node has the form.
    concerns: fn(&NodeProto, &Scope) -> bool,
}

/// The context of a node.
struct Scope<'a> {
    opset: i64,
    /// Values that a Cast converted to int64.
    cast_to_int64: HashSet<&'a str>,
    /// Values that are known to be booleans.
    booleans: HashSet<&'a str>,
}

/// Operators with boolean outputs, and operators that rearrange their first input.
const BOOLEAN_OPS: &[&str] = &[
    "And",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Not",
    "Or",
    "Xor",
];
const DATA_MOVEMENT_OPS: &[&str] =
    &["Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// Measured against ONNX Runtime on tract 0.23.9; check again with every new version.
const DEFECTS: &[KnownDefect] = &[
    KnownDefect {
        op_types: &["LSTM", "GRU", "RNN"],
        what: "with `direction` reverse runs forward",
        concerns: |node, _| text(node, "direction") == b"reverse",
    },
    KnownDefect {
        op_types: &["LSTM", "GRU", "RNN"],
        what: "with `clip`, `input_forget` or its own `activations` runs without",
        concerns: |node, _| {
            let clip = attribute(node, "clip").is_some_and(|a| a.f > 0.0);
            clip || int(node, "input_forget") != 0 || has_own_activations(node)
        },
    },
    KnownDefect {
        op_types: &["SpaceToDepth"],
        what: "with `mode` CRD runs as DCR",
        concerns: |node, _| text(node, "mode") == b"CRD",
    },
    KnownDefect {
        op_types: &["BatchNormalization"],
        what: "with `training_mode` runs as inference",
        concerns: |node, _| int(node, "training_mode") != 0,
    },
    KnownDefect {
        op_types: &["Attention"],
        what: "with a causal mask over a past, a window or `softcap` is computed incorrectly",
        concerns: |node, _| {
            let past = node.input.get(4).is_some_and(|name| !name.is_empty());
            let window = node.attribute.iter().any(|a| a.name.contains("window") && a.i != -1);
            let softcap = attribute(node, "softcap").is_some_and(|a| a.f != 0.0);
            (int(node, "is_causal") != 0 && past) || window || softcap
        },
    },
    KnownDefect {
        op_types: &["Attention"],
        what: "with a boolean mask fails at run time",
        concerns: |node, scope| {
            node.input.get(3).is_some_and(|mask| scope.booleans.contains(mask.as_str()))
        },
    },
    KnownDefect {
        op_types: &["QuantizeLinear", "DequantizeLinear"],
        what: "with `block_size` or `output_dtype` runs without",
        concerns: |node, _| int(node, "block_size") != 0 || int(node, "output_dtype") != 0,
    },
    KnownDefect {
        op_types: &["Celu"],
        what: "with `alpha` other than 1 is computed incorrectly",
        concerns: |node, _| attribute(node, "alpha").is_some_and(|a| a.f != 1.0),
    },
    KnownDefect {
        op_types: &["ReduceLogSumExp"],
        what: "overflows where an element is larger than 88",
        concerns: |_, _| true,
    },
    KnownDefect {
        op_types: &["QLinearConv"],
        what: "reads or writes beyond its memory for some shapes",
        concerns: |_, _| true,
    },
    KnownDefect {
        op_types: &["GlobalLpPool"],
        what: "is computed incorrectly",
        concerns: |_, _| true,
    },
    KnownDefect {
        op_types: &["ConvTranspose"],
        what: "with `output_shape` may pad the other side",
        concerns: |node, _| attribute(node, "output_shape").is_some(),
    },
    KnownDefect {
        op_types: &["Mod"],
        what: "of values cast to int64 takes the sign of the dividend",
        concerns: |node, scope| {
            let cast = node.input.iter().any(|name| scope.cast_to_int64.contains(name.as_str()));
            cast && int(node, "fmod") == 0
        },
    },
    KnownDefect {
        op_types: &["Resize"],
        what: "of opset 10 that shrinks, or has scales known only at run time, rounds differently",
        concerns: |node, scope| {
            let linear = text(node, "mode") == b"linear";
            scope.opset == 10 && !linear && attribute(node, "nearest_mode").is_none()
        },
    },
];

const OF_THE_EXPORT: &str = "ONNX Runtime may: `pip install onnxruntime` and use the engine auto \
    or onnxruntime, or export the model without them, for opset 13 or later";

/// The remedy if one of the problems may be due to quantization.
const NOT_OF_THE_EXPORT: &str =
    "ONNX Runtime may: `pip install onnxruntime` and use the engine auto or onnxruntime";

/// Domains whose operators ONNX Runtime has.
const OF_ONNX_RUNTIME: &[&str] = &["ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"];

/// Finds all nodes of the model that tract must not run.
///
/// # Errors
/// Of kind `Unsupported`, with all of the nodes and what to do.
pub(super) fn check(framework: &Onnx, model: &ModelProto) -> Result<(), CalibrationError> {
    let mut found = Problems {
        framework,
        opset: opset(model),
        nodes: BTreeMap::new(),
        quantized: false,
        functions: &model.functions,
        custom: false,
    };
    if found.opset < MIN_OPSET {
        found.add(format!("opset older than {MIN_OPSET}"), &found.opset.to_string());
    }
    if let Some(graph) = &model.graph {
        found.graph(graph);
    }
    if found.nodes.is_empty() {
        return Ok(());
    }
    let problems = found.nodes.iter().map(|(problem, places)| {
        format!("{problem} ({})", listed(places.iter().map(String::as_str), 5))
    });
    let problems: Vec<String> = problems.collect();
    let remedy = match (found.custom, found.quantized) {
        (true, _) => OF_THE_CALLER,
        (false, true) => NOT_OF_THE_EXPORT,
        (false, false) => OF_THE_EXPORT,
    };
    Err(CalibrationError::new(CalibrationErrorKind::Unsupported {
        engine: "tract",
        problem: problems.join("; "),
        remedy,
    }))
}

/// The opset version of ONNX's own operators; 0 if the model does not import them.
pub(super) fn opset(model: &ModelProto) -> i64 {
    let default = model.opset_import.iter().find(|opset| is_default(&opset.domain));
    default.map_or(0, |opset| opset.version)
}

/// Problems and their nodes.
struct Problems<'a> {
    framework: &'a Onnx,
    opset: i64,
    nodes: BTreeMap<String, Vec<String>>,
    /// Whether one of them may be due to quantization, and not to the export of the model.
    quantized: bool,
    /// The functions of the model, which ONNX Runtime knows.
    functions: &'a [FunctionProto],
    /// Whether one of them is an operator of a domain that no engine has operators of.
    custom: bool,
}

impl Problems<'_> {
    fn add(&mut self, problem: impl Into<String>, place: &str) {
        self.nodes.entry(problem.into()).or_default().push(place.to_owned());
    }

    fn graph(&mut self, graph: &GraphProto) {
        for initializer in &graph.initializer {
            self.tensor(initializer, &initializer.name);
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| &values.name);
            self.add("sparse initializers", name);
        }
        let casts = graph.node.iter().filter(|node| {
            node.op_type == "Cast" && int(node, "to") == i64::from(DataType::Int64.number())
        });
        let cast_to_int64 = casts.flat_map(|node| &node.output).map(String::as_str).collect();
        let scope = Scope { opset: self.opset, cast_to_int64, booleans: booleans(graph) };
        for node in &graph.node {
            self.node(node, &scope);
        }
    }

    fn node(&mut self, node: &NodeProto, scope: &Scope) {
        let (name, op_type) = (node_name(node), node.op_type.as_str());
        let before = self.nodes.len();
        let contributed = node.domain == "com.microsoft" && CONTRIB_OPS.contains(&op_type);
        if !is_default(&node.domain) && !contributed {
            let is_function = |function: &FunctionProto| {
                function.domain() == node.domain && function.name() == op_type
            };
            self.custom |= !OF_ONNX_RUNTIME.contains(&node.domain.as_str())
                && !self.functions.iter().any(is_function);
            self.add(format!("operator {op_type} of domain {}", node.domain), name);
        } else if !self.framework.op_register.0.contains_key(op_type) {
            self.add(format!("operator {op_type}"), name);
        }
        for defect in DEFECTS {
            if defect.op_types.contains(&op_type) && (defect.concerns)(node, scope) {
                self.add(format!("operator {op_type}, which {}", defect.what), name);
            }
        }
        if op_type == "Cast" {
            self.dtype(i32::try_from(int(node, "to")).unwrap_or(0), name);
        }
        self.quantized |= self.nodes.len() > before && is_quantized_op(&node.domain, op_type);
        for attribute in &node.attribute {
            if attribute.sparse_tensor.is_some() {
                self.add("sparse constants", name);
            }
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
            self.quantized |= dtype.is_some_and(|dtype| dtype.bits() < 16);
            let name = dtype.map_or_else(|| format!("number {number}"), |d| d.name().to_owned());
            self.add(format!("element type {name}"), place);
        }
    }
}

/// Values of a graph that are known to be booleans.
fn booleans(graph: &GraphProto) -> HashSet<&str> {
    let boolean = |number: i32| number == DataType::Bool.number();
    let inputs = graph.input.iter().filter(|input| {
        let known = input.r#type.as_ref().and_then(|known| known.value.as_ref());
        matches!(known, Some(Value::TensorType(tensor)) if boolean(tensor.elem_type))
    });
    let constants = graph.initializer.iter().filter(|tensor| boolean(tensor.data_type));
    let mut found: HashSet<&str> = inputs.map(|input| input.name.as_str()).collect();
    found.extend(constants.map(|tensor| tensor.name.as_str()));
    // Nodes are in topological order.
    for node in &graph.node {
        let op_type = node.op_type.as_str();
        let first = node.input.first().is_some_and(|name| found.contains(name.as_str()));
        let cast = i32::try_from(int(node, "to")).is_ok_and(boolean);
        if BOOLEAN_OPS.contains(&op_type)
            || op_type == "Cast" && cast
            || DATA_MOVEMENT_OPS.contains(&op_type) && first
        {
            found.extend(node.output.iter().map(String::as_str));
        }
    }
    found
}

/// Whether a recurrent node sets other activations than its defaults, in any direction.
fn has_own_activations(node: &NodeProto) -> bool {
    let default: &[&str] = match node.op_type.as_str() {
        "LSTM" => &["sigmoid", "tanh", "tanh"],
        "GRU" => &["sigmoid", "tanh"],
        _ => &["tanh"],
    };
    let named = attribute(node, "activations").map_or(&[][..], |a| &a.strings);
    named
        .iter()
        .zip(default.iter().cycle())
        .any(|(named, default)| !named.eq_ignore_ascii_case(default.as_bytes()))
}

fn is_default(domain: &str) -> bool {
    canonical_domain(domain).is_empty()
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
        assert!(matches!(error.kind(), CalibrationErrorKind::Unsupported { .. }));
        error.to_string()
    }

    #[test]
    fn a_plain_model_passes() {
        let model = model(17, vec![node("Conv", "a"), node("Relu", "b"), node("LSTM", "c")]);
        assert!(check(&tract_onnx::onnx(), &model).is_ok());
    }

    #[test]
    fn all_unsupported_nodes_are_listed_subgraphs_included() {
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
    fn default_activations_named_explicitly_are_accepted() {
        let strings = ["Sigmoid", "Tanh", "Tanh"].repeat(2);
        let strings = strings.into_iter().map(|name| name.as_bytes().to_vec()).collect();
        let named = AttributeProto { name: "activations".into(), strings, ..Default::default() };
        let model = model(14, vec![with(node("LSTM", "n"), named)]);
        assert!(check(&tract_onnx::onnx(), &model).is_ok());
    }

    #[test]
    fn boolean_masks_are_found_behind_data_movement() {
        let reads = |node: NodeProto, inputs: &[&str], output: &str| NodeProto {
            input: inputs.iter().map(ToString::to_string).collect(),
            output: vec![output.into()],
            ..node
        };
        let to = |number| AttributeProto { name: "to".into(), i: number, ..Default::default() };
        let attention = |name: &str| reads(node("Attention", name), &["q", "k", "v", "m"], name);
        let masks = [
            vec![reads(node("Less", "l"), &["a", "b"], "m")],
            vec![
                reads(with(node("Cast", "c"), to(9)), &["a"], "b"),
                reads(node("Unsqueeze", "u"), &["b"], "m"),
            ],
        ];
        for mut nodes in masks {
            nodes.push(attention("n"));
            let error = problems(&model(23, nodes));
            assert!(error.contains("Attention, which with a boolean mask"), "{error}");
        }
        let numbers = reads(with(node("Cast", "c"), to(1)), &["a"], "m");
        assert!(check(&tract_onnx::onnx(), &model(23, vec![numbers, attention("n")])).is_ok());
    }

    #[test]
    fn forms_that_tract_computes_incorrectly_are_refused() {
        let attribute = |name: &str| AttributeProto { name: name.into(), ..Default::default() };
        let reverse = AttributeProto { s: b"reverse".to_vec(), ..attribute("direction") };
        let crd = AttributeProto { s: b"CRD".to_vec(), ..attribute("mode") };
        let training = AttributeProto { i: 1, ..attribute("training_mode") };
        let softcap = AttributeProto { f: 2.0, ..attribute("softcap") };
        let block = AttributeProto { i: 32, ..attribute("block_size") };
        let strings = vec![b"Sigmoid".to_vec(), b"Tanh".to_vec(), b"Relu".to_vec()];
        let relu = AttributeProto { strings, ..attribute("activations") };
        let alpha = AttributeProto { f: 2.0, ..attribute("alpha") };
        let sparse = tract_onnx::pb::SparseTensorProto::default();
        let sparse = AttributeProto { sparse_tensor: Some(sparse), ..attribute("sparse_value") };
        let bfloat = AttributeProto { i: 16, ..attribute("to") };
        let cases = [
            (with(node("GRU", "n"), reverse), "GRU, which with `direction` reverse"),
            (with(node("SpaceToDepth", "n"), crd), "SpaceToDepth, which with `mode` CRD"),
            (with(node("BatchNormalization", "n"), training), "`training_mode`"),
            (with(node("Attention", "n"), softcap), "Attention, which"),
            (
                with(node("DequantizeLinear", "n"), block),
                "DequantizeLinear, which with `block_size`",
            ),
            (with(node("LSTM", "n"), relu), "or its own `activations`"),
            (with(node("Celu", "n"), alpha), "Celu, which with `alpha` other than 1"),
            (node("QLinearConv", "n"), "QLinearConv, which reads or writes beyond its memory"),
            (node("GlobalLpPool", "n"), "GlobalLpPool, which is computed incorrectly"),
            (with(node("Constant", "n"), sparse), "sparse constants (`n`)"),
            (with(node("Cast", "n"), bfloat), "element type bfloat16 (`n`)"),
        ];
        for (node, expected) in cases {
            let error = problems(&model(21, vec![node]));
            assert!(error.contains(expected), "{error}");
        }
    }
    #[test]
    fn quantized_operators_are_not_the_fault_of_the_export() {
        let remedy = |domain: &str, op_type: &str| {
            let node = NodeProto { domain: domain.into(), ..node(op_type, "n") };
            problems(&model(21, vec![node])).contains("export the model without")
        };
        for op_type in [
            "QAttention",
            "QMoE",
            "MatMulBnb4",
            "MatMulNBits",
            "DynamicQuantizeLSTM",
            "QLinearAdd",
            "QGemm",
        ] {
            assert!(!remedy("com.microsoft", op_type), "{op_type}");
        }
        assert!(!remedy("", "QLinearConv"));
        // Not an operator of ONNX Runtime, which has it in another domain.
        assert!(remedy("", "QAttention"));
        assert!(remedy("com.microsoft", "Attention"));
    }
}
