//! Checks damaged fixtures as the fuzz targets check arbitrary bytes: a model is either rejected,
//! or quantized to a model that can be read.

mod common;

use common::{Even, Numbers, files, fixture, per_channel, plan, quantized, with_activations};
use quantize_rs::{
    Config, Control, Method, Model, PreprocessedModel, Target, calibrate, convert_opset,
};
use quantize_rs_onnx::{AttributeProto, Edit, NodeProto, Raw};

/// A linear congruential generator, so that the damage is reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }
}

/// Whether a model can be quantized with this configuration.
fn is_quantized(model: &Model, config: Config) -> bool {
    let Ok(prepared) = PreprocessedModel::of(model, config) else { return false };
    let (model, plan) = (&prepared.model, prepared.plan());
    let control = Control { threads: 1, progress: &mut |_| true };
    let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
    let ranges = calibrate(model, &plan, &engine, &mut samples, &Method::default(), control);
    let Ok(done) = ranges.and_then(|ranges| plan.apply(model, Some(&ranges))) else { return false };
    Model::from_bytes(done.to_bytes().unwrap()).expect("written models can be read");
    true
}

#[test]
fn damaged_models_are_quantized_or_rejected() {
    let mut random = Random(11);
    let mut configs = vec![per_channel(), with_activations()];
    let of_target =
        |target: &Target| Config { per_channel: Some(true), ..Config::for_target(*target) };
    configs.extend(Target::ALL.iter().map(of_target));
    let mut done = vec![0; configs.len()];
    for path in files() {
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..3 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(damaged.len());
                damaged[at] = u8::try_from(random.below(256)).unwrap();
            }
            let Ok(model) = Model::from_bytes(damaged) else { continue };
            for (done, config) in done.iter_mut().zip(&configs) {
                *done += usize::from(is_quantized(&model, config.clone()));
            }
        }
    }
    assert!(done.iter().all(|done| *done > 50), "{done:?}");
}

#[test]
fn damaged_models_are_converted_or_rejected() {
    let mut random = Random(12);
    let mut done = 0;
    for path in files() {
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..30 {
            let mut damaged = bytes.clone();
            let at = random.below(damaged.len());
            damaged[at] = u8::try_from(random.below(256)).unwrap();
            let Ok(model) = Model::from_bytes(damaged) else { continue };
            let Ok((converted, _)) = convert_opset(&model, 28) else { continue };
            done += 1;
            Model::from_bytes(converted.to_bytes().unwrap()).expect("written models can be read");
        }
    }
    assert!(done > 500, "{done}");
}

#[test]
fn an_add_with_three_inputs_is_not_a_bias() {
    let mut model = fixture("matmul_2d");
    assert!(common::is_quantized(&plan(&model, with_activations()), "b"));
    let node = model.graph().node.iter().position(|node| node.op_type == "Add").unwrap();
    let product = model.graph().node[node].input[0].clone();
    let first = [(0, "b".to_owned()), (1, "b".to_owned()), (2, product)];
    let edits = first.map(|(input, value)| Edit::SetInput { node, input, value });
    model.apply(edits.to_vec()).unwrap();
    assert!(!common::is_quantized(&plan(&model, with_activations()), "b"));
}

#[test]
fn extreme_paddings_do_not_overflow_bias_correction() {
    for (name, number) in [("pads", i64::MAX), ("pads", i64::MIN), ("dilations", i64::MAX)] {
        let mut model = fixture("conv2d_relu");
        let at = model.graph().node.iter().position(|node| node.op_type == "Conv").unwrap();
        let conv = model.graph().node[at].clone();
        let mut huge = AttributeProto::default();
        (huge.name, huge.kind) = (name.to_owned(), 7);
        huge.ints = vec![number; 4].into();
        let others = conv.attribute.iter().filter(|attribute| attribute.name != name).cloned();
        let attribute = others.chain([Raw::new(huge)]).collect();
        let (input, output) = (conv.input.clone(), conv.output.clone());
        let conv = NodeProto::new(conv.name.clone(), "Conv", input, output, attribute);
        model.apply(vec![Edit::RemoveNode(at), Edit::AddNode(conv)]).unwrap();
        let corrected = quantized(&model, with_activations());
        assert_eq!(corrected.report().corrected_biases, 1, "{name} {number}");
    }
}
