//! Prints to standard output and standard error.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use quantize_rs::options::as_flags;
use quantize_rs::text::shell_word;
use quantize_rs::{Grade, Origin};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::text;

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// The format of results; json is one document on one line
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Print no progress and no summary
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print every weight, and progress also when standard error is no terminal
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    #[value(alias = "human")]
    Text,
    Json,
}

/// The streams that a command prints to, and how much it prints.
pub(crate) struct Console<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    wanted: OutputArguments,
    terminals: Terminals,
    /// The command line, if it was typed.
    command: Option<String>,
}

/// Which of the streams are terminals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terminals {
    /// Standard output: charts are drawn beside numbers.
    pub(crate) out: bool,
    /// Standard error: a progress bar is drawn.
    pub(crate) err: bool,
    /// Whether colours are wanted: `NO_COLOR` is not set.
    pub(crate) colors: bool,
}

/// The text with the grade in its first line, if there is one, in the colour of the grade.
fn painted(text: &str) -> String {
    const GRADES: [(Grade, &str); 3] =
        [(Grade::Good, "32"), (Grade::Fair, "33"), (Grade::Poor, "31")];
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    for (grade, color) in GRADES {
        let word = format!("{}: ", grade.name());
        let start = first.strip_prefix("Evaluation:").map_or(first, str::trim_start);
        if let Some(sentence) = start.strip_prefix(&word) {
            let label = &first[..first.len() - start.len()];
            return format!("{label}\u{1b}[1;{color}m{}\u{1b}[0m: {sentence}{rest}", grade.name());
        }
    }
    text.to_owned()
}

impl<'a> Console<'a> {
    pub(crate) fn new(
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
        wanted: OutputArguments,
        terminals: Terminals,
    ) -> Console<'a> {
        Console { out, err, wanted, terminals, command: None }
    }

    /// The same console for this command line.
    pub(crate) fn typed(self, words: &[OsString]) -> Console<'a> {
        let words = words.iter().skip(1).map(|word| shell_word(&word.to_string_lossy()));
        let words: Vec<String> = std::iter::once("quantize-rs".to_owned()).chain(words).collect();
        Console { command: Some(words.join(" ")), ..self }
    }

    /// States the command line and the samples in the origin of a result.
    pub(crate) fn stamp(&self, origin: &mut Origin, samples: Option<&Path>) {
        origin.command_line = true;
        origin.command.clone_from(&self.command);
        origin.samples = samples.map(|path| path.display().to_string());
    }

    /// Whether standard output is a terminal.
    pub(crate) fn draws(&self) -> bool {
        self.terminals.out
    }

    /// Whether all details are printed.
    pub(crate) fn verbose(&self) -> bool {
        self.wanted.verbose
    }

    /// Prints a result in the requested format.
    pub(crate) fn result(
        &mut self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut result = match self.wanted.format {
            Format::Json => json(),
            Format::Text if self.terminals.out && self.terminals.colors => {
                painted(&text::printable(&text()))
            }
            Format::Text => text::printable(&text()),
        };
        if !result.ends_with('\n') {
            result.push('\n');
        }
        self.verbatim(result.as_bytes())
    }

    /// Prints bytes for another program, unchanged.
    pub(crate) fn verbatim(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        printed(self.out.write_all(bytes))
    }

    /// Prints the summary of a command that wrote a file: always as JSON, as text unless quiet.
    pub(crate) fn summary(
        &mut self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.wanted.quiet && self.wanted.format == Format::Text {
            return Ok(());
        }
        self.result(json, text)
    }

    /// Prints a warning; no flag suppresses it.
    pub(crate) fn warn(&mut self, warning: &str) {
        self.say(&format!("warning: {}", as_flags(warning)));
    }

    /// Prints that a step is done, if progress is shown.
    pub(crate) fn done(&mut self, what: &str) {
        if !self.wanted.quiet && (self.terminals.err || self.wanted.verbose) {
            self.say(&format!("✓ {what}"));
        }
    }

    /// Prints an error.
    pub(crate) fn error(&mut self, message: &str) {
        self.say(&format!("error: {message}"));
    }

    /// The progress of a run over `total` samples.
    pub(crate) fn progress(&mut self, total: Option<usize>) -> Progress<'_> {
        match self.wanted {
            OutputArguments { quiet: true, .. } => Progress::Silent,
            _ if self.terminals.err => Progress::bar(total),
            OutputArguments { verbose: true, .. } => Progress::lines(&mut *self.err),
            _ => Progress::Silent,
        }
    }

    /// Flushes standard output.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        printed(self.out.flush())
    }

    fn say(&mut self, line: &str) {
        say(self.err, line);
    }
}

/// What came of printing. If the reader of standard output stopped, as `head` does, the work goes
/// on.
fn printed(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Prints one line on standard error. A failure to write is ignored.
pub(crate) fn say(err: &mut dyn Write, line: &str) {
    let line = line.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let _ = writeln!(err, "{}", text::printable(&line)).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grade_has_its_color() {
        let text = "Evaluation:     good: 3 times smaller.\nNext: x\n";
        let shown = "Evaluation:     \u{1b}[1;32mgood\u{1b}[0m: 3 times smaller.\nNext: x\n";
        assert_eq!(painted(text), shown);
        assert_eq!(painted("poor: x"), "\u{1b}[1;31mpoor\u{1b}[0m: x");
        assert_eq!(painted("value  type\ngood: x"), "value  type\ngood: x");
    }

    #[test]
    fn whatever_is_said_is_one_line() {
        let mut err = Vec::new();
        say(&mut err, "error: two\n  lines\n\u{7}");
        assert_eq!(String::from_utf8_lossy(&err), "error: two lines \\u{7}\n");
    }
}
