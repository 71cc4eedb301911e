//! A density estimate from a histogram, and its quantization error.

use crate::stats::Distribution;
use crate::{Minifloat, Params, QSpec, Range, params};

/// Values of a histogram, assumed to be spread evenly over their bins: the number of values below
/// any point, and their moments.
///
/// Zeros are left out, because every grid represents them exactly.
pub(super) struct Density {
    /// The range of the values, which limits the outermost bins.
    range: Range,
    /// The number of values, zeros included.
    count: f64,
    bins_per_unit: f64,
    /// The position of the first bin, in bins from zero.
    first: f64,
    stretches: Vec<Stretch>,
    total: Moments,
}

/// A bin and the moments of the values below it.
struct Stretch {
    from: f64,
    width: f64,
    count: f64,
    below: Moments,
}

/// The number of values, their sum, and the sum of their squares.
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

/// Grids with up to this many steps are summed step by step. The steps of larger grids are finer
/// than a bin, so their rounding error is known in closed form.
const MAX_STEPS: i64 = 1 << 10;

/// The relative difference up to which errors count as equal.
const ROUNDING: f64 = 1e-6;

impl Density {
    pub(super) fn of(values: &Distribution) -> Density {
        let histogram = values.histogram();
        let (range, width) = (values.range(), histogram.width());
        let used =
            |bins: &[u64]| bins.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let (below, above) = (
            &histogram.below()[..used(histogram.below())],
            &histogram.above()[..used(histogram.above())],
        );
        let places = (1..=below.len())
            .rev()
            .map(|bin| -(bin as f64))
            .chain((0..above.len()).map(|bin| bin as f64));
        let counts = below.iter().rev().chain(above);
        let zeros = values.zeros();
        let mut total = Moments::default();
        let stretches = places.zip(counts).map(|(place, &count)| {
            let zeros = if place == 0.0 { zeros } else { 0 };
            let from = (place * width).max(f64::from(range.min));
            let to = ((place + 1.0) * width).min(f64::from(range.max));
            let count = count.saturating_sub(zeros) as f64;
            let stretch = Stretch { from, width: to - from, count, below: total };
            total = total.plus(stretch.part(1.0));
            stretch
        });
        Density {
            stretches: stretches.collect(),
            range,
            count: values.count() as f64,
            bins_per_unit: 1.0 / width,
            first: -(below.len() as f64),
            total,
        }
    }

    /// The mean squared error of quantizing with a range.
    pub(super) fn error(&self, spec: &QSpec, range: Range) -> f64 {
        if self.total.count == 0.0 {
            return 0.0;
        }
        let params = params(range, spec);
        let (lo, hi) = spec.grid();
        let sum = match spec.qtype.format() {
            Some(format) => self.by_step(float_steps(format, params)),
            None if i64::from(hi) - i64::from(lo) <= MAX_STEPS => {
                self.by_step(self.integer_steps(params, (lo, hi)))
            }
            None => self.by_stretch(params, spec),
        };
        // Cancellation can make the result negative.
        sum.max(0.0) / self.count
    }

    /// The number of values below a point, without zeros.
    pub(super) fn below(&self, x: f64) -> f64 {
        self.up_to(x).count
    }

    /// The number of values above a point, without zeros.
    pub(super) fn above(&self, x: f64) -> f64 {
        self.total.count - self.up_to(x).count
    }

    /// As [`error`](Density::error), with the clipping error multiplied by `weight`, but infinite
    /// if that product alone, which is cheap to compute, exceeds `most`.
    pub(super) fn error_up_to(&self, most: f64, weight: f64, spec: &QSpec, range: Range) -> f64 {
        let clipped = self.clipped(params(range, spec), spec) / self.count;
        if weight * clipped > most * (1.0 + ROUNDING) {
            return f64::INFINITY;
        }
        self.error(spec, range) + (weight - 1.0) * clipped
    }

    /// `Σ (x - end)²` over all values beyond the ends of a grid.
    fn clipped(&self, params: Params, spec: &QSpec) -> f64 {
        let ends = params.representable(spec);
        let (min, max) = (f64::from(ends.min), f64::from(ends.max));
        let above = self.total.minus(self.up_to(max));
        self.up_to(min).squared_distance(min) + above.squared_distance(max)
    }

    /// `Σ (x - q)²` over all values `q` of a grid and the values `x` that are rounded to it.
    ///
    /// Each step is a pair of `q` and the point up to which values are rounded to it.
    fn by_step(&self, steps: impl Iterator<Item = (f64, f64)>) -> f64 {
        let mut below = Moments::default();
        let mut error = 0.0;
        let mut steps = steps.peekable();
        while let Some((value, end)) = steps.next() {
            let up_to = if steps.peek().is_some() { self.up_to(end) } else { self.total };
            error += up_to.minus(below).squared_distance(value);
            below = up_to;
        }
        error
    }

    /// The steps of an integer grid, without those beyond the values.
    fn integer_steps(
        &self,
        Params { scale, zero_point }: Params,
        (lo, hi): (i32, i32),
    ) -> impl Iterator<Item = (f64, f64)> {
        let scale = f64::from(scale);
        let nearest = |x: f32| {
            let step = (f64::from(x) / scale).round() + f64::from(zero_point);
            step.clamp(f64::from(lo), f64::from(hi)) as i32
        };
        (nearest(self.range.min)..=nearest(self.range.max)).map(move |q| {
            let value = f64::from(q - zero_point) * scale;
            (value, value + scale / 2.0)
        })
    }

    /// As [`by_step`](Density::by_step) for steps finer than bins: the rounding error is uniformly
    /// distributed.
    fn by_stretch(&self, params: Params, spec: &QSpec) -> f64 {
        let ends = params.representable(spec);
        let (min, max) = (f64::from(ends.min), f64::from(ends.max));
        let scale = f64::from(params.scale);
        let inside = self.up_to(max).minus(self.up_to(min)).count;
        inside * scale * scale / 12.0 + self.clipped(params, spec)
    }

    /// The moments of the values below a point.
    fn up_to(&self, x: f64) -> Moments {
        if x >= f64::from(self.range.max) {
            return self.total;
        }
        let place = (x * self.bins_per_unit).floor() - self.first;
        // The cast saturates, so points below the first bin map to it.
        let Some(stretch) = self.stretches.get(place as usize) else { return self.total };
        let part = if stretch.width > 0.0 { (x - stretch.from) / stretch.width } else { 0.0 };
        stretch.below.plus(stretch.part(part.clamp(0.0, 1.0)))
    }
}

/// The steps of a float grid, which do not depend on the tensor.
fn float_steps(format: Minifloat, params: Params) -> impl Iterator<Item = (f64, f64)> {
    let scale = f64::from(params.scale);
    let values = move || format.values().map(f64::from);
    let next = values().skip(1).chain([f64::INFINITY]);
    values().zip(next).map(move |(value, next)| (value * scale, f64::midpoint(value, next) * scale))
}

impl Stretch {
    /// The moments of the lower part of the values.
    fn part(&self, part: f64) -> Moments {
        let (from, width) = (self.from, self.width * part);
        let count = self.count * part;
        Moments {
            count,
            sum: count * (from + width / 2.0),
            squares: count * (from * from + from * width + width * width / 3.0),
        }
    }
}

impl Moments {
    fn plus(self, other: Moments) -> Moments {
        Moments {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
        }
    }

    fn minus(self, other: Moments) -> Moments {
        Moments {
            count: self.count - other.count,
            sum: self.sum - other.sum,
            squares: self.squares - other.squares,
        }
    }

    /// `Σ (x - to)²`
    fn squared_distance(self, to: f64) -> f64 {
        self.squares - 2.0 * to * self.sum + to * to * self.count
    }
}
