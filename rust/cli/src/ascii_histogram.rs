//! Histograms in a terminal, drawn with the block elements of Unicode; nothing is drawn in a pipe.

// Lengths on a screen need no full precision.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use quantize_rs::{Histogram, Range};

/// Columns of a row of blocks.
const WIDTH: usize = 16;

/// The width of a histogram in columns.
const BINS: usize = 24;

/// The last block of a row, in eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Heights of a column, in eighths.
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Puts a row of blocks before each line from the second on, with a length proportional to its
/// number; lines after the last number are unchanged.
pub(crate) fn before_lines(text: &str, numbers: &[f64]) -> String {
    let longest = numbers.iter().copied().filter(|n| n.is_finite()).fold(0.0, f64::max);
    let lines = text.lines().enumerate().map(|(line, text)| {
        match line.checked_sub(1).map(|row| numbers.get(row)) {
            None => format!("{:WIDTH$}  {text}\n", ""),
            Some(Some(number)) => format!("{:WIDTH$}  {text}\n", bar(*number, longest)),
            Some(None) => format!("{text}\n"),
        }
    });
    lines.collect()
}

/// A row of blocks: the longest for infinity, none for NaN.
fn bar(number: f64, longest: f64) -> String {
    let part = match number {
        f64::INFINITY => 1.0,
        number if number.is_finite() && longest > 0.0 => (number / longest).clamp(0.0, 1.0),
        _ => 0.0,
    };
    let eighths = (part * (8 * WIDTH) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// A histogram of values, the smallest at the left, with heights on a logarithmic scale. Brackets
/// enclose the chosen range.
pub(crate) fn histogram(seen: &Histogram, chosen: Range) -> String {
    let mut counts = [0_u64; BINS];
    for (bin, count) in seen.counts.iter().enumerate() {
        counts[bin * BINS / seen.counts.len()] += count;
    }
    let highest = counts.iter().copied().max().unwrap_or(0);
    let height = |count: u64| match count {
        0 => 0,
        count => 1 + (7.0 * (count as f64).ln_1p() / (highest as f64).ln_1p()).round() as usize,
    };
    let place = |value: f32| {
        let part = (f64::from(value) - seen.from) / (seen.to - seen.from);
        (part * BINS as f64).round().clamp(0.0, BINS as f64) as usize
    };
    let (open, close) = (place(chosen.min), place(chosen.max));
    let mut drawn = String::new();
    for column in 0..=BINS {
        drawn.extend((column == open).then_some('['));
        drawn.extend((column == close).then_some(']'));
        drawn.extend(counts.get(column).map(|count| HEIGHTS[height(*count)]));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_numbers_are_large() {
        let numbers = [40.0, 20.0, 0.3, f64::INFINITY, f64::NAN, -3.0];
        let text = "layer\na\nb\nc\nd\ne\nf\nall\n";
        let drawn = before_lines(text, &numbers);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], format!("{:18}layer", ""));
        assert_eq!(lines[1], format!("{}  a", "█".repeat(16)));
        assert_eq!(lines[2], format!("{}{:8}  b", "█".repeat(8), ""));
        assert_eq!(lines[3], format!("▏{:15}  c", ""));
        assert_eq!(lines[4], format!("{}  d", "█".repeat(16)));
        assert_eq!(lines[5], format!("{:16}  e", ""));
        assert_eq!(lines[6], format!("{:16}  f", ""));
        assert_eq!(lines[7], "all");
    }

    #[test]
    fn a_histogram_shows_what_the_range_leaves_out() {
        let counts: Vec<u64> = (0..48).map(|bin| if bin < 24 { 1000 } else { 1 }).collect();
        let seen = Histogram { from: -1.0, to: 1.0, counts, outside: 0.0 };
        let drawn = histogram(&seen, Range { min: -1.0, max: 0.0 });
        assert_eq!(drawn, format!("[{}]{}", "█".repeat(12), "▂".repeat(12)));
        let whole = histogram(&seen, Range { min: -1.0, max: 1.0 });
        assert!(whole.starts_with('[') && whole.ends_with(']'), "{whole}");
    }
}
