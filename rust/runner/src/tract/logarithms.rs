//! Operators whose exponentials overflow or become zero in tract, as equivalents that do not.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::prelude::{SpecialOps, TVec, TractResult, TypedModel, tvec};
use tract_onnx::tract_core::ops::math;
use tract_onnx::tract_core::ops::nn::{Softmax, SoftmaxKind};
use tract_onnx::tract_hir::internal::{
    Expansion, InferenceOp, InferenceResult, OutletId, Solver, StaticName, TensorProxy,
    check_input_arity, check_output_arity, expand, tensor0, wire_with_rank_broadcast,
};

/// The first opset in which `LogSoftmax` works along one axis.
const ALONG_ONE_AXIS: i64 = 13;

/// `log(1 + exp(x))` as `max(x, 0) + log(1 + exp(-|x|))`.
pub(super) fn softplus() -> Box<dyn InferenceOp> {
    expand(Softplus)
}

/// The logarithm of a softmax as a difference; tract takes the logarithm of what may be 0.
pub(super) fn log_softmax(
    context: &ParsingContext,
    node: &NodeProto,
) -> TractResult<Box<dyn InferenceOp>> {
    let along_one = context.onnx_operator_set_version >= ALONG_ONE_AXIS;
    let axis = node.get_attr_opt("axis")?.unwrap_or(if along_one { -1 } else { 1 });
    Ok(expand(LogSoftmax { axis, along_one }))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Softplus;

impl Expansion for Softplus {
    fn name(&self) -> StaticName {
        "Softplus".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        as_input(solver, inputs, outputs)
    }

    fn wire(
        &self,
        name: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let x = inputs[0];
        let dtype = model.outlet_fact(x)?.datum_type;
        let mut constant = |suffix: &str, value: f32| {
            let value = tensor0(value).cast_to_dt(dtype)?.into_owned();
            model.add_const(format!("{name}.{suffix}"), value)
        };
        let (zero, one) = (constant("zero", 0.0)?, constant("one", 1.0)?);
        let step = |suffix: &str| format!("{name}.{suffix}");
        let abs = model.wire_node(step("abs"), math::abs(), &[x])?;
        let neg = model.wire_node(step("neg"), math::neg(), &abs)?;
        let exp = model.wire_node(step("exp"), math::exp(), &neg)?;
        let sum = wire_with_rank_broadcast(step("plus_one"), model, math::add(), &[exp[0], one])?;
        let log = model.wire_node(step("ln"), math::ln(), &sum)?;
        let positive = wire_with_rank_broadcast(step("max"), model, math::max(), &[x, zero])?;
        model.wire_node(name, math::add(), &[positive[0], log[0]])
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LogSoftmax {
    axis: i64,
    /// Whether it sums along one axis, and not along all from `axis` on.
    along_one: bool,
}

impl Expansion for LogSoftmax {
    fn name(&self) -> StaticName {
        "LogSoftmax".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        as_input(solver, inputs, outputs)
    }

    fn wire(
        &self,
        name: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let rank = model.outlet_fact(inputs[0])?.rank();
        let places = usize::try_from(self.axis.unsigned_abs())?;
        if places > rank {
            let what = format!("LogSoftmax has axis {} of {rank}", self.axis);
            return Err(tract_onnx::prelude::TractError::msg(what));
        }
        let axis = if self.axis < 0 { rank - places } else { places };
        let axes = if self.along_one { tvec!(axis) } else { (axis..rank).collect() };
        let softmax = Softmax { axes, quant_output_dt: None, kind: SoftmaxKind::LogSoftmax };
        model.wire_node(name, softmax, inputs)
    }
}

/// The output has the type and shape of the input.
fn as_input<'r, 'p: 'r>(
    solver: &mut Solver<'r>,
    inputs: &'p [TensorProxy],
    outputs: &'p [TensorProxy],
) -> InferenceResult {
    check_input_arity(inputs, 1)?;
    check_output_arity(outputs, 1)?;
    solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
    solver.equals(&inputs[0].shape, &outputs[0].shape)
}
