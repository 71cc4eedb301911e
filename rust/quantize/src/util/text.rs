//! Formats numbers and names for display.

/// Formats a number of bytes with about four significant digits, for example `226.81 kB`.
///
/// ```
/// assert_eq!(quantize_rs::text::size(226_812), "226.81 kB");
/// ```
#[allow(clippy::cast_precision_loss)] // displayed with few digits
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} bytes");
    }
    let mut scaled = bytes as f64 / 1e3;
    let mut unit = 0;
    // A number that would round to 1000.00 uses the next unit.
    while scaled >= 999.995 && unit + 1 < UNITS.len() {
        scaled /= 1e3;
        unit += 1;
    }
    format!("{scaled:.2} {}", UNITS[unit])
}

/// A word of a shell command, in quotes where it needs them.
///
/// ```
/// assert_eq!(quantize_rs::text::shell_word("a b.onnx"), "'a b.onnx'");
/// ```
pub fn shell_word(text: &str) -> String {
    let plain = |char: char| char.is_alphanumeric() || "-_./,=:+@%".contains(char);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let sizes = [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.00 kB"),
            (226_812, "226.81 kB"),
            (999_995, "1.00 MB"),
            (44_650_000, "44.65 MB"),
            (u64::MAX, "18446744.07 TB"),
        ];
        for (bytes, expected) in sizes {
            assert_eq!(size(bytes), expected);
        }
    }
}
