//! Shared by tests of whole runs: fixtures, options, and an engine that needs no runtime.

#![allow(dead_code)] // each file of tests takes what it needs

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quantize_rs::{
    CalibrationError, Config, Consumer, Control, Decision, Engine, Graph, KeepReason, Method,
    Model, Plan, QType, Quantized, Ranges, Sample, Samples, Session, Tensor, ValueSink, calibrate,
    convert_opset,
};

/// The files of the fixtures, in the order of their names.
pub(crate) fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    files.sort();
    files
}

pub(crate) fn fixtures() -> BTreeMap<String, Model> {
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    files().iter().map(|path| (name(path), Model::open(path).unwrap())).collect()
}

pub(crate) fn fixture(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    Model::open(folder.join(format!("{name}.onnx"))).unwrap()
}

/// A fixture of opset 17, converted to opset 21.
pub(crate) fn upgraded(name: &str) -> Model {
    convert_opset(&fixture(name), 21).unwrap().0
}

pub(crate) fn per_channel() -> Config {
    Config { per_channel: Some(true), symmetric: Some(true), ..Config::default() }
}

/// Weights with one scale and a zero point.
pub(crate) fn per_tensor() -> Config {
    Config { per_channel: Some(false), symmetric: Some(false), ..Config::default() }
}

pub(crate) fn with_activations() -> Config {
    Config { activations: Some(QType::UInt8), ..per_channel() }
}

pub(crate) fn plan(model: &Model, config: Config) -> Plan {
    Plan::of(&Graph::of(model).unwrap(), config).unwrap()
}

/// Ranges of a model whose every value lies in `[-1, 3]`.
pub(crate) fn ranges(model: &Model, plan: &Plan) -> Ranges {
    let mut go_on = |_| true;
    let control = Control { threads: 1, progress: &mut go_on };
    calibrate(model, plan, &Even::default(), &mut Numbers(vec![0]), &Method::default(), control)
        .unwrap()
}

/// The model quantized with this configuration.
pub(crate) fn quantized(model: &Model, config: Config) -> Quantized {
    let plan = plan(model, config);
    plan.apply(model, Some(&ranges(model, &plan))).unwrap()
}

/// The tensor of the constant called `name`.
pub(crate) fn constant(model: &Model, name: &str) -> Tensor {
    let found = model.graph().initializer.iter().find(|tensor| tensor.name == name);
    model.tensor(found.unwrap_or_else(|| panic!("no constant `{name}`"))).unwrap()
}

pub(crate) fn scales(model: &Model, name: &str) -> Vec<f32> {
    constant(model, name).to_f32().unwrap()
}

/// Whether the plan quantizes the value called `name`.
pub(crate) fn is_quantized(plan: &Plan, name: &str) -> bool {
    plan.quantized().any(|(value, _)| value.name == name)
}

/// Why the value called `name` keeps its type.
pub(crate) fn kept(plan: &Plan, name: &str) -> KeepReason {
    match &plan.value(name).unwrap().decision {
        Decision::KeepFloat(kept) => kept.clone(),
        Decision::Quantize(how) => panic!("`{name}` is quantized: {how:?}"),
    }
}

/// Names of the values that nodes of this type read, node by node.
pub(crate) fn read_by(model: &Model, op_type: &str) -> Vec<Vec<String>> {
    let nodes = model.graph().node.iter().filter(|node| node.op_type == op_type);
    nodes.map(|node| node.input.clone()).collect()
}

/// The operator that outputs a value.
pub(crate) fn producer(model: &Model, value: &str) -> String {
    let made = model.graph().node.iter().find(|node| node.output.iter().any(|name| name == value));
    made.map(|node| node.op_type.clone()).unwrap_or_default()
}

/// Samples with these numbers, the last one first.
pub(crate) struct Numbers(pub(crate) Vec<u16>);

impl Samples for Numbers {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let value = Tensor::from_f32(vec![1], &[f32::from(self.0.pop()?)]);
        Some(Ok(Sample { inputs: vec![("x".to_owned(), value)] }))
    }
}

/// An engine in which every value ranges from -1 to 3, in a shape that its consumers accept.
#[derive(Clone, Default)]
pub(crate) struct Even {
    shapes: Vec<Vec<usize>>,
}

impl Engine for Even {
    fn name(&self) -> &'static str {
        "even"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let graph = Graph::of(model).ok();
        let shape = |name: &String| graph.as_ref().and_then(|graph| shape_of(graph, name));
        // A shape this large means that the model is damaged.
        let small = |shape: &Vec<usize>| {
            let elements = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one));
            elements.is_some_and(|elements| (2..1 << 16).contains(&elements))
        };
        let shapes = observed.iter().map(|name| shape(name).filter(small).unwrap_or(vec![2]));
        Ok(Box::new(Even { shapes: shapes.collect() }))
    }
}

impl Session for Even {
    fn run(
        &self,
        _: &Sample,
        sink: &mut dyn ValueSink,
        _: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        for (index, shape) in self.shapes.iter().enumerate() {
            let elements: usize = shape.iter().product();
            let step = |index: usize| f32::from(u8::try_from(index * 7 % 13).unwrap());
            let mut values: Vec<f32> = (0..elements).map(|at| step(at) / 3.0 - 1.0).collect();
            values[elements - 1] = 3.0;
            sink.observe(index, shape, &values);
        }
        Ok(())
    }
}

/// The shape of a value: the declared one, or one that a consumer needs.
fn shape_of(graph: &Graph<'_>, name: &str) -> Option<Vec<usize>> {
    let value = graph.value(name)?;
    let said = graph.shape(value);
    let said = said.map(|shape| shape.into_iter().map(|length| length.unwrap_or(2)).collect());
    let consumers = &graph.values[value].consumers;
    said.or_else(|| consumers.iter().find_map(|consumer| needed(graph, *consumer)))
}

fn needed(graph: &Graph<'_>, consumer: Consumer) -> Option<Vec<usize>> {
    let node = graph.nodes[consumer.node];
    let weight = graph.shape(graph.input(consumer.node, 1)?)?;
    let weight = weight.into_iter().collect::<Option<Vec<usize>>>()?;
    match (consumer.input, node.op_type.as_str(), &weight[..]) {
        (0, "Conv", [_, channels, kernel @ ..]) => {
            let groups = usize::try_from(node.int("group", 1)).ok()?;
            let mut shape = vec![2, channels.checked_mul(groups)?];
            shape.extend(kernel.iter().map(|_| 5));
            Some(shape)
        }
        (0, "Gemm", [_, inputs]) if node.int("transB", 0) != 0 => Some(vec![3, *inputs]),
        (0, "Gemm" | "MatMul", [inputs, _]) => Some(vec![3, *inputs]),
        _ => None,
    }
}
