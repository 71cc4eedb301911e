//! From the elements of a weight to its scales and zero points: one file per method.
//!
//! The elements of a weight are available, unlike those of activations, so each group can choose
//! parameters by their actual error.

mod groups;
mod hqq;
pub(crate) mod lanes;
mod minmax;
mod mse;
mod search;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::float_source::Element;
use crate::{FloatSource, Granularity, Layout, MathError, Params, QSpec, Range, params};
use groups::{Elements, map_groups};
use lanes::{Candidates, Ends, LANES, LaneParams, Row};

/// A method of choosing the scale and the zero point of a group of weights.
///
/// ```
/// use quantize_rs_math::WeightMethod;
/// let method: WeightMethod = "mse".parse()?;
/// assert_eq!(method, WeightMethod::Mse);
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WeightMethod {
    /// The grid covers the range of the group, or clips one end by less than a step.
    MinMax,
    /// The smallest squared error; either end may be clipped by about a step.
    Mse,
    /// Half-quadratic quantization: the zero point is optimized for most elements, and outliers may
    /// have large errors.
    Hqq,
}

/// The table row of a method.
struct MethodInfo {
    method: WeightMethod,
    name: &'static str,
    about: &'static str,
    /// Candidates that depend on the elements of the group.
    search: Option<Search>,
}

/// Maps the elements of a group and their range to candidates, with the widest vectors.
type Search = fn(&[f32], Range, &QSpec) -> Choices;

const METHODS: &[MethodInfo] = &[
    MethodInfo {
        method: WeightMethod::MinMax,
        name: "minmax",
        about: "the grid covers the range of a group",
        search: None,
    },
    MethodInfo {
        method: WeightMethod::Mse,
        name: "mse",
        about: "the smallest squared error of a group; may clip either end by a step",
        search: None,
    },
    MethodInfo {
        method: WeightMethod::Hqq,
        name: "hqq",
        about: "half-quadratic quantization; with matmul_nbits, zero points are floats",
        search: Some(hqq::rounded),
    },
];

impl WeightMethod {
    /// All methods.
    pub const ALL: &'static [WeightMethod] =
        &[WeightMethod::MinMax, WeightMethod::Mse, WeightMethod::Hqq];

    /// The default method for weights of this kind.
    ///
    /// Blocks of up to 4 bits use the least squared error: few elements share a scale, and clipping
    /// one of them makes the steps of the others finer. With whole channels, the output of trained
    /// convolutions lost up to 7 dB by it.
    pub fn usual(spec: &QSpec) -> WeightMethod {
        match spec.granularity {
            Granularity::Blocked { .. } if spec.bits() <= 4 => WeightMethod::Mse,
            _ => WeightMethod::MinMax,
        }
    }

    fn info(self) -> &'static MethodInfo {
        METHODS.iter().find(|info| info.method == self).unwrap_or(&METHODS[0])
    }

    /// The name of the method as an option.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Whether the method has better results with float zero points, if a runtime accepts them.
    pub fn has_float_zero_points(self, spec: &QSpec) -> bool {
        self.search(spec).is_some()
    }

    fn search(self, spec: &QSpec) -> Option<Search> {
        self.info().search.filter(|_| hqq::moves(spec))
    }

    /// The candidates of groups with these ranges. They are no column of the table: what is called
    /// through a pointer is not compiled for wide vectors.
    #[inline(always)]
    fn candidates(self, ends: &Ends, spec: &QSpec) -> Candidates {
        let ends = ends.widened();
        match self {
            WeightMethod::Mse => mse::choices(&ends, spec),
            WeightMethod::MinMax | WeightMethod::Hqq => minmax::choices(&ends, spec),
        }
    }

    /// The candidates of one group.
    fn choices(self, range: Range, spec: &QSpec) -> Choices {
        match self.candidates(&Ends::gathered(&[range]), spec).lane(0) {
            Choices { count: 1, .. } => Choices::one(params(range, spec)),
            several => several,
        }
    }

    /// A one-line description.
    pub fn about(self) -> &'static str {
        self.info().about
    }
}

impl fmt::Display for WeightMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightMethod {
    type Err = MathError;

    fn from_str(name: &str) -> Result<WeightMethod, MathError> {
        METHODS.iter().find(|info| info.name == name).map(|info| info.method).ok_or_else(|| {
            let names: Vec<&str> = METHODS.iter().map(|info| info.name).collect();
            MathError::UnknownWeightMethod { name: name.to_owned(), known: names.join(", ") }
        })
    }
}

/// The maximum number of candidates of a group.
const MAX_CHOICES: usize = 5;

/// The candidates of a group: at least one, the default first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    all: [Params; MAX_CHOICES],
    count: usize,
}

impl Choices {
    fn one(params: Params) -> Choices {
        Choices { all: [params; MAX_CHOICES], count: 1 }
    }

    fn with(mut self, params: Params) -> Choices {
        if let Some(next) = self.all.get_mut(self.count) {
            *next = params;
            self.count += 1;
        }
        self
    }

    pub(crate) fn as_slice(&self) -> &[Params] {
        &self.all[..self.count]
    }
}

/// Computes the parameters of each group of `data` from its range, which must be finite.
///
/// Methods with several candidates take the one with the smallest sum of squared errors, the first
/// of equal ones. [`WeightMethod::MinMax`] is [`params`](crate::params()), with two exceptions:
///
/// - Symmetric types of up to 4 bits. Their full grid has one more step below 0 than above, which
///   is an eighth or half of that side. Mapping the largest element to that side makes all steps
///   finer, but clips elements of almost the same size on the other side; a scale that clips
///   nothing represents a group with few distinct values, such as -1, 0 and 1, exactly. The
///   candidates are these two and the scale between them.
/// - Asymmetric types of up to 8 bits, if the range reaches as far on both sides of 0. The second
///   candidate has the zero point in the middle, and not the additional step of one side: -1, 0 and
///   1 are exact there, and between two steps of the whole grid.
///
/// [`WeightMethod::Mse`] may clip either end by one more step.
/// [`WeightMethod::Hqq`] searches a zero point and rounds it; it equals [`WeightMethod::MinMax`] if
/// the zero point is fixed or the type has 16 bits. Results do not depend on the number of threads.
///
/// ```
/// use quantize_rs_math::{Granularity, Layout, QSpec, QType, WeightMethod, fit, ranges};
/// let channels = Granularity::PerAxis { axis: 0 };
/// let spec = QSpec { allows_negative_scale: true, ..QSpec::new(QType::Int2, true, channels) };
/// let layout = Layout::of(&[2, 4], spec.granularity)?;
/// let data = [-1.0, 0.0, 1.0, 1.0, 0.1, -0.9, 2.0, 0.8];
/// let found = fit(&data, &layout, &ranges(&data, &layout), &spec, WeightMethod::MinMax);
/// assert_eq!(found.iter().map(|found| found.scale).collect::<Vec<_>>(), [1.0, -1.0]);
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn fit<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    ranges: &[Range],
    spec: &QSpec,
    method: WeightMethod,
) -> Vec<Params> {
    let data = data.into();
    assert_eq!(layout.check(data.len(), ranges.len()), Ok(()));
    if let Some(search) = method.search(spec).filter(|_| !data.is_empty()) {
        return match data {
            FloatSource::Slice(values) => searched(values, layout, ranges, spec, search),
            FloatSource::LittleEndian(values) => searched(values, layout, ranges, spec, search),
        };
    }
    // Whether there are several candidates depends on the specification, and on whether a range
    // reaches as far on both sides of 0.
    let several = |max| method.choices(Range { min: -1.0, max }, spec).count > 1;
    let balanced = || several(1.0) && ranges.iter().any(|range| minmax::is_balanced(*range));
    if !several(2.0) && !balanced() {
        return ranges.iter().map(|range| params(*range, spec)).collect();
    }
    match data {
        FloatSource::Slice(values) => chosen(values, layout, ranges, spec, method),
        FloatSource::LittleEndian(values) => chosen(values, layout, ranges, spec, method),
    }
}

fn chosen(
    data: &[impl Element],
    layout: &Layout,
    ranges: &[Range],
    spec: &QSpec,
    method: WeightMethod,
) -> Vec<Params> {
    map_groups(data, layout, |groups| {
        let ranges = &ranges[groups.first..];
        match groups.elements {
            Elements::InPlace(x) => search::of_each(x, groups.depth, ranges, spec, method),
            Elements::Gathered(x) => search::of_each(x, groups.depth, ranges, spec, method),
            Elements::Columns(rows) => search::of_columns(rows, ranges, spec, method),
        }
    })
}

fn searched(
    data: &[impl Element],
    layout: &Layout,
    ranges: &[Range],
    spec: &QSpec,
    search: Search,
) -> Vec<Params> {
    map_groups(data, layout, |groups| {
        let found = |(at, x): (usize, &[f32])| {
            search::of(x, search(x, ranges[groups.first + at], spec).as_slice(), spec)
        };
        match groups.elements {
            Elements::InPlace(x) => {
                let x: Vec<f32> = x.iter().map(|x| x.value()).collect();
                x.chunks(groups.depth).enumerate().map(found).collect()
            }
            Elements::Gathered(x) => x.chunks(groups.depth).enumerate().map(found).collect(),
            Elements::Columns(rows) => {
                rows.gathered().chunks(groups.depth).enumerate().map(found).collect()
            }
        }
    })
}

/// The parameters of up to [`LANES`] groups side by side: `count` of them are filled. Call it from
/// code that is already compiled for wide vectors.
#[inline(always)]
pub(crate) fn fit_lanes(
    x: &[Row],
    count: usize,
    ends: &Ends,
    spec: &QSpec,
    method: WeightMethod,
) -> LaneParams {
    let Some(search) = method.search(spec) else {
        return search::of_lanes(x, count, &method.candidates(ends, spec), spec);
    };
    let mut found = LaneParams::UNIT;
    for lane in 0..count.min(LANES) {
        let x: Vec<f32> = x.iter().map(|row| row[lane]).collect();
        let choices = search(&x, ends.lane(lane), spec);
        found.set(lane, search::of(&x, choices.as_slice(), spec));
    }
    found
}

/// The candidates for a group whose range is covered only in part: both ends of the grid, or one of
/// them, are at `kept` of the range. Their number depends on the spec alone.
pub(crate) fn clipped_candidates(range: Range, kept: f32, spec: &QSpec) -> Choices {
    let Range { min, max } = range.finite().widened_to_zero();
    let both = Range { min: min * kept, max: max * kept };
    if spec.symmetric {
        return WeightMethod::MinMax.choices(both, spec);
    }
    let others = [Range { min: both.min, max }, Range { min, max: both.max }];
    others
        .into_iter()
        .fold(Choices::one(params(both, spec)), |all, other| all.with(params(other, spec)))
}

/// The scales and the float zero points of up to [`LANES`] groups side by side: `count` of them are
/// filled.
pub(crate) fn fit_float_zeros(x: &[Row], count: usize, ends: &Ends, spec: &QSpec) -> LaneParams {
    let mut found = LaneParams::UNIT;
    for lane in 0..count.min(LANES) {
        let x: Vec<f32> = x.iter().map(|row| row[lane]).collect();
        let one = hqq::shifted(&x, ends.lane(lane), spec);
        (found.scale[lane], found.zero[lane]) = (one.scale, one.zero_point);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QType;

    #[test]
    fn every_method_has_a_row_and_a_name_that_parses() {
        for method in WeightMethod::ALL {
            assert_eq!(method.info().method, *method);
            assert_eq!(method.name().parse(), Ok(*method));
            assert!(!method.about().is_empty());
            assert_eq!(serde_json::to_string(method).unwrap(), format!("\"{method}\""));
        }
        assert_eq!(WeightMethod::ALL.len(), METHODS.len());
        let error = "absmax".parse::<WeightMethod>().unwrap_err().to_string();
        assert!(error.contains("`absmax`") && error.contains("minmax, mse, hqq"), "{error}");
    }

    #[test]
    fn an_empty_tensor_has_a_scale() {
        let spec = QSpec::new(QType::UInt4, false, Granularity::PerTensor);
        let layout = Layout::of(&[0], Granularity::PerTensor).unwrap();
        for method in WeightMethod::ALL {
            let found = fit(&[0.0_f32; 0][..], &layout, &[Range::EMPTY], &spec, *method);
            assert_eq!(found.len(), 1, "{method}");
        }
    }

    #[test]
    fn blocks_of_few_bits_default_to_mse() {
        let blocked = Granularity::Blocked { axis: 0, block_size: 32 };
        let channel = Granularity::PerAxis { axis: 0 };
        for (qtype, granularity, usual) in [
            (QType::UInt4, blocked, WeightMethod::Mse),
            (QType::Int2, blocked, WeightMethod::Mse),
            (QType::Int8, blocked, WeightMethod::MinMax),
            (QType::Int4, channel, WeightMethod::MinMax),
            (QType::Int4, Granularity::PerTensor, WeightMethod::MinMax),
        ] {
            for symmetric in [false, true] {
                let spec = QSpec::new(qtype, symmetric, granularity);
                assert_eq!(WeightMethod::usual(&spec), usual, "{qtype} {granularity:?}");
            }
        }
    }
}
