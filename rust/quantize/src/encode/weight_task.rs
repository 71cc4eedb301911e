//! Encodes one weight: with the help of samples if it was rounded with them, and otherwise by the
//! method of the plan.

use bytes::Bytes;
use quantize_rs_math::BlockParamTypes;
use quantize_rs_onnx::DataType;

use super::blocked_matrix::BlockedMatrix;
use super::{
    BiasFloors, EncodedTensor, WeightCache, WeightSettings, codes, dequantize, matmul_nbits,
    rounded, scale_type, weight,
};
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::moe::is_moe;
use crate::graph::ops::is_convolution;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::plan::{Plan, ValuePlan};
use crate::ranges::RoundedWeight;
use crate::{Format, QuantizeError};

/// A weight to encode.
pub(crate) struct WeightTask<'a, 'm> {
    pub(crate) graph: &'a Graph<'m>,
    pub(crate) plan: &'a Plan,
    pub(crate) name: &'a String,
    pub(crate) how: &'a ValuePlan,
    pub(crate) constant: &'a Constant<'m>,
    /// The minimum scale of each channel.
    pub(crate) floors: &'a [f32],
}

impl<'a> WeightTask<'a, '_> {
    /// The shape that the granularity refers to.
    pub(crate) fn shape(&self) -> &'a [usize] {
        self.how.matrix.as_ref().map_or(&self.constant.shape[..], |matrix| &matrix[..])
    }

    /// The weight as it is stored: from the cache, as it was rounded with samples, or as the plan
    /// says.
    pub(super) fn encoded(
        &self,
        before: Option<&WeightCache>,
        rounded: Option<&RoundedWeight>,
    ) -> Result<WeightResult<'a>, QuantizeError> {
        let WeightTask { graph, plan, name, how, constant, floors } = *self;
        let tensor = graph.model.tensor(constant.tensor)?;
        let done = |tensor: EncodedTensor, widened: usize, floats: Option<Bytes>| WeightResult {
            name,
            how,
            tensor,
            widened,
            floats,
        };
        if let Some(found) = before.and_then(|known| known.find(name, &tensor, how, floors)) {
            return Ok(done(found, 0, None));
        }
        if let Some(rounded) = rounded.filter(|rounded| rounded.fits(&how.spec, &tensor)) {
            let floats = to_f32(&tensor).unwrap_or_default();
            let found = rounded::encoded(name, how, self.shape(), &floats, rounded, floors)?;
            if let Some(found) = found {
                let rounded = Some(rounded.evidence.algorithm);
                return Ok(done(EncodedTensor { rounded, ..found }, 0, Some(tensor.data)));
            }
        }
        let convolves = constant.multipliers(graph).any(is_convolution);
        let method = plan.config.weight_method(&how.spec, convolves);
        let shape = self.shape();
        if how.format == Format::MatMulNBits {
            // ONNX Runtime 1.31 supports float zero points in multiplications of up to 4 bits, but
            // not in embedding lookups and experts.
            let rows =
                constant.multipliers(graph).any(|node| node.op_type == "Gather" || is_moe(node));
            let params = match uses::float_type(graph, constant.anchor) {
                Some(DataType::Float16) => BlockParamTypes::HalfScales,
                _ if how.spec.qtype.bits() <= 4 && !rows => BlockParamTypes::FloatZeroPoints,
                _ => BlockParamTypes::Plain,
            };
            return Ok(done(
                matmul_nbits::encoded(name, how, method, shape, &tensor, params)?,
                0,
                None,
            ));
        }
        if let Some(layout) = codes::layout(how, shape) {
            return Ok(done(codes::encoded(name, layout, method, &tensor)?, 0, None));
        }
        let rounding = plan.config.rounding(convolves);
        let summed = rounding.summed(graph, constant, shape, &how.spec);
        let scales = scale_type(graph, constant.anchor);
        let settings = WeightSettings { method, summed, floors, scales };
        let (made, floored) = weight(name, how, shape, &tensor, &settings)?;
        let alone = floored == BiasFloors::default();
        Ok(done(made, floored.raised, alone.then_some(tensor.data)))
    }

    /// The dequantized elements, in the order of the weight: as it was rounded with samples, or as
    /// the plan says. `None` for forms that are not read back.
    pub(crate) fn decoded(
        &self,
        rounded: Option<&RoundedWeight>,
    ) -> Result<Option<Vec<f32>>, QuantizeError> {
        Ok(self.encoded(None, rounded)?.tensor.decoded(self.how, self.shape()))
    }

    /// The weight as it is stored without the help of samples.
    pub(crate) fn without_samples(&self) -> Result<EncodedTensor, QuantizeError> {
        Ok(self.encoded(None, None)?.tensor)
    }
}

/// The result of encoding a weight.
pub(super) struct WeightResult<'a> {
    pub(super) name: &'a String,
    pub(super) how: &'a ValuePlan,
    pub(super) tensor: EncodedTensor,
    /// The number of scales that were raised.
    pub(super) widened: usize,
    /// The source bytes, if the weight is to be cached.
    pub(super) floats: Option<Bytes>,
}

impl EncodedTensor {
    /// The dequantized elements of a weight of this shape, in its order.
    pub(crate) fn decoded(&self, how: &ValuePlan, shape: &[usize]) -> Option<Vec<f32>> {
        let scales = self.scale.to_f32()?;
        if let Some(layout) = codes::layout(how, shape) {
            let columns = layout.decode(&self.quantized.data, &scales)?;
            return Some(BlockedMatrix::of(&how.spec, shape)?.in_order(columns));
        }
        if how.format != Format::MatMulNBits {
            let points = Some(&self.zero_point);
            let granularity = how.spec.granularity;
            let plain =
                dequantize::plain(how.stored, &self.quantized, granularity, &scales, points);
            return Some(plain?.floats);
        }
        let matrix = BlockedMatrix::of(&how.spec, shape)?;
        let BlockedMatrix { depth, block_size, .. } = matrix;
        let cut = dequantize::Cut { bits: how.spec.qtype.bits(), block_size, depth, signed: false };
        let columns = cut.decode(&self.quantized, &scales, Some(&self.zero_point))?.floats;
        Some(matrix.in_order(columns))
    }
}
