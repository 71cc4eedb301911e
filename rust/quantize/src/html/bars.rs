//! Charts of bars in SVG. Labels are text beside the bars, so that they are readable at any width.

use maud::{Markup, html};

/// The maximum number of bars of a chart.
pub(super) const BARS: usize = 40;

/// A part of one bar: its start and end as fractions of the width of the chart, and its CSS class.
pub(super) type Part = (f64, f64, &'static str);

/// A chart with its title; `count` is the number of rows, of which the first are shown.
pub(super) fn chart(
    title: &str,
    count: usize,
    rows: impl Iterator<Item = (Markup, Vec<Part>, String)>,
) -> Markup {
    html! {
        @if count > 0 {
            section {
                h2 { (title) }
                div.bars {
                    @for (label, parts, value) in rows.take(BARS) { (row(&label, &parts, &value)) }
                }
                @if count > BARS { p.note { "and " (count - BARS) " more, in the table below" } }
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

/// The minimum width of a part that is not empty, in percent of the chart.
const THINNEST: f64 = 0.2;

/// A row of the chart: a label, one bar and its value.
pub(super) fn row(label: &Markup, parts: &[Part], value: &str) -> Markup {
    let percent = |part: f64| format!("{:.3}%", 100.0 * part);
    let length = |part: f64| percent(if part > 0.0 { part.max(THINNEST / 100.0) } else { 0.0 });
    html! {
        div.bar {
            span.label { (label) }
            svg aria-hidden="true" {
                @for (from, to, class) in parts {
                    rect class=(class) x=(percent(*from)) width=(length(to - from)) height="100%" {}
                }
            }
            span.value { (value) }
        }
    }
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
}
