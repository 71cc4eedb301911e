//! Compares the ranges of two calibrations.

use std::fmt;

use quantize_rs_math::Range;
use serde::Serialize;

use crate::Ranges;

/// The differences between the ranges of two calibrations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RangesDiff {
    /// Values whose ranges differ, by decreasing difference.
    pub differences: Vec<RangeDifference>,
    /// Values that only the first calibration has.
    pub only_first: Vec<String>,
    /// Values that only the second calibration has.
    pub only_second: Vec<String>,
}

/// A value whose ranges differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RangeDifference {
    /// The name of the value.
    pub name: String,
    /// The first range.
    pub first: Range,
    /// The second range.
    pub second: Range,
    /// The larger distance between corresponding bounds, as a fraction of the width of the wider
    /// range. It is 0 for equal ranges.
    pub part: f64,
}

impl Ranges {
    /// Compares these ranges with others.
    pub fn diff(&self, other: &Ranges) -> RangesDiff {
        let missing = |from: &Ranges, of: &Ranges| {
            from.values.keys().filter(|name| !of.values.contains_key(*name)).cloned().collect()
        };
        let difference = |(name, first): (&String, &Range)| {
            let second = other.values.get(name)?;
            (first != second).then(|| RangeDifference {
                name: name.clone(),
                first: *first,
                second: *second,
                part: part(*first, *second),
            })
        };
        let mut differences: Vec<RangeDifference> =
            self.values.iter().filter_map(difference).collect();
        differences.sort_by(|a, b| b.part.total_cmp(&a.part).then_with(|| a.name.cmp(&b.name)));
        RangesDiff {
            differences,
            only_first: missing(self, other),
            only_second: missing(other, self),
        }
    }
}

fn part(first: Range, second: Range) -> f64 {
    let apart = |a: f32, b: f32| (f64::from(a) - f64::from(b)).abs();
    let width = apart(first.max, first.min).max(apart(second.max, second.min));
    let ends = apart(first.min, second.min).max(apart(first.max, second.max));
    if width > 0.0 && ends.is_finite() { ends / width } else { f64::from(u8::from(ends != 0.0)) }
}

impl RangesDiff {
    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty() && self.only_first.is_empty() && self.only_second.is_empty()
    }
}

impl fmt::Display for RangesDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no difference\n");
        }
        for RangeDifference { name, first, second, part } in &self.differences {
            let percent = part * 100.0;
            writeln!(
                f,
                "{name}: [{}, {}] and [{}, {}], {percent:.1} %",
                first.min, first.max, second.min, second.max
            )?;
        }
        self.only_first.iter().try_for_each(|name| writeln!(f, "{name}: only in the first"))?;
        self.only_second.iter().try_for_each(|name| writeln!(f, "{name}: only in the second"))
    }
}
