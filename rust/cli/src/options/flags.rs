//! A row of the table of options as flags, and the value that was typed.

use std::ffi::OsStr;
use std::sync::Arc;

use clap::builder::{
    PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser, ValueParser,
};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use quantize_rs::QuantizeError;
use quantize_rs::options::{self, Choice, Kind, OptionRow, OptionType};
use serde_json::Value;

use crate::failure::Failure;

/// The flags of an option: the one that sets it, and the one that turns it off.
pub(super) fn of(row: &'static OptionRow) -> Vec<Arg> {
    let mut flags = Vec::new();
    if !row.is_on_by_default() {
        flags.push(setting(row));
    }
    if let Some(off) = row.flag_off() {
        let text = format!("Turn `{}` off. It is on by default: {}", row.name, row.summary());
        flags.push(
            Arg::new(off.replace('-', "_"))
                .long(off)
                .help(as_flags(row, &text))
                .help_heading(row.group.title())
                .action(ArgAction::SetTrue)
                .conflicts_with_all(Some(row.name).filter(|_| !row.is_on_by_default())),
        );
    }
    flags
}

/// What was typed for an option, as JSON; `None` where nothing was.
pub(super) fn value(
    row: &'static OptionRow,
    matches: &ArgMatches,
) -> Result<Option<Value>, QuantizeError> {
    let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    if let Some(off) = row.flag_off()
        && typed(&off.replace('-', "_"))
    {
        return Ok(Some(Value::Bool(false)));
    }
    if row.is_on_by_default() || !typed(row.name) {
        return Ok(None);
    }
    if row.is_switch() {
        return Ok(Some(Value::Bool(true)));
    }
    let texts = matches.get_many::<String>(row.name).into_iter().flatten();
    row.value_of(&texts.map(String::as_str).collect::<Vec<_>>()).map(Some)
}

/// The help of an option, for a flag of another part of the command line.
pub(crate) fn help(name: &str) -> String {
    options::find(name).map(short_help).unwrap_or_default()
}

/// All of the help of an option, and what its values mean.
pub(crate) fn long_help(name: &str) -> String {
    options::find(name).map(whole_help).unwrap_or_default()
}

/// A parser of an option whose values are a table.
pub(crate) fn choice<T>(name: &'static str) -> impl TypedValueParser<Value = T>
where
    T: OptionType + Clone + Send + Sync + 'static,
{
    choice_with(name, |value| value)
}

/// As [`choice`], with another help for some of the values.
pub(crate) fn choice_with<T>(
    name: &'static str,
    about: fn(PossibleValue) -> PossibleValue,
) -> impl TypedValueParser<Value = T>
where
    T: OptionType + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(values(&T::KIND).into_iter().map(about))
        .try_map(move |text| T::from_json(name, &Value::from(text)))
}

/// A parser of an option whose values are no table.
pub(crate) fn parsed<T>(name: &'static str) -> impl TypedValueParser<Value = T>
where
    T: OptionType + Clone + Send + Sync + 'static,
{
    whole(move |text| {
        let row = options::find(name);
        let value = row.map_or(Ok(Value::Null), |row| row.value_of(&[text]))?;
        let read = T::from_json(name, &value)?;
        row.map_or(Ok(()), |row| row.check_range(&value))?;
        Ok(read)
    })
}

/// A parser of a value of the library. Its refusal is the whole message: clap would put one of its
/// own before it.
pub(crate) fn whole<T>(
    read: impl Fn(&str) -> Result<T, QuantizeError> + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    Whole(Arc::new(read))
}

#[derive(Clone)]
struct Whole<T>(Arc<Read<T>>);

/// Reads a text.
type Read<T> = dyn Fn(&str) -> Result<T, QuantizeError> + Send + Sync;

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Whole<T> {
    type Value = T;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        (self.0)(&value.to_string_lossy()).map_err(|error| {
            let message = Failure::from(error).message();
            clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n"))
        })
    }
}

/// The values that a kind has, where they are a table.
fn values(kind: &Kind) -> Vec<PossibleValue> {
    let value = |choice: Choice| {
        let value = PossibleValue::new(choice.name).aliases(choice.aliases);
        if choice.about.is_empty() { value } else { value.help(choice.about) }
    };
    kind.choices().unwrap_or_default().into_iter().map(value).collect()
}

fn parser(kind: &Kind) -> ValueParser {
    match kind {
        Kind::Choice(_) => PossibleValuesParser::new(values(kind)).into(),
        _ => StringValueParser::new().into(),
    }
}

fn setting(row: &'static OptionRow) -> Arg {
    let mut arg = Arg::new(row.name)
        .long(row.name.replace('_', "-"))
        .visible_aliases(aliases(row))
        .help_heading(row.group.title())
        .conflicts_with_all(row.conflicts.iter().copied());
    if let Some(short) = row.flag.short {
        arg = arg.short(short);
    }
    if let Some(name) = row.flag.value_name {
        arg = arg.value_name(name);
    }
    arg = match &row.kind {
        Kind::Bool if row.is_switch() => arg.action(ArgAction::SetTrue),
        Kind::Bool => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(row.flag.equals)
            .default_missing_value("true")
            .value_parser(["true", "false"]),
        Kind::ByName(_) => arg.action(ArgAction::Append),
        kind if row.flag.commas => {
            let items = kind.items().unwrap_or(kind);
            arg.action(ArgAction::Set).value_delimiter(',').value_parser(parser(items))
        }
        Kind::List(_) => arg.action(ArgAction::Append),
        kind => arg.action(ArgAction::Set).value_parser(parser(kind)).allow_negative_numbers(true),
    };
    if !row.is_switch()
        && row.default_text.is_none()
        && let Some(default) = shown_default(row)
    {
        arg = arg.default_value(default);
    }
    described(row, arg)
}

fn described(row: &OptionRow, arg: Arg) -> Arg {
    arg.help(short_help(row)).long_help(whole_help(row))
}

/// Its first sentence.
fn short_help(row: &OptionRow) -> String {
    let summary = row.summary();
    let summary = as_flags(row, summary.strip_suffix('.').unwrap_or(&summary));
    format!("{summary}{}", default_text(row))
}

/// All of it, with the values of an open table, which clap does not list.
fn whole_help(row: &OptionRow) -> String {
    let mut parts: Vec<String> = row.paragraphs().iter().map(|text| as_flags(row, text)).collect();
    if let Kind::Open(choices) = &row.kind {
        let choices = choices();
        let width = choices.iter().map(|choice| choice.name.len()).max().unwrap_or(0) + 1;
        let line =
            |choice: &Choice| format!("- {:width$} {}", format!("{}:", choice.name), choice.about);
        let lines: Vec<String> = choices.iter().map(line).collect();
        parts.push(format!("Possible values:\n{}", lines.join("\n")));
    }
    format!("{}{}", parts.join("\n\n"), default_text(row))
}

fn default_text(row: &OptionRow) -> String {
    row.default_text.map(|text| format!(" [default: {}]", as_flags(row, text))).unwrap_or_default()
}

/// Options are typed as flags, unless the name is also a value of this option.
fn as_flags(row: &OptionRow, text: &str) -> String {
    let values = row.kind.choices().unwrap_or_default();
    let is_value = |part: &str| values.iter().any(|choice| choice.name == part);
    let flag = |(index, part): (usize, &str)| match options::find(part) {
        _ if index % 2 == 1 && is_value(part) => format!("`{part}`"),
        Some(row) if index % 2 == 1 && row.name == part => row.flag_name(),
        _ if index % 2 == 1 => format!("`{part}`"),
        _ => part.to_owned(),
    };
    // What is left are options with a value.
    options::as_flags(&text.split('`').enumerate().map(flag).collect::<String>())
}

fn aliases(row: &OptionRow) -> Vec<String> {
    row.aliases.iter().map(|alias| alias.replace('_', "-")).collect()
}

fn shown_default(row: &OptionRow) -> Option<String> {
    match (row.default)() {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
