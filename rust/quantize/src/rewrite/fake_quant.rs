//! Weights that stay float and are quantized at inference time, for further training.

use quantize_rs_onnx::{DataType, Tensor};

use super::FormatWriter;
use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::elements::to_f32;
use crate::plan::{Consumers, ValuePlan};

/// Writes weights in float before their own `QuantizeLinear`.
pub(super) struct FakeQuant;

impl FormatWriter for FakeQuant {
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    ) {
        writer.fake(id, how, tensor);
    }
}

impl Writer<'_, '_> {
    /// A weight `W` becomes the initializer `W_float`, which training updates, and a
    /// `QuantizeLinear` and a `DequantizeLinear` that compute `W` from it, with constant scales. A
    /// weight that other consumers need in float keeps its name.
    fn fake(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        let name = self.graph.values[id].name;
        let Some(floats) = self.floats(id, &tensor.quantized.shape) else { return };
        let output = if how.consumers == Consumers::AsWeight {
            self.redirect_weighing(id)
        } else {
            self.take_out(id);
            name.to_owned()
        };
        let float = if how.consumers == Consumers::AsWeight && how.matrix.is_none() {
            name.to_owned()
        } else {
            self.constant(name, "float", &floats)
        };
        let output = self.back_to_shape(id, how, output);
        let scale = self.constant(name, "scale", &tensor.scale);
        // The zero point determines the type of the integers.
        let zero_point = self.constant(name, "zp", &tensor.zero_point);
        let integers = self.names.fresh(name, "quantized");
        let granularity = how.spec.granularity;
        let inputs = vec![float, scale.clone(), zero_point.clone()];
        self.node("QuantizeLinear", name, inputs, integers.clone(), granularity);
        let inputs = vec![integers, scale, zero_point];
        self.node("DequantizeLinear", name, inputs, output, granularity);
    }

    /// The elements of a weight as float32, in this shape.
    fn floats(&self, id: ValueId, shape: &[usize]) -> Option<Tensor> {
        let tensor = self.graph.model.tensor(self.graph.constant_behind(id)?).ok()?;
        if tensor.dtype == DataType::Float {
            return Some(Tensor { shape: shape.to_vec(), ..tensor });
        }
        Some(Tensor::from_f32(shape.to_vec(), &to_f32(&tensor)?))
    }
}
