//! Renders recommended options as a Python call, a command, or a `Config`.

use std::path::Path;

use super::{RecommendedOptions, SampleSource, Strategy};
use crate::util::text::shell_word as word;
use crate::{Config, Format, QuantizeError, Target};

/// The files that a call reads and writes.
pub(super) struct Files {
    /// The path of the model; `None` for a model in memory.
    model: Option<String>,
    /// The file of samples, if there is one.
    samples: Option<String>,
    /// The flags of a command that prepare them.
    flags: Vec<String>,
}

impl Files {
    pub(super) fn of(model: Option<&Path>, samples: Option<SampleSource<'_>>) -> Files {
        let (samples, flags) = match samples {
            Some(SampleSource::File(path)) => (Some(path.to_owned()), &[][..]),
            Some(SampleSource::Images { path, flags }) => (Some(path.to_owned()), flags),
            Some(SampleSource::Memory) | None => (None, &[][..]),
        };
        let model = model.map(|path| path.display().to_string());
        Files { model, samples, flags: flags.to_vec() }
    }

    /// The file of samples, or the variable that stands for them.
    pub(super) fn samples(&self) -> String {
        self.samples.clone().unwrap_or_else(|| VARIABLE.to_owned())
    }

    /// The samples of a call in Python, which knows no flags.
    fn in_python(&self) -> String {
        let path = self.samples.as_deref().filter(|_| self.flags.is_empty());
        path.map_or(VARIABLE.to_owned(), quoted)
    }

    /// The path of the quantized model, beside the original.
    fn output(&self, choice: &RecommendedOptions) -> String {
        let model = self.model.as_deref().unwrap_or("model.onnx");
        let stem = model.strip_suffix(".onnx").unwrap_or(model);
        format!("{stem}.int{}.onnx", choice.bits)
    }
}

/// The Python variable that stands for samples without a file.
pub(super) const VARIABLE: &str = "data";

/// What stands for samples without a file, and for a model without one, in a command.
pub(super) const FILE: &str = "SAMPLES";
const MODEL: &str = "MODEL";

/// An option of a call.
struct CallOption {
    name: &'static str,
    value: OptionValue,
}

enum OptionValue {
    Yes,
    Number(usize),
    Text(String),
    Names(Vec<String>),
}

/// The options of a call, in the order of the parameters.
fn options(choice: &RecommendedOptions, target: Option<Target>) -> Vec<CallOption> {
    let mut given = Vec::new();
    let mut add = |name, value| given.push(CallOption { name, value });
    if choice.bits != 8 {
        add("bits", OptionValue::Number(usize::from(choice.bits)));
    }
    if choice.way == Strategy::Static {
        add("method", OptionValue::Text(METHOD.to_owned()));
    }
    if !choice.exclude.is_empty() {
        add("exclude", OptionValue::Names(choice.exclude.clone()));
    }
    if let Some(size) = choice.block_size {
        add("block_size", OptionValue::Number(size));
    }
    if choice.format != Format::Qdq {
        add("output_format", OptionValue::Text(choice.format.row().name.to_owned()));
    }
    if let Some(level) = choice.accuracy_level {
        add("accuracy_level", OptionValue::Number(usize::from(level)));
    }
    if choice.dynamic_lstm {
        add("dynamic_lstm", OptionValue::Yes);
    }
    if let Some(target) = target {
        add("target", OptionValue::Text(target.profile().name.to_owned()));
    }
    given
}

/// Compares methods if there are enough samples, and otherwise leaves room for values that the
/// samples do not show.
const METHOD: &str = "auto";

/// The Python call; empty if there is nothing to do.
pub(super) fn python(choice: &RecommendedOptions, target: Option<Target>, files: &Files) -> String {
    let model = files.model.as_deref().map_or("model".to_owned(), quoted);
    let output = quoted(&files.output(choice));
    let mut arguments = vec![model, output];
    let function = match choice.way {
        Strategy::Nothing => return String::new(),
        Strategy::Static => {
            arguments.push(files.in_python());
            "quantize_with_calibration"
        }
        Strategy::Dynamic | Strategy::Weights => "quantize",
    };
    arguments.extend(options(choice, target).into_iter().map(|CallOption { name, value }| {
        let value = match value {
            OptionValue::Yes => "True".to_owned(),
            OptionValue::Number(number) => number.to_string(),
            OptionValue::Text(text) => quoted(&text),
            OptionValue::Names(names) => {
                let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
                format!("[{}]", names.join(", "))
            }
        };
        format!("{name}={value}")
    }));
    format!("quantize_rs.{function}({})", arguments.join(", "))
}

/// The command; empty if there is nothing to do.
pub(super) fn command(
    choice: &RecommendedOptions,
    target: Option<Target>,
    files: &Files,
) -> String {
    let model = word(files.model.as_deref().unwrap_or(MODEL));
    let mut words = vec!["quantize-rs".to_owned()];
    match choice.way {
        Strategy::Nothing => return String::new(),
        Strategy::Static => {
            words.extend([
                "calibrate".to_owned(),
                model,
                "--data".to_owned(),
                word(files.samples.as_deref().unwrap_or(FILE)),
            ]);
            words.extend(files.flags.iter().map(|flag| word(flag)));
        }
        Strategy::Dynamic | Strategy::Weights => words.extend(["quantize".to_owned(), model]),
    }
    words.extend(["-o".to_owned(), word(&files.output(choice))]);
    for CallOption { name, value } in options(choice, target) {
        let flag = format!("--{}", name.replace('_', "-"));
        match value {
            OptionValue::Yes => words.push(flag),
            OptionValue::Number(number) => words.extend([flag, number.to_string()]),
            OptionValue::Text(text) => words.extend([flag, word(&text)]),
            // The flag is repeated for each name.
            OptionValue::Names(names) => {
                words.extend(names.iter().flat_map(|name| [flag.clone(), word(name)]));
            }
        }
    }
    words.join(" ")
}

/// The recommended options as a `Config`, for
/// [`PreprocessedModel::of`](crate::PreprocessedModel::of).
pub(super) fn config(
    choice: &RecommendedOptions,
    target: Option<Target>,
) -> Result<Config, QuantizeError> {
    let plain = match (choice.way, target) {
        (Strategy::Static, target) => Config::for_target(target.unwrap_or(Target::X86)),
        _ => Config::with_bits(choice.bits)?,
    };
    Ok(Config {
        target,
        per_channel: choice.per_channel.then_some(true),
        block_size: choice.block_size,
        output_format: choice.format,
        accuracy_level: choice.accuracy_level,
        dynamic_lstm: choice.dynamic_lstm,
        exclude: choice.exclude.clone(),
        ..plain
    })
}

/// A Python string literal: a JSON string is one.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
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
        let files = Files::of(Some(Path::new("m.onnx")), None);
        let exclude = ["Conv", "a b"].map(str::to_owned).to_vec();
        let choice = RecommendedOptions {
            exclude,
            dynamic_lstm: true,
            ..RecommendedOptions::of(Strategy::Dynamic)
        };
        assert_eq!(
            command(&choice, None, &files),
            "quantize-rs quantize m.onnx -o m.int8.onnx --exclude Conv --exclude 'a \
             b' --output-format dynamic --dynamic-lstm"
        );
    }

    #[test]
    fn samples_without_a_file_are_a_variable_in_python_and_a_placeholder_in_a_command() {
        let files = Files::of(Some(Path::new("m.onnx")), Some(SampleSource::Memory));
        let choice = RecommendedOptions::of(Strategy::Static);
        assert_eq!(
            python(&choice, None, &files),
            "quantize_rs.quantize_with_calibration(\"m.onnx\", \"m.int8.onnx\", data, \
             method=\"auto\")"
        );
        assert!(command(&choice, None, &files).contains("--data SAMPLES "));
        assert_eq!(files.samples(), "data");
        let flags = ["--size", "8,8"].map(str::to_owned);
        let images = SampleSource::Images { path: "images", flags: &flags };
        let files = Files::of(Some(Path::new("m.onnx")), Some(images));
        assert!(command(&choice, None, &files).contains("--data images --size 8,8 -o"));
        assert!(python(&choice, None, &files).contains("\"m.int8.onnx\", data,"));
    }

    #[test]
    fn a_static_call_reads_samples_and_writes_beside_the_model() {
        let samples = SampleSource::File("calibration.npy");
        let files = Files::of(Some(Path::new("m.onnx")), Some(samples));
        let choice = RecommendedOptions {
            exclude: vec!["Conv".to_owned()],
            ..RecommendedOptions::of(Strategy::Static)
        };
        assert_eq!(
            python(&choice, Some(Target::Arm), &files),
            "quantize_rs.quantize_with_calibration(\"m.onnx\", \"m.int8.onnx\", \
             \"calibration.npy\", method=\"auto\", exclude=[\"Conv\"], \
             target=\"arm\")"
        );
        assert_eq!(
            command(&choice, Some(Target::Arm), &files),
            "quantize-rs calibrate m.onnx --data calibration.npy -o m.int8.onnx \
             --method auto --exclude Conv --target arm"
        );
    }
}
