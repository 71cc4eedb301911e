//! The scale and the zero point of each element of a run: shared, or one per element.

use crate::layout::Piece;
use crate::{Layout, Params, QType};

/// Parameters as float vectors, laid out for the kernels.
#[derive(Default)]
pub(crate) struct Table {
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

/// The scale and zero point of element `i` of a run.
pub(crate) trait Lanes: Copy {
    fn scale(self, i: usize) -> f32;
    fn zero(self, i: usize) -> f32;
}

/// All elements share one.
#[derive(Clone, Copy)]
pub(crate) struct Same {
    scale: f32,
    zero: f32,
}

/// Every element has its own.
#[derive(Clone, Copy)]
pub(crate) struct Each<'a> {
    scales: &'a [f32],
    zeros: &'a [f32],
}

impl Lanes for Same {
    #[inline(always)]
    fn scale(self, _: usize) -> f32 {
        self.scale
    }

    #[inline(always)]
    fn zero(self, _: usize) -> f32 {
        self.zero
    }
}

impl Lanes for Each<'_> {
    #[inline(always)]
    fn scale(self, i: usize) -> f32 {
        self.scales[i]
    }

    #[inline(always)]
    fn zero(self, i: usize) -> f32 {
        self.zeros[i]
    }
}

impl Table {
    /// The table for a layout and integers from `lo` to `hi`. `None` if these or a zero point
    /// exceed what the kernels' float arithmetic represents exactly. Floats have no ends to which
    /// zero points are added.
    pub(crate) fn of(
        layout: &Layout,
        params: &[Params],
        qtype: QType,
        (lo, hi): (i32, i32),
    ) -> Option<Table> {
        // Integers up to this one, and sums of two of them, are exact in f32 and within the range
        // of `MAGIC`.
        const LIMIT: i64 = 1 << 20;
        let (lo, hi) = if qtype.is_float() { (0, 0) } else { (lo, hi) };
        let near = |bound: i64| (-LIMIT..=LIMIT).contains(&bound);
        let fits = |p: &Params| {
            near(i64::from(lo)) && near(i64::from(hi)) && near(i64::from(p.zero_point))
        };
        if !params.iter().all(fits) {
            return None;
        }
        let tiled = |value: fn(&Params) -> f32| {
            std::iter::repeat_n(params, layout.tiles()).flatten().map(value).collect::<Vec<_>>()
        };
        Some(Table { scales: tiled(|p| p.scale), zeros: tiled(|p| p.zero_point as f32) })
    }

    #[inline(always)]
    pub(crate) fn same(&self, piece: Piece) -> Same {
        Same { scale: self.scales[piece.group], zero: self.zeros[piece.group] }
    }

    #[inline(always)]
    pub(crate) fn each(&self, piece: Piece) -> Each<'_> {
        Each {
            scales: &self.scales[piece.group..][..piece.len],
            zeros: &self.zeros[piece.group..][..piece.len],
        }
    }
}
