//! Tests of the written models.

mod common;

use common::{
    constant, fixture, per_channel, plan, quantized, ranges, read_by, scales, upgraded,
    with_activations,
};
use quantize_rs::{
    Config, DataType, Model, QType, QuantizeErrorKind, Target, Tensor, WeightAlgorithm,
    WeightMethod,
};
use quantize_rs_onnx::{AttributeProto, Edit, NodeProto, Raw, TensorProto};

#[test]
fn a_weight_becomes_integers_scale_zero_point_and_a_dequantize_node() {
    let model = fixture("conv2d_relu");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    let after = quantized.model();
    let node = after.graph().node.iter().find(|node| node.op_type == "DequantizeLinear").unwrap();
    let weight = &node.output[0];
    assert!(model.graph().initializer.iter().any(|tensor| tensor.name == *weight));
    let integers = constant(after, &format!("{weight}_quantized"));
    assert_eq!(
        (integers.dtype, &integers.shape),
        (DataType::Int8, &constant(&model, weight).shape)
    );
    assert_eq!(scales(after, &format!("{weight}_scale")).len(), integers.shape[0]);
    assert_eq!(constant(after, &format!("{weight}_zp")).data, vec![0; integers.shape[0]]);
    assert!(!after.graph().initializer.iter().any(|tensor| tensor.name == *weight));
    assert!(integers.data.iter().all(|byte| byte.cast_signed() > i8::MIN), "narrow range");
}

#[test]
fn written_types_match_the_plan_for_all_bit_widths() {
    let model = fixture("opset26_conv");
    for (bits, dtype) in
        [(2, DataType::Int2), (4, DataType::Int4), (8, DataType::Int8), (16, DataType::Int16)]
    {
        let plan =
            plan(&model, Config { per_channel: Some(true), ..Config::with_bits(bits).unwrap() });
        let quantized = plan.apply(&model, None).unwrap();
        let after = quantized.model();
        for (value, _) in plan.quantized() {
            let integers = constant(after, &format!("{}_quantized", value.name));
            assert_eq!(integers.dtype, dtype);
            assert_eq!(constant(after, &format!("{}_zp", value.name)).dtype, dtype);
        }
        assert!(after.proto().ir_version >= dtype.since_ir());
    }
    assert!(matches!(Config::with_bits(7).unwrap_err().kind(), QuantizeErrorKind::Option { .. }));
}

#[test]
fn four_bit_weights_are_widened_only_on_request_and_with_a_warning() {
    let model = fixture("conv2d_relu");
    let config = Config { native_int4: Some(false), ..Config::with_bits(4).unwrap() };
    let quantized = plan(&model, config).apply(&model, None).unwrap();
    let name = quantized.report().quantized().next().unwrap().0.name.clone();
    let integers = constant(quantized.model(), &format!("{name}_quantized"));
    assert_eq!(integers.dtype, DataType::Int8);
    assert!(integers.data.iter().all(|byte| (-8..8).contains(&byte.cast_signed())));
    assert!(quantized.report().warnings.iter().any(|warning| warning.contains("native_int4")));
}

#[test]
fn blocks_lie_along_the_axis_that_is_summed_over() {
    let model = fixture("opset21_gemm");
    let config = Config { block_size: Some(16), ..per_channel() };
    let quantized = plan(&model, config).apply(&model, None).unwrap();
    let node =
        quantized.model().graph().node.iter().find(|node| node.op_type == "DequantizeLinear");
    assert_eq!(node.unwrap().int("block_size", 0), 16);
}

#[test]
fn four_bit_blocks_minimize_mse_except_in_convolutions() {
    use WeightMethod::{MinMax, Mse};
    for (name, usual, other) in [("opset21_gemm", Mse, MinMax), ("conv2d_relu", MinMax, Mse)] {
        let model = upgraded(name);
        let written = |weight_method| {
            let mut four = Config::with_bits(4).unwrap();
            // Small kernels get 8 bits unless they are named.
            four.weight_algorithm = WeightAlgorithm::Nearest;
            if usual == MinMax {
                four.layer_bits.insert("Conv".to_owned(), 4);
            }
            let made = quantized(&model, Config { block_size: Some(16), weight_method, ..four });
            let weight = made.report().quantized().next().unwrap().0.name.clone();
            scales(made.model(), &format!("{weight}_scale"))
        };
        assert_eq!(written(None), written(Some(usual)), "{name}");
        assert_ne!(written(None), written(Some(other)), "{name}");
    }
}

#[test]
fn the_scale_of_a_bias_is_the_product_of_the_input_scales() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let after = quantized.model();
    let conv = model.graph().node.iter().find(|node| node.op_type == "Conv").unwrap();
    let [input, weight, bias] = &conv.input[..] else { panic!("a Conv with a bias") };
    let input_scale = scales(after, &format!("{input}_scale"))[0];
    let expected: Vec<f32> =
        scales(after, &format!("{weight}_scale")).iter().map(|scale| input_scale * scale).collect();
    assert_eq!(scales(after, &format!("{bias}_scale")), expected);
    assert_eq!(constant(after, &format!("{bias}_quantized")).dtype, DataType::Int32);
}

#[test]
fn the_activation_function_precedes_quantize_linear() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let nodes = &quantized.model().graph().node;
    let relu = nodes.iter().find(|node| node.op_type == "Relu").unwrap();
    let reads = |value: &str| {
        nodes
            .iter()
            .filter(|node| node.input.iter().any(|input| input == value))
            .collect::<Vec<_>>()
    };
    let conv = nodes.iter().find(|node| node.op_type == "Conv").unwrap();
    assert_eq!(reads(&conv.output[0])[0].op_type, "Relu");
    assert_eq!(reads(&relu.output[0])[0].op_type, "QuantizeLinear");
}

#[test]
fn a_bias_shared_by_two_nodes_is_quantized_for_each() {
    let model = fixture("shared_bias_two_convs");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let biases = quantized
        .model()
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.dtype() == Some(DataType::Int32))
        .count();
    assert_eq!(biases, 2);
}

/// With the scale that an all-zero weight gets on its own, the bias of the channel would saturate
/// or lose all its precision.
#[test]
fn an_all_zero_channel_keeps_its_bias() {
    let model = fixture("zero_channel");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    for (row, how) in quantized.report().quantized() {
        if how.qtype == QType::Int32 {
            // Half a step of the other channels; without the rule, the error of the zero channel
            // would be 0.008.
            assert!(how.error.unwrap().max_abs < 0.001, "{}: {:?}", row.name, how.error);
        }
    }
}

#[test]
fn names_already_in_use_get_a_number() {
    let model = fixture("name_collisions");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    let names: Vec<&str> =
        quantized.model().graph().initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    assert!(names.iter().any(|name| name.ends_with("_1") || name.ends_with("_2")), "{names:?}");
}

#[test]
fn a_weight_with_a_low_sqnr_causes_a_warning() {
    let model = fixture("denormal_weights");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    assert!(quantized.report().warnings.iter().any(|warning| warning.contains("dB is low")));
}

#[test]
fn float_operators_use_float_values() {
    let model = fixture("transformer_block");
    let plan = plan(&model, Config { bias_correction: false, ..with_activations() });
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let (before, after) = (model.graph(), quantized.model().graph());
    let sums = |graph: &quantize_rs_onnx::GraphProto| -> Vec<Vec<String>> {
        let adds = graph.node.iter().filter(|node| node.op_type == "Add");
        adds.map(|node| node.input.clone()).collect()
    };
    // Residual additions and additions of biases are unchanged.
    assert_eq!(sums(before), sums(after));
    let products = after.node.iter().filter(|node| node.op_type == "MatMul");
    for product in products {
        for input in &product.input {
            let producer = after.node.iter().find(|node| node.output.contains(input)).unwrap();
            assert_eq!(producer.op_type, "DequantizeLinear", "{input}");
        }
    }
}

#[test]
fn an_embedding_table_is_gathered_as_integers() {
    let model = fixture("gather_embedding");
    let table = model.graph().node.iter().find(|node| node.op_type == "Gather").unwrap();
    let table = &table.input[0];
    let integers = format!("{table}_quantized");
    let looked_up = |model: &Model| {
        let nodes = model.graph().node.iter().filter(|node| node.op_type == "Gather");
        nodes.filter(|node| node.input[0] == integers).count()
    };
    for per_channel in [false, true] {
        let config = Config { per_channel: Some(per_channel), ..with_activations() };
        let plan = plan(&model, config);
        let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
        let after = quantized.model();
        assert_eq!(looked_up(after), 1);
        assert!(after.graph().node.iter().all(|node| !node.output.contains(table)));
        assert_eq!(constant(after, &integers).dtype, DataType::Int8);
    }
    // With weight-only quantization, the table keeps its name.
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    assert_eq!(looked_up(quantized.model()), 0);
    assert!(quantized.model().graph().node.iter().any(|node| node.output.contains(table)));
}

#[test]
fn the_report_says_when_weights_use_seven_bits() {
    let config = Config { per_channel: Some(false), ..Config::for_target(Target::X86Avx2) };
    let done = quantized(&fixture("conv2d_relu"), config);
    let kinds: Vec<String> = done.report().quantized().map(|(_, how)| how.kind()).collect();
    assert!(kinds.contains(&"int8 symmetric of 7 bits".to_owned()), "{kinds:?}");
    assert!(done.report().to_string().contains("int8 symmetric of 7 bits"));
}

#[test]
fn a_weight_that_its_type_cannot_represent_causes_a_warning() {
    let mut model = upgraded("matmul_2d");
    let weight = read_by(&model, "MatMul")[0][1].clone();
    let shape = constant(&model, &weight).shape;
    // All elements but one lie within half a step of 0.
    let mut values = vec![0.5; shape.iter().product()];
    values[0] = 10.0;
    let tensor = Tensor::from_f32(shape, &values);
    model.apply(vec![Edit::ReplaceInitializer(TensorProto::new(&weight, &tensor))]).unwrap();
    let warnings = |config: Config| {
        let quantized = plan(&model, config).apply(&model, None).unwrap();
        quantized.report().warnings.join("\n")
    };
    let four = Config {
        weights: QType::Int4.into(),
        per_channel: Some(false),
        symmetric: Some(true),
        ..Config::default()
    };
    assert!(warnings(four).contains(&format!("`{weight}`: ")), "4 bits");
    assert!(!warnings(Config::default()).contains(&weight));
}

#[test]
fn floats_kept_for_other_consumers_are_reported() {
    let mut model = fixture("matmul_2d");
    let node = model.graph().node.iter().position(|node| node.op_type == "MatMul").unwrap();
    let weight = model.graph().node[node].input[1].clone();
    let found = constant(&model, &weight);
    let halves = vec![0x3c; found.elements() * 2];
    let halves =
        Tensor { dtype: DataType::Float16, shape: found.shape.clone(), data: halves.into() };
    let one = |name: &str| vec![name.to_owned()];
    let to = vec![Raw::new(AttributeProto::int("to", 1))];
    let edits = vec![
        Edit::ReplaceInitializer(TensorProto::new(&weight, &halves)),
        Edit::AddNode(NodeProto::new("cast", "Cast", one(&weight), one("wide"), to)),
        Edit::SetInput { node, input: 1, value: "wide".to_owned() },
    ];
    model.apply(edits).unwrap();
    assert_eq!(plan(&model, Config::default()).warnings, [""; 0]);
    let other = NodeProto::new("other", "Neg", one(&weight), one("also"), Vec::new());
    model.apply(vec![Edit::AddNode(other), Edit::AddOutput("also".to_owned())]).unwrap();
    let named =
        Config { layer_bits: [(weight.clone(), 8)].into_iter().collect(), ..Config::default() };
    let named = plan(&model, named);
    let said = format!("{} bytes of floats stay", found.elements() * 2);
    assert!(named.warnings[0].contains(&said) && named.warnings[0].contains("other"), "{named}");
    let why = "also read by node `other` (Neg), which needs it in float";
    assert!(plan(&model, Config::default()).to_string().contains(why));
}
