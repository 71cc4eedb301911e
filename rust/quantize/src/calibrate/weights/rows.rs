//! The rows of a value that a layer multiplies by its weight.

// Positions in values of less than 2³² elements.
#![allow(clippy::cast_possible_truncation)]

use quantize_rs_onnx::NodeProto;
use serde::Serialize;

/// Where the rows of a value lie.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) enum Rows {
    /// Along the last axis.
    Last,
    /// Along the axis before the last.
    SecondLast,
    /// Along the second axis, the channels of an image; a group of channels each.
    Channels,
    /// The elements that a kernel covers, at each of its positions.
    Patches(Window),
}

/// The kernel of a convolution.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Window {
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    padding: Padding,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
enum Padding {
    /// The begins, then the ends.
    Explicit(Vec<usize>),
    /// So that there are as many positions as elements by stride; an odd one at the end or begin.
    Same { upper: bool },
}

/// Samples with fewer rows do not show which of their rows are small; they count as they are.
const MIN_ROWS: usize = 4;

/// Rows this much smaller than the root mean square of all rows of a sample count less: they may
/// be padding.
const SMALL_ROW: f64 = 1.0 / 16.0;

impl Rows {
    /// What the rows of a sample are multiplied by before they count, `None` for 1.
    ///
    /// Rows of matrices are tokens or examples, and a normalization often scales each by its own
    /// size afterwards. So the error of each counts relative to the row. Otherwise a few tokens
    /// with large values decide how all weights are rounded.
    pub(crate) fn factors(&self, rows: &[f32], depth: usize) -> Option<Vec<f32>> {
        if !matches!(self, Rows::Last | Rows::SecondLast) {
            return None;
        }
        let energy = |row: &[f32]| row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
        let each: Vec<f64> = rows.chunks(depth.max(1)).map(energy).collect();
        if each.len() < MIN_ROWS {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of rows")]
        let least = each.iter().sum::<f64>() / each.len() as f64 * SMALL_ROW * SMALL_ROW;
        #[expect(clippy::cast_precision_loss, reason = "the length of a row")]
        let factor = |energy: f64| (depth as f64 / (energy + least)).sqrt() as f32;
        let factors: Vec<f32> = each.into_iter().map(factor).collect();
        factors.iter().all(|factor| factor.is_finite()).then_some(factors)
    }

    /// Multiplies each row by its factor.
    pub(crate) fn scale(rows: &mut [f32], depth: usize, factors: Option<&[f32]>) {
        for (row, factor) in rows.chunks_mut(depth.max(1)).zip(factors.unwrap_or_default()) {
            for x in row {
                *x *= factor;
            }
        }
    }
}

impl Window {
    /// The window of a `Conv` node. `None` if an attribute has an unusual length or sign.
    pub(crate) fn of(node: &NodeProto, kernel: &[usize]) -> Option<Window> {
        let axes = kernel.len();
        let list = |name: &str, count: usize, usual: usize| {
            let Some(given) = node.attribute(name) else { return Some(vec![usual; count]) };
            let found: Option<Vec<usize>> =
                given.ints.iter().map(|number| usize::try_from(*number).ok()).collect();
            found.filter(|found| found.len() == count)
        };
        let strides = list("strides", axes, 1)?;
        let dilations = list("dilations", axes, 1)?;
        let positive = |all: &[usize]| all.iter().all(|number| *number > 0);
        if !(positive(kernel) && positive(&strides) && positive(&dilations)) {
            return None;
        }
        let auto = node.attribute("auto_pad").and_then(|attribute| attribute.s.as_deref());
        let padding = match auto.unwrap_or(b"NOTSET") {
            b"SAME_UPPER" => Padding::Same { upper: true },
            b"SAME_LOWER" => Padding::Same { upper: false },
            b"VALID" => Padding::Explicit(vec![0; 2 * axes]),
            _ => Padding::Explicit(list("pads", 2 * axes, 0)?),
        };
        Some(Window { kernel: kernel.to_vec(), strides, dilations, padding })
    }

    /// The number of elements of the kernel.
    pub(crate) fn elements(&self) -> usize {
        self.kernel.iter().product()
    }

    /// The number of positions along an axis, and the padding before its first element. `None` for
    /// numbers that no value has.
    fn positions(&self, axis: usize, length: usize) -> Option<(usize, usize)> {
        let covered = self.dilations[axis].checked_mul(self.kernel[axis] - 1)?.checked_add(1)?;
        let stride = self.strides[axis];
        Some(match &self.padding {
            Padding::Explicit(pads) => {
                let (begin, end) = (pads[axis], pads[self.kernel.len() + axis]);
                let padded = length.checked_add(begin)?.checked_add(end)?;
                (padded.checked_sub(covered).map_or(0, |rest| rest / stride + 1), begin)
            }
            Padding::Same { upper } => {
                let count = length.div_ceil(stride);
                let all = (count.saturating_sub(1)).checked_mul(stride)?.checked_add(covered)?;
                let total = all.saturating_sub(length);
                (count, if *upper { total / 2 } else { total.div_ceil(2) })
            }
        })
    }
}

/// The rows of one sample that are used: of `total` rows at most `limit`, spread evenly. Which ones
/// depends on `key`, so that samples differ.
fn chosen(total: usize, limit: usize, key: u64) -> impl Iterator<Item = usize> {
    let count = total.min(limit.max(1));
    // `count ≤ total`, so that no row is used twice.
    let offset = if count < total { usize::try_from(key % total as u64).unwrap_or(0) } else { 0 };
    (0..count).map(move |at| (at.saturating_mul(total) / count + offset) % total)
}

/// How rows are read from a value.
pub(crate) struct RowReader<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) groups: usize,
    pub(crate) depth: usize,
    /// The most rows of each group.
    pub(crate) limit: usize,
    pub(crate) key: u64,
    /// Which positions of the first two axes count; the others are padding.
    pub(crate) mask: Option<(&'a [usize], &'a [bool])>,
}

/// The position of an element in the padding.
const ZERO: u32 = u32::MAX;

/// Where the elements of the rows lie in a value: the same for each group but for an offset.
pub(crate) struct Places {
    /// The elements of all rows of the first group, one row after the other; [`ZERO`] is a 0.
    /// Values of as many elements are never seen: they take 16 GB.
    elements: Vec<u32>,
    /// What a group adds to the positions of the group before.
    group_stride: usize,
}

impl Places {
    /// Appends the rows of a group.
    pub(crate) fn gather(&self, values: &[f32], group: usize, to: &mut Vec<f32>) {
        let values = values.get(group * self.group_stride..).unwrap_or_default();
        // The padding is behind all elements.
        let read = |at: &u32| values.get(*at as usize).copied().unwrap_or(0.0);
        to.extend(self.elements.iter().map(read));
    }
}

impl RowReader<'_> {
    /// Where the rows lie in a value of this shape. `None` if it does not fit the layer.
    pub(crate) fn places(&self, shape: &[usize], values: &[f32]) -> Option<Places> {
        let fits = shape.iter().product::<usize>() == values.len();
        if !fits || values.is_empty() || values.len() >= ZERO as usize {
            return None;
        }
        match self.rows {
            Rows::Last => self.last(shape, values.len()),
            Rows::SecondLast => self.second_last(shape, values.len()),
            Rows::Channels => {
                let axes = shape.len().checked_sub(2)?;
                let padding = Padding::Explicit(vec![0; 2 * axes]);
                let ones = || vec![1; axes];
                let (kernel, strides, dilations) = (ones(), ones(), ones());
                self.patches(&Window { kernel, strides, dilations, padding }, shape)
            }
            Rows::Patches(window) => self.patches(window, shape),
        }
    }

    fn last(&self, shape: &[usize], len: usize) -> Option<Places> {
        let depth = *shape.last().filter(|depth| **depth == self.depth)?;
        let total = len / depth;
        let rows: Vec<usize> = match self.mask {
            Some((axes, mask)) if shape.len() > 2 && shape[..2] == *axes => {
                let each = total / mask.len().max(1);
                (0..total).filter(|row| mask[row / each.max(1)]).collect()
            }
            _ => (0..total).collect(),
        };
        let chosen = chosen(rows.len(), self.limit, self.key).map(|at| rows[at]);
        let of_row = |row: usize| (row * depth..(row + 1) * depth).map(|at| at as u32);
        let elements = chosen.flat_map(of_row).collect();
        Some(Places { elements, group_stride: 0 })
    }

    fn second_last(&self, shape: &[usize], len: usize) -> Option<Places> {
        let &[.., depth, columns] = shape else { return None };
        if depth != self.depth || columns == 0 {
            return None;
        }
        let of_row = |at: usize| {
            let first = at / columns * depth * columns + at % columns;
            (0..depth).map(move |element| (first + element * columns) as u32)
        };
        let elements = chosen(len / depth, self.limit, self.key).flat_map(of_row).collect();
        Some(Places { elements, group_stride: 0 })
    }

    fn patches(&self, window: &Window, shape: &[usize]) -> Option<Places> {
        let &[batch, channels, ref lengths @ ..] = shape else { return None };
        let axes = window.kernel.len();
        let own = channels / self.groups;
        let covered: usize = window.kernel.iter().product();
        if lengths.len() != axes || channels % self.groups != 0 || own * covered != self.depth {
            return None;
        }
        let along = (0..axes).map(|axis| window.positions(axis, lengths[axis]));
        let along: Vec<(usize, usize)> = along.collect::<Option<_>>()?;
        let (counts, before): (Vec<usize>, Vec<usize>) = along.into_iter().unzip();
        let plane: usize = lengths.iter().product();
        let positions = counts.iter().try_fold(1_usize, |all, count| all.checked_mul(*count))?;
        let kernel = offsets(&window.kernel);
        let total = batch.checked_mul(positions)?;
        let mut elements = Vec::with_capacity(total.min(self.limit) * self.depth);
        // Where each element of the kernel reads in the plane.
        let mut reads: Vec<u32> = vec![ZERO; covered];
        for at in chosen(total, self.limit, self.key) {
            let (image, mut position) = (at / positions, at % positions);
            let mut first = vec![0; axes];
            for axis in (0..axes).rev() {
                first[axis] = position % counts[axis] * window.strides[axis];
                position /= counts[axis];
            }
            for (read, offset) in reads.iter_mut().zip(&kernel) {
                let along = |axis: usize| {
                    let at = first[axis] + offset[axis] * window.dilations[axis];
                    at.checked_sub(before[axis]).filter(|at| *at < lengths[axis])
                };
                *read = (0..axes)
                    .try_fold(0, |flat, axis| Some(flat * lengths[axis] + along(axis)?))
                    .map_or(ZERO, |at| at as u32);
            }
            for channel in 0..own {
                let first = ((image * channels + channel) * plane) as u32;
                let read = |at: &u32| if *at == ZERO { ZERO } else { first + at };
                elements.extend(reads.iter().map(read));
            }
        }
        Some(Places { elements, group_stride: own * plane })
    }
}

/// The positions within a kernel, in C order.
fn offsets(kernel: &[usize]) -> Vec<Vec<usize>> {
    kernel.iter().fold(vec![Vec::new()], |all, length| {
        let longer = |offset: Vec<usize>| {
            (0..*length).map(move |at| {
                let mut offset = offset.clone();
                offset.push(at);
                offset
            })
        };
        all.into_iter().flat_map(longer).collect()
    })
}

#[cfg(test)]
// Small counts.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
mod tests {
    use quantize_rs_onnx::{AttributeProto, Raw};

    use super::*;

    fn read(rows: &Rows, groups: usize, depth: usize, shape: &[usize]) -> Option<Vec<Vec<f32>>> {
        let values: Vec<f32> = (1..=shape.iter().product::<usize>()).map(|at| at as f32).collect();
        let reader = RowReader { rows, groups, depth, limit: usize::MAX, key: 3, mask: None };
        let places = reader.places(shape, &values)?;
        let of_group = |group: usize| {
            let mut rows = Vec::new();
            places.gather(&values, group, &mut rows);
            rows
        };
        Some((0..groups).map(of_group).collect())
    }

    fn conv(attributes: Vec<AttributeProto>) -> NodeProto {
        let attributes = attributes.into_iter().map(Raw::new).collect();
        NodeProto::new("", "Conv", Vec::new(), vec!["y".to_owned()], attributes)
    }

    #[test]
    fn matrices_are_read_along_either_axis() {
        assert_eq!(read(&Rows::Last, 1, 3, &[2, 3]).unwrap(), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
        assert_eq!(
            read(&Rows::SecondLast, 1, 2, &[2, 2, 2]).unwrap(),
            [[1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]],
        );
        assert_eq!(read(&Rows::Last, 1, 4, &[2, 3]), None);
        assert_eq!(read(&Rows::SecondLast, 1, 3, &[3]), None);
    }

    #[test]
    fn rows_of_matrices_count_relative_to_their_size() {
        // Three of one size, one a hundred times as large, one of padding.
        let mut rows = [[3.0, 4.0], [-4.0, 3.0], [5.0, 0.0], [300.0, 400.0], [1e-6, 0.0]].concat();
        let factors = Rows::Last.factors(&rows, 2).unwrap();
        Rows::scale(&mut rows, 2, Some(&factors));
        let size = |row: &[f32]| (row[0] * row[0] + row[1] * row[1]).sqrt();
        let sizes: Vec<f32> = rows.chunks(2).map(size).collect();
        let [first, second, third, large, padding] = sizes[..] else { panic!("{sizes:?}") };
        assert!(first == second && second == third, "{sizes:?}");
        // 2 elements with a root mean square of 1.
        assert!((large - 2.0_f32.sqrt()).abs() < 0.01 && large / first < 4.0, "{sizes:?}");
        assert!(padding < 1e-6, "{sizes:?}");
        // Equal rows: the floor is a part of each.
        let equal = Rows::SecondLast.factors(&[1.0; 8], 2).unwrap();
        assert!(equal.iter().all(|x| (x - 16.0 / 257.0_f32.sqrt()).abs() < 1e-6), "{equal:?}");
        assert_eq!(Rows::Last.factors(&[0.0; 16], 2), None);
        assert_eq!(Rows::Last.factors(&[f32::NAN; 16], 2), None);
        // Of a sample with one row it is not known whether it is small.
        assert_eq!(Rows::Last.factors(&[1e-4, 2e-4], 2), None);
        assert_eq!(Rows::Channels.factors(&[1.0, 9.0, 1.0, 1.0], 1), None);
    }

    #[test]
    fn padding_does_not_count() {
        let values: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let reader = |counts| RowReader {
            rows: &Rows::Last,
            groups: 1,
            depth: 2,
            limit: 9,
            key: 0,
            mask: Some((&[2, 3], counts)),
        };
        let counts = [true, true, false, true, false, false];
        let read = |shape: &[usize]| {
            let mut rows = Vec::new();
            reader(&counts).places(shape, &values).unwrap().gather(&values, 0, &mut rows);
            rows
        };
        assert_eq!(read(&[2, 3, 2]), [0.0, 1.0, 2.0, 3.0, 6.0, 7.0]);
        // A value with other leading axes has no padding.
        assert_eq!(read(&[3, 2, 2]).len(), 12);
    }

    #[test]
    fn channels_are_read_at_each_position() {
        let found = read(&Rows::Channels, 2, 1, &[1, 2, 3]).unwrap();
        assert_eq!(found, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    }

    #[test]
    fn patches_are_those_of_the_convolution() {
        // The naive loop over output positions, channels and kernel positions.
        let (channels, height, width) = (4, 5, 6);
        for (kernel, strides, dilations, pads, groups) in [
            ([3, 3], [1, 1], [1, 1], [1, 1, 1, 1], 1),
            ([3, 2], [2, 1], [1, 2], [0, 2, 1, 0], 2),
            ([1, 1], [1, 1], [1, 1], [0, 0, 0, 0], 4),
            ([2, 3], [3, 2], [2, 1], [2, 0, 0, 1], 1),
        ] {
            let node = conv(vec![
                AttributeProto::ints("strides", &strides.map(|at: i64| at)),
                AttributeProto::ints("dilations", &dilations.map(|at: i64| at)),
                AttributeProto::ints("pads", &pads.map(|at: i64| at)),
            ]);
            let lengths = kernel.map(|length: i64| length as usize);
            let window = Window::of(&node, &lengths).unwrap();
            let own = channels / groups;
            let depth = own * lengths[0] * lengths[1];
            let shape = [2, channels, height, width];
            let found = read(&Rows::Patches(window), groups, depth, &shape).unwrap();
            let size = |axis: usize, length: usize| {
                (length as i64 + pads[axis] + pads[axis + 2]
                    - dilations[axis] * (kernel[axis] - 1)
                    - 1)
                    / strides[axis]
                    + 1
            };
            for (group, found) in found.iter().enumerate() {
                let mut expected = Vec::new();
                for image in 0..2 {
                    for top in 0..size(0, height) {
                        for left in 0..size(1, width) {
                            for channel in group * own..(group + 1) * own {
                                for row in 0..kernel[0] {
                                    for column in 0..kernel[1] {
                                        let y = top * strides[0] + row * dilations[0] - pads[0];
                                        let x = left * strides[1] + column * dilations[1] - pads[1];
                                        let inside = (0..height as i64).contains(&y)
                                            && (0..width as i64).contains(&x);
                                        let plane = (image * channels + channel) as i64;
                                        let at = (plane * height as i64 + y) * width as i64 + x;
                                        expected.push(if inside { (at + 1) as f32 } else { 0.0 });
                                    }
                                }
                            }
                        }
                    }
                }
                assert_eq!(*found, expected, "{kernel:?} {strides:?} {dilations:?} {pads:?}");
            }
        }
    }

    #[test]
    fn padding_of_the_same_size_is_put_at_the_end_or_the_begin() {
        let node = |auto: &str| {
            conv(vec![
                AttributeProto::string("auto_pad", auto),
                AttributeProto::ints("strides", &[2]),
            ])
        };
        let positions =
            |auto: &str| Window::of(&node(auto), &[4]).unwrap().positions(0, 7).unwrap();
        assert_eq!(positions("SAME_UPPER"), (4, 1));
        assert_eq!(positions("SAME_LOWER"), (4, 2));
        assert_eq!(positions("VALID"), (2, 0));
    }

    #[test]
    fn no_row_is_used_twice_and_samples_differ() {
        for (total, limit) in [(10, 3), (7, 7), (100, 33), (5, 9), (0, 4)] {
            let mut found: Vec<usize> = chosen(total, limit, 11).collect();
            assert_eq!(found.len(), total.min(limit));
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), total.min(limit));
            assert!(found.iter().all(|at| *at < total));
        }
        assert_ne!(chosen(100, 3, 1).next(), chosen(100, 3, 2).next());
    }
}
