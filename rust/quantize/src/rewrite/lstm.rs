//! `DynamicQuantizeLSTM`: an operator of ONNX Runtime that quantizes the inputs of an LSTM at
//! inference time.
//!
//! Its weights are transposed. They have a scale and a zero point for each direction, or for each
//! row of each direction. Scales and zero points are inputs 8 to 11, after the inputs of `LSTM`.

use std::collections::HashMap;

use quantize_rs_onnx::{Edit, NodeProto, Tensor};

use super::dynamic::transposed;
use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::ops::MICROSOFT;
use crate::graph::uses::Multiplier;
use crate::plan::ValuePlan;

/// The number of inputs of `LSTM`.
const INPUTS: usize = 8;

/// Names of the integers, scale and zero point of both weights of each LSTM, by the address of the
/// node.
#[derive(Default)]
pub(super) struct Lstms(HashMap<*const NodeProto, [Option<[String; 3]>; 2]>);

impl Lstms {
    /// Writes one of the two weights of an LSTM. The second one also replaces the node.
    pub(super) fn weight<'m>(
        &mut self,
        writer: &mut Writer<'_, 'm>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
        reader: &Multiplier<'m>,
    ) {
        let name = writer.graph.values[id].name;
        let Some(shape) = writer.graph.shape(id) else { return };
        let [Some(directions), Some(rows), Some(columns)] = shape[..] else { return };
        let integers = transposed_each(&tensor.quantized, [directions, rows, columns]);
        let lengths = if how.matrix.is_some() { vec![directions, rows] } else { vec![directions] };
        let reshaped = |tensor: &Tensor| Tensor { shape: lengths.clone(), ..tensor.clone() };
        let names = [
            writer.integers(name, "quantized", &integers),
            writer.constant(name, "scale", &reshaped(&tensor.scale)),
            writer.zero_point(&reshaped(&tensor.zero_point)),
        ];
        writer.take_out_read(id, reader.index.as_slice());
        let proto = reader.node;
        let both = self.0.entry(std::ptr::from_ref(proto)).or_default();
        both[usize::from(reader.input != 1)] = Some(names);
        let [Some(w), Some(r)] = both.clone() else { return };
        let mut with = proto.clone();
        "DynamicQuantizeLSTM".clone_into(&mut with.op_type);
        MICROSOFT.clone_into(&mut with.domain);
        with.attribute.retain(|attribute| attribute.name != "layout");
        with.input.resize(INPUTS, String::new());
        let [[w, w_scale, w_zero_point], [r, r_scale, r_zero_point]] = [w, r];
        with.input[1] = w;
        with.input[2] = r;
        with.input.extend([w_scale, w_zero_point, r_scale, r_zero_point]);
        match reader.index {
            Some(node) => writer.edits.push(Edit::ReplaceNode { node, with }),
            None => writer.replace_inside(reader, |_| with),
        }
        writer.import(MICROSOFT, 1);
    }
}

/// The transposed matrix of each direction.
fn transposed_each(tensor: &Tensor, [directions, rows, columns]: [usize; 3]) -> Tensor {
    let matrices = tensor.data.chunks_exact((rows * columns).max(1));
    let bytes = matrices.flat_map(|matrix| {
        let data = tensor.data.slice_ref(matrix);
        transposed(&Tensor { dtype: tensor.dtype, shape: vec![rows, columns], data }).data
    });
    let data: Vec<u8> = bytes.collect();
    Tensor { dtype: tensor.dtype, shape: vec![directions, columns, rows], data: data.into() }
}
