//! Facts about what is quantized and what is not.

mod common;

use std::collections::BTreeMap;

use common::{
    constant, fixture, is_quantized, kept, per_channel, plan, producer, quantized, read_by, scales,
    upgraded, with_activations,
};
use quantize_rs::{
    Config, Consumers, DataType, Format, Granularity, Graph, KeepReason, Model, Plan, QType, Role,
    Rule, Target, Tensor, conformance,
};
use quantize_rs_onnx::{Edit, TensorProto};

/// The configuration of every target.
fn targets() -> impl Iterator<Item = Config> {
    Target::ALL.iter().map(|target| Config::for_target(*target))
}

/// Why a node computes in float, as reported for one of its inputs.
fn why(plan: &Plan, value: &str) -> &'static str {
    match kept(plan, value) {
        KeepReason::FloatNode { why, .. } => why,
        other => panic!("`{value}` {other}"),
    }
}

#[test]
fn only_products_of_float32_are_planned() {
    for name in ["fp16_attention", "double_attention"] {
        for config in targets() {
            let plan = plan(&fixture(name), config);
            assert_eq!(plan.quantized().count(), 0, "{name}: {plan}");
        }
    }
    for config in targets().filter(|config| config.target != Some(Target::Generic)) {
        let plan = plan(&fixture("matmul_activations"), config);
        assert!(is_quantized(&plan, "q") && is_quantized(&plan, "v"), "{plan}");
    }
}

#[test]
fn all_that_a_maximum_reads_is_quantized_for_qnn() {
    let model = fixture("max_of_one_and_three");
    let plan = plan(&model, Config::for_target(Target::Qnn));
    for reads in ["Max", "Min"].iter().flat_map(|op_type| read_by(&model, op_type)) {
        assert!(reads.iter().all(|name| is_quantized(&plan, name)), "{reads:?}");
    }
}

#[test]
fn what_is_moved_from_integers_is_quantized_already() {
    let weights = quantized(&fixture("weight_transpose"), per_channel());
    for config in targets() {
        let plan = plan(weights.model(), config);
        assert_eq!(plan.quantized().count(), 0, "{plan}");
    }
    let model = fixture("already_qdq_pooled");
    let pooled = &read_by(&model, "Conv")[0][0];
    for config in targets() {
        let after = quantized(&model, config);
        assert_eq!(producer(after.model(), pooled), "MaxPool");
        let quantizes = read_by(after.model(), "QuantizeLinear");
        assert!(quantizes.iter().all(|inputs| inputs[0] != *pooled), "{quantizes:?}");
    }
}

#[test]
fn constants_that_no_scale_can_hold_keep_their_node_in_float() {
    for (name, constant, reason) in [
        ("infinite_constant", "never", "a constant that it reads is not finite"),
        ("overridable_addend", "shift", "an input of the model may replace what it reads"),
    ] {
        let model = fixture(name);
        for config in targets() {
            assert!(!is_quantized(&plan(&model, config.clone()), constant));
            quantized(&model, config);
        }
        let plan = plan(&model, Config::for_target(Target::Qnn));
        assert_eq!(why(&plan, constant), reason);
    }
}

#[test]
fn a_bias_that_is_excluded_keeps_its_normalization_in_float() {
    let model = fixture("transformer_block");
    let exclude = vec!["norm1_b".to_owned()];
    let plan = plan(&model, Config { exclude, ..Config::for_target(Target::Qnn) });
    assert!(matches!(kept(&plan, "norm1_b"), KeepReason::Excluded { .. }));
    assert!(!is_quantized(&plan, "norm1_scale"));
    assert!(is_quantized(&plan, "norm2_b") && is_quantized(&plan, "norm2_scale"));
}

#[test]
fn the_sum_that_holds_a_bias_belongs_to_the_product() {
    let planned = common::plan;
    let only = Config { op_types: Some(vec!["MatMul".to_owned()]), ..with_activations() };
    let plan = planned(&fixture("matmul_2d"), only);
    let bias = plan.quantized().find(|(value, _)| value.name == "b").unwrap().1;
    assert_eq!(bias.spec.qtype, QType::Int32);
    let excluding = Config { exclude: vec!["add1".to_owned()], ..with_activations() };
    assert!(!is_quantized(&planned(&fixture("matmul_2d"), excluding), "b"));
}

#[test]
fn what_joins_two_layers_with_a_bias_joins_in() {
    let model = fixture("two_towers");
    let plan = plan(&model, with_activations());
    let joined = &read_by(&model, "Sigmoid")[0][0];
    let how = plan.quantized().find(|(value, _)| value.name == *joined).unwrap().1;
    assert_eq!(how.consumers, Consumers::All, "it comes out of an integer kernel");
}

#[test]
fn a_convolution_back_in_groups_runs_on_integers_where_everything_does() {
    let model = fixture("conv_transpose_group2");
    let config = Config { per_channel: Some(true), ..Config::for_target(Target::Qnn) };
    let plan = plan(&model, config.clone());
    let how = |name: &str| plan.quantized().find(|(value, _)| value.name == name).unwrap().1;
    assert_eq!(how("w").spec.granularity, Granularity::PerTensor);
    assert_eq!(how("b").spec.qtype, QType::Int32);
    let after = quantized(&model, config);
    assert!(conformance(after.model(), Target::Qnn).unwrap().is_empty());
    assert_eq!(scales(after.model(), "b_scale").len(), 1);
    // With weights alone there is no bias to agree with.
    let weights = common::plan(&model, per_channel());
    let (_, how) = weights.quantized().next().unwrap();
    assert_eq!(how.spec.granularity, Granularity::PerAxis { axis: 1 });
}

#[test]
fn a_product_of_activations_with_a_float_sum_stays_float() {
    let model = fixture("gemm_activations");
    let plan = plan(&model, with_activations());
    assert_eq!(why(&plan, "gemm1_y"), "what it adds is no constant of int32");
    assert!(is_quantized(&plan, "a") && is_quantized(&plan, "b"));
    let everywhere = common::plan(&model, Config::for_target(Target::TensorRt));
    assert!(is_quantized(&everywhere, "gemm1_y"));
}

#[test]
fn weights_that_are_rearranged_as_integers_are_looked_at_too() {
    let made = quantized(&fixture("weight_transpose"), Config::for_target(Target::X86));
    let found = conformance(made.model(), Target::X86Avx2).unwrap();
    assert!(found.iter().any(|violation| violation.rule == Rule::Saturation), "{found:?}");
    let made = quantized(&fixture("weight_transpose"), Config::for_target(Target::X86Avx2));
    assert_eq!(conformance(made.model(), Target::X86Avx2).unwrap(), []);
}

/// The types of all quantized inputs and activations with these options.
fn types(model: &Model, options: &[(&str, QType)]) -> BTreeMap<String, QType> {
    let asked = options.iter().map(|(name, qtype)| ((*name).to_owned(), *qtype)).collect();
    let plan = plan(model, Config { activation_types: asked, ..with_activations() });
    let flows = |role| matches!(role, Role::Input | Role::Activation);
    plan.quantized()
        .filter(|(value, _)| flows(value.role))
        .map(|(value, how)| (value.name.clone(), how.spec.qtype))
        .collect()
}

#[test]
fn a_type_of_a_value_takes_precedence_over_its_producer_and_then_its_consumers() {
    use QType::{Int8, Int16, UInt8, UInt16};
    // conv1, relu1, conv2, add1 (of conv2 and relu1), relu2, conv3.
    let model = upgraded("residual_add");
    let names = ["x", "relu1_y", "relu2_y"];
    let found = |options: &[(&str, QType)]| {
        let types = types(&model, options);
        names.map(|name| types[name])
    };
    assert_eq!(found(&[]), [UInt8; 3]);
    assert_eq!(found(&[("relu1_y", UInt16)]), [UInt8, UInt16, UInt8]);
    // The producer of the value is the Relu, or the convolution and the value before it.
    for name in ["relu1", "conv1_y", "Relu", "re:relu1.*"] {
        assert_eq!(found(&[(name, UInt16)])[1], UInt16, "{name}");
    }
    // A convolution outputs one value and reads another.
    assert_eq!(found(&[("conv1", UInt16)]), [UInt16, UInt16, UInt8]);
    assert_eq!(found(&[("conv1", UInt16), ("x", Int8)]), [Int8, UInt16, UInt8]);
    assert_eq!(found(&[("conv1", UInt16), ("conv2", Int8)]), [UInt16, UInt16, UInt8]);
    // Of two consumers, the one that asks for the wider type decides.
    assert_eq!(found(&[("conv2", UInt16), ("add1", Int8)])[1], UInt16);
    // A name takes precedence over a pattern, and a pattern over an operator type.
    assert_eq!(found(&[("Conv", UInt16)]), [UInt16; 3]);
    assert_eq!(found(&[("Conv", UInt16), ("relu*", Int16)]), [UInt16, Int16, Int16]);
    assert_eq!(found(&[("relu1_y", Int8), ("relu*", Int16)]), [UInt8, Int8, Int16]);
}

#[test]
fn what_is_moved_has_the_type_that_its_reader_wants() {
    let model = upgraded("maxpool_flatten_gemm");
    let types = types(&model, &[("Gemm", QType::UInt16)]);
    let expected =
        [("flatten1_y", QType::UInt16), ("maxpool1_y", QType::UInt16), ("x", QType::UInt8)];
    assert_eq!(types, expected.map(|(name, qtype)| (name.to_owned(), qtype)).into());
}

#[test]
fn nodes_of_mixed_types_compute_in_float_and_the_plan_says_so() {
    let model = upgraded("residual_add");
    let config = |name: &str| Config {
        activation_types: BTreeMap::from([(name.to_owned(), QType::UInt16)]),
        ..with_activations()
    };
    let mixed = plan(&model, config("relu1_y"));
    let warned = |plan: &Plan, text: &str| plan.warnings.iter().any(|said| said.contains(text));
    assert!(warned(&mixed, "`conv1` (Conv) and 1 more computes in float"), "{:?}", mixed.warnings);
    // No integer kernel adds values of two types either, so nothing forces the sum to 8 bits.
    assert!(!is_quantized(&mixed, "conv2_y"), "{mixed}");
    assert!(is_quantized(&mixed, "relu2_y"), "the last convolution still reads integers");
    let after = quantized(&model, config("relu1_y"));
    assert!(conformance(after.model(), Target::X86).unwrap().iter().all(|v| !v.rule.is_strict()));
    assert_eq!(constant(after.model(), "zp_uint16").dtype, DataType::UInt16);
    let idle = plan(&model, config("conv1_w"));
    assert!(warned(&idle, "`conv1_w`, which decides over nothing"), "{:?}", idle.warnings);
}

#[test]
fn requested_types_are_checked() {
    let model = upgraded("residual_add");
    let refused = |config: Config, name: &str, qtype: QType| {
        let activation_types = BTreeMap::from([(name.to_owned(), qtype)]);
        let config = Config { activation_types, ..config };
        Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err().to_string()
    };
    let error = refused(with_activations(), "relu_1", QType::UInt16);
    assert!(error.contains("no value or node of the model; did you mean `relu1`"), "{error}");
    let error = refused(Config::for_target(Target::TensorRt), "conv1", QType::UInt16);
    assert_eq!(
        error,
        "activation_types gives `conv1` uint16, expected int8 or float8e4m3fn for target tensorrt"
    );
    let error = refused(with_activations(), "conv1", QType::Int4);
    assert!(error.contains("gives `conv1` int4, expected uint8 or int8"), "{error}");
    let error = refused(per_channel(), "conv1", QType::UInt8);
    assert!(error.contains("no activations are quantized"), "{error}");
    let old = Config {
        activation_types: BTreeMap::from([("conv1".to_owned(), QType::UInt16)]),
        ..with_activations()
    };
    let model = fixture("residual_add");
    let error = Plan::of(&Graph::of(&model).unwrap(), old).unwrap_err().to_string();
    assert!(error.contains("uint16 needs opset 21"), "{error}");
}

#[test]
fn a_sum_that_may_leave_int32_stays_float() {
    for depth in [66_311, 66_312] {
        let mut model = fixture("matmul_2d");
        let weight = &read_by(&model, "MatMul")[0][1];
        let tensor = Tensor::from_f32(vec![depth, 2], &vec![0.5; depth * 2]);
        model.apply(vec![Edit::ReplaceInitializer(TensorProto::new(weight, &tensor))]).unwrap();
        let plan = plan(&model, with_activations());
        // The weight is still quantized, and dequantized before the product.
        assert!(is_quantized(&plan, weight), "{plan}");
        let input = &read_by(&model, "MatMul")[0][0];
        assert_eq!(is_quantized(&plan, input), depth == 66_311, "{plan}");
        if depth > 66_311 {
            assert_eq!(why(&plan, input), "its sums are so long that they may leave int32");
        }
    }
}

#[test]
fn an_lstm_whose_sums_may_leave_int32_stays_float() {
    for weight in ["w", "r"] {
        for depth in [66_311, 66_312] {
            let mut model = fixture("lstm");
            let tensor = Tensor::from_f32(vec![1, 4, depth], &vec![0.5; 4 * depth]);
            model.apply(vec![Edit::ReplaceInitializer(TensorProto::new(weight, &tensor))]).unwrap();
            let output_format = Format::Dynamic;
            let plan = plan(&model, Config { output_format, dynamic_lstm: true, ..per_channel() });
            // The weight is still quantized, and dequantized before the node.
            assert!(is_quantized(&plan, weight), "{plan}");
            let warnings = plan.warnings.join("\n");
            let long = format!(
                "its sums over {} are so long that they may leave int32",
                weight.to_uppercase()
            );
            assert_eq!(warnings.contains(&long), depth > 66_311, "{plan}");
        }
    }
}
