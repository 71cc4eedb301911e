//! Matrices that formats store column by column, in blocks of the elements that are summed.

use quantize_rs_math::{BlockParamTypes, Granularity, MatMulNBitsSpec, QSpec, WeightMethod};

/// How the elements of a matrix lie in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockedMatrix {
    /// The length of the reduction axis (K).
    pub(super) depth: usize,
    /// The number of output columns (N).
    pub(super) width: usize,
    /// Whether the shape is `width` × `depth`.
    pub(super) transposed: bool,
    /// The elements of a column that share a scale.
    pub(super) block_size: usize,
}

impl BlockedMatrix {
    /// The layout of a weight of this shape; `None` if it is not a matrix in blocks.
    pub(super) fn of(spec: &QSpec, shape: &[usize]) -> Option<BlockedMatrix> {
        let (Granularity::Blocked { axis, block_size }, &[rows, columns]) =
            (spec.granularity, shape)
        else {
            return None;
        };
        let transposed = axis == 1;
        let (depth, width) = if transposed { (columns, rows) } else { (rows, columns) };
        Some(BlockedMatrix { depth, width, transposed, block_size })
    }

    /// The form that `MatMulNBits` reads.
    pub(super) fn nbits(
        self,
        spec: &QSpec,
        method: WeightMethod,
        params: BlockParamTypes,
    ) -> MatMulNBitsSpec {
        let BlockedMatrix { depth, width, transposed, block_size } = self;
        let plain = MatMulNBitsSpec::plain(spec, block_size, (depth, width), transposed);
        MatMulNBitsSpec { method, params, ..plain }
    }

    /// Elements that are sorted by column, in the order of the weight.
    pub(super) fn in_order(self, columns: Vec<f32>) -> Vec<f32> {
        if self.transposed {
            return columns;
        }
        let at = |index: usize| columns[index % self.width * self.depth + index / self.width];
        (0..columns.len()).map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantize_rs_math::QType;

    #[test]
    fn elements_return_to_the_order_of_the_weight() {
        let of = |axis: usize, shape: &[usize]| {
            let granularity = Granularity::Blocked { axis, block_size: 16 };
            BlockedMatrix::of(&QSpec::new(QType::UInt4, false, granularity), shape)
        };
        let columns = || vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let tall = of(0, &[2, 3]).unwrap();
        assert_eq!((tall.depth, tall.width, tall.transposed), (2, 3, false));
        assert_eq!(tall.in_order(columns()), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        let wide = of(1, &[2, 3]).unwrap();
        assert_eq!((wide.depth, wide.width, wide.transposed), (3, 2, true));
        assert_eq!(wide.in_order(columns()), columns());
        assert_eq!(of(0, &[2, 3, 4]), None);
    }
}
