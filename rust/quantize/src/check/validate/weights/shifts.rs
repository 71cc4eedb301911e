//! The errors that weights cause in what nodes compute: bias correction may make good as much.

use std::collections::HashMap;

use super::Comparison;
use crate::graph::qlinear::qlinear_of;

impl Comparison<'_> {
    /// The error of each output channel, for the nodes that multiply by it.
    pub(super) fn shifts(&self, reference: &[f32], shifts: &mut HashMap<usize, Vec<f64>>) {
        let shape = &self.decoded.shape;
        for consumer in self.stored.consumers(self.after) {
            let node = self.after.nodes[consumer.node];
            let twin = qlinear_of(node);
            let weight = twin.map_or(1, |twin| twin.input(1).unwrap_or(0));
            let operator = twin.map_or(&*node.op_type, |twin| twin.float);
            let axis = match operator {
                "Conv" => 0,
                "ConvTranspose" => 1,
                "Gemm" if node.int("transB", 0) != 0 => 0,
                "Gemm" | "MatMul" => shape.len().saturating_sub(1),
                _ => continue,
            };
            let Some(&channels) = shape.get(axis).filter(|_| consumer.input == weight) else {
                continue;
            };
            let inner: usize = shape[axis + 1..].iter().product();
            // A transposed convolution has the channels of each group side by side in its rows.
            let groups = if operator == "ConvTranspose" { node.int("group", 1) } else { 1 };
            let groups = usize::try_from(groups).unwrap_or(1).max(1);
            let of_group = reference.len().div_ceil(groups).max(1);
            // A wrong number of groups would be more channels than there are weights.
            let all = channels.saturating_mul(groups);
            if all > reference.len() {
                continue;
            }
            let mut sums = vec![0.0; all];
            for (at, (w, float)) in reference.iter().zip(&self.decoded.floats).enumerate() {
                let channel = at / of_group * channels + at / inner.max(1) % channels.max(1);
                if let Some(sum) = sums.get_mut(channel) {
                    *sum += (f64::from(*w) - f64::from(*float)).abs();
                }
            }
            shifts.insert(consumer.node, sums);
        }
    }
}
