//! `DequantizeLinear` as a cast, a subtraction and a multiplication.
//!
//! tract has one operator for it, which it joins with the operators up to the next
//! `QuantizeLinear`, as a table of 256 integers or as operators on integers. A `Softmax` in between
//! is then computed wrongly, and a change from int8 to uint8 is an error.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::prelude::{
    DatumType, IntoArcTensor, SpecialOps, TVec, Tensor, TractResult, TypedModel, tvec,
};
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::math;
use tract_onnx::tract_hir::internal::{
    Expansion, InferenceOp, InferenceResult, OutletId, Solver, StaticName, TensorProxy,
    TractErrorContext, check_output_arity, expand,
};

/// `(x - zero_point) * scale`, along an axis or for the whole tensor.
pub(super) fn dequantize_linear(
    _: &ParsingContext,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    if node.get_attr_opt::<i64>("block_size")?.unwrap_or(0) != 0 {
        let what = "DequantizeLinear: blocks are not supported";
        return Err(tract_onnx::prelude::TractError::msg(what));
    }
    let axis = node.get_attr_opt("axis")?.unwrap_or(1);
    Ok((expand(DequantizeLinear { axis }), Vec::new()))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DequantizeLinear {
    axis: i64,
}

impl DequantizeLinear {
    /// A scale or zero point as float32, in a shape that broadcasts to a tensor of this rank.
    fn spread(&self, param: &Tensor, rank: usize) -> TractResult<Tensor> {
        let mut shape: TVec<usize> = tvec![1; rank];
        if param.len() > 1 {
            let axis = if self.axis < 0 { self.axis + i64::try_from(rank)? } else { self.axis };
            let length = usize::try_from(axis).ok().and_then(|axis| shape.get_mut(axis));
            *length.context("DequantizeLinear: the tensor does not have this axis")? = param.len();
        }
        param.cast_to::<f32>()?.into_owned().into_shape(&shape)
    }
}

impl Expansion for DequantizeLinear {
    fn name(&self) -> StaticName {
        "DequantizeLinear".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[1].datum_type, DatumType::F32)?;
        solver.equals(&outputs[0].datum_type, DatumType::F32)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(
        &self,
        name: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let rank = model.outlet_fact(inputs[0])?.rank();
        let constant = |model: &mut TypedModel, input: usize, suffix: &str| {
            let fact = model.outlet_fact(inputs[input])?;
            let param = fact.konst.clone().context("scale and zero point must be constants")?;
            let param = self.spread(&param, rank)?.into_arc_tensor();
            model.add_const(format!("{name}.{suffix}"), param)
        };
        let step = |suffix: &str| format!("{name}.{suffix}");
        let mut x = model.wire_node(step("cast"), cast(DatumType::F32), &inputs[..1])?;
        if inputs.len() > 2 {
            let zero_point = constant(model, 2, "zero_point")?;
            x = model.wire_node(step("sub"), math::sub(), &[x[0], zero_point])?;
        }
        let scale = constant(model, 1, "scale")?;
        model.wire_node(name, math::mul(), &[x[0], scale])
    }
}
