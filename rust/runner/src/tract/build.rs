//! From the bytes of a model to a plan that shows its taps.

use std::collections::HashSet;

use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Sample};
use quantize_rs_onnx::DataType;
use tract_onnx::Onnx;
use tract_onnx::pb::{GraphProto, ModelProto, tensor_shape_proto, type_proto};
use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_hir::internal::{TractErrorContext, ensure};

use super::names::NodeNames;
use super::{TractRunner, datum_type, failed, preflight};
use crate::inputs;

/// A runner of the model for samples like `sample`, which shows `taps`.
pub(super) fn runner(
    bytes: Vec<u8>,
    taps: &[String],
    sample: &Sample,
) -> Result<TractRunner, CalibrationError> {
    // Shapes in `value_info` may name symbols ("batch") that clash with the concrete inputs; tract
    // infers all it needs without them.
    let framework = tract_onnx::onnx().with_ignore_value_info(true);
    let mut proto = framework
        .proto_model_for_read(&mut bytes.as_slice())
        .map_err(|error| failed(format!("tract cannot read the model: {error:#}")))?;
    drop(bytes);
    preflight::check(&framework, &proto)?;
    let graph = proto.graph.get_or_insert_default();
    let inputs = concrete_inputs(graph, sample)?;
    check_taps(graph, taps)?;
    let names = NodeNames::rename(graph);
    forget_dims_in_bodies(graph);

    let tapped = tapped_model(&framework, proto, &inputs, taps);
    let (plan, places) = tapped
        .and_then(|(model, outputs)| split_off_taps(model, outputs))
        .map_err(|error| names.locate(&error))?;
    let mut runner = TractRunner {
        taps: vec![Vec::new(); plan.model().nodes().len()],
        plan,
        inputs,
        constants: Vec::new(),
        names,
    };
    for (tap, place) in places.into_iter().enumerate() {
        match place {
            Place::Node(outlet) => runner.taps[outlet.node].push((outlet.slot, tap)),
            Place::Constant(values) => runner.constants.push((tap, values)),
        }
    }
    Ok(runner)
}

/// The model's inputs with the shapes that the sample has, after checking that it may have them.
fn concrete_inputs(
    graph: &GraphProto,
    sample: &Sample,
) -> Result<Vec<InputSpec>, CalibrationError> {
    let mut specs = declared_inputs(graph)?;
    inputs::check(&specs, sample)?;
    for spec in &mut specs {
        let value = sample.get(&spec.name);
        spec.shape = value.map(|value| value.shape.iter().copied().map(Some).collect());
    }
    Ok(specs)
}

/// The inputs of the graph that are not initializers, in its order, which is tract's too.
fn declared_inputs(graph: &GraphProto) -> Result<Vec<InputSpec>, CalibrationError> {
    let initializers: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let mut specs = Vec::new();
    for input in graph.input.iter().filter(|input| !initializers.contains(input.name.as_str())) {
        let unsupported = |what: String| {
            let message = format!("input `{}` is {what}: tract cannot be fed with it", input.name);
            let kind = CalibrationErrorKind::Unsupported(message);
            CalibrationError::new(kind).at_value(&input.name)
        };
        let Some(type_proto::Value::TensorType(tensor)) =
            input.r#type.as_ref().and_then(|of| of.value.as_ref())
        else {
            return Err(unsupported("not a tensor".to_owned()));
        };
        let dtype = DataType::from_number(tensor.elem_type).filter(|d| datum_type(*d).is_some());
        let dtype = dtype.ok_or_else(|| {
            let dtype = DataType::from_number(tensor.elem_type);
            unsupported(dtype.map_or("of an unknown type".to_owned(), |d| format!("of type {d}")))
        })?;
        let shape = tensor.shape.as_ref().map(|shape| {
            let fixed = shape.dim.iter().map(|dim| match &dim.value {
                Some(tensor_shape_proto::dimension::Value::DimValue(v)) => usize::try_from(*v).ok(),
                _ => None,
            });
            fixed.collect()
        });
        specs.push(InputSpec { name: input.name.clone(), dtype, shape });
    }
    Ok(specs)
}

/// Every tap must be a value of the main graph.
fn check_taps(graph: &GraphProto, taps: &[String]) -> Result<(), CalibrationError> {
    let inputs = graph.input.iter().map(|input| &input.name);
    let initializers = graph.initializer.iter().map(|tensor| &tensor.name);
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let values: HashSet<&String> = inputs.chain(initializers).chain(outputs).collect();
    match taps.iter().find(|tap| tap.is_empty() || !values.contains(tap)) {
        Some(tap) => {
            let message = format!("the main graph has no value `{tap}` to observe");
            Err(failed(message).at_value(tap))
        }
        None => Ok(()),
    }
}

/// Drops the dimensions that bodies of `If` and `Scan` declare for their inputs, for the reason
/// that `value_info` is ignored. The ranks stay: `Scan` counts its axes by them.
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

/// The optimized model whose outputs are its real ones, then the taps; and how many are real.
fn tapped_model(
    framework: &Onnx,
    proto: ModelProto,
    inputs: &[InputSpec],
    taps: &[String],
) -> TractResult<(TypedModel, usize)> {
    let parsed = framework.parse(&proto, None)?;
    drop(proto); // the model has its own copy of the weights by now
    let unresolved = &parsed.unresolved_inputs;
    ensure!(unresolved.is_empty(), "no node makes the values {unresolved:?}");
    let mut model = parsed.model;
    for (index, spec) in inputs.iter().enumerate() {
        let datum_type = datum_type(spec.dtype).context("the input was checked")?;
        let shape: TVec<usize> = spec.shape.iter().flatten().copied().flatten().collect();
        model.set_input_fact(index, InferenceFact::dt_shape(datum_type, shape))?;
    }
    let mut outputs = model.outputs.clone();
    let real = outputs.len();
    for tap in taps {
        outputs.push(*parsed.outlets_by_name.get(tap).context("the tap was checked")?);
    }
    model.select_output_outlets(&outputs)?;
    Ok((model.into_optimized()?, real))
}

/// Where a tap's values come from in the optimized model.
enum Place {
    Node(OutletId),
    Constant(Vec<f32>),
}

/// The plan, whose taps are outputs no more, and the place of each tap.
fn split_off_taps(
    mut model: TypedModel,
    real: usize,
) -> TractResult<(Arc<TypedSimplePlan>, Vec<Place>)> {
    let mut outputs = model.outputs.clone();
    let taps = outputs.split_off(real);
    let places: Vec<Place> =
        taps.iter().map(|tap| place(&model, *tap)).collect::<TractResult<_>>()?;
    // A tap that no remaining output depends on would not be computed: it stays an output.
    let mut computed = vec![false; model.nodes().len()];
    for output in &outputs {
        mark_ancestors(&model, output.node, &mut computed);
    }
    for tap in taps.iter().rev().filter(|tap| !model.node(tap.node).op_is::<Const>()) {
        if !computed[tap.node] {
            outputs.push(*tap);
            mark_ancestors(&model, tap.node, &mut computed);
        }
    }
    model.select_output_outlets(&outputs)?;
    let options = RunOptions { executor: Some(Executor::SingleThread), ..RunOptions::default() };
    Ok((TypedSimplePlan::new_with_options(model, &options)?, places))
}

fn place(model: &TypedModel, tap: OutletId) -> TractResult<Place> {
    let fact = model.outlet_fact(tap)?;
    let name = &model.node(tap.node).name;
    let kind = fact.datum_type;
    ensure!(
        matches!(kind, DatumType::F32 | DatumType::F16),
        "an output of {name} is {kind:?}, and only float32 and float16 can be observed"
    );
    let Some(constant) = model.node(tap.node).op_as::<Const>() else {
        return Ok(Place::Node(tap));
    };
    let wide = constant.val().cast_to::<f32>()?;
    Ok(Place::Constant(wide.try_as_plain_ram()?.as_slice::<f32>()?.to_vec()))
}

/// Marks `node` and all it is computed from.
fn mark_ancestors(model: &TypedModel, node: usize, marked: &mut [bool]) {
    let mut pending = vec![node];
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut marked[node], true) {
            pending.extend(model.node(node).inputs.iter().map(|input| input.node));
        }
    }
}
