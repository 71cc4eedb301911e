//! The quantization error of each group of a tensor for several candidate parameters.

use rayon::prelude::*;

use super::params_per_element::{Lanes, Table};
use super::quantize::{Grid, Integers};
use crate::float_source::Element;
use crate::layout::Piece;
use crate::{FloatSource, Layout, Params, QSpec};

/// The minimum number of elements per parallel task.
const TASK: usize = 1 << 16;

/// For each of several `choices` of parameters, the sum over each group of the squared differences
/// between the elements and their values after [`reference::quantize`](super::reference::quantize)
/// and dequantizing.
///
/// Each choice has one entry per group of `layout`; the type has at most 16 bits. Sums are computed
/// in f64 over tasks of a fixed size and added in order: the result does not depend on the number
/// of threads.
pub(crate) fn squared_errors<const N: usize>(
    data: FloatSource<'_>,
    layout: &Layout,
    choices: [&[Params]; N],
    spec: &QSpec,
) -> [Vec<f64>; N] {
    // The midpoint of a grid of few bits is always within the limits of a table.
    let tables = choices
        .map(|params| Table::of(layout, params, spec.qtype, spec.grid()).unwrap_or_default());
    match spec.qtype.format() {
        Some(grid) => Groups { layout, tables, grid }.all(data),
        None => Groups { layout, tables, grid: Integers::of(spec) }.all(data),
    }
}

struct Groups<'a, G, const N: usize> {
    layout: &'a Layout,
    tables: [Table; N],
    grid: G,
}

impl<G: Grid + Sync, const N: usize> Groups<'_, G, N> {
    fn all(&self, data: FloatSource<'_>) -> [Vec<f64>; N] {
        match data {
            FloatSource::Slice(values) => self.errors(values),
            FloatSource::LittleEndian(values) => self.errors(values),
        }
    }

    fn errors(&self, data: &[impl Element]) -> [Vec<f64>; N] {
        let layout = self.layout;
        // Each task has accumulators for every group, so it must have enough elements to be worth
        // it.
        let task = if layout.recurs() { TASK.max(4 * layout.groups()) } else { TASK };
        let parts: Vec<_> = data
            .par_chunks(task)
            .enumerate()
            .map(|(index, part)| self.errors_in(part, index * task))
            .collect();
        let mut total: [Vec<f64>; N] = [(); N].map(|()| vec![0.0; layout.groups()]);
        for (first, part) in parts {
            for (total, part) in total.iter_mut().zip(part) {
                for (group, error) in part.into_iter().enumerate() {
                    total[(first + group) % layout.groups()] += error;
                }
            }
        }
        total
    }

    /// The first group of the elements from flat index `start` on, and the errors of that group and
    /// of those after it.
    fn errors_in(&self, part: &[impl Element], start: usize) -> (usize, [Vec<f64>; N]) {
        let pieces = || self.layout.cut().pieces(start, part.len());
        let end = |piece: Piece| piece.group + if piece.each { piece.len } else { 1 };
        let (first, end) =
            pieces().fold((usize::MAX, 0), |(low, high), p| (low.min(p.group), high.max(end(p))));
        let mut errors = [(); N].map(|()| vec![0.0; end.saturating_sub(first)]);
        for piece in pieces() {
            let x = &part[piece.start..][..piece.len];
            for (errors, table) in errors.iter_mut().zip(&self.tables) {
                let errors = &mut errors[piece.group - first..];
                if piece.each {
                    self.add_each(x, table.each(piece), errors);
                } else {
                    errors[0] += self.sum(x, table.same(piece));
                }
            }
        }
        (first, errors)
    }

    #[inline]
    fn add_each(&self, x: &[impl Element], lanes: impl Lanes, errors: &mut [f64]) {
        for (i, (x, error)) in x.iter().zip(errors).enumerate() {
            *error += self.squared(x.value(), lanes, i);
        }
    }

    /// The sum, in lanes that are added in a fixed order.
    #[inline]
    fn sum(&self, x: &[impl Element], lanes: impl Lanes) -> f64 {
        const LANES: usize = 8;
        let mut sums = [0.0; LANES];
        let (rows, rest) = x.as_chunks::<LANES>();
        for row in rows {
            for lane in 0..LANES {
                sums[lane] += self.squared(row[lane].value(), lanes, 0);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += self.squared(x.value(), lanes, 0);
        }
        sums.iter().sum()
    }

    #[inline]
    fn squared(&self, x: f32, lanes: impl Lanes, i: usize) -> f64 {
        let (_, steps) = self.grid.land(x / lanes.scale(i), lanes.zero(i));
        let difference = f64::from(x) - f64::from(steps * lanes.scale(i));
        difference * difference
    }
}
