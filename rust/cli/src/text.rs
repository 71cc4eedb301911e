//! Formats names, numbers and sizes for display.

use quantize_rs::InputSpec;
pub(crate) use quantize_rs::text::size;
use serde::Serialize;

/// The value as JSON, on one line.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Names and numbers, no maps with odd keys: this cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// The text with control characters escaped: names come from files, and a terminal would interpret
/// them.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() && char != '\n' {
            safe.extend(char.escape_default());
        } else {
            safe.push(char);
        }
    }
    safe
}

/// Lines of labels and values, with the values aligned; a value may have several lines.
pub(crate) fn table<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    const WIDTH: usize = 16;
    let line = |(label, value): (&str, String)| {
        let value = value.replace('\n', &format!("\n{:WIDTH$}", ""));
        format!("{:WIDTH$}{value}\n", format!("{label}:"))
    };
    rows.into_iter().map(line).collect::<Vec<String>>().concat()
}

/// Rows with columns as wide as their widest cell; the first and the last column are left-aligned.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, text)| match column {
            0 => format!("{text:<w$}", w = widths[0]),
            _ if column + 1 == N && N > 3 => text.clone(),
            _ => format!("{text:>w$}", w = widths[column]),
        });
        let line = cells.collect::<Vec<String>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// A number with thousands separators: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `x: float32 [?, 3, 224, 224]`
pub(crate) fn input(spec: &InputSpec) -> String {
    let dtype = spec.dtype.map_or("unknown type", quantize_rs::DataType::name);
    let shape = match &spec.shape {
        None => "of any shape".to_owned(),
        Some(dims) => {
            let dims = dims.iter().map(|dim| dim.map_or("?".to_owned(), |dim| dim.to_string()));
            format!("[{}]", dims.collect::<Vec<_>>().join(", "))
        }
    };
    format!("{}: {dtype} {shape}", spec.name)
}

/// The text with its first letter in lower case.
pub(crate) fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use quantize_rs::DataType;

    use super::*;

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mé\r\nb"), "a\\u{1b}[31mé\\r\nb");
    }

    #[test]
    fn values_stand_under_each_other() {
        let rows = [("Nodes", "3".to_owned()), ("Inputs", "x\ny".to_owned())];
        let expected = "Nodes:          3\nInputs:         x\n                y\n";
        assert_eq!(table(rows), expected);
    }

    #[test]
    fn digits_stand_in_threes() {
        let numbers = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, expected) in numbers {
            assert_eq!(grouped(number), expected);
        }
    }

    #[test]
    fn inputs_say_what_is_open() {
        let spec = |dtype, shape| InputSpec { name: "x".to_owned(), dtype, shape };
        let shape = Some(vec![None, Some(3)]);
        assert_eq!(input(&spec(Some(DataType::Float), shape)), "x: float32 [?, 3]");
        assert_eq!(input(&spec(None, None)), "x: unknown type of any shape");
    }
}
