//! Facts about options: which are met, and which are refused by name.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{fixture, per_channel, per_tensor, plan, ranges, with_activations};
use quantize_rs::{
    Config, DataType, Decision, Granularity, Graph, KeepReason, MicroLayout, Model, Plan,
    PreprocessedModel, QConfig, QConfigDict, QType, QuantizeError, QuantizeErrorKind, Role, Scales,
    Target, ValuePlan, WeightType, convert_opset,
};

#[test]
fn a_model_below_the_opset_is_refused_by_name() {
    for (name, config, feature) in [
        ("opset7_conv", per_tensor(), "opset 10"),
        ("opset7_conv", Config::default(), "opset 13"),
        ("opset10_conv", per_channel(), "opset 13"),
        ("opset13", Config::with_bits(4).unwrap(), "opset 21"),
        ("opset21_gemm", Config::with_bits(2).unwrap(), "opset 25"),
    ] {
        let model = fixture(name);
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err();
        match error.kind() {
            QuantizeErrorKind::Unsupported { feature: found, .. } => assert_eq!(found, feature),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_name_that_is_not_in_the_model_is_refused_with_near_matches() {
    let model = fixture("mlp_relu");
    let weight = plan(&model, per_channel()).quantized().next().unwrap().0.name.clone();
    let mistyped = format!("{weight}x");
    for config in [
        Config { exclude: vec![mistyped.clone()], ..Config::default() },
        Config { layer_bits: BTreeMap::from([(mistyped.clone(), 8)]), ..Config::default() },
    ] {
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err().to_string();
        assert!(error.contains(&mistyped) && error.contains(&format!("`{weight}`")), "{error}");
    }
    let config = Config { exclude: vec!["nothing*".to_owned()], ..Config::default() };
    assert!(Plan::of(&Graph::of(&model).unwrap(), config).is_err());
}

#[test]
fn what_is_excluded_stays_float_and_says_so() {
    let model = fixture("mlp_relu");
    let all = plan(&model, per_channel());
    let first = all.quantized().next().unwrap().0.name.clone();
    let config = Config { exclude: vec![first.clone()], ..per_channel() };
    let plan = plan(&model, config);
    assert_eq!(plan.quantized().count() + 1, all.quantized().count());
    let reason = KeepReason::Excluded { pattern: first.clone() };
    assert_eq!(plan.value(&first).unwrap().decision, quantize_rs::Decision::KeepFloat(reason));
    let everything = Config { exclude: vec!["*".to_owned()], ..per_channel() };
    let untouched = self::plan(&model, everything).apply(&model, None).unwrap();
    assert_eq!(untouched.to_bytes().unwrap(), model.to_bytes().unwrap());
    assert_eq!(untouched.report().warnings.len(), 1);
}

#[test]
fn what_is_not_included_stays_float_and_says_so() {
    let model = fixture("mlp_relu");
    let of = |include: &[&str], exclude: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Config { include: Some(texts(include)), exclude: texts(exclude), ..per_channel() }
    };
    let graph = Graph::of(&model).unwrap();
    let all = plan(&model, per_channel());
    let weights: Vec<String> = all.quantized().map(|(value, _)| value.name.clone()).collect();
    let consumer = |weight: &str| {
        graph.nodes.iter().find(|node| node.input.iter().any(|input| input == weight)).unwrap()
    };
    let named = |config: Config| -> Vec<String> {
        plan(&model, config).quantized().map(|(value, _)| value.name.clone()).collect()
    };
    let node = &consumer(&weights[0]).name;
    assert_eq!(named(of(&[&weights[0]], &[])), weights[..1]);
    assert_eq!(named(of(&[node], &[])), weights[..1]);
    assert_eq!(named(of(&["*"], &[node])), weights[1..]);
    assert!(named(of(&[node], &[node])).is_empty() && named(of(&[], &[])).is_empty());
    let other = KeepReason::NotIncluded { node: consumer(&weights[1]).name.clone() };
    let plan = plan(&model, of(&[node], &[]));
    assert_eq!(plan.value(&weights[1]).unwrap().decision, Decision::KeepFloat(other));
    let error = Plan::of(&graph, of(&["nothing*"], &[])).unwrap_err().to_string();
    assert!(error.contains("include"), "{error}");
}

#[test]
fn a_weight_with_nan_stays_float_unless_it_is_named() {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attacks/files/nan_weight.onnx");
    let model = Model::open(path).unwrap();
    let made = plan(&model, per_channel()).apply(&model, None).unwrap();
    let row = made.report().values.iter().find(|row| row.name == "w").unwrap();
    assert!(row.quantized.is_none() && row.reason().starts_with("is not finite"), "{row:?}");
    let warning = made.report().warnings.join("; ");
    assert!(warning.contains("not finite: `w` (element ") && warning.contains("NaN"), "{warning}");

    let named = Config { include: Some(vec!["w".to_owned()]), ..per_channel() };
    let error = plan(&model, named).apply(&model, None).unwrap_err();
    let QuantizeErrorKind::InvalidTensor { tensor, what } = error.kind() else {
        panic!("{error}");
    };
    assert!(tensor == "w" && what.contains("NaN"), "{what}");
}

#[test]
fn a_bias_or_a_node_can_be_excluded() {
    let model = fixture("conv2d_relu");
    let conv = model.graph().node.iter().find(|node| node.op_type == "Conv").unwrap();
    for name in [&conv.input[2], &conv.name] {
        let config = Config { exclude: vec![name.clone()], ..with_activations() };
        let plan = plan(&model, config);
        assert!(!plan.needs_calibration(), "{name}");
    }
}

#[test]
fn layer_bits_go_by_the_weight_or_by_its_node() {
    let model = fixture("opset21_gemm");
    let all = plan(&model, per_channel());
    let weight = all.quantized().next().unwrap().0.name.clone();
    let node = model.graph().node.iter().find(|node| node.input.contains(&weight)).unwrap();
    for name in [weight.clone(), node.name.clone()] {
        let layer_bits = BTreeMap::from([(name, 4)]);
        let plan = plan(&model, Config { layer_bits, ..per_channel() });
        let how = plan.quantized().find(|(value, _)| value.name == weight).unwrap().1;
        assert_eq!(how.spec.qtype, QType::Int4);
    }
    let layer_bits = BTreeMap::from([(node.input[2].clone(), 4)]);
    let config = Config { layer_bits, ..per_channel() };
    assert!(Plan::of(&Graph::of(&model).unwrap(), config).is_err(), "a bias has no bits to choose");
}

#[test]
fn weights_that_are_out_of_sight_are_spoken_of() {
    let model = fixture("if_subgraph");
    assert!(plan(&model, per_channel()).warnings[0].contains("If, Loop, Scan"));
    assert!(plan(&fixture("conv2d_relu"), per_channel()).warnings.is_empty());
}

#[test]
fn only_operators_that_were_asked_for_are_quantized() {
    let model = fixture("maxpool_flatten_gemm");
    let only =
        |op_type: &str| Config { op_types: Some(vec![op_type.to_owned()]), ..with_activations() };
    let plan = plan(&model, only("Conv"));
    let kept = plan.values.iter().filter_map(|value| match &value.decision {
        Decision::KeepFloat(KeepReason::OpType { op_type }) => Some(op_type.as_str()),
        _ => None,
    });
    assert_eq!(kept.collect::<Vec<_>>(), ["Gemm"]);
    let error = Plan::of(&Graph::of(&model).unwrap(), only("Cnov")).unwrap_err().to_string();
    assert!(error.contains("did you mean `Conv`"), "{error}");
}

#[test]
fn a_target_refuses_types_it_does_not_take() {
    let model = fixture("conv2d_relu");
    let config = Config { target: Some(Target::TensorRt), ..with_activations() };
    let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err().to_string();
    assert_eq!(error, "activations is uint8, expected int8 or float8e4m3fn for target tensorrt");
}

#[test]
fn a_name_takes_precedence_over_a_pattern_and_a_pattern_over_an_operator_type() {
    let model = fixture("opset21_gemm");
    let all = plan(&model, per_channel());
    let weights: Vec<String> = all.quantized().map(|(value, _)| value.name.clone()).collect();
    let [first, .., last] = &weights[..] else { panic!("several weights") };
    let types = |options: &[(&str, u8)]| {
        let layer_bits = options.iter().map(|(text, bits)| ((*text).to_owned(), *bits)).collect();
        let plan = plan(&model, Config { layer_bits, ..per_channel() });
        [first, last].map(|name| {
            let found = plan.quantized().find(|(value, _)| value.name == **name);
            found.unwrap().1.spec.qtype
        })
    };
    assert_eq!(types(&[("Gemm", 4)]), [QType::Int4; 2]);
    assert_eq!(types(&[("Gemm", 4), ("re:.*_w", 16)]), [QType::Int16; 2]);
    assert_eq!(types(&[("Gemm", 4), ("*", 16), (first, 8)]), [QType::Int8, QType::Int16]);
    let config = Config {
        layer_types: BTreeMap::from([(last.clone(), QType::UInt4.into())]),
        exclude: vec![format!("re:{first}")],
        ..per_channel()
    };
    let how = plan(&model, config);
    assert!(how.quantized().all(|(value, _)| value.name != *first));
    let last = how.quantized().find(|(value, _)| value.name == *last).unwrap();
    assert_eq!(last.1.spec.qtype, QType::UInt4);
}

#[test]
fn operators_can_be_excluded_by_type_and_patterns_must_be_sound() {
    let model = fixture("maxpool_flatten_gemm");
    let without = Config { exclude: vec!["Gemm".to_owned()], ..with_activations() };
    let quantized: Vec<String> =
        plan(&model, without).quantized().map(|(value, _)| value.name.clone()).collect();
    assert!(quantized.iter().all(|name| !name.contains("gemm")), "{quantized:?}");
    for wrong in ["re:(", "re:nothing.*", "[", "Gmem"] {
        let config = Config { exclude: vec![wrong.to_owned()], ..with_activations() };
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[test]
fn activations_may_have_sixteen_bits_where_the_opset_knows_them() {
    let config = Config { activations: Some(QType::UInt16), ..per_channel() };
    let model = fixture("opset26_conv");
    let plan = plan(&model, config.clone());
    assert!(plan.warnings.iter().any(|warning| warning.contains("no integer kernels")));
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let sixteen = quantized.model().graph().initializer.iter();
    assert!(sixteen.clone().any(|tensor| tensor.dtype() == Some(DataType::UInt16)));
    let error = Plan::of(&Graph::of(&fixture("conv2d_relu")).unwrap(), config).unwrap_err();
    assert!(error.to_string().contains("uint16 needs opset 21"), "{error}");
}

#[test]
fn min_range_widens_the_narrow_ranges_of_activations_alone() {
    let model = fixture("conv2d_relu");
    let scales = |min_range| {
        let quantized = common::quantized(&model, Config { min_range, ..with_activations() });
        let rows = quantized.report().values.iter();
        let activations = rows.filter(|row| matches!(row.role, Role::Input | Role::Activation));
        activations.filter_map(|row| Some(row.quantized.as_ref()?.scale)).collect::<Vec<_>>()
    };
    let (narrow, wide) = (scales(None), scales(Some(51_000.0)));
    assert_eq!(narrow, scales(Some(1e-6)));
    assert!(!wide.is_empty() && wide.iter().all(|scale| *scale == (200.0, 200.0)), "{wide:?}");
    let config = Config { min_range: Some(-1.0), ..with_activations() };
    assert!(config.check().unwrap_err().to_string().starts_with("min_range"));
}

#[test]
fn a_target_of_integers_alone_takes_the_weights_that_it_multiplies() {
    let refused = |config: &Config, option: &str| match config.check().unwrap_err().kind() {
        QuantizeErrorKind::Option { option: found, what } => {
            assert_eq!(found, option);
            assert!(what.contains("int8 or uint8 or int4"), "{what}");
        }
        other => panic!("{other}"),
    };
    for (weights, bits, beside_8, beside_16) in [
        (QType::Int2, 2, false, false),
        (QType::Int4, 4, true, true),
        (QType::Int16, 16, false, true),
    ] {
        for (activations, taken) in [(QType::UInt8, beside_8), (QType::UInt16, beside_16)] {
            let activations = Some(activations);
            let usual = Config { activations, ..Config::for_target(Target::Qnn) };
            let all = Config { weights: weights.into(), ..usual.clone() };
            let layer_bits = BTreeMap::from([("fc*".to_owned(), bits)]);
            let some = Config { layer_bits, ..usual };
            if taken {
                all.check().unwrap();
                some.check().unwrap();
            } else {
                refused(&all, "weights");
                refused(&some, "layer_bits");
            }
        }
    }
}

#[test]
fn rare_weight_types_are_accepted_only_for_their_consumers() {
    let consumers: [(&str, &[Target]); 4] = [
        ("float4e2m1", &[Target::TensorRt, Target::Generic]),
        ("nvfp4", &[Target::TensorRt, Target::Generic]),
        ("mxfp4", &[Target::Generic]),
        ("mxfp8", &[Target::Generic]),
    ];
    for (name, consumers) in consumers {
        let asked: WeightType = name.parse().unwrap();
        let everywhere = Config { weights: asked, ..Config::default() };
        let layer_types = BTreeMap::from([("fc".to_owned(), asked)]);
        let somewhere = Config { layer_types, ..Config::default() };
        for (config, option) in [(everywhere, "weights"), (somewhere, "layer_types")] {
            for target in std::iter::once(None).chain(Target::ALL.iter().copied().map(Some)) {
                let reads = target.is_some_and(|target| consumers.contains(&target));
                let config = Config { target, ..config.clone() };
                match config.check() {
                    Ok(()) => assert!(reads, "{name} {target:?}"),
                    Err(error) => {
                        assert!(!reads, "{error}");
                        let what = refusal(&error, option);
                        let names: Vec<&str> = consumers.iter().map(|t| t.name()).collect();
                        assert!(
                            what.contains(name) && what.contains(&names.join(" or ")),
                            "{what}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn of_what_was_set_for_modules_the_narrowest_counts() {
    let config = |weight| QConfig { weight, activation: None };
    let of = |qtype| config(Some(qtype));
    let model = fixture("concat_branches");
    let weights: Vec<String> =
        plan(&model, Config::default()).quantized().map(|(value, _)| value.name.clone()).collect();
    assert!(weights.len() > 1, "{weights:?}");
    let first = &weights[0];
    let types = |modules: QConfigDict| {
        let plan = plan(&model, modules.config(&model).unwrap());
        let of = |name: &String| match &plan.value(name).unwrap().decision {
            Decision::Quantize(how) => Some(how.stored),
            Decision::KeepFloat(_) => None,
        };
        weights.iter().map(of).collect::<Vec<_>>()
    };
    let others = |qtype| vec![Some(qtype); weights.len() - 1];
    let all = QConfigDict::default().set_global(of(QType::UInt8));
    assert_eq!(types(all.clone())[1..], others(QType::UInt8));
    let convs = all.set_module_type("Conv", of(QType::Int8));
    assert_eq!(types(convs.clone())[1..], others(QType::Int8));
    let pattern = convs.clone().set_module_name("*", of(QType::Int16));
    let converted = convert_opset(&model, 21).unwrap().0;
    let options = pattern.config(&converted).unwrap();
    assert!(options.layer_types.values().all(|qtype| *qtype == QType::Int16));
    let named = convs.set_module_name(first, config(None));
    let found = types(named.clone());
    assert_eq!((found[0], &found[1..]), (None, &others(QType::Int8)[..]));
    assert_eq!(types(QConfigDict::default()), vec![None; weights.len()]);
}

#[test]
fn modules_that_are_not_in_the_model_are_refused_with_near_matches() {
    let model = fixture("concat_branches");
    let all = QConfig { weight: Some(QType::Int8), activation: None };
    let set = |modules: QConfigDict| modules.config(&model).unwrap_err().to_string();
    let unknown = set(QConfigDict::default().set_module_name("no.such.module", all));
    assert!(unknown.starts_with("set_module_name names `no.such.module`"), "{unknown}");
    let typed = set(QConfigDict::default().set_module_type("Conf", all));
    assert!(typed.contains("did you mean `Conv`"), "{typed}");
    let integers = QConfig { activation: Some(QType::UInt8), ..all };
    let lonely = set(QConfigDict::default().set_module_type("Conv", integers));
    assert!(lonely.contains("set_global leaves activations float"), "{lonely}");
    let alone = QConfigDict::default().set_global(integers).set_module_type("Conv", all);
    assert!(set(alone).contains("whole or not at all"));
}

/// What is wrong with an option.
fn refusal<'e>(error: &'e QuantizeError, option: &str) -> &'e str {
    match error.kind() {
        QuantizeErrorKind::Option { option: found, what } if found == option => what,
        other => panic!("{other}"),
    }
}

#[test]
fn a_layout_has_blocks_of_its_own_and_no_activations() {
    for layout in MicroLayout::ALL {
        let row = layout.row();
        let config = Config {
            weights: WeightType::In(*layout),
            target: Some(Target::Generic),
            ..Config::default()
        };
        let of_size = |size| Config { block_size: Some(size), ..config.clone() };
        of_size(row.block_size).check().unwrap();
        let error = of_size(2 * row.block_size).check().unwrap_err();
        assert!(refusal(&error, "block_size").contains(row.name));
        let activations = Some(QType::Float8E4M3FN);
        let error = Config { activations, ..config.clone() }.check().unwrap_err();
        assert!(refusal(&error, "weights").contains("activations"));
        let mixed = Config {
            layer_types: BTreeMap::from([("fc".to_owned(), config.weights)]),
            weights: QType::Float8E4M3FN.into(),
            activations,
            ..config
        };
        assert!(refusal(&mixed.check().unwrap_err(), "layer_types").contains("activations"));
    }
}

#[test]
fn a_layout_of_some_weights_leaves_the_blocks_of_the_others() {
    let model = fixture("mlp_relu");
    let asked: WeightType = "mxfp4".parse().unwrap();
    let all = plan(&model, Config::default());
    let names: Vec<&str> = all.quantized().map(|(value, _)| value.name.as_str()).collect();
    let config = Config {
        layer_types: BTreeMap::from([(names[0].to_owned(), asked)]),
        weights: QType::Int4.into(),
        block_size: Some(16),
        target: Some(Target::Generic),
        ..Config::default()
    };
    let prepared = PreprocessedModel::of(&model, config).unwrap();
    let plan = prepared.plan();
    let cut = |how: &ValuePlan| match how.spec.granularity {
        Granularity::Blocked { block_size, .. } => (how.spec.qtype, how.spec.scales, block_size),
        other => panic!("{other:?}"),
    };
    let found: Vec<_> = plan.quantized().map(|(_, how)| cut(how)).take(2).collect();
    let expected = [(QType::Float4E2M1, Scales::Float8E8M0, 32), (QType::Int4, Scales::Float, 16)];
    assert_eq!(found, expected);
    assert_eq!(prepared.model.opset(""), Some(24));
    plan.apply(&prepared.model, None).unwrap();
}
