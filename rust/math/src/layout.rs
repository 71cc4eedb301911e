//! How a tensor is divided into groups of elements that share a scale and a zero point.

use crate::{Granularity, MathError, QType};

/// A shape as seen along one axis, `outer × axis_len × inner` elements in C order, and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    outer: usize,
    axis_len: usize,
    inner: usize,
    blocks: usize,
    granularity: Granularity,
    scale_shape: Vec<usize>,
}

impl Layout {
    /// The layout of a tensor of `shape`.
    ///
    /// # Errors
    ///
    /// The axis does not exist, the block size is 0, the number of elements overflows, or there
    /// would be scales for a tensor without elements.
    pub fn of(shape: &[usize], granularity: Granularity) -> Result<Layout, MathError> {
        let (axis, block_size) = match granularity {
            Granularity::PerTensor => {
                let inner = product(shape, shape)?;
                let scale_shape = Vec::new();
                return Ok(Layout {
                    outer: 1,
                    axis_len: 1,
                    inner,
                    blocks: 1,
                    granularity,
                    scale_shape,
                });
            }
            Granularity::PerAxis { axis } => (axis, 1),
            Granularity::Blocked { block_size: 0, .. } => return Err(MathError::BlockSize),
            Granularity::Blocked { axis, block_size } => (axis, block_size),
        };
        let &axis_len =
            shape.get(axis).ok_or_else(|| MathError::Axis { axis, shape: shape.to_vec() })?;
        let blocks = axis_len.div_ceil(block_size);
        let scale_shape = match granularity {
            Granularity::Blocked { .. } => replaced(shape, axis, blocks),
            _ => vec![axis_len],
        };
        let elements = product(shape, shape)?;
        if elements == 0 && scale_shape.iter().all(|&len| len > 0) {
            return Err(MathError::Empty { shape: shape.to_vec(), axis });
        }
        let outer = product(&shape[..axis], shape)?;
        let inner = product(&shape[axis + 1..], shape)?;
        Ok(Layout { outer, axis_len, inner, blocks, granularity, scale_shape })
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.outer * self.axis_len * self.inner
    }

    /// The number of groups, which is the number of scales and of zero points.
    pub fn groups(&self) -> usize {
        self.scale_shape.iter().product()
    }

    /// The shape of the scales: `[]` per tensor, `[n]` per axis. For blocks, it is the shape of the
    /// tensor with the axis replaced by the number of blocks along it.
    pub fn scale_shape(&self) -> Vec<usize> {
        self.scale_shape.clone()
    }

    /// Which elements share a scale.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The group of the element at a flat index, which is the index of its scale in C order.
    pub fn group_of(&self, index: usize) -> usize {
        let row = index / self.inner.max(1);
        let (outer, along, inner) =
            (row / self.axis_len.max(1), row % self.axis_len.max(1), index % self.inner.max(1));
        match self.granularity {
            Granularity::PerTensor => 0,
            Granularity::PerAxis { .. } => along,
            Granularity::Blocked { block_size, .. } => {
                (outer * self.blocks + along / block_size) * self.inner + inner
            }
        }
    }

    /// Checks that there is one of `params` per group, and as many `elements` as the shape has.
    ///
    /// Functions that take slices with a layout panic otherwise. Call this first for lengths that
    /// come from outside.
    ///
    /// # Errors
    ///
    /// A length differs.
    pub fn check(&self, elements: usize, params: usize) -> Result<(), MathError> {
        expect("elements", elements, self.elements())?;
        expect("scales", params, self.groups())
    }

    /// Checks that the packed integers of the tensor take this many `bytes`, and that there is one
    /// of `params` per group.
    ///
    /// # Errors
    ///
    /// A length differs.
    pub fn check_packed(&self, bytes: usize, qtype: QType, params: usize) -> Result<(), MathError> {
        expect("bytes", bytes, qtype.packed_len(self.elements()))?;
        expect("scales", params, self.groups())
    }

    /// The numbers of elements before, along and after the axis. Without an axis, all elements are
    /// after it.
    pub(crate) fn sides(&self) -> (usize, usize, usize) {
        (self.outer, self.axis_len, self.inner)
    }

    /// How the flat slice is traversed; see [`Cut`].
    pub(crate) fn cut(&self) -> Cut {
        let same = |rows, len, last| Cut {
            rows,
            len,
            last,
            per_slab: 0,
            rows_per_group: 1,
            width: 1,
            each: false,
        };
        match self.granularity {
            Granularity::PerTensor => same(1, self.inner, self.inner),
            Granularity::PerAxis { .. } if self.inner > 1 => {
                same(self.axis_len, self.inner, self.inner)
            }
            Granularity::PerAxis { .. } => {
                let len = self.axis_len * self.tiles();
                Cut { each: true, ..same(1, len, len) }
            }
            Granularity::Blocked { block_size, .. } if self.inner > 1 => Cut {
                per_slab: self.blocks * self.inner,
                rows_per_group: block_size,
                width: self.inner,
                each: true,
                ..same(self.axis_len, self.inner, self.inner)
            },
            Granularity::Blocked { block_size, .. } => {
                let last = self.axis_len - self.blocks.saturating_sub(1) * block_size;
                let len = if self.blocks > 1 { block_size } else { last };
                Cut { per_slab: self.blocks, ..same(self.blocks, len, last) }
            }
        }
    }

    /// How often the groups are repeated to make a row long enough for vector code. It is more than
    /// 1 only when the last axis is short and has one scale per element.
    pub(crate) fn tiles(&self) -> usize {
        const SHORT: usize = 64;
        const LONG: usize = 512;
        let per_element =
            matches!(self.granularity, Granularity::PerAxis { .. }) && self.inner == 1;
        if per_element && self.outer > 1 && (1..SHORT).contains(&self.axis_len) {
            LONG.div_ceil(self.axis_len).min(self.outer)
        } else {
            1
        }
    }

    /// Whether the same groups occur again later in the slice.
    pub(crate) fn recurs(&self) -> bool {
        matches!(self.granularity, Granularity::PerAxis { .. }) && self.outer > 1
    }
}

/// The slice as slabs of `rows` rows. The elements of a row share one group, or each of them has
/// its own (`each`), in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    rows: usize,
    len: usize,
    last: usize,
    per_slab: usize,
    rows_per_group: usize,
    width: usize,
    each: bool,
}

/// A part of a row: `len` elements, the first of which belongs to `group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the first element, relative to the start of the traversal.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) group: usize,
    /// Whether the next element belongs to the next group.
    pub(crate) each: bool,
}

impl Cut {
    /// The pieces of `len` elements from flat index `start` on.
    pub(crate) fn pieces(self, start: usize, len: usize) -> impl Iterator<Item = Piece> {
        let slab_len = (self.rows.saturating_sub(1) * self.len + self.last).max(1);
        let mut slab = start / slab_len;
        let mut row = start % slab_len / self.len.max(1);
        let mut skip = start % slab_len - row * self.len;
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == len {
                return None;
            }
            let row_len = if row + 1 == self.rows { self.last } else { self.len };
            let group = slab * self.per_slab + row / self.rows_per_group * self.width;
            let piece = Piece {
                start: at,
                len: (row_len - skip).min(len - at),
                group: if self.each { group + skip } else { group },
                each: self.each,
            };
            at += piece.len;
            skip = 0;
            row += 1;
            if row == self.rows {
                (slab, row) = (slab + 1, 0);
            }
            Some(piece)
        })
    }
}

pub(crate) fn product(lens: &[usize], shape: &[usize]) -> Result<usize, MathError> {
    lens.iter()
        .try_fold(1_usize, |product, &len| product.checked_mul(len))
        .ok_or_else(|| MathError::TooLarge { shape: shape.to_vec() })
}

fn replaced(shape: &[usize], axis: usize, len: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[axis] = len;
    shape
}

fn expect(what: &'static str, found: usize, expected: usize) -> Result<(), MathError> {
    if found == expected { Ok(()) } else { Err(MathError::Length { what, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULARITIES: [Granularity; 9] = [
        Granularity::PerTensor,
        Granularity::PerAxis { axis: 0 },
        Granularity::PerAxis { axis: 1 },
        Granularity::PerAxis { axis: 2 },
        Granularity::Blocked { axis: 0, block_size: 2 },
        Granularity::Blocked { axis: 1, block_size: 2 },
        Granularity::Blocked { axis: 2, block_size: 3 },
        Granularity::Blocked { axis: 2, block_size: 99 },
        Granularity::Blocked { axis: 1, block_size: 1 },
    ];

    #[test]
    fn scale_shapes() {
        let shapes: Vec<_> = GRANULARITIES
            .iter()
            .map(|&g| Layout::of(&[3, 5, 7], g).unwrap().scale_shape())
            .collect();
        let expected: [&[usize]; 9] =
            [&[], &[3], &[5], &[7], &[2, 5, 7], &[3, 3, 7], &[3, 5, 3], &[3, 5, 1], &[3, 5, 7]];
        assert_eq!(shapes, expected);
    }

    #[test]
    fn pieces_from_anywhere_agree_with_group_of() {
        for shape in [[3, 5, 7], [2, 4, 1], [1, 1, 1], [1, 6, 2], [90, 1, 3]] {
            for granularity in GRANULARITIES {
                let layout = Layout::of(&shape, granularity).unwrap();
                let elements = layout.elements();
                for (start, end) in (0..elements).map(|start| (start, elements - start / 3)) {
                    let end = end.max(start);
                    let mut at = 0;
                    for piece in layout.cut().pieces(start, end - start) {
                        assert_eq!(piece.start, at);
                        for i in 0..piece.len {
                            let group = piece.group + if piece.each { i } else { 0 };
                            assert_eq!(
                                group % layout.groups(),
                                layout.group_of(start + at + i),
                                "{shape:?} {layout:?}"
                            );
                        }
                        at += piece.len;
                    }
                    assert_eq!(at, end - start);
                }
            }
        }
    }

    #[test]
    fn invalid_layouts_are_refused() {
        let of = |shape: &[usize], granularity| {
            Layout::of(shape, granularity).map(|layout| layout.groups())
        };
        let axis = |axis| Granularity::PerAxis { axis };
        assert_eq!(of(&[2], axis(1)), Err(MathError::Axis { axis: 1, shape: vec![2] }));
        assert_eq!(of(&[], axis(0)), Err(MathError::Axis { axis: 0, shape: vec![] }));
        assert_eq!(
            of(&[2], Granularity::Blocked { axis: 0, block_size: 0 }),
            Err(MathError::BlockSize)
        );
        let huge = [usize::MAX, 2];
        assert_eq!(of(&huge, axis(1)), Err(MathError::TooLarge { shape: huge.to_vec() }));
        assert_eq!(
            of(&[usize::MAX, 0], axis(0)),
            Err(MathError::Empty { shape: vec![usize::MAX, 0], axis: 0 })
        );
        assert_eq!(of(&[0, 3], axis(0)), Ok(0));
        assert_eq!(of(&[0], Granularity::PerTensor), Ok(1));
        assert_eq!(of(&[], Granularity::PerTensor), Ok(1));
    }

    #[test]
    fn lengths_are_checked() {
        let layout = Layout::of(&[2, 3], Granularity::PerAxis { axis: 1 }).unwrap();
        assert_eq!(layout.check(6, 3), Ok(()));
        assert_eq!(
            layout.check(5, 3),
            Err(MathError::Length { what: "elements", found: 5, expected: 6 })
        );
        assert_eq!(
            layout.check(6, 2),
            Err(MathError::Length { what: "scales", found: 2, expected: 3 })
        );
        assert_eq!(layout.check_packed(3, QType::Int4, 3), Ok(()));
        let bytes = MathError::Length { what: "bytes", found: 6, expected: 3 };
        assert_eq!(layout.check_packed(6, QType::Int4, 3), Err(bytes));
    }
}
