//! Tests of the comparison with the original: it finds no problem in our results, and every changed
//! number and name.

mod common;

use std::collections::BTreeMap;

use common::{constant, fixture, fixtures, ranges};
use quantize_rs::{
    Check, Config, Format, HalfOptions, Model, PreprocessedModel, QType, Target, Tensor,
    Validation, WeightMethod, convert_half, validate,
};
use quantize_rs_onnx::{
    AttributeProto, DataType, Dimension, Edit, NodeProto, Raw, TensorProto, ValueInfoProto,
};

/// Every kind of quantized file.
fn configurations() -> Vec<(&'static str, Config)> {
    let plain = Config::default();
    let channels = common::per_channel();
    let weights = |qtype: QType| Config { weights: qtype.into(), ..common::per_channel() };
    let four = || Config::with_bits(4).unwrap();
    let layout = |name: &str| Config {
        weights: name.parse().unwrap(),
        target: Some(Target::Generic),
        ..Config::default()
    };
    let mut ways = vec![
        ("int8", plain.clone()),
        ("channels", channels.clone()),
        ("asymmetric channels", Config { symmetric: Some(false), ..plain.clone() }),
        ("int2", Config { symmetric: Some(false), ..Config::with_bits(2).unwrap() }),
        ("int4", four()),
        ("int4 symmetric", Config { symmetric: Some(true), ..four() }),
        ("widened int4", Config { native_int4: Some(false), ..four() }),
        ("int4 blocks", Config { block_size: Some(16), per_channel: Some(true), ..four() }),
        ("int16", weights(QType::Int16)),
        ("uint8", weights(QType::UInt8)),
        ("float8", weights(QType::Float8E4M3FN)),
        ("mxfp4", layout("mxfp4")),
        ("mxfp8", layout("mxfp8")),
        ("nvfp4", layout("nvfp4")),
        ("float16", weights(QType::Float16)),
        ("bfloat16", weights(QType::BFloat16)),
        ("as it is", Config { passes: Some(Vec::new()), ..channels.clone() }),
        (
            "dynamic",
            Config { output_format: Format::Dynamic, per_channel: Some(true), ..plain.clone() },
        ),
        ("blocks", Config { output_format: Format::MatMulNBits, ..four() }),
        (
            "symmetric blocks",
            Config { output_format: Format::MatMulNBits, symmetric: Some(true), ..four() },
        ),
        (
            "zero points that are floats",
            Config {
                output_format: Format::MatMulNBits,
                weight_method: Some(WeightMethod::Hqq),
                ..four()
            },
        ),
        ("activations", common::with_activations()),
    ];
    ways.extend(
        Target::ALL.iter().map(|target| (target.profile().name, Config::for_target(*target))),
    );
    ways
}

/// The quantized model; `None` if the options are rejected.
fn made(model: &Model, config: Config) -> Option<Model> {
    let prepared = PreprocessedModel::of(model, config).ok()?;
    let plan = prepared.plan();
    let ranges = plan.needs_calibration().then(|| ranges(&prepared.model, &plan));
    Some(plan.apply(&prepared.model, ranges.as_ref()).ok()?.model().clone())
}

#[test]
fn our_results_have_no_problems() {
    let (mut compared, mut wrong) = (BTreeMap::new(), Vec::new());
    for (name, model) in fixtures() {
        for (way, config) in configurations() {
            let Some(quantized) = made(&model, config) else { continue };
            let found = validate(&model, &quantized, None).unwrap();
            // Float16 flushes 1e-12 to 0, which is reported.
            if !found.passed() && (name.as_str(), way) != ("tiny_weights", "float16") {
                wrong.push(format!("{name}, {way}: {found}"));
            }
            *compared.entry(way).or_insert(0) += found.weights.len();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A configuration that is rejected for every model would test nothing.
    let most = |way: &str| compared.get(way).copied().unwrap_or(0);
    for (way, _) in configurations() {
        assert!(most(way) > 20, "{way}: {compared:?}");
    }
}

/// Every method with the options that affect the grid of its scales.
#[test]
fn no_grid_has_problems() {
    let mut made_of = BTreeMap::new();
    let kinds = || {
        let bits = |bits| Config::with_bits(bits).unwrap();
        let plain = [8, 4, 2].map(|of| (format!("{of} bits"), bits(of)));
        let dynamic = Config { output_format: Format::Dynamic, ..Config::default() };
        let nbits = |of| Config { output_format: Format::MatMulNBits, ..bits(of) };
        let blocks = [8, 4, 2].map(|of| (format!("blocks of {of} bits"), nbits(of)));
        let signed = Config { weights: QType::Int8.into(), ..Config::default() };
        let targets = Target::ALL
            .iter()
            .map(|target| (target.profile().name.to_owned(), Config::for_target(*target)));
        let signed = [
            ("int8".to_owned(), signed.clone()),
            ("dynamic int8".to_owned(), Config { output_format: Format::Dynamic, ..signed }),
            (
                "dynamic of 7 bits".to_owned(),
                Config { target: Some(Target::X86Avx2), ..dynamic.clone() },
            ),
        ];
        plain
            .into_iter()
            .chain(blocks)
            .chain([("dynamic".to_owned(), dynamic)])
            .chain(signed)
            .chain(targets)
    };
    let switches = [(false, false), (false, true), (true, false), (true, true)];
    for name in ["conv2d_relu", "gemm_plain", "matmul_2d", "mlp_relu"] {
        let model = fixture(name);
        for (kind, config) in kinds() {
            for (&method, (symmetric, per_channel)) in
                WeightMethod::ALL.iter().flat_map(|method| switches.map(|two| (method, two)))
            {
                let weight_method = Some(method);
                let config = Config {
                    weight_method,
                    symmetric: Some(symmetric),
                    per_channel: Some(per_channel),
                    ..config.clone()
                };
                let Some(quantized) = made(&model, config) else { continue };
                let found = validate(&model, &quantized, None).unwrap();
                let case = format!("{name}, {kind}, {method}, {symmetric}, {per_channel}");
                assert!(found.passed(), "{case}: {found}");
                *made_of.entry(format!("{kind}, {method}")).or_insert(0) += found.weights.len();
            }
        }
    }
    for ((kind, _), method) in
        kinds().flat_map(|kind| WeightMethod::ALL.iter().map(move |method| (kind.clone(), method)))
    {
        let count = made_of.get(&format!("{kind}, {method}"));
        assert!(count.is_some_and(|count| *count > 4), "{kind}, {method}: {made_of:?}");
    }
}

fn replaced(model: &Model, name: &str, change: impl Fn(&mut Vec<u8>)) -> Model {
    let mut tensor = constant(model, name);
    let mut bytes = tensor.data.to_vec();
    change(&mut bytes);
    tensor.data = bytes.into();
    edited(model, vec![Edit::ReplaceInitializer(TensorProto::new(name, &tensor))])
}

fn edited(model: &Model, edits: Vec<Edit>) -> Model {
    let mut changed = model.clone();
    changed.apply(edits).unwrap();
    changed
}

/// Whether there is a problem that names one of these.
fn named(found: &Validation, check: Check, names: &[&str]) -> bool {
    found.problems.iter().any(|problem| {
        problem.check == check
            && names.iter().any(|name| problem.name == *name || problem.what.contains(name))
    })
}

/// Models whose numbers are all changed in turn, and how they are quantized.
fn tried() -> Vec<(&'static str, &'static str, Model, Model)> {
    let mut tried = Vec::new();
    for name in ["conv2d_relu", "gemm_plain", "matmul_2d", "conv_bn_relu", "opset26_conv", "lstm"] {
        let model = fixture(name);
        for (way, config) in configurations() {
            if let Some(quantized) = made(&model, config) {
                tried.push((name, way, model.clone(), quantized));
            }
        }
    }
    tried
}

#[test]
fn a_wrong_integer_is_found_and_named() {
    let mut count = 0;
    for (name, way, model, quantized) in tried() {
        let found = validate(&model, &quantized, None).unwrap();
        for weight in &found.weights {
            // One code further, in the middle of the weight.
            let at = constant(&quantized, &weight.integers).data.len() / 2;
            let wrong = replaced(&quantized, &weight.integers, |bytes| {
                // Steps of float16 are too narrow to be seen one by one in the high byte.
                bytes[at] = bytes[at].wrapping_add(1);
            });
            let found = validate(&model, &wrong, None).unwrap();
            assert!(
                named(&found, Check::Weights, &[&weight.integers]),
                "{name}, {way}: `{}` byte {at}: {found}",
                weight.integers
            );
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

#[test]
fn a_wrong_scale_is_found_and_named() {
    let mut count = 0;
    for (name, way, model, quantized) in tried() {
        let scales: Vec<String> = quantized
            .graph()
            .initializer
            .iter()
            .map(|tensor| tensor.name.clone())
            .filter(|name| name.ends_with("_scale"))
            .collect();
        let weights = validate(&model, &quantized, None).unwrap().weights;
        for scale in scales {
            let base = scale.trim_end_matches("_scale");
            if !weights.iter().any(|weight| weight.integers.starts_with(base)) {
                continue;
            }
            for factor in [0.0, f32::NAN, 1.3, 0.5] {
                let dtype = constant(&quantized, &scale).dtype;
                // Powers of two include no 0, and the next code of each is at least twice or half
                // as large.
                if dtype == DataType::Float8E8M0 && factor == 0.0 {
                    continue;
                }
                let code = |code: u8| match (dtype, factor) {
                    (DataType::Float8E8M0, _) if factor.is_nan() => 0xff,
                    (DataType::Float8E8M0, 0.5) => code - 1,
                    (DataType::Float8E8M0, _) => code + 1,
                    (_, 0.0) => 0,
                    (_, 0.5) => code.saturating_sub(8),
                    (_, 1.3) => code + 8,
                    _ => 0x7f,
                };
                let wrong = replaced(&quantized, &scale, |bytes| match dtype {
                    DataType::Float8E8M0 | DataType::Float8E4M3FN => bytes[0] = code(bytes[0]),
                    _ if bytes.len() >= 4 && constant(&quantized, &scale).to_f32().is_some() => {
                        let first = f32::from_le_bytes(bytes[..4].try_into().unwrap()) * factor;
                        bytes[..4].copy_from_slice(&first.to_le_bytes());
                    }
                    _ => {}
                });
                let found = validate(&model, &wrong, None).unwrap();
                assert!(!found.passed(), "{name}, {way}: `{scale}` times {factor}: {found}");
                let names = [scale.as_str(), base];
                assert!(
                    named(&found, Check::Scale, &names) || named(&found, Check::Weights, &names),
                    "{name}, {way}: `{scale}` times {factor}: {found}"
                );
                count += 1;
            }
        }
    }
    assert!(count > 60, "{count}");
}

#[test]
fn a_node_that_reads_another_value_is_found_and_named() {
    let model = fixture("two_towers");
    let quantized = made(&model, common::with_activations()).unwrap();
    let mut count = 0;
    for (node, proto) in quantized.graph().node.iter().enumerate() {
        let weighs = matches!(proto.op_type.as_str(), "Conv" | "Gemm" | "MatMul");
        let others =
            quantized.graph().node.iter().filter(|other| other.op_type == "DequantizeLinear");
        for other in others.filter(|_| weighs) {
            let value = other.output[0].clone();
            if value == proto.input[1] {
                continue;
            }
            let mut changed = quantized.clone();
            if changed.apply(vec![Edit::SetInput { node, input: 1, value: value.clone() }]).is_err()
            {
                continue;
            }
            let found = validate(&model, &changed, None).unwrap();
            assert!(named(&found, Check::Connectivity, &[&value]), "{value}: {found}");
            count += 1;
        }
    }
    assert!(count > 3, "{count}");
}

#[test]
fn attributes_of_any_size_are_compared() {
    let four = Config { output_format: Format::MatMulNBits, ..Config::with_bits(4).unwrap() };
    let model = fixture("matmul_2d");
    let quantized = made(&model, four).unwrap();
    let nodes = &quantized.graph().node;
    let node = nodes.iter().position(|node| node.op_type == "MatMulNBits").unwrap();
    for (name, number) in [("block_size", 1 << 62), ("bits", i64::MAX), ("K", i64::MAX)] {
        let mut with = (*nodes[node]).clone();
        for attribute in with.attribute.iter_mut().filter(|found| found.name == name) {
            *attribute = Raw::new(AttributeProto::int(name, number));
        }
        let changed = edited(&quantized, vec![Edit::ReplaceNode { node, with }]);
        let found = validate(&model, &changed, None).unwrap();
        assert!(!found.problems.is_empty(), "{name}");
    }
}

#[test]
fn an_activation_is_dequantized_with_its_scale() {
    let model = fixture("conv2d_relu");
    let quantized = made(&model, common::with_activations()).unwrap();
    let nodes = &quantized.graph().node;
    let (node, proto) = nodes
        .iter()
        .enumerate()
        .find(|(_, node)| node.op_type == "DequantizeLinear" && node.input[0] == "x_quantized")
        .unwrap();
    let value = "another_scale".to_owned();
    let scale = TensorProto::new(&value, &Tensor::from_f32(vec![], &[0.125]));
    let input = Edit::SetInput { node, input: 1, value: value.clone() };
    let wrong = edited(&quantized, vec![Edit::AddInitializer(scale), input]);
    let found = validate(&model, &wrong, None).unwrap();
    assert!(named(&found, Check::Scale, &[&value]), "{found}");
    // If input and output have the other scale, the bias shows it.
    let name = &proto.input[1];
    let wrong = replaced(&quantized, name, |bytes| bytes.copy_from_slice(&0.5_f32.to_le_bytes()));
    let found = validate(&model, &wrong, None).unwrap();
    assert!(found.problems.iter().any(|problem| problem.what.contains("0.5")), "{found}");
}

#[test]
fn biases_are_corrected_by_at_most_the_error_of_the_weights() {
    let model = fixture("conv2d_relu");
    let quantized = made(&model, common::with_activations()).unwrap();
    let found = validate(&model, &quantized, None).unwrap();
    assert!(found.not_compared.iter().any(|what| what.why.contains("corrected")), "{found}");
    let bias = quantized
        .graph()
        .initializer
        .iter()
        .find(|tensor| tensor.dtype() == Some(quantize_rs::DataType::Int32));
    let name = bias.unwrap().name.clone();
    let wrong = replaced(&quantized, &name, |bytes| bytes[3] ^= 0x40);
    let found = validate(&model, &wrong, None).unwrap();
    assert!(named(&found, Check::Weights, &[&name]), "{found}");
}

#[test]
fn unquantized_constants_are_bit_identical() {
    let model = fixture("conv2d_relu");
    let config = Config { exclude: vec!["Conv".to_owned()], ..common::per_channel() };
    let quantized = made(&model, config).unwrap();
    let bias = "conv1_b";
    let wrong = replaced(&quantized, bias, |bytes| bytes[4] ^= 1);
    let found = validate(&model, &wrong, None).unwrap();
    assert!(named(&found, Check::Weights, &[bias]), "{found}");
    assert!(found.problems[0].what.contains("the first is 1"), "{found}");
}

#[test]
fn inputs_and_outputs_equal_those_of_the_original() {
    let found = validate(&fixture("conv2d_relu"), &fixture("two_inputs"), None).unwrap();
    assert!(found.problems.iter().any(|problem| problem.check == Check::Interface), "{found}");
    let found = validate(&fixture("conv2d_relu"), &fixture("conv2d_relu"), None).unwrap();
    assert!(found.passed() && found.weights.is_empty(), "{found}");
}

#[test]
fn a_weight_of_zeros_is_found() {
    let model = fixture("gemm_plain");
    let quantized = made(&model, Config::default()).unwrap();
    let weight = validate(&model, &quantized, None).unwrap().weights[0].clone();
    let zeros = replaced(&quantized, &weight.integers, |bytes| bytes.fill(0));
    let zeros =
        zeros.graph().initializer.iter().find(|tensor| tensor.name.ends_with("_zp")).map_or_else(
            || zeros.clone(),
            |point| replaced(&zeros, &point.name, |bytes| bytes.fill(0)),
        );
    let found = validate(&model, &zeros, None).unwrap();
    assert!(found.problems.iter().any(|problem| problem.what.contains("stand for 0")), "{found}");
}

#[test]
fn passes_can_be_named() {
    let model = fixture("conv_bn_relu");
    let quantized = made(&model, common::per_channel()).unwrap();
    let found = validate(&model, &quantized, None).unwrap();
    assert_eq!(found.prepared[0].pass, "fold_batch_norm");
    assert!(!validate(&model, &quantized, Some(&[])).unwrap().passed());
    let passes = ["fold_batch_norm".to_owned()];
    assert!(validate(&model, &quantized, Some(&passes)).unwrap().passed());
    assert!(validate(&model, &quantized, Some(&["fold".to_owned()])).is_err());
}

/// The position of the first node of this type.
fn position(model: &Model, op_type: &str) -> usize {
    model.graph().node.iter().position(|node| node.op_type == op_type).unwrap()
}

#[test]
fn a_gather_may_count_its_axis_from_the_end() {
    let model = fixture("gather_embedding");
    let gather = position(&model, "Gather");
    let mut with = (*model.graph().node[gather]).clone();
    with.attribute = vec![Raw::new(AttributeProto::int("axis", -2))];
    let model = edited(&model, vec![Edit::ReplaceNode { node: gather, with }]);
    let blocks = Config {
        output_format: Format::MatMulNBits,
        block_size: Some(16),
        ..Config::with_bits(4).unwrap()
    };
    let quantized = made(&model, blocks).unwrap();
    position(&quantized, "GatherBlockQuantized");
    let found = validate(&model, &quantized, None).unwrap();
    assert!(found.passed(), "{found}");
}

#[test]
fn the_scale_and_the_zero_point_of_a_bias_are_constant() {
    let model = fixture("gemm_plain");
    let quantized = made(&model, common::with_activations()).unwrap();
    let nodes = &quantized.graph().node;
    let bias = &nodes[position(&quantized, "Gemm")].input[2];
    let at = nodes.iter().position(|node| node.output[0] == *bias).unwrap();
    let [integers, scale] = [0, 1].map(|input| nodes[at].input[input].clone());
    let to = AttributeProto::int("to", DataType::Int32.number().into());
    let computed = [
        node("Identity", &[&scale], "again", &[]),
        node("ReduceMax", &["x"], "most", &[]),
        node("Cast", &["x"], "whole", &[to]),
    ];
    for (input, made) in [1, 1, 2].into_iter().zip(computed) {
        let set = Edit::SetInput { node: at, input, value: made.output[0].clone() };
        let wrong = edited(&quantized, vec![Edit::AddNode(made), set]);
        let found = validate(&model, &wrong, None).unwrap();
        assert!(named(&found, Check::Scale, &[&integers]), "{found}");
    }
}

#[test]
fn integers_that_are_read_as_floats_are_found() {
    let mut tried = 0;
    for name in ["conv2d_relu", "gemm_plain", "lstm", "transformer_block", "matmul_2d"] {
        let model = fixture(name);
        for config in [common::per_channel(), common::with_activations()] {
            let Some(quantized) = made(&model, config) else { continue };
            let nodes = &quantized.graph().node;
            for node in nodes.iter().filter(|node| node.op_type == "DequantizeLinear") {
                let reads = |output: &String| *output == node.output[0];
                let readers: Vec<(usize, usize)> = nodes
                    .iter()
                    .enumerate()
                    .flat_map(|(at, of)| {
                        let inputs = of.input.iter().enumerate().filter(|(_, name)| reads(name));
                        inputs.map(move |(input, _)| (at, input))
                    })
                    .collect();
                let edits = readers.iter().map(|(at, input)| Edit::SetInput {
                    node: *at,
                    input: *input,
                    value: node.input[0].clone(),
                });
                let found = validate(&model, &edited(&quantized, edits.collect()), None).unwrap();
                assert!(
                    readers.is_empty() || !found.passed(),
                    "{name}, {}: {found}",
                    node.output[0]
                );
                tried += readers.len();
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn scales_that_fit_no_axis_are_found() {
    let mut biases = 0;
    let blocks = || Config { block_size: Some(16), ..Config::with_bits(4).unwrap() };
    for (name, config) in [
        ("conv2d_relu", common::per_channel()),
        ("conv2d_relu", Config { output_format: Format::QOperator, ..common::with_activations() }),
        ("gemm_plain", common::per_channel()),
        ("gemm_plain", Config { per_channel: Some(true), ..common::with_activations() }),
        ("gemm_plain", blocks()),
    ] {
        let model = fixture(name);
        let quantized = made(&model, config).unwrap();
        for (at, node) in quantized.graph().node.iter().enumerate() {
            let rank = match node.input.first().and_then(|name| stored(&quantized, name)) {
                Some(rank) if node.op_type == "DequantizeLinear" => rank,
                _ => continue,
            };
            if node.attribute("axis").is_none() {
                continue;
            }
            for axis in [rank, -rank - 1] {
                let mut with = (**node).clone();
                with.attribute.retain(|attribute| attribute.name != "axis");
                with.attribute.push(Raw::new(AttributeProto::int("axis", axis)));
                let wrong = edited(&quantized, vec![Edit::ReplaceNode { node: at, with }]);
                let found = validate(&model, &wrong, None).unwrap();
                assert!(!found.passed(), "{name}, {}: {found}", node.output[0]);
                let said = named(&found, Check::Scale, &[&format!("axis is {axis}")]);
                assert!(rank > 1 || said, "{found}");
                biases += usize::from(said);
            }
        }
    }
    assert!(biases > 0, "{biases}");
}

/// The number of axes of a constant.
fn stored(model: &Model, name: &str) -> Option<i64> {
    let tensor = model.graph().initializer.iter().find(|tensor| tensor.name == name)?;
    i64::try_from(tensor.dims.len()).ok()
}

/// A model of opset 17 with these nodes, which reads `x` of shape `[?, 16]` and outputs
/// `relu1_y`.
fn model_of(dtype: DataType, nodes: Vec<NodeProto>) -> Model {
    let mut edits = vec![Edit::RemoveNode(0)];
    edits.push(Edit::SetValueInfo(ValueInfoProto::new("relu1_y", dtype, None)));
    edits.extend(nodes.into_iter().map(Edit::AddNode));
    edited(&fixture("no_weights"), edits)
}

fn node(op_type: &str, inputs: &[&str], output: &str, attribute: &[AttributeProto]) -> NodeProto {
    let attribute = attribute.iter().cloned().map(Raw::new).collect();
    let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
    NodeProto::new(output, op_type, inputs, vec![output.to_owned()], attribute)
}

#[test]
fn inputs_and_outputs_in_float16_are_a_note() {
    let model = fixture("mlp_relu");
    let options = HalfOptions { keep_io: false, ..HalfOptions::default() };
    let half = convert_half(&model, &options).unwrap().model().clone();
    let found = validate(&model, &half, None).unwrap();
    assert!(found.passed(), "{found}");
    let said = |what: &str| found.notes.iter().any(|note| note.starts_with(what));
    assert!(said("input `") && said("output `"), "{found}");
    let double = edited(
        &half,
        vec![Edit::SetValueInfo(ValueInfoProto::new(
            &half.graph().output[0].name,
            DataType::Double,
            None,
        ))],
    );
    assert!(!validate(&model, &double, None).unwrap().passed());
}

/// The model in float16.
fn in_halves(model: &Model) -> Model {
    convert_half(model, &HalfOptions::default()).unwrap().model().clone()
}

#[test]
fn a_type_that_an_attribute_says_may_become_float16() {
    let float = DataType::Float.number().into();
    // ONNX Runtime has no kernels of 16 bits for the others.
    let made = [
        node("Bernoulli", &["x"], "made", &[AttributeProto::int("dtype", float)]),
        node("EyeLike", &["x"], "made", &[AttributeProto::int("dtype", float)]),
        node("RandomUniformLike", &["x"], "made", &[AttributeProto::int("dtype", float)]),
        node("HannWindow", &["size"], "made", &[]),
        node("HannWindow", &["size"], "made", &[AttributeProto::int("output_datatype", float)]),
        node("HannWindow", &["size"], "made", &[AttributeProto::int("periodic", 0)]),
    ];
    for made in made {
        let named = made.op_type.clone();
        let nodes = vec![
            node("Size", &["x"], "size", &[]),
            made,
            node("ReduceMax", &["made"], "most", &[]),
            node("Relu", &["x"], "positive", &[]),
            node("Mul", &["positive", "most"], "relu1_y", &[]),
        ];
        let model = model_of(DataType::Float, nodes);
        let halves = in_halves(&model);
        let at = position(&halves, &named);
        let types = ["dtype", "output_datatype"].map(|name| halves.graph().node[at].int(name, 0));
        let narrowed = types.contains(&DataType::Float16.number().into());
        assert_eq!(narrowed, named == "Bernoulli", "{named}");
        let found = validate(&model, &halves, None).unwrap();
        assert!(found.passed(), "{named}: {found}");
        let with = node("HannWindow", &["size"], "made", &[AttributeProto::int("periodic", 7)]);
        if named == with.op_type {
            let mut wrong = (*halves.graph().node[at]).clone();
            wrong.attribute.retain(|attribute| attribute.name != "periodic");
            wrong.attribute.extend(with.attribute);
            let wrong = edited(&halves, vec![Edit::ReplaceNode { node: at, with: wrong }]);
            assert!(!validate(&model, &wrong, None).unwrap().passed(), "{named}");
        }
    }
}

#[test]
fn an_output_may_state_a_shape_that_the_original_leaves_open() {
    let with = |shape: Option<&[Option<i64>]>| {
        let length = |value: &Option<i64>| {
            let mut length = Dimension::default();
            length.value = *value;
            length
        };
        let shape = shape.map(|shape| shape.iter().map(length).collect());
        let info = ValueInfoProto::new("relu1_y", DataType::Float, shape);
        edited(&fixture("no_weights"), vec![Edit::SetValueInfo(info)])
    };
    let passes = |there: Option<&[Option<i64>]>, here: Option<&[Option<i64>]>| {
        validate(&with(there), &with(here), None).unwrap().passed()
    };
    let (open, known): (&[_], &[_]) = (&[None, Some(16)], &[Some(4), Some(16)]);
    assert!(passes(None, Some(open)) && passes(None, Some(known)));
    assert!(passes(Some(open), Some(known)));
    assert!(!passes(Some(known), Some(open)));
    assert!(!passes(Some(known), None));
    assert!(!passes(Some(known), Some(&[Some(5), Some(16)])));
    assert!(!passes(Some(open), Some(&[Some(16)])));
}

#[test]
fn a_quantize_linear_may_take_the_place_of_a_relu() {
    let model = fixture("mlp_relu");
    let quantized = made(&model, common::with_activations()).unwrap();
    let relu = position(&quantized, "Relu");
    let nodes = &quantized.graph().node;
    let (input, output) = (nodes[relu].input[0].clone(), nodes[relu].output[0].clone());
    let reader = |value: &str| nodes.iter().position(|node| node.input[0] == value).unwrap();
    let quantizes = reader(&output);
    assert_eq!(nodes[quantizes].op_type, "QuantizeLinear");
    let dequantizes = reader(&nodes[quantizes].output[0]);
    let validated = |zero_point: u8| {
        let data = vec![zero_point].into();
        let zero = Tensor { dtype: DataType::UInt8, shape: vec![], data };
        let set = |node, input, value: &str| Edit::SetInput { node, input, value: value.into() };
        let edits = vec![
            Edit::AddInitializer(TensorProto::new("zero", &zero)),
            set(quantizes, 2, "zero"),
            set(dequantizes, 2, "zero"),
            set(quantizes, 0, &input),
            Edit::RemoveNode(relu),
            Edit::RemoveValueInfo(output.clone()),
        ];
        validate(&model, &edited(&quantized, edits), None).unwrap()
    };
    let found = validated(0);
    assert!(found.passed(), "{found}");
    let found = validated(9);
    assert!(named(&found, Check::Scale, &["limits its output to 0"]), "{found}");
}

#[test]
fn a_model_may_only_read_float16() {
    let cast = |to: DataType| AttributeProto::int("to", to.number().into());
    let models = [
        (DataType::Int64, vec![node("ArgMax", &["x"], "relu1_y", &[])]),
        (DataType::Int64, vec![node("NonZero", &["x"], "relu1_y", &[])]),
        (DataType::Bool, vec![node("IsNaN", &["x"], "relu1_y", &[])]),
        (DataType::Bool, vec![node("Greater", &["x", "x"], "relu1_y", &[])]),
        (
            DataType::Bool,
            vec![
                node("Cast", &["x"], "is", &[cast(DataType::Bool)]),
                node("Cast", &["is"], "number", &[cast(DataType::Float)]),
                node("Equal", &["number", "number"], "relu1_y", &[]),
            ],
        ),
        (
            DataType::Float,
            vec![
                node("Cast", &["x"], "is", &[cast(DataType::Bool)]),
                node("Cast", &["is"], "relu1_y", &[cast(DataType::Float)]),
            ],
        ),
    ];
    for (dtype, nodes) in models {
        let model = model_of(dtype, nodes);
        let halves = in_halves(&model);
        let found = validate(&model, &halves, None).unwrap();
        assert!(found.passed(), "{found}");
    }
}
