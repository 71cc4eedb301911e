//! `DynamicQuantizeLSTM`: an operator of ONNX Runtime that quantizes what an LSTM reads when the model runs.
//!
//! Its weights lie with columns for rows, and have a scale and a zero point for each direction, or for each row of each
//! direction. They are inputs 8 to 11, behind those of `LSTM`.

use quantize_rs_onnx::{Edit, Tensor};

use super::dynamic::transposed;
use super::qdq::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::plan::{MICROSOFT, ValuePlan};

/// Inputs of `LSTM`.
const INPUTS: usize = 8;

impl Writer<'_, '_> {
    /// Writes one of the two weights of an LSTM, and with the second the node.
    pub(super) fn lstm(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
        node: usize,
    ) {
        let name = self.graph.values[id].name;
        let Some(shape) = self.graph.shape(id) else { return };
        let [Some(directions), Some(rows), Some(columns)] = shape[..] else { return };
        let integers = turned(&tensor.quantized, [directions, rows, columns]);
        let lengths = if how.matrix.is_some() { vec![directions, rows] } else { vec![directions] };
        let reshaped = |tensor: &Tensor| Tensor { shape: lengths.clone(), ..tensor.clone() };
        let names = [
            self.constant(name, "quantized", &integers),
            self.constant(name, "scale", &reshaped(&tensor.scale)),
            self.zero_point(&reshaped(&tensor.zero_point)),
        ];
        self.take_out_read(id, &[node]);
        let proto = self.graph.nodes[node];
        let input = usize::from(self.graph.input(node, 1) != Some(id));
        let both = self.lstms.entry(node).or_default();
        both[input] = Some(names);
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
        self.edits.push(Edit::ReplaceNode { node, with });
        self.import(MICROSOFT, 1);
    }
}

/// The matrix of each direction with rows for columns.
fn turned(tensor: &Tensor, [directions, rows, columns]: [usize; 3]) -> Tensor {
    let matrices = tensor.data.chunks_exact((rows * columns).max(1));
    let turned = matrices.flat_map(|matrix| {
        let data = tensor.data.slice_ref(matrix);
        transposed(&Tensor { dtype: tensor.dtype, shape: vec![rows, columns], data }).data
    });
    let data: Vec<u8> = turned.collect();
    Tensor { dtype: tensor.dtype, shape: vec![directions, columns, rows], data: data.into() }
}
