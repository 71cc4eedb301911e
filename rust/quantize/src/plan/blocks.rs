//! Along which axis of a weight blocks are cut.
//!
//! Blocks lie along what is summed over, so that the elements of one block meet in one sum: all axes
//! but that of the output channels. Where these are one axis and long enough, blocks are cut there;
//! else the weight is stored as a matrix whose other side they are, and reshaped when it comes back.

use quantize_rs_math::Granularity;

use crate::graph::uses::Along;

/// How a weight of this shape is cut, and the matrix that it is stored as for that.
///
/// A single block of a vector is the whole of it, and written so: ONNX Runtime takes one scale for no block.
///
/// Every way of cutting gives the same product, so that readers who disagree about the channels, and
/// weights that have none, are cut along their last axis. A block that would hold almost nothing costs
/// more than it saves: scales are then those of the channels.
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
}
