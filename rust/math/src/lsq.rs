//! Learned step size quantization (LSQ): scales and zero points that minimize the mean squared
//! error by gradient descent.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::kernels::fake::{each, on_grid, slopes, stretch};
use crate::{Layout, Params};

/// Options of [`learn_scale`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LsqOptions {
    /// The number of steps.
    pub steps: usize,
    /// The learning rate of a scale, relative to the scale.
    pub scale_lr: f64,
    /// The learning rate of a zero point, in integers; 0 keeps it fixed.
    pub zero_point_lr: f64,
}

impl Default for LsqOptions {
    fn default() -> LsqOptions {
        LsqOptions { steps: 100, scale_lr: 0.01, zero_point_lr: 0.01 }
    }
}

/// The result of [`learn_scale`].
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedParams {
    /// The best parameters found for each group.
    pub params: Vec<Params>,
    /// The mean squared error of the initial parameters.
    pub mse_before: f64,
    /// The mean squared error of `params`, which is not larger than `mse_before`.
    pub mse: f64,
}

/// Finds scales and zero points whose mean squared error of fake quantization of `x` is smaller
/// than that of `params`, with the gradients of
/// [`fake_quantize_gradients`](crate::fake_quantize_gradients).
///
/// Each group is optimized separately with Adam (Kingma and Ba, 2015). Scales are measured relative
/// to their initial values, so that the result does not depend on the unit of `x`. Between steps a
/// zero point need not be an integer; it is rounded where it is used. The best parameters of each
/// group are kept. Returns `None` if `stop` is set before the end.
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use quantize_rs_math::{Granularity, Layout, LsqOptions, Params, learn_scale};
/// let x: Vec<f32> = (0..1000_u16).map(|i| (f32::from(i) * 0.1).sin().powi(5)).collect();
/// let layout = Layout::of(&[1000], Granularity::PerTensor)?;
/// let start = [Params { scale: 1.0 / 7.0, zero_point: 0 }];
/// let stop = AtomicBool::new(false); // another thread may set it
/// let found = learn_scale(&x, &layout, &start, (-8, 7), LsqOptions::default(), &stop);
/// assert!(found.is_some_and(|found| found.mse < found.mse_before));
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn learn_scale(
    x: &[f32],
    layout: &Layout,
    params: &[Params],
    grid: (i32, i32),
    learning: LsqOptions,
    stop: &AtomicBool,
) -> Option<LearnedParams> {
    assert_eq!(layout.check(x.len(), params.len()), Ok(()));
    let mut groups: Vec<Group> = params.iter().map(|params| Group::new(*params)).collect();
    let mut before = 0.0;
    for step in 0..=learning.steps {
        let now: Vec<Params> = groups.iter().map(|group| group.params(grid)).collect();
        let slopes = measured(x, layout, &now, grid, stop)?;
        if step == 0 {
            before = slopes.iter().map(|slope| slope.error).sum();
        }
        for ((group, params), slope) in groups.iter_mut().zip(now).zip(slopes) {
            group.note(params, &slope);
            group.advance(&slope, step, learning);
        }
    }
    let elements = x.len().max(1) as f64;
    let after: f64 = groups.iter().map(|group| group.best.0).sum();
    Some(LearnedParams {
        params: groups.iter().map(|group| group.best.1).collect(),
        mse_before: before / elements,
        mse: after / elements,
    })
}

/// The squared error of a group, and its gradient.
#[derive(Clone, Copy, Debug, Default)]
struct Slope {
    elements: usize,
    error: f64,
    by_scale: f64,
    by_zero_point: f64,
}

/// The error of each group, as sums over spans that are added in order; `None` if `stop` is set.
fn measured(
    x: &[f32],
    layout: &Layout,
    params: &[Params],
    grid: (i32, i32),
    stop: &AtomicBool,
) -> Option<Vec<Slope>> {
    let stretch = stretch(x.len());
    let parts: Option<Vec<Vec<Slope>>> = x
        .par_chunks(stretch)
        .enumerate()
        .map(|(index, x)| {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            let mut sums = vec![Slope::default(); params.len()];
            each(layout, index * stretch, x.len(), |i, group| {
                let (x, params, sum) = (x[i], params[group], &mut sums[group]);
                let (steps, _) = on_grid(x, params, grid);
                let error = f64::from(steps * params.scale) - f64::from(x);
                let (by_scale, by_zero_point, _) = slopes(x, params, grid);
                sum.elements += 1;
                sum.error += error * error;
                sum.by_scale += 2.0 * error * by_scale;
                sum.by_zero_point += 2.0 * error * by_zero_point;
            });
            Some(sums)
        })
        .collect();
    let mut total = vec![Slope::default(); params.len()];
    for part in parts? {
        for (sum, part) in total.iter_mut().zip(part) {
            sum.elements += part.elements;
            sum.error += part.error;
            sum.by_scale += part.by_scale;
            sum.by_zero_point += part.by_zero_point;
        }
    }
    Some(total)
}

/// The state of one group.
struct Group {
    start: Params,
    /// The scale, relative to its initial value.
    ratio: f64,
    zero_point: f64,
    moments: [Moment; 2],
    best: (f64, Params),
}

/// The running means of a gradient and of its square (Adam).
#[derive(Clone, Copy, Default)]
struct Moment {
    mean: f64,
    square: f64,
}

impl Group {
    fn new(start: Params) -> Group {
        let zero_point = f64::from(start.zero_point);
        let moments = [Moment::default(); 2];
        Group { start, ratio: 1.0, zero_point, moments, best: (f64::INFINITY, start) }
    }

    fn params(&self, (lo, hi): (i32, i32)) -> Params {
        let scale = (self.ratio * f64::from(self.start.scale)) as f32;
        let zero_point = self.zero_point.round_ties_even().clamp(f64::from(lo), f64::from(hi));
        let scale = scale.abs().max(f32::MIN_POSITIVE).copysign(scale);
        Params { scale, zero_point: zero_point as i32 }
    }

    fn note(&mut self, params: Params, slope: &Slope) {
        if slope.error < self.best.0 {
            self.best = (slope.error, params);
        }
    }

    fn advance(&mut self, slope: &Slope, step: usize, learning: LsqOptions) {
        /// The smallest ratio of a scale to its initial value.
        const MIN_RATIO: f64 = 1.0 / 1024.0;
        let unit = f64::from(self.start.scale);
        let elements = slope.elements.max(1) as f64;
        // The loss is the mean squared error, in units of the initial scale.
        let by_ratio = slope.by_scale / elements / unit;
        let by_zero_point = slope.by_zero_point / elements / unit / unit;
        self.ratio -= learning.scale_lr * self.moments[0].direction(by_ratio, step);
        self.ratio = self.ratio.max(MIN_RATIO);
        self.zero_point -= learning.zero_point_lr * self.moments[1].direction(by_zero_point, step);
    }
}

impl Moment {
    /// The update direction, with a magnitude of about 1.
    fn direction(&mut self, gradient: f64, step: usize) -> f64 {
        const DECAY: (f64, f64) = (0.9, 0.999);
        self.mean = DECAY.0 * self.mean + (1.0 - DECAY.0) * gradient;
        self.square = DECAY.1 * self.square + (1.0 - DECAY.1) * gradient * gradient;
        let so_far = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let mean = self.mean / (1.0 - DECAY.0.powi(so_far));
        let square = self.square / (1.0 - DECAY.1.powi(so_far));
        mean / (square.sqrt() + 1e-12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, Range, fake_quantize_masked, metrics};

    /// A bell-shaped tensor with a few outliers; its second half is ten times as large.
    fn bell() -> Vec<f32> {
        let one = |i: u16| {
            let x = f32::from(i % 1000) / 500.0 - 1.0;
            x * x * x * if i < 1000 { 3.0 } else { 30.0 }
        };
        (0..2000).map(one).collect()
    }

    fn learned(x: &[f32], layout: &Layout, start: &[Params], how: LsqOptions) -> LearnedParams {
        let go_on = AtomicBool::new(false);
        learn_scale(x, layout, start, (-8, 7), how, &go_on).expect("a result")
    }

    fn start(x: &[f32], layout: &Layout) -> Vec<Params> {
        let ranges = crate::ranges(x, layout);
        ranges
            .into_iter()
            .map(|r: Range| Params { scale: r.absmax() / 7.0, zero_point: 0 })
            .collect()
    }

    #[test]
    fn the_error_decreases_and_is_that_of_the_result() {
        let x = bell();
        for granularity in [Granularity::PerTensor, Granularity::PerAxis { axis: 0 }] {
            let layout = Layout::of(&[2, 1000], granularity).unwrap();
            let start = start(&x, &layout);
            let found = learned(&x, &layout, &start, LsqOptions::default());
            assert!(found.mse < 0.9 * found.mse_before, "{granularity:?} {found:?}");
            for (params, mse) in [(&start, found.mse_before), (&found.params, found.mse)] {
                let (y, _) = fake_quantize_masked(&x, &layout, params, (-8, 7));
                assert!((metrics(&x, &y).mse / mse - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_error_never_increases_from_any_start() {
        let x = bell();
        let layout = Layout::of(&[2000], Granularity::PerTensor).unwrap();
        for scale in [1e-3, 0.5, 4.0, 1e4, -0.5] {
            for zero_point in [-8, 0, 7] {
                for scale_lr in [0.01, 10.0] {
                    let learning = LsqOptions { steps: 20, scale_lr, ..LsqOptions::default() };
                    let params = [Params { scale, zero_point }];
                    let found = learned(&x, &layout, &params, learning);
                    assert!(found.mse <= found.mse_before, "{scale} {zero_point} {scale_lr}");
                    assert!(found.params[0].scale * scale > 0.0);
                }
            }
        }
    }

    #[test]
    fn the_unit_does_not_matter_and_an_asymmetric_tensor_moves_the_zero_point() {
        let x: Vec<f32> = bell().into_iter().map(|x| x.abs() + 0.5).collect();
        let layout = Layout::of(&[2000], Granularity::PerTensor).unwrap();
        let learning = LsqOptions { zero_point_lr: 0.2, ..LsqOptions::default() };
        let run = |unit: f32| {
            let x: Vec<f32> = x.iter().map(|x| x * unit).collect();
            let params = [Params { scale: unit, zero_point: 0 }];
            learned(&x, &layout, &params, learning)
        };
        // Powers of two cause no rounding.
        let (one, tiny) = (run(1.0), run(2_f32.powi(-30)));
        assert_eq!(one.params[0].zero_point, tiny.params[0].zero_point);
        assert_eq!(one.params[0].scale * 2_f32.powi(-30), tiny.params[0].scale);
        assert!(one.params[0].zero_point < -2, "{one:?}");
        let fixed = LsqOptions { zero_point_lr: 0.0, ..learning };
        let found = learned(&x, &layout, &[Params { scale: 1.0, zero_point: 0 }], fixed);
        assert_eq!(found.params[0].zero_point, 0);
    }

    #[test]
    fn nothing_is_returned_once_stop_is_set() {
        let x = bell();
        let layout = Layout::of(&[2000], Granularity::PerTensor).unwrap();
        let (start, how) = (start(&x, &layout), LsqOptions::default());
        let stop = AtomicBool::new(true);
        assert_eq!(learn_scale(&x, &layout, &start, (-8, 7), how, &stop), None);
    }
}
