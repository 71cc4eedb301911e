//! The weight matrices that follow a smoothed value.

use quantize_rs_math::QSpec;
use quantize_rs_onnx::{DataType, Tensor};

use crate::Plan;
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::plan::Decision;

/// A weight matrix of a value.
pub(super) struct Weight {
    pub(super) node: usize,
    pub(super) name: String,
    /// The node that casts the matrix and the cast constant, if it is not stored as float32.
    pub(super) cast: Option<(usize, String)>,
    pub(super) spec: QSpec,
    pub(super) shape: [usize; 2],
    pub(super) values: Vec<f32>,
    /// Which of the two axes is summed over.
    pub(super) summed: usize,
    /// The sum of squares of each row.
    pub(super) energies: Vec<f64>,
}

impl Weight {
    /// The weight of a node; `None` if other nodes read it too, or if it cannot be multiplied by
    /// factors.
    pub(super) fn of(
        graph: &Graph<'_>,
        plan: &Plan,
        node: usize,
        weight: ValueId,
    ) -> Option<Weight> {
        let proto = graph.nodes[node];
        let transposed = proto.op_type == "Gemm" && proto.int("transB", 0) != 0;
        let fits = match proto.op_type.as_str() {
            "MatMul" | "Attention" => true,
            "Gemm" => proto.int("transA", 0) == 0,
            _ => false,
        };
        let read_once = |value: ValueId| graph.only_consumer(value).is_some();
        let (stored, cast) = match graph.values[weight].producer {
            Producer::Node { node: cast, .. } => (graph.input(cast, 0)?, Some(cast)),
            _ => (weight, None),
        };
        let alone = matches!(
            graph.values[stored].producer,
            Producer::Initializer { overridable: false, .. }
        ) && read_once(stored)
            && read_once(weight)
            && graph.input(node, 1) == Some(weight);
        let Decision::Quantize(how) = &plan.values.get(weight)?.decision else { return None };
        if !fits || !alone || uses::float_type(graph, weight) != Some(DataType::Float) {
            return None;
        }
        let tensor = graph.model.tensor(graph.constant(stored)?).ok()?;
        let &[rows, columns] = &tensor.shape[..] else { return None };
        let values = to_f32(&tensor)?;
        let cast = cast.map(|cast| (cast, graph.values[stored].name.to_owned()));
        let name = graph.values[weight].name.to_owned();
        let summed = usize::from(transposed);
        let sound = values.iter().all(|x| x.is_finite());
        let shape = [rows, columns];
        let (spec, energies) = (how.spec, Vec::new());
        let mut weight = Weight { node, name, cast, spec, shape, values, summed, energies };
        weight.energies = weight.of_rows(0.0, |sum, x| sum + f64::from(x).powi(2));
        sound.then_some(weight)
    }

    /// Folds the elements of each row, which all multiply the same input channel.
    pub(super) fn of_rows<T: Copy>(&self, from: T, with: impl Fn(T, f32) -> T) -> Vec<T> {
        let lines = self.values.chunks_exact(self.shape[1].max(1));
        if self.summed == 0 {
            return lines.map(|line| line.iter().fold(from, |all, x| with(all, *x))).collect();
        }
        let mut rows = vec![from; self.shape[1]];
        for line in lines {
            rows.iter_mut().zip(line).for_each(|(all, x)| *all = with(*all, *x));
        }
        rows
    }

    /// The largest magnitude of each column, which contributes to one output channel, with the rows
    /// multiplied by factors.
    pub(super) fn columns(&self, factors: &[f32]) -> Vec<f32> {
        let lines = self.values.chunks_exact(self.shape[1].max(1));
        if self.summed == 1 {
            let largest = |line: &[f32]| {
                line.iter().zip(factors).fold(0.0, |max: f32, (x, by)| max.max((x * by).abs()))
            };
            return lines.map(largest).collect();
        }
        let mut columns = vec![0.0_f32; self.shape[1]];
        for (line, by) in lines.zip(factors) {
            columns.iter_mut().zip(line).for_each(|(max, x)| *max = max.max((x * by).abs()));
        }
        columns
    }

    /// The matrix with its rows multiplied by factors.
    pub(super) fn scaled(mut self, factors: &[f32]) -> Tensor {
        let lines = self.values.chunks_exact_mut(self.shape[1].max(1));
        if self.summed == 1 {
            let times =
                |line: &mut [f32]| line.iter_mut().zip(factors).for_each(|(x, by)| *x *= by);
            lines.for_each(times);
        } else {
            lines.zip(factors).for_each(|(line, by)| line.iter_mut().for_each(|x| *x *= by));
        }
        Tensor::from_f32_vec(self.shape.to_vec(), self.values)
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::QType;

    use super::*;
    use quantize_rs_math::Granularity;

    /// Three input channels with two elements each, as a matrix in normal or transposed layout.
    fn weight(turned: bool) -> Weight {
        let spec = QSpec::new(QType::Int8, true, Granularity::PerTensor);
        let (shape, values) = if turned {
            ([2, 3], [1.0, -3.0, 5.0, 2.0, 4.0, -6.0])
        } else {
            ([3, 2], [1.0, 2.0, -3.0, 4.0, 5.0, -6.0])
        };
        let (values, summed) = (values.to_vec(), usize::from(turned));
        let (name, energies) = ("w".to_owned(), Vec::new());
        Weight { node: 0, name, cast: None, spec, shape, values, summed, energies }
    }

    #[test]
    fn rows_are_multiplied_and_columns_measured_however_the_matrix_lies() {
        let factors = [10.0, 0.5, 2.0];
        for turned in [false, true] {
            let weight = weight(turned);
            assert_eq!(weight.of_rows(0.0, |sum, x| sum + x * x), [5.0, 25.0, 61.0]);
            assert_eq!(weight.columns(&[1.0; 3]), [5.0, 6.0]);
            assert_eq!(weight.columns(&factors), [10.0, 20.0]);
            let scaled = weight.scaled(&factors).to_f32().unwrap();
            let expected =
                [[10.0, 20.0, -1.5, 2.0, 10.0, -12.0], [10.0, -1.5, 10.0, 20.0, 2.0, -12.0]];
            assert_eq!(scaled, expected[usize::from(turned)]);
        }
    }
}
