//! The axis along which the blocks of a weight lie.
//!
//! Blocks lie along the axes that are summed over, which are all axes except that of the output
//! channels, so that the elements of a block contribute to the same sum. If there is a single such
//! axis and it is long enough, blocks lie along it. Otherwise, the weight is stored as a matrix
//! with these axes as one side, and reshaped after it is dequantized.

use quantize_rs_math::Granularity;

use crate::graph::uses::Along;

/// The granularity of a weight in blocks, and the shape of the matrix that it is stored as, if any.
///
/// A vector of a single block has one scale, because ONNX Runtime does not accept a block size for
/// it.
///
/// Blocks along any axis give a correct model. If consumers disagree about the axis of the
/// channels, or a weight has none, blocks lie along the last axis. If no axis is as long as a
/// block, there is one scale per channel instead.
pub(super) fn cut(
    shape: &[usize],
    channels: Option<Along>,
    block_size: usize,
) -> (Granularity, Option<[usize; 2]>) {
    let along = |axis: usize| (Granularity::Blocked { axis, block_size }, None);
    let matrix = |rows: usize, axis: usize| {
        let columns = shape.iter().product::<usize>() / rows.max(1);
        (Granularity::Blocked { axis, block_size }, Some([rows, columns]))
    };
    let Some(last) = shape.len().checked_sub(1) else { return (Granularity::PerTensor, None) };
    let long = |axis: usize| shape[axis] >= block_size;
    match channels {
        Some(Along::Rows(rows)) => matrix(rows, 1),
        Some(Along::Axis(axis)) if last == 1 && axis <= 1 => along(1 - axis),
        Some(Along::Axis(0)) if last > 1 && shape[1].is_multiple_of(block_size) => along(1),
        Some(Along::Axis(0)) if last > 1 => matrix(shape[0], 1),
        Some(Along::Axis(axis)) if axis == last && last > 1 && long(last - 1) => along(last - 1),
        Some(Along::Axis(axis)) if axis == last && last > 1 => {
            let columns = shape[last].max(1);
            matrix(shape.iter().product::<usize>() / columns, 0)
        }
        Some(Along::Axis(axis)) if axis < last => match [last, 0].into_iter().find(|a| long(*a)) {
            Some(summed) => along(summed),
            None => (Granularity::PerAxis { axis }, None),
        },
        _ if last == 0 && shape[0] <= block_size => (Granularity::PerTensor, None),
        _ if last == 0 || long(last) => along(last),
        _ => matrix(1, 1),
    }
}

/// Blocks that are as long as an axis, with the scales of a granularity without blocks: along the
/// longest axis that has no scales of its own. A vector has no such blocks.
pub(super) fn whole(shape: &[usize], granularity: Granularity) -> Granularity {
    let of_channels = match granularity {
        Granularity::PerTensor => None,
        Granularity::PerAxis { axis } => Some(axis),
        Granularity::Blocked { .. } => return granularity,
    };
    let axes = (0..shape.len()).filter(|axis| Some(*axis) != of_channels);
    match axes.max_by_key(|axis| shape[*axis]) {
        Some(axis) if shape.len() > 1 => Granularity::Blocked { axis, block_size: shape[axis] },
        _ => granularity,
    }
}

/// The rows and columns of a filter as a matrix: a row for each output channel.
pub(super) fn matrix_of(shape: &[usize]) -> [usize; 2] {
    let rows = shape.first().copied().unwrap_or(1);
    [rows, shape.iter().skip(1).product()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_along_what_is_summed_over() {
        let blocks = |axis| Granularity::Blocked { axis, block_size: 16 };
        let axis = |axis| Some(Along::Axis(axis));
        let cases: [(&[usize], _, _, _); 16] = [
            (&[64, 8], axis(1), blocks(0), None),
            (&[8, 3], axis(0), blocks(1), None),
            (&[8, 32, 3, 3], axis(0), blocks(1), None),
            (&[8, 20, 3, 3], axis(0), blocks(1), Some([8, 180])),
            (&[8, 3, 5], axis(0), blocks(1), Some([8, 15])),
            (&[2, 40, 8], axis(2), blocks(1), None),
            (&[4, 5, 8], axis(2), blocks(0), Some([20, 8])),
            (&[16, 4, 3, 3], axis(1), blocks(0), None),
            (&[2, 4, 40], axis(1), blocks(2), None),
            (&[3, 4, 3, 3], axis(1), Granularity::PerAxis { axis: 1 }, None),
            (&[1, 32, 24], Some(Along::Rows(32)), blocks(1), Some([32, 24])),
            (&[40], None, blocks(0), None),
            (&[16], None, Granularity::PerTensor, None),
            (&[5], axis(0), Granularity::PerTensor, None),
            (&[4, 32], None, blocks(1), None),
            (&[4, 4, 4], None, blocks(1), Some([1, 64])),
        ];
        for (shape, channels, granularity, matrix) in cases {
            assert_eq!(cut(shape, channels, 16), (granularity, matrix), "{shape:?} {channels:?}");
        }
        assert_eq!(cut(&[], None, 16), (Granularity::PerTensor, None));
    }

    #[test]
    fn a_whole_axis_is_a_block() {
        let blocks = |axis, block_size| Granularity::Blocked { axis, block_size };
        let cases: [(&[usize], _, _); 5] = [
            (&[96, 64], Granularity::PerAxis { axis: 0 }, blocks(1, 64)),
            (&[96, 64], Granularity::PerTensor, blocks(0, 96)),
            (&[4, 96, 64], Granularity::PerAxis { axis: 1 }, blocks(2, 64)),
            (&[96, 64], blocks(1, 32), blocks(1, 32)),
            (&[96], Granularity::PerTensor, Granularity::PerTensor),
        ];
        for (shape, before, after) in cases {
            assert_eq!(whole(shape, before), after, "{shape:?} {before:?}");
        }
    }
}
