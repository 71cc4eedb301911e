//! A choice as something to run: a line of Python, a command, a `Config`.

use std::path::Path;

use super::{Choice, SampleSource, Way};
use crate::{Config, Format, QuantizeError, Target};

/// Where a call reads and writes.
pub(super) struct Files {
    /// The model; `None` for one in memory.
    model: Option<String>,
    /// The file of samples; of those in memory one that they would have to be in.
    samples: String,
    /// Whether samples are in memory.
    in_memory: bool,
}

impl Files {
    pub(super) fn of(
        model: Option<&Path>,
        samples: Option<SampleSource<'_>>,
        inputs: usize,
    ) -> Files {
        let file = match samples {
            Some(SampleSource::File(path)) => path,
            Some(SampleSource::Memory) | None => usual_samples(inputs),
        };
        Files {
            model: model.map(|path| path.display().to_string()),
            samples: file.to_owned(),
            in_memory: samples == Some(SampleSource::Memory),
        }
    }

    /// What the call in Python reads samples from.
    pub(super) fn samples(&self) -> &str {
        if self.in_memory { IN_MEMORY } else { &self.samples }
    }

    /// The quantized model goes beside the other.
    fn output(&self, choice: &Choice) -> String {
        let model = self.model.as_deref().unwrap_or("model.onnx");
        let stem = model.strip_suffix(".onnx").unwrap_or(model);
        format!("{stem}.int{}.onnx", choice.bits)
    }
}

/// What Python calls samples in memory.
pub(super) const IN_MEMORY: &str = "data";

/// What stands for a file that nobody named.
pub(super) fn usual_samples(inputs: usize) -> &'static str {
    if inputs == 1 { "calibration.npy" } else { "calibration.npz" }
}

/// One option of a call.
struct Given {
    name: &'static str,
    value: Value,
}

enum Value {
    Yes,
    Number(usize),
    Text(String),
    Names(Vec<String>),
}

/// The options that make a choice, in the order of the functions.
fn options(choice: &Choice, target: Option<Target>) -> Vec<Given> {
    let mut given = Vec::new();
    let mut add = |name, value| given.push(Given { name, value });
    if choice.bits != 8 {
        add("bits", Value::Number(usize::from(choice.bits)));
    }
    if choice.per_channel {
        add("per_channel", Value::Yes);
    }
    if choice.way == Way::Static {
        add("method", Value::Text(METHOD.to_owned()));
    }
    if !choice.exclude.is_empty() {
        add("exclude", Value::Names(choice.exclude.clone()));
    }
    if let Some(size) = choice.block_size {
        add("block_size", Value::Number(size));
    }
    if choice.format != Format::Qdq {
        add("output_format", Value::Text(choice.format.row().name.to_owned()));
    }
    if choice.dynamic_lstm {
        add("dynamic_lstm", Value::Yes);
    }
    if let Some(target) = target {
        add("target", Value::Text(target.profile().name.to_owned()));
    }
    given
}

/// Judges methods where there are samples enough, and else leaves room for what they do not show.
const METHOD: &str = "auto";

/// The call in Python; empty where there is nothing to do.
pub(super) fn python(choice: &Choice, target: Option<Target>, files: &Files) -> String {
    let model = files.model.as_deref().map_or("model".to_owned(), quoted);
    let output = quoted(&files.output(choice));
    let mut arguments = vec![model, output];
    let function = match choice.way {
        Way::Nothing => return String::new(),
        Way::Static => {
            let samples = quoted(&files.samples);
            arguments.push(if files.in_memory { IN_MEMORY.to_owned() } else { samples });
            "quantize_with_calibration"
        }
        Way::Dynamic | Way::Weights => "quantize",
    };
    arguments.extend(options(choice, target).into_iter().map(|Given { name, value }| {
        let value = match value {
            Value::Yes => "True".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Text(text) => quoted(&text),
            Value::Names(names) => {
                let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
                format!("[{}]", names.join(", "))
            }
        };
        format!("{name}={value}")
    }));
    format!("quantize_rs.{function}({})", arguments.join(", "))
}

/// The command; empty where there is nothing to do.
pub(super) fn command(choice: &Choice, target: Option<Target>, files: &Files) -> String {
    let model = word(files.model.as_deref().unwrap_or("model.onnx"));
    let mut words = vec!["quantize-rs".to_owned()];
    match choice.way {
        Way::Nothing => return String::new(),
        Way::Static => {
            words.extend([
                "calibrate".to_owned(),
                model,
                "--data".to_owned(),
                word(&files.samples),
            ]);
        }
        Way::Dynamic | Way::Weights => words.extend(["quantize".to_owned(), model]),
    }
    words.extend(["-o".to_owned(), word(&files.output(choice))]);
    for Given { name, value } in options(choice, target) {
        let flag = format!("--{}", name.replace('_', "-"));
        match value {
            Value::Yes => words.push(flag),
            Value::Number(number) => words.extend([flag, number.to_string()]),
            Value::Text(text) => words.extend([flag, word(&text)]),
            // Such a flag is given once for each.
            Value::Names(names) => {
                words.extend(names.iter().flat_map(|name| [flag.clone(), word(name)]));
            }
        }
    }
    words.join(" ")
}

/// The choice as wishes, for [`PreprocessedModel::of`](crate::PreprocessedModel::of).
pub(super) fn config(choice: &Choice, target: Option<Target>) -> Result<Config, QuantizeError> {
    let plain = match (choice.way, target) {
        (Way::Static, target) => Config::for_target(target.unwrap_or(Target::X86)),
        _ => Config::with_bits(choice.bits)?,
    };
    Ok(Config {
        target,
        per_channel: choice.per_channel,
        block_size: choice.block_size,
        output_format: choice.format,
        dynamic_lstm: choice.dynamic_lstm,
        exclude: choice.exclude.clone(),
        ..plain
    })
}

/// A text as Python reads it: JSON's is the same.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A word as a shell reads it.
fn word(text: &str) -> String {
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
    fn names_with_anything_in_them_are_quoted() {
        assert_eq!(word("a/b.onnx"), "a/b.onnx");
        assert_eq!(word("it's here.onnx"), r"'it'\''s here.onnx'");
        assert_eq!(word(""), "''");
        assert_eq!(quoted("a\"\\\n"), r#""a\"\\\n""#);
    }

    #[test]
    fn a_flag_of_names_is_given_once_for_each() {
        let files = Files::of(Some(Path::new("m.onnx")), None, 1);
        let exclude = ["Conv", "a b"].map(str::to_owned).to_vec();
        let choice = Choice { exclude, dynamic_lstm: true, ..Choice::of(Way::Dynamic) };
        assert_eq!(
            command(&choice, None, &files),
            "quantize-rs quantize m.onnx -o m.int8.onnx --per-channel --exclude Conv --exclude 'a b' \
             --output-format dynamic --dynamic-lstm"
        );
    }

    #[test]
    fn samples_in_memory_are_a_variable_in_python_and_a_file_for_a_command() {
        let files = Files::of(Some(Path::new("m.onnx")), Some(SampleSource::Memory), 2);
        let choice = Choice::of(Way::Static);
        assert_eq!(
            python(&choice, None, &files),
            "quantize_rs.quantize_with_calibration(\"m.onnx\", \"m.int8.onnx\", data, \
             per_channel=True, method=\"auto\")"
        );
        assert!(command(&choice, None, &files).contains("--data calibration.npz "));
        assert_eq!(files.samples(), "data");
    }

    #[test]
    fn a_static_call_reads_samples_and_writes_beside_the_model() {
        let files = Files::of(Some(Path::new("m.onnx")), None, 1);
        let choice = Choice { exclude: vec!["Conv".to_owned()], ..Choice::of(Way::Static) };
        assert_eq!(
            python(&choice, Some(Target::Arm), &files),
            "quantize_rs.quantize_with_calibration(\"m.onnx\", \"m.int8.onnx\", \"calibration.npy\", \
             per_channel=True, method=\"auto\", exclude=[\"Conv\"], target=\"arm\")"
        );
        assert_eq!(
            command(&choice, Some(Target::Arm), &files),
            "quantize-rs calibrate m.onnx --data calibration.npy -o m.int8.onnx --per-channel \
             --method auto --exclude Conv --target arm"
        );
    }
}
