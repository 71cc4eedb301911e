//! Fake quantization for quantization-aware training: quantizing followed by dequantizing, and its
//! gradients.

use rayon::prelude::*;

use crate::metrics::CHUNK;
use crate::{Layout, Params};

/// The position of an element relative to a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Below,
    Inside,
    Above,
}

/// The position of an element on the grid, in steps from the zero point, and whether it was
/// clamped.
///
/// As in `QuantizeLinear`: a true division, rounding half to even, and NaN becomes the smallest
/// integer.
pub(crate) fn on_grid(x: f32, params: Params, (lo, hi): (i32, i32)) -> (f32, Side) {
    let rounded = f64::from((x / params.scale).round_ties_even());
    let steps = |q: i32| (i64::from(q) - i64::from(params.zero_point)) as f32;
    let shifted = rounded + f64::from(params.zero_point);
    if shifted > f64::from(hi) {
        (steps(hi), Side::Above)
    } else if shifted >= f64::from(lo) {
        (rounded as f32, Side::Inside)
    } else {
        (steps(lo), Side::Below)
    }
}

/// Quantizes `x` to integers from `grid.0` to `grid.1` and dequantizes them. Also returns the mask
/// of the straight-through estimator: true where nothing was clipped.
///
/// `params` has one entry per group of `layout`, `x` one element per element of the shape
/// ([`Layout::check`]). Equals [`dequantize`](crate::dequantize) of [`quantize`](crate::quantize).
///
/// ```
/// use quantize_rs_math::{Granularity, Layout, Params, QType, fake_quantize_masked};
/// let layout = Layout::of(&[3], Granularity::PerTensor)?;
/// let params = [Params { scale: 0.5, zero_point: 0 }];
/// let grid = (QType::Int8.min(), QType::Int8.max());
/// let (y, mask) = fake_quantize_masked(&[0.6, -1.0, 99.0], &layout, &params, grid);
/// assert_eq!((y, mask), (vec![0.5, -1.0, 63.5], vec![true, true, false]));
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn fake_quantize_masked(
    x: &[f32],
    layout: &Layout,
    params: &[Params],
    grid: (i32, i32),
) -> (Vec<f32>, Vec<bool>) {
    assert_eq!(layout.check(x.len(), params.len()), Ok(()));
    let (mut y, mut mask) = (vec![0.0; x.len()], vec![false; x.len()]);
    let chunks = y.par_chunks_mut(CHUNK).zip(mask.par_chunks_mut(CHUNK)).enumerate();
    chunks.for_each(|(chunk, (y, mask))| {
        let start = chunk * CHUNK;
        each(layout, start, y.len(), |i, group| {
            let (steps, side) = on_grid(x[start + i], params[group], grid);
            (y[i], mask[i]) = (steps * params[group].scale, side == Side::Inside);
        });
    });
    (y, mask)
}

/// As [`fake_quantize_masked`] without the mask, but with stochastic rounding: an element at the
/// fraction `frac` between two levels is rounded up with the probability
/// `frac^(1/t) / (frac^(1/t) + (1 - frac)^(1/t))`.
///
/// At the temperature `t = 1` that is `frac`, so that the expected value is the element itself; as
/// `t` approaches 0 it becomes rounding to the nearest, half to even. The random number of each
/// element depends only on `seed` and its index, so that the result does not depend on the number
/// of threads.
pub fn fake_quantize_stochastic(
    x: &[f32],
    layout: &Layout,
    params: &[Params],
    (lo, hi): (i32, i32),
    temperature: f64,
    seed: u64,
) -> Vec<f32> {
    assert_eq!(layout.check(x.len(), params.len()), Ok(()));
    let mut y = vec![0.0; x.len()];
    y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
        let start = chunk * CHUNK;
        each(layout, start, y.len(), |i, group| {
            let Params { scale, zero_point } = params[group];
            let at = f64::from(x[start + i] / scale);
            let rounded = up_or_down(at, temperature, uniform(seed, (start + i) as u64));
            let zero_point = f64::from(zero_point);
            let q = (rounded + zero_point).max(f64::from(lo)).min(f64::from(hi));
            y[i] = (q - zero_point) as f32 * scale;
        });
    });
    y
}

fn up_or_down(at: f64, temperature: f64, random: f64) -> f64 {
    let down = at.floor();
    let frac = at - down;
    if temperature == 0.0 || frac == 0.0 || !frac.is_finite() {
        return at.round_ties_even();
    }
    // The same as in the definition, in a form in which powers of small numbers do not underflow.
    let odds = ((1.0 - frac).ln() - frac.ln()) / temperature;
    down + f64::from(u8::from(random < 1.0 / (1.0 + odds.exp())))
}

/// A number in [0, 1) for each index: `SplitMix64`, which has no state except its counter.
fn uniform(seed: u64, index: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    // Consecutive seeds must not give shifted sequences.
    let z = mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(index.wrapping_mul(GOLDEN)));
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

/// The gradients of a loss with respect to the inputs of fake quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// One per element.
    pub x: Vec<f32>,
    /// One per group, for the scale.
    pub scale: Vec<f64>,
    /// One per group, for the zero point.
    pub zero_point: Vec<f64>,
}

/// Propagates `gradient`, the gradient of a loss with respect to the result of
/// [`fake_quantize_masked`], back to its inputs with the straight-through estimator of LSQ (Esser
/// et al., 2020) and LSQ+ (Bhalgat et al., 2020).
///
/// | | inside the grid | clipped to the end `q` |
/// |---|---|---|
/// | dy/dx | 1 | 0 |
/// | dy/dscale | `round(x / scale) - x / scale` | `q - zero_point` |
/// | `dy/dzero_point` | 0 | `-scale` |
///
/// Sums are computed in f64 over spans whose length depends on the tensor, and added in order: the
/// result does not depend on the number of threads. They are not scaled by the number of elements.
pub fn fake_quantize_gradients(
    x: &[f32],
    gradient: &[f32],
    layout: &Layout,
    params: &[Params],
    grid: (i32, i32),
) -> Gradients {
    assert_eq!(layout.check(x.len(), params.len()), Ok(()));
    assert_eq!(x.len(), gradient.len(), "elements of the two tensors");
    let mut of_x = vec![0.0; x.len()];
    let stretch = stretch(x.len());
    let groups = layout.groups();
    let parts: Vec<Vec<[f64; 2]>> = of_x
        .par_chunks_mut(stretch)
        .enumerate()
        .map(|(index, of_x)| {
            let (start, mut sums) = (index * stretch, vec![[0.0; 2]; groups]);
            each(layout, start, of_x.len(), |i, group| {
                let (x, gradient) = (x[start + i], gradient[start + i]);
                let (scale, zero_point, passes) = slopes(x, params[group], grid);
                of_x[i] = if passes { gradient } else { 0.0 };
                sums[group][0] += f64::from(gradient) * scale;
                sums[group][1] += f64::from(gradient) * zero_point;
            });
            sums
        })
        .collect();
    let mut sums = vec![[0.0; 2]; groups];
    for part in parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum = [sum[0] + part[0], sum[1] + part[1]];
        }
    }
    let scale = sums.iter().map(|sum| sum[0]).collect();
    let zero_point = sums.iter().map(|sum| sum[1]).collect();
    Gradients { x: of_x, scale, zero_point }
}

/// The derivatives of the result of an element with respect to the scale and to the zero point, and
/// whether the gradient of the element passes.
pub(crate) fn slopes(x: f32, params: Params, grid: (i32, i32)) -> (f64, f64, bool) {
    let (steps, side) = on_grid(x, params, grid);
    if side == Side::Inside {
        let at = f64::from(x) / f64::from(params.scale);
        (f64::from(steps) - at, 0.0, true)
    } else {
        (f64::from(steps), -f64::from(params.scale), false)
    }
}

/// Elements per span, so that a tensor has few enough spans for each to have its own sums.
pub(crate) fn stretch(elements: usize) -> usize {
    elements.div_ceil(64).max(CHUNK)
}

/// The elements of a span from `start` on, as pairs of the index in the span and the group.
pub(crate) fn each(layout: &Layout, start: usize, len: usize, mut visit: impl FnMut(usize, usize)) {
    let groups = layout.groups();
    for piece in layout.cut().pieces(start, len) {
        for i in 0..piece.len {
            let group = piece.group + if piece.each { i } else { 0 };
            visit(piece.start + i, group % groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QSpec, QType, dequantize, quantize};

    fn per_tensor(elements: usize) -> Layout {
        Layout::of(&[elements], Granularity::PerTensor).unwrap()
    }

    /// Values around a grid of `scale`, ties and values that are not finite included.
    fn values(elements: usize) -> Vec<f32> {
        let one = |i: usize| match i % 97 {
            90 => f32::NAN,
            91 => f32::INFINITY,
            92 => f32::NEG_INFINITY,
            _ => (uniform(7, i as u64) as f32 - 0.5) * 40.0,
        };
        let halved = |(i, x): (usize, f32)| if i % 5 == 0 { (x * 4.0).round() / 4.0 } else { x };
        (0..elements).map(one).enumerate().map(halved).collect()
    }

    #[test]
    fn fake_quantization_equals_dequantize_of_quantize_and_the_mask_marks_clipping() {
        let shape = [3, 5, 4111];
        let x = values(shape.iter().product());
        for granularity in [
            Granularity::PerTensor,
            Granularity::PerAxis { axis: 1 },
            Granularity::PerAxis { axis: 2 },
            Granularity::Blocked { axis: 2, block_size: 32 },
        ] {
            for qtype in [QType::Int8, QType::UInt8, QType::Int4, QType::UInt16] {
                let layout = Layout::of(&shape, granularity).unwrap();
                let zero_point = i32::midpoint(qtype.min(), qtype.max());
                let scale = |group: usize| 0.01 + (group % 7) as f32 * 0.05;
                let params: Vec<Params> = (0..layout.groups())
                    .map(|group| Params { scale: scale(group), zero_point })
                    .collect();
                let spec = QSpec::new(qtype, false, granularity);
                let expected =
                    dequantize(&quantize(&x, &layout, &params, &spec), &layout, &params, qtype);
                let (y, mask) = fake_quantize_masked(&x, &layout, &params, spec.grid());
                assert_eq!(y, expected, "{qtype} {granularity:?}");
                for (i, (x, passes)) in x.iter().zip(mask).enumerate() {
                    let scale = params[layout.group_of(i)].scale;
                    let q = (x / scale).round_ties_even() + zero_point as f32;
                    assert_eq!(passes, q >= qtype.min() as f32 && q <= qtype.max() as f32, "{x}");
                }
            }
        }
    }

    /// The result for parameters near `params`, with the rounding error held constant:
    /// `round(x / scale)` is `x / scale` plus a constant.
    fn surrogate(x: f32, params: Params, (lo, hi): (i32, i32), scale: f64, zero_point: f64) -> f64 {
        let (_, side) = on_grid(x, params, (lo, hi));
        let at = f64::from(x) / f64::from(params.scale);
        let off = at.round_ties_even() - at;
        let q = match side {
            Side::Below => f64::from(lo),
            Side::Inside => f64::from(x) / scale + off + zero_point,
            Side::Above => f64::from(hi),
        };
        (q - zero_point) * scale
    }

    #[test]
    fn gradients_are_the_finite_differences_of_the_straight_through_surrogate() {
        let grid = (-8, 7);
        let x: Vec<f32> = (0..500_u16).map(|i| (f32::from(i) - 250.0) * 0.013).collect();
        let gradient: Vec<f32> = (0..500_u16).map(|i| f32::from(i % 13) - 5.0).collect();
        let params = [Params { scale: 0.25, zero_point: 1 }, Params { scale: 0.4, zero_point: -2 }];
        let layout = Layout::of(&[2, 250], Granularity::PerAxis { axis: 0 }).unwrap();
        let found = fake_quantize_gradients(&x, &gradient, &layout, &params, grid);
        let (_, mask) = fake_quantize_masked(&x, &layout, &params, grid);
        assert!(mask.iter().any(|passes| *passes) && mask.iter().any(|passes| !*passes));
        for (i, passes) in mask.iter().enumerate() {
            assert_eq!(found.x[i], if *passes { gradient[i] } else { 0.0 });
        }
        let step = 1e-5;
        for (group, given) in params.into_iter().enumerate() {
            let loss = |scale: f64, zero_point: f64| -> f64 {
                let elements = group * 250..(group + 1) * 250;
                let one = |i: usize| {
                    f64::from(gradient[i]) * surrogate(x[i], given, grid, scale, zero_point)
                };
                elements.map(one).sum()
            };
            let (s, z) = (f64::from(given.scale), f64::from(given.zero_point));
            let by_scale = (loss(s + step, z) - loss(s - step, z)) / (2.0 * step);
            let by_zero_point = (loss(s, z + step) - loss(s, z - step)) / (2.0 * step);
            assert!((found.scale[group] - by_scale).abs() < 1e-4 * by_scale.abs().max(1.0));
            assert!(
                (found.zero_point[group] - by_zero_point).abs()
                    < 1e-4 * by_zero_point.abs().max(1.0)
            );
        }
    }

    #[test]
    fn stochastic_rounding_is_unbiased_and_nearest_at_temperature_0() {
        let (grid, params) = ((-128, 127), [Params { scale: 0.1, zero_point: 3 }]);
        let n = 200_000;
        let layout = per_tensor(n);
        let mean = |temperature| {
            let y =
                fake_quantize_stochastic(&vec![0.23; n], &layout, &params, grid, temperature, 1);
            y.iter().map(|y| f64::from(*y)).sum::<f64>() / n as f64
        };
        // 0.23 is at the fraction 0.3 between 0.2 and 0.3. The standard error of the mean is 0.1 ·
        // √(0.3 · 0.7 / n) ≈ 1e-4; the tolerance is four times that.
        assert!((mean(1.0) - 0.23).abs() < 4e-4, "{}", mean(1.0));
        // At ½: 0.3² / (0.3² + 0.7²) = 0.155.
        assert!((mean(0.5) - (0.2 + 0.1 * 0.09 / 0.58)).abs() < 4e-4, "{}", mean(0.5));
        let x: Vec<f32> = values(n).into_iter().map(|x| if x.is_nan() { 0.0 } else { x }).collect();
        let nearest = fake_quantize_stochastic(&x, &layout, &params, grid, 0.0, 1);
        assert_eq!(nearest, fake_quantize_masked(&x, &layout, &params, grid).0);
    }

    #[test]
    fn random_numbers_depend_on_the_seed_and_not_on_threads() {
        let (grid, params) = ((-128, 127), [Params { scale: 0.1, zero_point: 0 }]);
        let x: Vec<f32> = (0..70_000).map(|i| (uniform(3, i) as f32 - 0.5) * 20.0).collect();
        let layout = per_tensor(x.len());
        let of = |seed| fake_quantize_stochastic(&x, &layout, &params, grid, 1.0, seed);
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(of(5), one.install(|| of(5)));
        assert_ne!(of(5), of(6));
        let gradients = || fake_quantize_gradients(&x, &x, &layout, &params, grid);
        assert_eq!(gradients(), one.install(gradients));
    }
}
