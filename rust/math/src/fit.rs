//! The scales of a tensor at hand: where a grid leaves a choice, its elements decide.

use crate::kernels::squared_errors;
use crate::params::{choices, lopsided};
use crate::{Floats, Layout, Params, QSpec, Range, params};

/// The params of every group of `data`, whose `ranges` are known.
///
/// They are those of [`params`], but for symmetric types of up to 4 bits. Their full grid has one step more below 0 than
/// above, which is an eighth of it or a half. Whoever gives that step to the side of the largest element makes all steps
/// finer, and clips what is almost as large on the other side; whoever clips nothing keeps what has but a few values
/// exact, such as -1, 0 and 1. Of these two and the way between them each group takes the one with the least squared
/// error. None clips by more than a step: a scale that does may be nearer to the weights, and is further from what the
/// model makes of them.
///
/// ```
/// use quantize_rs_math::{Granularity, Layout, QSpec, QType, fit, ranges};
/// let spec = QSpec { flips: true, ..QSpec::new(QType::Int2, true, Granularity::PerAxis { axis: 0 }) };
/// let layout = Layout::of(&[2, 4], spec.granularity)?;
/// let data = [-1.0, 0.0, 1.0, 1.0, 0.1, -0.9, 2.0, 0.8];
/// let scales: Vec<f32> = fit(&data, &layout, &ranges(&data, &layout), &spec).iter().map(|p| p.scale).collect();
/// assert_eq!(scales, [1.0, -1.0]);
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn fit<'a>(
    data: impl Into<Floats<'a>>,
    layout: &Layout,
    ranges: &[Range],
    spec: &QSpec,
) -> Vec<Params> {
    let data = data.into();
    assert_eq!(layout.check(data.len(), ranges.len()), Ok(()));
    if !lopsided(spec) {
        return ranges.iter().map(|range| params(*range, spec)).collect();
    }
    let all: Vec<[Params; 3]> = ranges.iter().map(|range| choices(*range, spec)).collect();
    let each = [0, 1, 2].map(|choice| all.iter().map(|all| all[choice]).collect::<Vec<_>>());
    let errors = squared_errors(data, layout, each.each_ref().map(Vec::as_slice), spec);
    let best = |group: usize| {
        let least = |a: usize, b: usize| if errors[b][group] < errors[a][group] { b } else { a };
        each[least(least(0, 1), 2)][group]
    };
    (0..ranges.len()).map(best).collect()
}
