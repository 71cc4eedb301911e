//! Formats texts and numbers for the HTML report.

use maud::{Markup, html};

/// Longer texts are cut: a name of megabytes would make the report unreadable.
const LONGEST: usize = 400;

/// A text from a file, isolated: its text direction does not affect the rest, and control
/// characters are shown as replacement characters.
pub(super) fn name(text: &str) -> Markup {
    html! { bdi { (visible(text)) } }
}

/// As [`name`], for places that accept only text.
pub(super) fn visible(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(LONGEST).map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// The name in the label of a node: `` `conv1` `` of `` node `conv1` (Conv) ``.
pub(super) fn node(label: &str) -> &str {
    label.split('`').nth(1).unwrap_or(label)
}

/// The band of a number of decibels, which is the CSS class of its colour.
pub(super) fn band(db: f64) -> &'static str {
    match db {
        db if db >= 30.0 => "close",
        db if db >= 20.0 => "fair",
        db if db >= 10.0 => "coarse",
        // NaN, too.
        _ => "far",
    }
}

/// Decibels with one decimal; infinity is shown as `exact`.
pub(super) fn decibels(db: f64) -> String {
    match db {
        f64::INFINITY => "exact".to_owned(),
        f64::NEG_INFINITY => "signal lost".to_owned(),
        db if db.is_nan() => "NaN".to_owned(),
        db => format!("{db:.1} dB"),
    }
}

/// An error with four significant digits; larger is worse.
pub(super) fn error(error: f64) -> String {
    match error {
        f64::INFINITY => "infinite".to_owned(),
        error if error.is_nan() => "NaN".to_owned(),
        error => format!("{error:.3e}"),
    }
}

/// Milliseconds with about three significant digits.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        ..1.0 => format!("{ms:.3} ms"),
        ..100.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

/// A bound of a range, with four decimals.
pub(super) fn end(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e5 => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.3e}"),
    }
}

/// A fraction from 0 to 1, in percent.
pub(super) fn percent(part: f64) -> String {
    match part * 100.0 {
        0.0 => "0 %".to_owned(),
        ..0.01 => "< 0.01 %".to_owned(),
        percent => format!("{percent:.2} %"),
    }
}

/// A shape, with `?` for a dynamic dimension.
pub(super) fn shape(lengths: Option<&[Option<usize>]>) -> String {
    let Some(lengths) = lengths else { return String::new() };
    let length = |length: &Option<usize>| length.map_or("?".to_owned(), |n| n.to_string());
    lengths.iter().map(length).collect::<Vec<_>>().join(" × ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_text() {
        let nasty = "</script><img onerror=\"x\" a='b'>\u{0}&";
        let shown = "&lt;/script&gt;&lt;img onerror=&quot;x&quot; a='b'&gt;\u{fffd}&amp;";
        assert_eq!(name(nasty).into_string(), format!("<bdi>{shown}</bdi>"));
        let long = name(&"ä".repeat(LONGEST + 1)).into_string();
        assert_eq!(long.matches('ä').count(), LONGEST);
        assert!(long.ends_with("…</bdi>"));
    }

    #[test]
    fn numbers_are_short() {
        let ends = [(0.0, "0"), (-1.5, "-1.5"), (65504.0, "65504"), (1e9, "1.000e9")];
        for (value, expected) in ends {
            assert_eq!(end(value), expected);
        }
        assert_eq!(end(1.23456e-5), "1.235e-5");
        assert_eq!(
            (percent(0.0), percent(1e-7), percent(0.5)),
            ("0 %".into(), "< 0.01 %".into(), "50.00 %".into())
        );
        assert_eq!((decibels(f64::INFINITY), decibels(31.26)), ("exact".into(), "31.3 dB".into()));
        assert_eq!(
            (decibels(f64::NAN), decibels(f64::NEG_INFINITY)),
            ("NaN".into(), "signal lost".into())
        );
        let errors = [f64::INFINITY, f64::NAN, 0.0, 0.01234].map(error);
        assert_eq!(errors, ["infinite", "NaN", "0.000e0", "1.234e-2"]);
        let times = [(0.1234, "0.123 ms"), (12.0, "12.00 ms"), (1234.5, "1234 ms")];
        for (ms, expected) in times {
            assert_eq!(milliseconds(ms), expected);
        }
        assert_eq!(shape(Some(&[None, Some(3)])), "? × 3");
    }
}
