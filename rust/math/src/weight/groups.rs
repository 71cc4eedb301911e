//! Iterates over the groups of a tensor, with the elements of each group in order.

use rayon::prelude::*;

use crate::float_source::Element;
use crate::{Granularity, Layout};

/// Consecutive groups; `first` is the index of the first.
pub(super) struct Groups<'a, X> {
    pub(super) first: usize,
    /// Elements per group; the last may have fewer.
    pub(super) depth: usize,
    pub(super) elements: Elements<'a, X>,
}

/// The elements of groups, group by group.
pub(super) enum Elements<'a, X> {
    /// They are contiguous in memory.
    InPlace(&'a [X]),
    /// They were copied to be contiguous.
    Gathered(&'a [f32]),
    /// Each group is a column of rows.
    Columns(Rows<'a, X>),
}

/// The number of elements of a task of small groups.
const TASK: usize = 1 << 14;

/// Columns processed together: as many as one or two cache lines of a row hold.
pub(super) const TILE: usize = 32;

/// Up to [`TILE`] columns of rows, `apart` elements from row to row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, X> {
    data: &'a [X],
    apart: usize,
    /// The number of rows.
    pub(super) depth: usize,
    /// The number of columns.
    pub(super) count: usize,
}

impl<'a, X: Element> Rows<'a, X> {
    /// One row.
    #[inline(always)]
    pub(super) fn row(self, row: usize) -> &'a [X] {
        &self.data[row * self.apart..][..self.count]
    }

    /// The elements, column by column.
    pub(super) fn gathered(self) -> Vec<f32> {
        let rows = (0..self.depth).map(|row| self.row(row));
        gathered(rows, self.count, 1)
    }
}

/// Applies `f` to each group, and returns the results in the order of the groups. `f` gets several
/// small groups at once.
pub(super) fn map_groups<X: Element, T: Send>(
    data: &[X],
    layout: &Layout,
    f: impl Fn(Groups<'_, X>) -> Vec<T> + Sync,
) -> Vec<T> {
    let (outer, axis_len, inner) = layout.sides();
    let slab = axis_len * inner;
    let in_place = |first, depth, x| f(Groups { first, depth, elements: Elements::InPlace(x) });
    // Groups of the same size, one after the other.
    let contiguous = |depth: usize| {
        let depth = depth.max(1);
        let count = (TASK / depth).max(1);
        let tasks = data.par_chunks(count * depth).enumerate();
        tasks.flat_map_iter(|(at, x)| in_place(at * count, depth, x)).collect()
    };
    match layout.granularity() {
        Granularity::PerTensor => in_place(0, data.len(), data),
        Granularity::PerAxis { .. } if outer == 1 => contiguous(inner),
        // Every slab has the same groups: a group consists of a span of each slab.
        Granularity::PerAxis { .. } => tiles(axis_len, |first, count| {
            let stretches = (0..outer).map(|o| &data[o * slab + first * inner..][..count * inner]);
            let floats = gathered(stretches, count, inner);
            f(Groups { first, depth: outer * inner, elements: Elements::Gathered(&floats) })
        }),
        Granularity::Blocked { block_size, .. } if inner == 1 && axis_len % block_size == 0 => {
            contiguous(block_size)
        }
        Granularity::Blocked { block_size, .. } if inner == 1 => {
            let blocks = axis_len.div_ceil(block_size);
            let rows = data.par_chunks(axis_len.max(1)).enumerate();
            rows.flat_map_iter(|(row, x)| in_place(row * blocks, block_size, x)).collect()
        }
        Granularity::Blocked { block_size, .. } => {
            let blocks = axis_len.div_ceil(block_size);
            let block = |at: usize| {
                let (o, from) = (at / blocks, at % blocks * block_size);
                let depth = block_size.min(axis_len - from);
                let made: Vec<T> = (0..inner)
                    .step_by(TILE)
                    .flat_map(|first| {
                        let data = &data[o * slab + from * inner + first..];
                        let count = TILE.min(inner - first);
                        let rows = Rows { data, apart: inner, depth, count };
                        let elements = Elements::Columns(rows);
                        f(Groups { first: at * inner + first, depth, elements })
                    })
                    .collect();
                made
            };
            (0..outer * blocks).into_par_iter().flat_map_iter(block).collect()
        }
    }
}

/// Applies `f` to tiles of `len` groups, each with its first group and its count.
fn tiles<T: Send>(len: usize, f: impl Fn(usize, usize) -> Vec<T> + Sync) -> Vec<T> {
    let tiles = (0..len.div_ceil(TILE)).into_par_iter();
    tiles.flat_map_iter(|tile| f(tile * TILE, TILE.min(len - tile * TILE))).collect()
}

/// Copies the elements of `count` groups, of which every span holds `len` elements, group by group.
fn gathered<'a, X: Element + 'a>(
    stretches: impl ExactSizeIterator<Item = &'a [X]>,
    count: usize,
    len: usize,
) -> Vec<f32> {
    let depth = stretches.len() * len;
    let mut floats = vec![0.0; count * depth];
    for (at, stretch) in stretches.enumerate() {
        for (group, part) in stretch.chunks_exact(len.max(1)).enumerate() {
            let into = &mut floats[group * depth + at * len..][..len];
            into.iter_mut().zip(part).for_each(|(float, x)| *float = x.value());
        }
    }
    floats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_what_the_layout_says() {
        for shape in [[3, 5, 7], [2, 4, 1], [1, 1, 1], [1, 6, 2], [4, 3, 90], [90, 1, 3]] {
            let axes = (0..3).map(|axis| Granularity::PerAxis { axis });
            let blocks = (0..3).flat_map(|axis| {
                [1, 2, 4, 99].map(|block_size| Granularity::Blocked { axis, block_size })
            });
            for granularity in axes.chain(blocks).chain([Granularity::PerTensor]) {
                let layout = Layout::of(&shape, granularity).unwrap();
                let data: Vec<f32> = (0_u16..).take(layout.elements()).map(f32::from).collect();
                let mut expected = vec![Vec::new(); layout.groups()];
                for (index, x) in data.iter().enumerate() {
                    expected[layout.group_of(index)].push(*x);
                }
                let found = map_groups(&data, &layout, |Groups { first, depth, elements }| {
                    let x = match elements {
                        Elements::InPlace(x) | Elements::Gathered(x) => x.to_vec(),
                        Elements::Columns(rows) => rows.gathered(),
                    };
                    let groups = x.chunks(depth).map(<[f32]>::to_vec);
                    (first..).zip(groups).collect()
                });
                let expected: Vec<_> = expected.into_iter().enumerate().collect();
                assert_eq!(found, expected, "{shape:?} {granularity:?}");
            }
        }
    }
}
