//! Facts about output formats: what each decides, and what it has nothing for.

mod common;

use common::{constant, fixture, fixtures, per_channel, plan, ranges, with_activations};
use quantize_rs::{
    Config, Decision, Format, Granularity, Graph, KeepReason, Plan, PreprocessedModel, QType,
    Rounding, optimize,
};

fn nbits() -> Config {
    Config { output_format: Format::MatMulNBits, ..Config::with_bits(4).unwrap() }
}

fn dynamic() -> Config {
    Config { output_format: Format::Dynamic, per_channel: Some(true), ..Config::default() }
}

#[test]
fn blocks_of_unsigned_integers_lie_along_what_is_summed_over() {
    for (name, axis) in [("matmul_2d", 0), ("gemm_plain", 0), ("gemm_transb", 1)] {
        let plan = plan(&fixture(name), nbits());
        let (_, how) = plan.quantized().next().unwrap();
        assert_eq!((how.format, how.spec.qtype), (Format::MatMulNBits, QType::UInt4), "{name}");
        assert_eq!(how.spec.granularity, Granularity::Blocked { axis, block_size: 32 }, "{name}");
    }
}

#[test]
fn what_the_format_has_nothing_for_says_why() {
    for (name, why) in [
        ("conv2d_relu", "axes"),
        ("matmul_3d_weight", "axes"),
        ("matmul_lhs_weight", "from the right"),
        ("gemm_transa_alpha_beta", "transposes"),
    ] {
        let plan = plan(&fixture(name), nbits());
        let kept = plan.values.iter().find_map(|value| match &value.decision {
            Decision::KeepFloat(KeepReason::NoForm { why, .. }) => Some(why.clone()),
            _ => None,
        });
        assert!(kept.as_ref().is_some_and(|found| found.contains(why)), "{name}: {kept:?}");
    }
}

#[test]
fn no_newer_operator_set_is_needed_and_the_domain_is_imported_once() {
    let model = fixture("tied_embedding");
    let quantized = plan(&model, nbits()).apply(&model, None).unwrap();
    let after = quantized.model();
    assert_eq!(after.opset(""), model.opset(""));
    assert_eq!(after.opset("com.microsoft"), Some(1));
    let imports = after.proto().opset_import.iter();
    assert_eq!(imports.filter(|import| import.domain == "com.microsoft").count(), 1);
}

#[test]
fn integers_of_a_product_have_a_row_a_column_and_a_blob_a_block() {
    let model = fixture("gemm_plain");
    let plan = plan(&model, nbits());
    let (value, _) = plan.quantized().next().unwrap();
    let [Some(depth), Some(width)] = value.shape.as_ref().unwrap()[..] else { panic!("a matrix") };
    let quantized = plan.apply(&model, None).unwrap();
    let found = |suffix: &str| {
        constant(quantized.model(), &format!("{}_{suffix}", value.name)).shape.clone()
    };
    let blocks = depth.div_ceil(32);
    assert_eq!(found("quantized"), [width, blocks, 16]);
    assert_eq!(found("scale"), [width, blocks]);
    assert_eq!(found("zp"), [width, blocks.div_ceil(2)]);
}

#[test]
fn what_becomes_integers_when_the_model_runs_says_so() {
    let plan = plan(&fixture("matmul_2d"), dynamic());
    let (_, how) = plan.quantized().next().unwrap();
    assert_eq!((how.format, how.spec.symmetric), (Format::Dynamic, true));
    let kept =
        |decision: &Decision| matches!(decision, Decision::KeepFloat(KeepReason::AtRunTime { .. }));
    assert_eq!(plan.values.iter().filter(|value| kept(&value.decision)).count(), 1);
    assert!(!plan.needs_calibration());
}

#[test]
fn weights_that_no_integer_product_reads_are_quantized_alone() {
    for name in ["lstm", "conv_transpose", "matmul_lhs_weight"] {
        let plan = plan(&fixture(name), dynamic());
        assert!(plan.quantized().count() > 0, "{name}");
        assert!(plan.quantized().all(|(_, how)| how.format == Format::Qdq), "{name}");
    }
}

#[test]
fn a_batch_of_matrices_has_one_scale() {
    let plan = plan(&fixture("matmul_3d_weight"), dynamic());
    let (_, how) = plan.quantized().next().unwrap();
    assert_eq!(how.spec.granularity, Granularity::PerTensor);
}

#[test]
fn every_fixture_is_written_or_kept_with_a_reason() {
    let options = [nbits(), dynamic()];
    for ((name, model), options) in
        common::fixtures().iter().flat_map(|found| options.clone().map(|options| (found, options)))
    {
        let graph = Graph::of(model).unwrap();
        let Ok(plan) = Plan::of(&graph, options) else { continue };
        match plan.apply(model, None) {
            Ok(quantized) => assert_eq!(
                quantized.report().quantized().count(),
                plan.quantized().count(),
                "{name}"
            ),
            Err(error) => assert!(error.to_string().contains("element"), "{name}: {error}"),
        }
    }
}

#[test]
fn weights_to_train_on_stay_float_and_are_stored_as_what_they_would_have_been() {
    let store = ["store_integers".to_owned()];
    let mut seen = 0;
    for (name, model) in fixtures() {
        // Training rounds to the nearest, as QuantizeLinear does.
        let named = Some(vec!["*".to_owned()]);
        let same = Config { symmetric: Some(true), include: named, ..per_channel() };
        let config = Config { rounding: Some(Rounding::Nearest), ..same.clone() };
        let Ok(prepared) = PreprocessedModel::of(&model, config) else { continue };
        let usual = prepared.plan().apply(&prepared.model, None).unwrap();
        let config = Config { output_format: Format::FakeQuant, ..same };
        let prepared = PreprocessedModel::of(&model, config).unwrap();
        let fake = prepared.plan().apply(&prepared.model, None).unwrap();
        let stored = optimize(fake.model(), Some(&store), &[]).unwrap();
        for (value, how) in prepared.plan().quantized() {
            // Beside its floats, which an output needs, it is stored for training alone.
            if name == "weight_is_graph_output" {
                continue;
            }
            assert_eq!(how.format, Format::FakeQuant, "{name}");
            let quantized = format!("{}_quantized", value.name);
            assert!(!is_constant(fake.model(), &quantized), "{name}: {quantized}");
            let expected = constant(usual.model(), &quantized).data;
            assert_eq!(constant(stored.model(), &quantized).data, expected, "{name}: {quantized}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn biases_stay_float_and_nothing_is_smoothed_or_corrected_before_training() {
    let mut seen = 0;
    for (name, model) in fixtures() {
        let config = Config { output_format: Format::FakeQuant, ..with_activations() };
        let Ok(prepared) = PreprocessedModel::of(&model, config) else { continue };
        let plan = prepared.plan();
        if !plan.needs_calibration() {
            continue;
        }
        let Ok(fake) = plan.apply(&prepared.model, Some(&ranges(&prepared.model, &plan))) else {
            continue;
        };
        assert!(plan.quantized().all(|(_, how)| how.stored != QType::Int32), "{name}");
        assert_eq!(fake.report().corrected_biases, 0, "{name}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

fn is_constant(model: &quantize_rs::Model, name: &str) -> bool {
    model.graph().initializer.iter().any(|tensor| tensor.name == name)
}
