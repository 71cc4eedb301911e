//! Charts of bars in SVG. Labels are text beside the bars, so that they are readable at any width.

use maud::{Markup, html};

use super::numbers::{band, decibels};

/// The number of bars that are shown, and of those that are folded away.
const SHOWN: usize = 8;
const BARS: usize = 60;

/// A part of one bar: its start and end as fractions of the width of the chart, and its CSS class.
pub(super) type Part = (f64, f64, &'static str);

/// The right end of a scale in decibels.
const MOST_DB: f64 = 60.0;

/// The reference lines of such a scale; the colours of the bars change at them.
const LINES: [f64; 3] = [10.0, 20.0, 30.0];

/// What the length of bars means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// By the longest bar.
    Own,
    /// By decibels from 0 to 60, with reference lines.
    Decibels,
}

/// A chart with its title: the first rows are shown, the others folded away. `count` is the number
/// of all rows.
pub(super) fn chart(
    title: &str,
    scale: Scale,
    count: usize,
    rows: impl Iterator<Item = (Markup, Vec<Part>, String)>,
) -> Markup {
    let mut rows = rows.take(BARS);
    let mut some = |count: usize| -> Vec<Markup> {
        rows.by_ref()
            .take(count)
            .map(|(label, parts, value)| row(&label, scale, &parts, &value))
            .collect()
    };
    // One more is shown rather than folded.
    let shown = if count == SHOWN + 1 { count } else { SHOWN };
    let (first, rest) = (some(shown), some(BARS));
    html! {
        @if count > 0 {
            section {
                h2 { (title) }
                div.bars {
                    @if scale == Scale::Decibels { (axis()) }
                    @for row in &first { (row) }
                }
                @if !rest.is_empty() {
                    details {
                        summary { (rest.len()) " more" }
                        div.bars {
                            @if scale == Scale::Decibels { (axis()) }
                            @for row in &rest { (row) }
                        }
                    }
                }
                @if count > BARS { p.note { "The table below has all " (count) "." } }
            }
        }
    }
}

/// The bars of numbers: lengths are proportional to the numbers, and infinity gets the longest bar.
pub(super) fn measured(numbers: &[f64], class: &'static str) -> Vec<Vec<Part>> {
    let longest = numbers.iter().copied().filter(|n| n.is_finite()).fold(0.0, f64::max);
    let length = |number: f64| match number {
        f64::INFINITY => 1.0,
        number if number.is_finite() && longest > 0.0 => (number / longest).max(0.0),
        _ => 0.0,
    };
    numbers.iter().map(|number| vec![(0.0, length(*number), class)]).collect()
}

/// One part for a number of decibels, in the colour of its band. Nothing left is a mark at 0.
pub(super) fn decibel_bar(db: f64) -> Vec<Part> {
    let length = if db.is_nan() { 0.0 } else { (db / MOST_DB).clamp(0.0, 1.0) };
    vec![(0.0, length.max(0.004), band(db))]
}

fn percent(part: f64) -> String {
    format!("{:.3}%", 100.0 * part)
}

/// The numbers of the reference lines.
fn axis() -> Markup {
    html! {
        div.bar.axis aria-hidden="true" {
            span.label {}
            svg {
                @for db in LINES {
                    text x=(percent(db / MOST_DB)) y="11" { (db) }
                }
            }
            span.value { "dB" }
        }
    }
}

/// What the colours of decibels mean.
pub(super) fn legend() -> Markup {
    let bands = [
        (30.0, "30 dB and more: close"),
        (20.0, "20 to 30: check your own metric"),
        (10.0, "10 to 20: coarse"),
        (0.0, "below 10: far from the float model"),
    ];
    html! {
        p.legend {
            @for (db, what) in bands { span { i class=(band(db)) {} (what) } " " }
        }
    }
}

/// The minimum width of a part that is not empty, in percent of the chart.
const THINNEST: f64 = 0.2;

/// A row of the chart: a label, one bar and its value.
pub(super) fn row(label: &Markup, scale: Scale, parts: &[Part], value: &str) -> Markup {
    let length = |part: f64| percent(if part > 0.0 { part.max(THINNEST / 100.0) } else { 0.0 });
    html! {
        div.bar {
            span.label { (label) }
            svg aria-hidden="true" {
                @for (from, to, class) in parts {
                    rect class=(class) x=(percent(*from)) width=(length(to - from)) height="100%" {}
                }
                @if scale == Scale::Decibels {
                    @for db in LINES {
                        @let at = percent(db / MOST_DB);
                        line.reference x1=(at) x2=(at) y1="0" y2="100%" {}
                    }
                }
            }
            span.value { (value) }
        }
    }
}

/// A row of a chart in decibels.
pub(super) fn decibel_row(label: Markup, db: f64) -> (Markup, Vec<Part>, String) {
    (label, decibel_bar(db), decibels(db))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_nan_are_empty_and_infinity_has_the_longest() {
        let numbers = [10.0, f64::INFINITY, f64::NAN, f64::NEG_INFINITY, -5.0, 40.0];
        let ends: Vec<f64> = measured(&numbers, "error").iter().map(|parts| parts[0].1).collect();
        assert_eq!(ends, [0.25, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(measured(&[0.0], "error"), [[(0.0, 0.0, "error")]]);
    }

    #[test]
    fn decibels_have_one_scale_and_the_colour_of_their_band() {
        for (db, end, band) in [
            (30.0, 0.5, "close"),
            (29.9, 29.9 / 60.0, "fair"),
            (15.0, 0.25, "coarse"),
            (-5.0, 0.004, "far"),
            (f64::NAN, 0.004, "far"),
            (f64::INFINITY, 1.0, "close"),
        ] {
            assert_eq!(decibel_bar(db), [(0.0, end, band)]);
        }
    }

    #[test]
    fn a_long_chart_is_folded() {
        let rows = |count: usize| {
            let rows = (0..count).map(|_| decibel_row(html! { "x" }, 20.0));
            chart("t", Scale::Decibels, count, rows).into_string()
        };
        assert!(!rows(9).contains("<details>"));
        let long = rows(100);
        assert!(long.contains("52 more") && long.contains("The table below has all 100."));
    }
}
