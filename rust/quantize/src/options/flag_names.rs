//! Options in messages, as flags: messages are written with the names of Python parameters.

use serde_json::Value;

use super::row::{Kind, OptionRow, Surface};
use super::table::find;
use crate::util::text::shell_word;

/// Functions of Python that messages name, and what does the same on the command line.
const FUNCTIONS: &[(&str, &str)] = &[
    ("compare_methods", "calibrate --compare-methods"),
    ("convert_opset", "quantize-rs convert"),
    ("insert_fake_quant", "quantize-rs calibrate --fake-quant"),
    ("layer_errors", "quantize-rs layer-errors"),
    ("mixed_precision", "quantize-rs mixed-precision"),
    ("quantize_with_calibration", "quantize-rs calibrate"),
];

impl OptionRow {
    /// The flag that sets the option: `--per-channel`.
    pub fn flag_name(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// The flag that turns the option off, without its dashes.
    pub fn flag_off(&self) -> Option<String> {
        let own = self.flag.off.map(str::to_owned);
        own.or_else(|| {
            self.is_on_by_default().then(|| format!("no-{}", self.name.replace('_', "-")))
        })
    }

    /// Whether typing its name is all that can be typed.
    pub fn is_switch(&self) -> bool {
        matches!(self.kind, Kind::Bool) && (self.default)().is_boolean()
    }

    /// Whether it can only be turned off.
    pub fn is_on_by_default(&self) -> bool {
        self.is_switch() && (self.default)() == Value::Bool(true)
    }

    /// What stands for the option on the command line.
    fn named(&self) -> String {
        match self.flag_off() {
            Some(off) if self.is_on_by_default() => format!("leaving out --{off}"),
            _ => self.flag_name(),
        }
    }

    /// The option with this value on the command line.
    fn typed(&self, value: &Value) -> String {
        let flag = self.flag_name();
        let with = |value: &str| format!("{flag} {}", shell_word(value));
        match value {
            Value::Bool(true) => flag,
            Value::Bool(false) => match self.flag_off() {
                Some(off) => format!("--{off}"),
                None => format!("{flag}=false"),
            },
            Value::Array(items) if self.flag.commas => {
                with(&items.iter().map(shown).collect::<Vec<_>>().join(","))
            }
            Value::Array(items) => {
                items.iter().map(|item| with(&shown(item))).collect::<Vec<_>>().join(" ")
            }
            Value::Object(entries) => {
                let entry =
                    |(name, value): (&String, &Value)| with(&format!("{name}={}", shown(value)));
                entries.iter().map(entry).collect::<Vec<_>>().join(" ")
            }
            other => with(&shown(other)),
        }
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A message for the command line: options are flags, `min_sqnr=20` is `--min-sqnr 20`.
///
/// Names in backticks belong to the model and are kept.
///
/// ```
/// use quantize_rs::options::as_flags;
///
/// let said = as_flags("min_sqnr=20 and exclude=[\"a b\"] keep `block_size` float");
/// assert_eq!(said, "--min-sqnr 20 and --exclude 'a b' keep `block_size` float");
/// ```
pub fn as_flags(message: &str) -> String {
    let part = |(index, part): (usize, &str)| {
        if index % 2 == 0 {
            return outside_backticks(part);
        }
        match assignment(part) {
            Some((typed, length)) if length == part.len() => format!("`{typed}`"),
            _ => format!("`{part}`"),
        }
    };
    // An odd number of backticks leaves one that is not closed.
    let parts: Vec<&str> = message.split('`').collect();
    let open = parts.len().is_multiple_of(2);
    let (closed, rest) = parts.split_at(parts.len() - usize::from(open));
    let mut text: String = closed.iter().copied().enumerate().map(part).collect();
    for rest in rest {
        text.extend(["`", rest]);
    }
    text
}

fn outside_backticks(mut text: &str) -> String {
    let mut found = String::new();
    let mut before = None;
    while let Some(next) = text.chars().next() {
        let starts = next.is_ascii_lowercase() && !before.is_some_and(is_part_of_a_name);
        let option = || assignment(text).or_else(|| name(text));
        let (typed, length) = match images(text).or_else(|| starts.then(option).flatten()) {
            Some(found) => found,
            None if next.is_ascii_alphabetic() => {
                let length = word_length(text);
                (text[..length].to_owned(), length)
            }
            None => (next.to_string(), next.len_utf8()),
        };
        found.push_str(&typed);
        before = text[..length].chars().next_back();
        text = &text[length..];
    }
    found
}

/// The flags for `ImageFolder(size=(8, 8))` at the start, and its length: on the command line they
/// stand alone.
fn images(text: &str) -> Option<(String, usize)> {
    const CALL: &str = "ImageFolder(";
    let inside = text.strip_prefix(CALL)?;
    let mut depth = 1;
    let end = inside.find(|char: char| {
        depth += i32::from(char == '(') - i32::from(char == ')');
        depth == 0
    })?;
    Some((outside_backticks(&inside[..end]), CALL.len() + end + 1))
}

/// Whether what follows such a character belongs to a path or another name.
fn is_part_of_a_name(char: char) -> bool {
    char.is_alphanumeric() || "_./\\-\"'".contains(char)
}

/// The option of the command line with this name.
fn known(name: &str) -> Option<&'static OptionRow> {
    find(name).filter(|row| row.is_on(Surface::Cli))
}

/// The length of the identifier at the start.
fn word_length(text: &str) -> usize {
    text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(text.len())
}

/// The flag for a name at the start that cannot be an ordinary word, and the length of the name.
fn name(text: &str) -> Option<(String, usize)> {
    let length = word_length(text);
    let (word, rest) = text.split_at(length);
    let mut rest = rest.chars();
    let continues = match rest.next() {
        Some('.') => rest.next().is_some_and(char::is_alphanumeric),
        Some(next) => "/\\-\"'=".contains(next),
        None => false,
    };
    if continues || !word.contains('_') {
        return None;
    }
    let function = FUNCTIONS.iter().find(|(name, _)| *name == word);
    let typed = function.map(|(_, typed)| (*typed).to_owned());
    Some((typed.or_else(|| known(word).map(OptionRow::named))?, length))
}

/// The flag for `name=value` at the start, and its length.
fn assignment(text: &str) -> Option<(String, usize)> {
    let length = word_length(text);
    let row = known(&text[..length])?;
    let given = text[length..].strip_prefix('=')?;
    let (value, used) = literal(given)?;
    Some((row.typed(&value), length + 1 + used))
}

/// The value at the start, and its length: a Python literal, or a word.
fn literal(text: &str) -> Option<(Value, usize)> {
    if text.starts_with(['[', '{', '"']) {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let value = values.next()?.ok()?;
        return Some((value, values.byte_offset()));
    }
    if let Some(inside) = text.strip_prefix('(') {
        let end = inside.find(')')?;
        return Some((Value::from(inside[..end].replace(' ', "")), end + 2));
    }
    let ends = |char: char| !(char.is_ascii_alphanumeric() || "_.:%-".contains(char));
    let word = text[..text.find(ends).unwrap_or(text.len())].trim_end_matches(['.', ':']);
    let value = match word {
        "" => return None,
        "True" | "true" => Value::Bool(true),
        "False" | "false" => Value::Bool(false),
        word => Value::from(word),
    };
    Some((value, word.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_names_stay() {
        for (message, expected) in [
            (
                "min_sqnr=20 leaves such layers in float",
                "--min-sqnr 20 leaves such layers in float",
            ),
            ("per_channel=True gives", "--per-channel gives"),
            ("per_channel=False and passes=False.", "--per-channel=false and --no-optimize."),
            ("bias_correction=False", "--no-bias-correction"),
            ("layer_bits={\"a b\": 8} gives", "--layer-bits 'a b=8' gives"),
            ("exclude=[\"w\", \"v\"] keeps", "--exclude w --exclude v keeps"),
            ("op_types=[\"Conv\", \"Gemm\"]", "--op-types Conv,Gemm"),
            ("use accuracy_level=4, which", "use --accuracy-level 4, which"),
            ("`engine=\"onnxruntime\"` or", "`--engine onnxruntime` or"),
            ("with validation_data and dynamic_lstm", "with --validation-data and --dynamic-lstm"),
            ("compare_methods compares", "calibrate --compare-methods compares"),
            ("give ImageFolder(size=(height, width)).", "give --size height,width."),
            ("fall_back reverts layers", "leaving out --no-fall-back reverts layers"),
            ("progress=True is for Python", "progress=True is for Python"),
            // Names of values, files and folders.
            ("`block_size` and `min_sqnr=2 b`", "`block_size` and `min_sqnr=2 b`"),
            (
                "/data/min_sqnr/a, block_size.npy, x-block_size",
                "/data/min_sqnr/a, block_size.npy, x-block_size",
            ),
            ("scale=x in 3 d", "--scale x in 3 d"),
            ("an open ` and block_size", "an open ` and block_size"),
            ("größe min_sqnr", "größe --min-sqnr"),
            ("", ""),
        ] {
            assert_eq!(as_flags(message), expected);
        }
    }
}
