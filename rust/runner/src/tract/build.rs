//! Builds a tract plan of a model that shows its observed values.

use std::collections::HashSet;

use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Sample};
use quantize_rs_onnx::DataType;
use tract_onnx::Onnx;
use tract_onnx::pb::{GraphProto, ModelProto, type_proto};
use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::optim::Optimizer;
use tract_onnx::tract_hir::internal::{TractErrorContext, ensure};

use super::names::NodeNames;
use super::{TractRunner, datum_type, failed, preflight, widen, workarounds};
use crate::inputs;

/// A runner of the model for samples like `sample`, which shows the values `observed`.
///
/// `inputs` are those of the file in its order, which is also tract's.
pub(super) fn runner(
    bytes: Vec<u8>,
    inputs: Vec<InputSpec>,
    observed: &[String],
    sample: &Sample,
) -> Result<TractRunner, CalibrationError> {
    let framework = workarounds::framework();
    let mut proto = framework
        .proto_model_for_read(&mut bytes.as_slice())
        .map_err(|error| failed(format!("tract cannot read the model: {error:#}")))?;
    drop(bytes);
    let opset = preflight::opset(&proto);
    workarounds::graph(proto.graph.get_or_insert_default(), opset);
    preflight::check(&framework, &proto)?;
    let graph = proto.graph.get_or_insert_default();
    let inputs = concrete_inputs(inputs, sample)?;
    check_observed(graph, observed)?;
    let names = NodeNames::rename(graph);
    workarounds::scales(graph);
    widen::graph(graph);
    forget_dims_in_bodies(graph);

    let with_outputs = observed_model(&framework, proto, &inputs, observed);
    let (plan, places) = with_outputs
        .and_then(|(model, outputs)| split_off_observed(model, outputs))
        .map_err(|error| names.locate(&error))?;
    let mut runner = TractRunner {
        observed: vec![Vec::new(); plan.model().nodes().len()],
        plan,
        inputs,
        constants: Vec::new(),
        names,
    };
    for (index, place) in places.into_iter().enumerate() {
        match place {
            ValueSource::Node(outlet) => runner.observed[outlet.node].push((outlet.slot, index)),
            ValueSource::Constant(shape, values) => runner.constants.push((index, shape, values)),
            ValueSource::NoFloats(kind) => {
                let name = &observed[index];
                let what = "only float32 and float16 can be observed";
                return Err(
                    failed(format!("value `{name}` is {kind:?}, and {what}")).at_value(name)
                );
            }
        }
    }
    Ok(runner)
}

/// The inputs of the model with the shapes of the sample, which are checked.
fn concrete_inputs(
    mut inputs: Vec<InputSpec>,
    sample: &Sample,
) -> Result<Vec<InputSpec>, CalibrationError> {
    for input in &inputs {
        if input.dtype.and_then(datum_type).is_none() {
            let dtype = input.dtype.map_or("no tensor of a known type", DataType::name);
            let (engine, name) = ("tract", input.name.clone());
            let kind = CalibrationErrorKind::UnsupportedInput { engine, input: name, dtype };
            return Err(CalibrationError::new(kind).at_value(&input.name));
        }
    }
    inputs::check(&inputs, sample)?;
    for input in &mut inputs {
        let value = sample.get(&input.name);
        input.shape = value.map(|value| value.shape.iter().copied().map(Some).collect());
    }
    Ok(inputs)
}

/// Checks that every observed value is a value of the main graph.
fn check_observed(graph: &GraphProto, observed: &[String]) -> Result<(), CalibrationError> {
    let inputs = graph.input.iter().map(|input| &input.name);
    let initializers = graph.initializer.iter().map(|tensor| &tensor.name);
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let values: HashSet<&String> = inputs.chain(initializers).chain(outputs).collect();
    match observed.iter().find(|name| name.is_empty() || !values.contains(name)) {
        Some(name) => {
            let message = format!("the main graph has no value `{name}` to observe");
            Err(failed(message).at_value(name))
        }
        None => Ok(()),
    }
}

/// Removes the dimensions that subgraphs of `If` and `Scan` declare for their inputs, for the same
/// reason that `value_info` is ignored. The ranks stay, because `Scan` counts its axes by them.
fn forget_dims_in_bodies(graph: &mut GraphProto) {
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    for body in attributes.flat_map(|a| a.g.iter_mut().chain(&mut a.graphs)) {
        for value in &mut body.input {
            if let Some(type_proto::Value::TensorType(tensor)) =
                value.r#type.as_mut().and_then(|of| of.value.as_mut())
            {
                for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
                    dim.value = None;
                }
            }
        }
        forget_dims_in_bodies(body);
    }
}

/// The optimized model whose outputs are its own, followed by the observed values; and the number
/// of its own outputs.
fn observed_model(
    framework: &Onnx,
    proto: ModelProto,
    inputs: &[InputSpec],
    observed: &[String],
) -> TractResult<(TypedModel, usize)> {
    let parsed = framework.parse(&proto, None)?;
    drop(proto); // the model has its own copy of the weights by now
    let unresolved = &parsed.unresolved_inputs;
    ensure!(unresolved.is_empty(), "no node produces the values {unresolved:?}");
    let mut model = parsed.model;
    for (index, spec) in inputs.iter().enumerate() {
        let datum_type = spec.dtype.and_then(datum_type).context("the input was checked")?;
        let shape: TVec<usize> = spec.shape.iter().flatten().copied().flatten().collect();
        model.set_input_fact(index, InferenceFact::dt_shape(datum_type, shape))?;
    }
    let mut outputs = model.outputs.clone();
    let real = outputs.len();
    for name in observed {
        outputs.push(*parsed.outlets_by_name.get(name).context("the name was checked")?);
    }
    model.select_output_outlets(&outputs)?;
    Ok((optimized(model.into_typed()?)?, real))
}

/// The most changes of tract's optimizer per node. Some graphs it changes to and fro without end:
/// a second `Scan`, or a product with a constant on the left, behind a `Scan` over the second axis.
const CHANGES_PER_NODE: usize = 50;

/// Nodes that the bodies of a small model may have.
const NODES_OF_BODIES: usize = 20;

/// As `into_optimized`, with an end in any case. Each change leaves the model correct.
fn optimized(mut model: TypedModel) -> TractResult<TypedModel> {
    let most = CHANGES_PER_NODE * (model.nodes().len() + NODES_OF_BODIES);
    Optimizer::declutter().stopping_at(most).optimize(&mut model)?;
    model.optimize_with_session(&mut Optimizer::codegen().stopping_at(most).session())?;
    Ok(model)
}

/// Where an observed value comes from in the optimized model.
enum ValueSource {
    Node(OutletId),
    Constant(Vec<usize>, Vec<f32>),
    /// None: the values have this type.
    NoFloats(DatumType),
}

/// The plan, without the observed values as outputs, and the source of each observed value.
fn split_off_observed(
    mut model: TypedModel,
    real: usize,
) -> TractResult<(Arc<TypedSimplePlan>, Vec<ValueSource>)> {
    let mut outputs = model.outputs.clone();
    let outlets = outputs.split_off(real);
    let places: Vec<ValueSource> =
        outlets.iter().map(|outlet| place(&model, *outlet)).collect::<TractResult<_>>()?;
    // An observed value that no remaining output depends on would not be computed: it stays an
    // output.
    let mut computed = vec![false; model.nodes().len()];
    for output in &outputs {
        mark_ancestors(&model, output.node, &mut computed);
    }
    for outlet in outlets.iter().rev().filter(|outlet| !model.node(outlet.node).op_is::<Const>()) {
        if !computed[outlet.node] {
            outputs.push(*outlet);
            mark_ancestors(&model, outlet.node, &mut computed);
        }
    }
    model.select_output_outlets(&outputs)?;
    let options = RunOptions { executor: Some(Executor::SingleThread), ..RunOptions::default() };
    Ok((TypedSimplePlan::new_with_options(model, &options)?, places))
}

fn place(model: &TypedModel, outlet: OutletId) -> TractResult<ValueSource> {
    let kind = model.outlet_fact(outlet)?.datum_type;
    if kind != DatumType::F32 {
        return Ok(ValueSource::NoFloats(kind));
    }
    let Some(constant) = model.node(outlet.node).op_as::<Const>() else {
        return Ok(ValueSource::Node(outlet));
    };
    let constant = constant.val();
    let values = constant.try_as_plain_ram()?.as_slice::<f32>()?.to_vec();
    Ok(ValueSource::Constant(constant.shape().to_vec(), values))
}

/// Marks `node` and all nodes that it depends on.
fn mark_ancestors(model: &TypedModel, node: usize, marked: &mut [bool]) {
    let mut pending = vec![node];
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut marked[node], true) {
            pending.extend(model.node(node).inputs.iter().map(|input| input.node));
        }
    }
}
