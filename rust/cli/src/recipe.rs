//! `--save-recipe`: a file with which `config` repeats a run.

use std::path::{Path, PathBuf, absolute};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args};
use quantize_rs::options::{self, Kind, OptionRow};
use serde_json::Value;

use crate::args;
use crate::config::{self, Language};
use crate::failure::Failure;
use crate::{output_path, samples};

/// Whether a run is kept.
#[derive(Debug, Default, Args)]
pub(crate) struct RecipeArguments {
    /// Also write a YAML or TOML file with which `config` repeats this run
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) save_recipe: Option<PathBuf>,
}

/// Runs a command, and writes its options to a file if `--save-recipe` was given.
pub(crate) fn keep(
    args: &RecipeArguments,
    output: &Path,
    matches: &ArgMatches,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(path) = &args.save_recipe else { return run() };
    let language =
        Language::of(path).map_err(|why| Failure::Misuse(format!("--save-recipe {why}")))?;
    let Some((name, matches)) = matches.subcommand() else { return run() };
    let used: Vec<PathBuf> = paths(name, matches);
    let used: Vec<&Path> = used.iter().map(PathBuf::as_path).chain([output]).collect();
    output_path::check_apart("--save-recipe", path, &used)?;
    output_path::check(path)?;
    let text = written(name, matches, output, path, language);
    run()?;
    output_path::write(path, &text)
}

/// The paths among the arguments of a command.
fn paths(name: &str, matches: &ArgMatches) -> Vec<PathBuf> {
    let given = config::arguments(name).into_iter().filter(config::is_path);
    let given = given.filter(|arg| arg.get_id() != "save_recipe");
    given.filter_map(|arg| matches.get_one::<PathBuf>(arg.get_id().as_str()).cloned()).collect()
}

/// The text of the file: a model, and every option on the command line.
fn written(
    name: &str,
    matches: &ArgMatches,
    output: &Path,
    path: &Path,
    language: Language,
) -> String {
    let folder = absolute(path).ok().and_then(|path| path.parent().map(Path::to_path_buf));
    let mut keys: Vec<(String, String)> = Vec::new();
    for arg in config::arguments(name) {
        let id = arg.get_id().as_str();
        let typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if id == "output" {
            keys.push((id.to_owned(), quoted(&beside(output, folder.as_deref()))));
            continue;
        }
        let applies = id == "model" || typed && !config::TYPED_ONLY.contains(&id);
        if !applies {
            continue;
        }
        let Some(raw) = matches.get_raw(id) else { continue };
        let raw: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
        if let Some(row) = turned_off_by(id) {
            keys.push((row.name.to_owned(), "false".to_owned()));
            continue;
        }
        let value = match &raw[..] {
            [only] if id == "overrides" => as_literal(only, language),
            _ => value(&arg, &raw, folder.as_deref()),
        };
        let key = if id == "model" { "input" } else { id };
        keys.push((key.to_owned(), value));
    }
    if name == "quantize" && keys.iter().any(|(key, _)| key == "calibration_data") {
        keys.push(("mode".to_owned(), quoted(config::WEIGHTS)));
    }
    let version = args::command().get_version().unwrap_or_default().to_owned();
    let mut text = format!("# {name} of quantize-rs {version}: `quantize-rs config` repeats it\n");
    match language {
        Language::Yaml => text.push_str("models:\n"),
        Language::Toml => text.push_str("[[models]]\n"),
    }
    for (at, (key, value)) in keys.iter().enumerate() {
        let line = match language {
            Language::Yaml if at == 0 => format!("  - {key}: {value}\n"),
            Language::Yaml => format!("    {key}: {value}\n"),
            Language::Toml => format!("{key} = {value}\n"),
        };
        text.push_str(&line);
    }
    text
}

/// The value in a syntax that both languages accept.
fn value(arg: &Arg, raw: &[String], folder: Option<&Path>) -> String {
    let one = |text: &String| {
        if config::is_path(arg) && text != "random" {
            return quoted(&beside(Path::new(text), folder));
        }
        let row = options::find(arg.get_id().as_str());
        let kind = row.map_or(&Kind::AnyOf(&[Kind::Integer, Kind::Bool]), |row| &row.kind);
        let is_bare = is_bare(kind, text);
        if is_bare { text.clone() } else { quoted(text) }
    };
    match arg.get_action() {
        ArgAction::SetTrue => "true".to_owned(),
        ArgAction::Append => list(raw, one),
        _ if arg.get_value_delimiter().is_some() => list(raw, one),
        _ => raw.first().map_or_else(|| "true".to_owned(), one),
    }
}

/// The option that a flag turns off, as `no_smooth` does.
fn turned_off_by(id: &str) -> Option<&'static OptionRow> {
    let is_off = |row: &&OptionRow| row.flag_off().is_some_and(|off| off.replace('-', "_") == id);
    options::rows().into_iter().find(is_off)
}

/// Whether a value is a number or a truth value of its option, which has no quotes.
fn is_bare(kind: &Kind, text: &str) -> bool {
    match kind {
        Kind::Integer | Kind::OneOf(_) | Kind::Number | Kind::Fraction => {
            serde_json::from_str::<serde_json::Number>(text).is_ok()
        }
        Kind::Bool => matches!(text, "true" | "false"),
        Kind::List(inner) => is_bare(inner, text),
        Kind::AnyOf(kinds) => kinds.iter().any(|kind| is_bare(kind, text)),
        _ => false,
    }
}

/// JSON as a value of a file; in TOML the keys of an object end in `=`.
fn as_literal(text: &str, language: Language) -> String {
    fn written(value: &Value, colon: &str) -> String {
        let all = |parts: Vec<String>| parts.join(", ");
        match value {
            Value::Array(items) => {
                format!("[{}]", all(items.iter().map(|item| written(item, colon)).collect()))
            }
            Value::Object(entries) => {
                let entry = |(key, value): (&String, &Value)| {
                    format!("{}{colon} {}", quoted(key), written(value, colon))
                };
                format!("{{{}}}", all(entries.iter().map(entry).collect()))
            }
            other => other.to_string(),
        }
    }
    let colon = if language == Language::Toml { " =" } else { ":" };
    serde_json::from_str(text).map_or_else(|_| quoted(text), |value| written(&value, colon))
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn list(raw: &[String], one: impl Fn(&String) -> String) -> String {
    format!("[{}]", raw.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// A path for the file: relative if it is inside the folder of the file, else absolute.
fn beside(path: &Path, folder: Option<&Path>) -> String {
    let whole = absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let short = folder.and_then(|folder| whole.strip_prefix(folder).ok());
    let path = short.unwrap_or(&whole);
    // A file of that name, not the word.
    let path = if samples::is_random(path) { Path::new(".").join(path) } else { path.to_owned() };
    path.to_string_lossy().into_owned()
}
