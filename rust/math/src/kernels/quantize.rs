//! Quantization in chunks, with error metrics.

use std::marker::PhantomData;

use rayon::prelude::*;

use super::params_per_element::{Lanes, Table};
use super::sum_preserving;
use super::sum_preserving::SumGroups;
use super::{pack, reference};
use crate::float_source::Element;
use crate::metrics::{CHUNK, Measure, Sums};
use crate::rounding::MAGIC;
use crate::simd::{SimdLoop, vectorized};
use crate::{FloatSource, Granularity, Layout, Metrics, Minifloat, Params, QSpec};

/// Quantizes a tensor to ONNX `raw_data`: `saturate(round_half_even(x / scale) + zero_point)`; for
/// floats, the codes of `x / scale`.
///
/// `params` has one entry per group of `layout`, `data` one element per element of the shape
/// ([`Layout::check`]). The result has [`QType::packed_len`](crate::QType::packed_len) bytes: 16
/// and 32 bits little endian, 4 and 2 bits packed over the flat C-order index, low bits first.
/// Equals [`reference::quantize`].
pub fn quantize<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
) -> Vec<u8> {
    let data = data.into();
    let mut bytes = vec![0; spec.qtype.packed_len(data.len())];
    match data {
        FloatSource::Slice(values) => encode::<_, ()>(values, layout, params, spec, &mut bytes),
        FloatSource::LittleEndian(values) => {
            encode::<_, ()>(values, layout, params, spec, &mut bytes)
        }
    };
    bytes
}

/// [`quantize`], and the [`metrics`](crate::metrics()) of the dequantized tensor relative to
/// `data`, in one pass over the data.
pub fn quantize_measured<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
) -> (Vec<u8>, Metrics) {
    let data = data.into();
    let mut bytes = vec![0; spec.qtype.packed_len(data.len())];
    let metrics = quantize_measured_into(data, layout, params, spec, &mut bytes);
    (bytes, metrics)
}

/// [`quantize_measured`] into `bytes`, which must have the length of the result.
pub fn quantize_measured_into<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
    bytes: &mut [u8],
) -> Metrics {
    let data = data.into();
    measured_into(data, layout, params, spec, bytes).metrics(data.len())
}

fn measured_into(
    data: FloatSource<'_>,
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
    bytes: &mut [u8],
) -> Sums {
    Sums::total(match data {
        FloatSource::Slice(values) => encode::<_, Sums>(values, layout, params, spec, bytes),
        FloatSource::LittleEndian(values) => encode::<_, Sums>(values, layout, params, spec, bytes),
    })
}

/// [`quantize_measured_into`] with sum-preserving rounding: integers are adjusted by one step so
/// that the errors of elements that are summed cancel out.
///
/// The error of a layer's output is `Σ e·x`, where `e` are the errors of its weights and `x` are
/// its inputs. As far as the inputs are equal, that is `x·Σe`, and rounding to the nearest leaves
/// `Σe` to chance. So the element with the largest gain is rounded in the other direction, then the
/// next, as long as `Σe² + Σ(Σe)²` over all elements, parts and groups decreases, with errors in
/// units of the scale. For elements near the midpoint between two integers that costs little. Guo
/// et al., "`SQuant`: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation", ICLR
/// 2022, derive from the Hessian that sums over kernels and channels should be preserved; they
/// round kernel by kernel and then channel by channel.
///
/// Zeros stay zero, and elements with an error below a quarter of a step keep their integer. Only
/// integers of up to 8 bits are adjusted: steps of wider integers are negligible, and those of
/// floats are not equally long. Equals [`reference::preserve_sums`] after [`reference::quantize`];
/// the result does not depend on the number of threads.
///
/// ```
/// use quantize_rs_math::{
///     Granularity, Layout, Params, QSpec, QType, SumGroups, quantize_preserving_sums_into,
/// };
/// let spec = QSpec::new(QType::Int8, true, Granularity::PerTensor);
/// let layout = Layout::of(&[4], spec.granularity)?;
/// let unit = [Params { scale: 1.0, zero_point: 0 }];
/// let summed = SumGroups { groups: layout.clone(), part: None };
/// let mut bytes = [0; 4];
/// let data = [1.2, 2.2, 3.45, 4.2];
/// quantize_preserving_sums_into(&data, &layout, &unit, &spec, Some(&summed), &mut bytes);
/// assert_eq!(bytes, [1, 2, 4, 4]); // the sum is 11, of 11.05; nearest rounding gives 10
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn quantize_preserving_sums_into<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
    summed: Option<&SumGroups>,
    bytes: &mut [u8],
) -> Metrics {
    let data = data.into();
    let sums = match summed.filter(|_| !spec.qtype.is_float() && spec.qtype.bits() <= 8) {
        Some(summed) => {
            let group = data.len() / summed.groups.groups().max(1);
            assert_eq!(layout.check(data.len(), params.len()), Ok(()));
            assert_eq!(summed.groups.elements(), data.len(), "elements of the groups");
            assert!(
                summed.part.is_none_or(|part| part > 0 && group % part == 0),
                "parts of groups"
            );
            assert_eq!(bytes.len(), spec.qtype.packed_len(data.len()), "bytes of the integers");
            sum_preserving::quantize(data, (layout, params), spec, summed, bytes)
        }
        None => measured_into(data, layout, params, spec, bytes),
    };
    sums.metrics(data.len())
}

/// Quantizes `data` with one scale and dequantizes it.
pub fn fake_quantize(data: &[f32], params: Params, spec: &QSpec) -> Vec<f32> {
    let Ok(layout) = Layout::of(&[data.len()], Granularity::PerTensor) else {
        return Vec::new();
    };
    let bytes = quantize(data, &layout, &[params], spec);
    crate::dequantize(&bytes, &layout, &[params], spec.qtype)
}

/// Quantizes in chunks of a fixed size, and measures each chunk against its dequantized values.
pub(super) fn encode<X: Element, M: Measure<X>>(
    data: &[X],
    layout: &Layout,
    params: &[Params],
    spec: &QSpec,
    bytes: &mut [u8],
) -> Vec<M::Output> {
    assert_eq!(layout.check(data.len(), params.len()), Ok(()));
    let chunks = Chunks::of(layout, params, spec);
    assert_eq!(bytes.len(), spec.qtype.packed_len(data.len()), "bytes of the integers");
    let one = |scratch: &mut Scratch, (index, (x, bytes)): (usize, (&[X], &mut [u8]))| {
        vectorized(Chunk {
            chunks: &chunks,
            x,
            start: index * CHUNK,
            scratch,
            bytes,
            measure: PhantomData::<M>,
        })
    };
    if data.len() <= CHUNK {
        vec![one(&mut Scratch::default(), (0, (data, bytes)))]
    } else {
        let bytes = bytes.par_chunks_mut(spec.qtype.packed_len(CHUNK));
        let chunks = data.par_chunks(CHUNK).zip(bytes).enumerate();
        chunks.map_init(Scratch::default, one).collect()
    }
}

/// What all chunks of a tensor have in common.
pub(super) struct Chunks<'a> {
    layout: &'a Layout,
    params: &'a [Params],
    spec: &'a QSpec,
    table: Option<Table>,
}

/// A chunk, the flat index of its first element, and its output.
struct Chunk<'a, X, M> {
    chunks: &'a Chunks<'a>,
    x: &'a [X],
    start: usize,
    scratch: &'a mut Scratch,
    bytes: &'a mut [u8],
    measure: PhantomData<M>,
}

impl<X: Element, M: Measure<X>> SimdLoop for Chunk<'_, X, M> {
    type Output = M::Output;

    #[inline(always)]
    fn run(self) -> M::Output {
        let Chunk { chunks, x, start, scratch, bytes, .. } = self;
        M::measured(x, chunks.encode(x, start, scratch, bytes))
    }
}

/// Working memory for a chunk: integers before packing, and their dequantized values.
#[derive(Default)]
pub(super) struct Scratch {
    narrow: Vec<u8>,
    wide: Vec<u16>,
    floats: Vec<f32>,
}

/// The output of a chunk: its bytes, their dequantized values, and room for codes before packing.
struct Written<'a> {
    narrow: &'a mut Vec<u8>,
    wide: &'a mut Vec<u16>,
    floats: &'a mut [f32],
    bytes: &'a mut [u8],
}

impl<'a> Chunks<'a> {
    pub(super) fn of(layout: &'a Layout, params: &'a [Params], spec: &'a QSpec) -> Chunks<'a> {
        Chunks { layout, params, spec, table: Table::of(layout, params, spec.qtype, spec.grid()) }
    }

    /// Writes the bytes of the elements from flat index `start` on, and returns their dequantized
    /// values.
    #[inline(always)]
    pub(super) fn encode<'s>(
        &self,
        x: &[impl Element],
        start: usize,
        scratch: &'s mut Scratch,
        bytes: &mut [u8],
    ) -> &'s [f32] {
        let Scratch { narrow, wide, floats } = scratch;
        floats.resize(x.len(), 0.0);
        let Some(table) = &self.table else {
            self.encode_by_definition(x, start, bytes, floats);
            return floats;
        };
        let into = Written { narrow, wide, floats, bytes };
        match self.spec.qtype.format() {
            Some(format) => self.encode_as(table, format, x, start, into),
            None => self.encode_as(table, Integers::of(self.spec), x, start, into),
        }
        floats
    }

    /// Writes the codes of a grid, with the width of their type.
    #[inline(always)]
    fn encode_as(
        &self,
        table: &Table,
        grid: impl Grid,
        x: &[impl Element],
        start: usize,
        into: Written<'_>,
    ) {
        let Written { narrow, wide, floats, bytes } = into;
        match self.spec.qtype.bits() {
            8 => self.encode_with(table, grid, x, start, bytes, floats),
            bits @ 0..8 => {
                narrow.resize(x.len(), 0);
                self.encode_with(table, grid, x, start, narrow, floats);
                pack::pack_into(narrow, bits, bytes);
            }
            _ => {
                wide.resize(x.len(), 0);
                self.encode_with(table, grid, x, start, wide, floats);
                for (bytes, code) in bytes.as_chunks_mut().0.iter_mut().zip(wide) {
                    *bytes = code.to_le_bytes();
                }
            }
        }
    }

    #[inline(always)]
    fn encode_with<C: Code>(
        &self,
        table: &Table,
        grid: impl Grid,
        x: &[impl Element],
        start: usize,
        codes: &mut [C],
        floats: &mut [f32],
    ) {
        for piece in self.layout.cut().pieces(start, x.len()) {
            let at = piece.start..piece.start + piece.len;
            let (x, codes, floats) = (&x[at.clone()], &mut codes[at.clone()], &mut floats[at]);
            if piece.each {
                quantize_run(x, table.each(piece), grid, codes, floats);
            } else {
                quantize_run(x, table.same(piece), grid, codes, floats);
            }
        }
    }

    fn encode_by_definition(
        &self,
        x: &[impl Element],
        start: usize,
        bytes: &mut [u8],
        floats: &mut [f32],
    ) {
        bytes.fill(0);
        for (index, x) in x.iter().enumerate() {
            let params = self.params[self.layout.group_of(start + index)];
            let q = reference::quantize_one(x.value(), params, self.spec);
            reference::store(bytes, index, q, self.spec.qtype);
            floats[index] = reference::dequantize_one(q, params, self.spec.qtype);
        }
    }
}

/// The low bits of a word.
trait Code {
    fn low(word: u32) -> Self;
}

impl Code for u8 {
    #[inline(always)]
    fn low(word: u32) -> u8 {
        word as u8
    }
}

impl Code for u16 {
    #[inline(always)]
    fn low(word: u32) -> u16 {
        word as u16
    }
}

/// Maps quotients to codes.
pub(super) trait Grid: Copy {
    /// The code of a number of steps from 0, in the low bits, and the number of steps that it
    /// represents; `zero` is the code of 0.
    fn land(self, steps: f32, zero: f32) -> (u32, f32);
}

impl Grid for Minifloat {
    #[inline(always)]
    fn land(self, steps: f32, _: f32) -> (u32, f32) {
        let code = self.encode(steps);
        (u32::from(code), self.decode(code))
    }
}

/// Integers from `lo` to `hi`.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    lo: f32,
    hi: f32,
}

impl Integers {
    pub(super) fn of(spec: &QSpec) -> Integers {
        let (lo, hi) = spec.grid();
        Integers { lo: lo as f32, hi: hi as f32 }
    }
}

impl Grid for Integers {
    /// The definition rounds, adds the zero point and saturates to `[lo, hi]`. Here the quotient is
    /// first clamped to `[lo - zero, hi - zero]`. Both bounds are integers, which rounding does not
    /// change, and rounding is monotone: a quotient beyond a bound rounds to the bound or beyond,
    /// one within rounds to within. So `round(clamp(t)) = clamp(round(t))`, and adding `zero` gives
    /// the definition. After clamping, f32 represents every number here exactly. A comparison with
    /// NaN is false, so NaN becomes `lo`.
    #[inline(always)]
    fn land(self, steps: f32, zero: f32) -> (u32, f32) {
        let (lo, hi) = (self.lo - zero, self.hi - zero);
        let steps = if steps > lo { steps } else { lo };
        let steps = if steps < hi { steps } else { hi };
        let rounded = steps + MAGIC;
        ((rounded + zero).to_bits(), rounded - MAGIC)
    }
}

/// Quantizes a run of elements: writes their codes and their dequantized values.
#[inline(always)]
fn quantize_run<C: Code>(
    x: &[impl Element],
    lanes: impl Lanes,
    grid: impl Grid,
    codes: &mut [C],
    floats: &mut [f32],
) {
    let len = x.len();
    let (codes, floats) = (&mut codes[..len], &mut floats[..len]);
    for i in 0..len {
        let scale = lanes.scale(i);
        let (code, steps) = grid.land(x[i].value() / scale, lanes.zero(i));
        codes[i] = C::low(code);
        floats[i] = steps * scale;
    }
}
