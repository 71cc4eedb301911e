//! The keys of a file: the flags of `quantize` and `calibrate`, and a few of the file's own.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Args, Id};
use quantize_rs::options::{self, Kind, OptionRow, Surface, is_for_rounding};
use quantize_rs::{Format, FormatActivations, WeightAlgorithm};

use super::node::{At, Node, Wrong};
use crate::args;
use crate::engine::EngineArguments;
use crate::images::ImageArguments;
use crate::samples::SAMPLING;

/// The fraction of the accuracy that has to be kept: 0.99 is `max_accuracy_drop: 0.01`.
const ACCURACY_THRESHOLD: &str = "accuracy_threshold";

/// Keys of files that are not options.
pub(super) const OWN_KEYS: &[&str] =
    &["mode", "calibration", "save_statistics", ACCURACY_THRESHOLD];

/// Keys whose values stand for a flag with a value.
const WORDS: &[(&str, &str, &str, &str)] = &[("mode", "dynamic", "output_format", "dynamic")];

/// The value of `mode` for models that are calibrated. It has no flag, because it follows from
/// `data`.
const STATIC: &str = "static";

/// The value of `mode` for models with `data` whose weights alone are quantized. It has no flag.
pub(crate) const WEIGHTS: &str = "weights";

/// The id of such an option: `weights` is the name of a flag.
const ALONE: &str = "mode: weights";

/// Flags that a file cannot set.
pub(crate) const TYPED_ONLY: &[&str] =
    &["model", "output", "force", "dry_run", "compare_methods", "save_recipe"];

/// The option whose lists for all models and for one add up.
const EXCLUDE: &str = "exclude";

/// A part of a file, which has other keys besides options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Whole,
    Model,
    Batch,
}

impl Section {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Section::Whole => &["models", "batch", "jobs", "skip_existing", "continue_on_error"],
            Section::Model => &["input", "output", "skip_existing"],
            Section::Batch => {
                &["input_dir", "output_dir", "jobs", "skip_existing", "continue_on_error"]
            }
        }
    }
}

/// The help about files.
pub(crate) fn help() -> String {
    let aliases = |row: &'static OptionRow| {
        row.aliases.iter().map(|alias| format!("  {alias:<22}{}", row.name))
    };
    let rows = options::rows().into_iter().filter(|row| row.is_on(Surface::File));
    let names: Vec<String> = rows.flat_map(aliases).collect();
    format!(
        "\
A file has options for all models, and a list of models:

  bits: 8
  per_channel: true
  models:
    - input: a.onnx            # with `calibration_data` or `ranges` it is calibrated
      output: a.int8.onnx
      calibration_data: images/*.jpg
    - input: b.onnx
      output: b.int4.onnx
      bits: 4                  # its own options take precedence
  batch:
    input_dir: models/*.onnx   # a folder, or a pattern
    output_dir: quantized      # a.onnx becomes a_int8.onnx
    skip_existing: true        # also continue_on_error, jobs

`skip_existing` at the top is for all models; in a model or in `batch` it is for those alone.
`continue_on_error` and `jobs` are for all models, in `batch` too.

Options have the names of the flags of `quantize` and `calibrate`, with _ for -: per_channel,
layer_bits (a map or a list), exclude and include (lists; what is excluded for all models stays
excluded in each). `smooth: false` is --no-smooth. Options of calibration may be in a map
`calibration`. `mode: dynamic` is output_format: dynamic; `mode: weights` leaves activations in
float even with `calibration_data`; `accuracy_threshold: 0.99` is max_accuracy_drop: 0.01. Other
names of options:

{}

`quantize-rs config --schema` prints the JSON Schema of such files.",
        names.join("\n")
    )
}

/// The arguments of a command, without the global ones.
pub(crate) fn arguments(command: &str) -> Vec<Arg> {
    let whole = args::command();
    let found = whole.find_subcommand(command);
    found.map_or_else(Vec::new, |command| command.get_arguments().cloned().collect())
}

/// Whether an argument is a path.
pub(crate) fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// An option of a file.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The key, as it was written.
    key: String,
    /// The flag it stands for.
    id: String,
    value: At<Node>,
    pub(super) line: usize,
}

pub(super) type Options = Vec<Choice>;

/// The keys of a section that are not options.
type Rest = Vec<(At<String>, At<Node>)>;

/// The known keys.
pub(super) struct Keys {
    folder: PathBuf,
    quantize: Vec<Arg>,
    calibrate: Vec<Arg>,
    /// Options that say how samples are read and run.
    running: Vec<Id>,
}

impl Keys {
    /// Keys of a file in this folder.
    pub(super) fn new(folder: &Path) -> Keys {
        let known = |command| {
            let mut known = arguments(command);
            known.retain(|arg| !TYPED_ONLY.contains(&arg.get_id().as_str()));
            known
        };
        let (quantize, calibrate) = (known("quantize"), known("calibrate"));
        let running =
            ImageArguments::augment_args(EngineArguments::augment_args(clap::Command::new("")));
        let running = running.get_arguments().map(|arg| arg.get_id().clone()).collect();
        Keys { folder: folder.to_path_buf(), quantize, calibrate, running }
    }

    fn flag(&self, id: &str) -> Option<&Arg> {
        self.quantize.iter().chain(&self.calibrate).find(|arg| arg.get_id() == id)
    }

    /// The options of a section, and its other keys.
    pub(super) fn section(
        &self,
        node: &At<Node>,
        section: Section,
    ) -> Result<(Options, Rest), Wrong> {
        let Node::Map(entries) = &node.value else {
            let what = match section {
                Section::Whole => "expected keys and values",
                Section::Model => "a model is keys and values: input, output, and options",
                Section::Batch => "`batch` is keys and values: input_dir, output_dir, and options",
            };
            return Err(Wrong::at(node.line, what));
        };
        let (mut options, mut rest) = (Options::new(), Rest::new());
        for (key, value) in entries {
            match key.value.as_str() {
                own if section.keys().contains(&own) => rest.push((key.clone(), value.clone())),
                "calibration" => {
                    let Node::Map(inner) = &value.value else {
                        return Err(Wrong::at(value.line, "`calibration` is keys and values"));
                    };
                    for (key, value) in inner {
                        options.extend(self.choice(key, value, section)?);
                    }
                }
                _ => options.extend(self.choice(key, value, section)?),
            }
        }
        // With `save_statistics: false`, the path of the statistics has no effect.
        if let Some(at) = options.iter().position(|option| option.id == "save_statistics") {
            let saved = options.remove(at);
            let on = matches!(saved.value.value, Node::Bool(true));
            if on && options.iter().all(|option| option.id != "ranges_out") {
                let what = "`save_statistics` needs a `statistics_path`";
                return Err(Wrong::at(saved.line, what));
            }
            options.retain(|option| on || option.id != "ranges_out");
        }
        fallen_back_once(&mut options)?;
        for (at, option) in options.iter().enumerate() {
            if let Some(other) = options[..at].iter().find(|other| other.id == option.id) {
                let what = format!("`{}` and `{}` say the same", other.key, option.key);
                return Err(Wrong::at(option.line, what));
            }
        }
        Ok((options, rest))
    }

    fn choice(
        &self,
        key: &At<String>,
        value: &At<Node>,
        section: Section,
    ) -> Result<Option<Choice>, Wrong> {
        let made = |id: &str, value: At<Node>| {
            Some(Choice { key: key.value.clone(), id: id.to_owned(), value, line: key.line })
        };
        if value.value == Node::Nothing {
            return Err(Wrong::at(key.line, format!("`{}` has no value", key.value)));
        }
        let row = options::find(&key.value);
        let id = row.map_or(key.value.as_str(), |row| row.name);
        if let (Some(off), Node::Bool(on)) = (row.and_then(|row| row.flag.off), &value.value) {
            let value = At { value: Node::Bool(!on), line: value.line };
            return Ok(made(&off.replace('-', "_"), value));
        }
        if id == "save_statistics" {
            return Ok(made(id, value.clone()));
        }
        if id == ACCURACY_THRESHOLD {
            return Ok(made("max_accuracy_drop", fraction_lost(value)?));
        }
        if self.flag(id).is_some() {
            return Ok(made(id, value.clone()));
        }
        let without = format!("no_{id}");
        if self.flag(&without).is_some() {
            return match value.value {
                Node::Bool(on) => {
                    let value = At { value: Node::Bool(!on), line: value.line };
                    Ok(made(&without, value))
                }
                _ => Err(Wrong::at(value.line, format!("`{id}` is neither true nor false"))),
            };
        }
        if id == "mode" {
            let Node::Text(found) = &value.value else {
                return Err(Wrong::at(value.line, "`mode` is not a word"));
            };
            let word = WORDS.iter().find(|(key, word, ..)| *key == id && word == found);
            return match (word, found.as_str()) {
                (Some((_, _, id, text)), _) => {
                    Ok(made(id, At { value: Node::Text((*text).to_owned()), line: value.line }))
                }
                (None, STATIC) => Ok(made(STATIC, value.clone())),
                (None, WEIGHTS) => Ok(made(ALONE, value.clone())),
                _ => {
                    let what = format!("`mode` is `{found}`, expected static, dynamic or weights");
                    Err(Wrong::at(value.line, what))
                }
            };
        }
        Err(Wrong::at(key.line, self.unknown(&key.value, section)))
    }

    fn unknown(&self, key: &str, section: Section) -> String {
        let flags = self.quantize.iter().chain(&self.calibrate).map(|arg| arg.get_id().as_str());
        let known: Vec<&str> =
            section.keys().iter().chain(OWN_KEYS).copied().chain(flags).collect();
        match options::closest(key, Surface::File, &known) {
            Some(name) => format!("there is no key `{key}`; did you mean `{name}`?"),
            None => format!("there is no key `{key}`; `quantize-rs config --help` lists them"),
        }
    }

    /// Why an option applies to no model of a file.
    pub(super) fn misplaced(&self, option: &Choice, general: &Options) -> String {
        let calibrated = self.calibrate.iter().any(|arg| arg.get_id() == option.id.as_str())
            && !runs_uncalibrated(option);
        let key = &option.key;
        if calibrated && general.iter().any(|option| option.id == ALONE) {
            format!("`{key}` is for models that are calibrated, and `mode` says otherwise")
        } else if self.running.iter().any(|id| id == option.id.as_str()) {
            format!(
                "`{key}` is for models that run on samples: none has `calibration_data` or \
                 `validation_data`"
            )
        } else if SAMPLING.contains(&&*option.id) {
            format!("`{key}` says which samples are used: no model has `calibration_data`")
        } else if is_for_rounding(&option.id) {
            format!("`{key}` is for rounding with samples: no model has `calibration_data`")
        } else if calibrated {
            format!(
                "`{key}` is for models that are calibrated: no model has `calibration_data` or \
                 `ranges`"
            )
        } else {
            format!(
                "`{key}` is for models that are not calibrated: all have `calibration_data` or \
                 `ranges`"
            )
        }
    }

    /// A path, relative to the folder of the file.
    pub(super) fn path(&self, value: &At<Node>) -> Result<PathBuf, Wrong> {
        match &value.value {
            Node::Text(text) if !text.is_empty() => Ok(self.folder.join(text)),
            _ => Err(Wrong::at(value.line, "expected a path")),
        }
    }

    /// The equivalent command line for a model: its own options, and the general options that apply
    /// to its command and that it does not set itself.
    pub(super) fn typed(
        &self,
        general: &Options,
        used: &mut [bool],
        own: &Options,
        input: &Path,
        output: &Path,
    ) -> Result<Vec<OsString>, Wrong> {
        let measured =
            |option: &Choice| matches!(option.id.as_str(), "calibration_data" | "ranges");
        let own_mode = own.iter().find(|option| option.key == "mode");
        let mode = own_mode.or_else(|| general.iter().find(|option| option.key == "mode"));
        let alone = own_mode.is_some_and(|option| option.id != STATIC)
            || mode.is_some_and(|option| option.id == ALONE);
        let calibrated = !alone && own.iter().chain(general).any(measured);
        let (command, known) =
            if calibrated { ("calibrate", &self.calibrate) } else { ("quantize", &self.quantize) };
        if let Some(option) = mode.filter(|option| option.id == STATIC && !calibrated) {
            let what = "`mode: static` is for models that are calibrated: give \
                        `calibration_data` or `ranges` too";
            return Err(Wrong::at(option.line, what));
        }
        let find = |id: &str| known.iter().find(|arg| arg.get_id() == id);
        let mut args: Vec<OsString> =
            ["quantize-rs", command].into_iter().map(OsString::from).collect();
        args.extend([input.into(), "--output".into(), output.into()]);
        for option in own.iter().filter(|option| !is_mode(option)) {
            let Some(arg) = find(&option.id) else {
                let key = &option.key;
                let what = if calibrated {
                    format!("`{key}` is not for models that are calibrated")
                } else if alone {
                    format!("`{key}` is for models that are calibrated, and `mode` says otherwise")
                } else {
                    format!(
                        "`{key}` is for models that are calibrated: give `calibration_data` or \
                         `ranges` too"
                    )
                };
                return Err(Wrong::at(option.line, what));
            };
            self.write(arg, option, &mut args)?;
        }
        let sampled =
            |option: &Choice| matches!(option.id.as_str(), "calibration_data" | "validation_data");
        let runs = own.iter().chain(general).any(sampled);
        let has = |options: &Options, id: &str| options.iter().any(|option| option.id == id);
        let sampled =
            has(own, "calibration_data") || has(general, "calibration_data") && !has(own, "ranges");
        for (option, used) in general.iter().zip(used) {
            // The mode of a model takes precedence over the general one.
            if is_mode(option) || option.key == "mode" && own_mode.is_some() {
                *used = true;
                continue;
            }
            let Some(arg) = find(&option.id).filter(|_| !calibrated || !runs_uncalibrated(option))
            else {
                continue;
            };
            // Options about running samples apply only to models that run on samples.
            if !runs && self.running.contains(arg.get_id()) {
                continue;
            }
            // So do those about which samples there are, where ranges do not come instead.
            if !sampled && SAMPLING.contains(&arg.get_id().as_str()) {
                continue;
            }
            // So do those about rounding with samples, unless a model says that it uses none.
            let rounds = is_for_rounding(arg.get_id().as_str()) && !rounds_to_nearest(option);
            if rounds && !own.iter().chain(general).any(measured) {
                continue;
            }
            *used = true;
            if rounds && own.iter().any(rounds_to_nearest) {
                continue;
            }
            // What is excluded for all stays excluded where a model excludes more.
            let adds = option.id == EXCLUDE;
            let other = |own: &Choice| own.id != option.id || adds;
            if own.iter().all(|own| other(own) && !excludes(&own.id, &option.id)) {
                self.write(arg, option, &mut args)?;
            }
        }
        Ok(args)
    }

    fn write(&self, arg: &Arg, option: &Choice, args: &mut Vec<OsString>) -> Result<(), Wrong> {
        let flag = format!("--{}", arg.get_long().unwrap_or(&option.id));
        let takes_bool =
            options::find(&option.id).is_some_and(|row| matches!(row.kind, Kind::Bool));
        if takes_bool && !matches!(option.value.value, Node::Bool(_)) {
            let what = format!("`{}` is neither true nor false", option.key);
            return Err(Wrong::at(option.value.line, what));
        }
        if let (ArgAction::SetTrue, value) = (arg.get_action(), &option.value.value) {
            return match value {
                Node::Bool(true) => {
                    args.push(flag.into());
                    Ok(())
                }
                Node::Bool(false) => Ok(()),
                _ => {
                    let what = format!("`{}` is neither true nor false", option.key);
                    Err(Wrong::at(option.value.line, what))
                }
            };
        }
        let values = self.values(arg, option)?;
        if values.is_empty() && arg.get_id() == "include" {
            let what = format!("`{}` is empty: leave it out, or name something", option.key);
            return Err(Wrong::at(option.value.line, what));
        }
        let several = matches!(arg.get_action(), ArgAction::Append);
        if arg.get_value_delimiter().is_some() {
            args.push(joined(&flag, &values.join(",")));
        } else if values.len() == 1 || several {
            args.extend(values.iter().map(|value| joined(&flag, value)));
        } else {
            let what = format!("`{}` is a list, expected one value", option.key);
            return Err(Wrong::at(option.value.line, what));
        }
        Ok(())
    }

    fn values(&self, arg: &Arg, option: &Choice) -> Result<Vec<String>, Wrong> {
        if arg.get_id() == "overrides" {
            return Ok(vec![option.value.value.to_json().to_string()]);
        }
        let one = |value: &At<Node>| match &value.value {
            Node::Bool(on) => Ok(on.to_string()),
            Node::Text(text) if is_path(arg) && text != "random" => {
                Ok(self.folder.join(text).to_string_lossy().into_owned())
            }
            Node::Number(text) | Node::Text(text) => Ok(text.clone()),
            _ => Err(Wrong::at(value.line, format!("`{}` has a value too deep", option.key))),
        };
        match &option.value.value {
            Node::List(items) => items.iter().map(one).collect(),
            // `layer_bits: {a: 4}` is a=4.
            Node::Map(entries) => entries
                .iter()
                .map(|(name, value)| Ok(format!("{}={}", name.value, one(value)?)))
                .collect(),
            _ => Ok(vec![one(&option.value)?]),
        }
    }
}

/// Whether an option is an output format that does not go with calibration: as a general option it
/// is for the other models.
fn runs_uncalibrated(option: &Choice) -> bool {
    let Node::Text(name) = &option.value.value else { return false };
    let never = |format: Format| format.row().activations == FormatActivations::Never;
    let format = || name.parse::<Format>().is_ok_and(never);
    option.id == "output_format" && format()
}

/// Whether an option says that weights are rounded without samples.
fn rounds_to_nearest(option: &Choice) -> bool {
    let nearest = WeightAlgorithm::Nearest.name();
    option.id == "weight_algorithm"
        && matches!(&option.value.value, Node::Text(name) if name == nearest)
}

/// Whether an option is a value of `mode` without a flag.
fn is_mode(option: &Choice) -> bool {
    matches!(&*option.id, STATIC | ALONE)
}

/// `auto_fallback` and `sensitivity_analysis` are two names of one option. Both may be given if
/// they have the same value.
fn fallen_back_once(options: &mut Options) -> Result<(), Wrong> {
    let is_one = |option: &Choice| matches!(&*option.key, "auto_fallback" | "sensitivity_analysis");
    let mut both = options.iter().filter(|option| is_one(option));
    let (Some(first), Some(second)) = (both.next(), both.next()) else { return Ok(()) };
    if first.key == second.key {
        return Ok(());
    }
    if first.value.value != second.value.value {
        let what = format!(
            "`{}` contradicts `{}`: layers fall back by what sensitivity finds",
            second.key, first.key
        );
        return Err(Wrong::at(second.line, what));
    }
    let second = second.key.clone();
    options.retain(|option| option.key != second);
    Ok(())
}

/// The fraction of accuracy that may be lost, computed from the fraction that has to be kept.
fn fraction_lost(value: &At<Node>) -> Result<At<Node>, Wrong> {
    let kept = match &value.value {
        Node::Number(text) => text.parse::<f64>().ok().filter(|kept| (0.0..=1.0).contains(kept)),
        _ => None,
    };
    let Some(kept) = kept else {
        let what = format!("`{ACCURACY_THRESHOLD}`: expected a fraction from 0 to 1");
        return Err(Wrong::at(value.line, what));
    };
    // Rounded, because binary fractions are inexact: 0.99 leaves 0.01.
    let lost = ((1.0 - kept) * 1e8).round() / 1e8;
    Ok(At { value: Node::Number(lost.to_string()), line: value.line })
}

/// Whether an option of a model replaces a general option of another name.
fn excludes(own: &str, general: &str) -> bool {
    const PAIRS: [(&str, &str); 3] =
        [("bits", "weights"), ("calibration_data", "ranges"), ("no_optimize", "passes")];
    PAIRS.iter().any(|(a, b)| (own, general) == (*a, *b) || (own, general) == (*b, *a))
}

fn joined(flag: &str, value: &str) -> OsString {
    format!("{flag}={value}").into()
}
