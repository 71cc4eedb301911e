//! Shared by the tests of the engines: models, samples, and the values that a runner shows.
#![allow(dead_code)] // each of them needs a part

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use quantize_rs::{CalibrationError, Engine, InputSpec, Sample, Session, ValueSink};
use quantize_rs_onnx::{AttributeProto, DataType, Edit, Model, NodeProto, Raw, Tensor};
use quantize_rs_runner::{OnnxRuntime, Tract};

use crate::installed::{library, repository};

pub(crate) fn onnxruntime() -> Option<&'static OnnxRuntime> {
    static OPENED: OnceLock<Option<OnnxRuntime>> = OnceLock::new();
    OPENED.get_or_init(|| Some(OnnxRuntime::open(&library()?).expect("opened"))).as_ref()
}

pub(crate) fn engines() -> Vec<&'static dyn Engine> {
    let onnxruntime = onnxruntime().map(|engine| engine as &dyn Engine);
    [&Tract as &dyn Engine].into_iter().chain(onnxruntime).collect()
}

/// Shape and values of an observed value.
pub(crate) type Shown = (Vec<usize>, Vec<f32>);

/// The values, by index.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen(pub(crate) BTreeMap<usize, Shown>);

impl ValueSink for Seen {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let before = self.0.insert(index, (shape.to_vec(), values.to_vec()));
        assert!(before.is_none(), "value {index} was shown twice");
    }
}

pub(crate) fn run(runner: &dyn Session, sample: &Sample) -> Result<Seen, CalibrationError> {
    let mut seen = Seen::default();
    runner.run(sample, &mut seen, &AtomicBool::new(false)).map(|()| seen)
}

pub(crate) fn fixture(name: &str) -> Model {
    Model::open(repository().join("tests/fixtures/models").join(format!("{name}.onnx"))).unwrap()
}

pub(crate) fn fixtures() -> Vec<String> {
    let files = repository().join("tests/fixtures/models").read_dir().unwrap().flatten();
    let names = files.filter_map(|file| {
        Some(file.file_name().into_string().ok()?.strip_suffix(".onnx")?.to_owned())
    });
    let names: BTreeSet<String> = names.collect();
    assert!(names.len() > 80);
    names.into_iter().collect()
}

/// A sample for any fixture: waves for floats, small numbers for integers, `any` for dynamic
/// dimensions.
pub(crate) fn sample_for(model: &Model, any: usize) -> Sample {
    let inputs = InputSpec::of(model).into_iter().map(|input| {
        let shape = input.shape.expect("a rank").into_iter().map(|length| length.unwrap_or(any));
        let shape: Vec<usize> = shape.collect();
        let dtype = input.dtype.expect("a type");
        let numbers = (0_u16..).take(shape.iter().product());
        let wave = numbers.clone().map(|i| (f32::from(i) * 0.7).sin());
        let data = match dtype {
            DataType::Float => wave.flat_map(f32::to_le_bytes).collect(),
            DataType::Double => wave.flat_map(|x| f64::from(x).to_le_bytes()).collect(),
            DataType::Float16 => wave.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
            DataType::Int64 => numbers.flat_map(|i| i64::from(i % 5).to_le_bytes()).collect(),
            DataType::Bool => numbers.map(|i| u8::from(i % 2 == 0)).collect(),
            other => vec![0; other.byte_len(shape.iter().product()).unwrap()].into(),
        };
        (input.name, Tensor { dtype, shape, data })
    });
    Sample { inputs: inputs.collect() }
}

/// All float values of a model: its inputs and the outputs of its nodes.
pub(crate) fn all_values(
    engine: &dyn Engine,
    model: &Model,
    sample: &Sample,
) -> Result<(Vec<String>, Box<dyn Session>), CalibrationError> {
    let made = model.graph().node.iter().flat_map(|node| &node.output).cloned();
    let inputs = sample.inputs.iter().map(|(name, _)| name.clone());
    let mut observed: Vec<String> = inputs.chain(made).filter(|name| !name.is_empty()).collect();
    loop {
        match engine.prepare(model, &observed, sample) {
            Ok(runner) => return Ok((observed, runner)),
            Err(error) if error.to_string().contains("can be observed") => {
                let no_float = error.value().expect("the value is named").to_owned();
                let before = observed.len();
                observed.retain(|name| *name != no_float);
                assert!(observed.len() < before, "{error}");
            }
            Err(error) => return Err(error),
        }
    }
}

/// A node of ONNX's own operators with these inputs and outputs.
pub(crate) fn node(
    op_type: &str,
    input: &[&str],
    output: &str,
    attributes: &[(&str, i64)],
) -> Edit {
    let input = input.iter().map(|name| (*name).to_owned()).collect();
    let attributes = attributes.iter().map(|(name, value)| AttributeProto::int(name, *value));
    let attributes = attributes.map(Raw::new).collect();
    Edit::AddNode(NodeProto::new(
        format!("{output}_node"),
        op_type,
        input,
        vec![output.to_owned()],
        attributes,
    ))
}

/// A model that multiplies square matrices, with as many rows as the sample, `steps` times: some
/// hundred rows a few thousand times take minutes.
pub(crate) fn slow_model(steps: usize) -> Model {
    let mut model = fixture("mlp_relu");
    let mut edits = vec![
        node("Transpose", &["x"], "turned", &[]),
        node("MatMul", &["x", "turned"], "slow0", &[]),
    ];
    for step in 0..steps {
        let (before, after) = (format!("slow{step}"), format!("slow{}", step + 1));
        edits.push(node("MatMul", &[&before, &before], &after, &[]));
    }
    edits.push(Edit::AddOutput(format!("slow{steps}")));
    model.apply(edits).unwrap();
    model
}
