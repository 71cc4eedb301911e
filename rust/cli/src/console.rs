//! The two streams, and what goes to which.

use std::io::Write;

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::text;

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// How results are printed; json is one document on one line
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// No progress and no summary, only warnings, errors and what was asked for by name
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Every weight, and progress even where no bar can be drawn
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// Where a command prints, and how much.
pub(crate) struct Console<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    wanted: OutputArguments,
    terminals: Terminals,
}

/// Which of the streams a person looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terminals {
    /// Standard output: results are drawn beside their numbers.
    pub(crate) out: bool,
    /// Standard error: progress is drawn, and moves.
    pub(crate) err: bool,
}

impl<'a> Console<'a> {
    pub(crate) fn new(
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
        wanted: OutputArguments,
        terminals: Terminals,
    ) -> Console<'a> {
        Console { out, err, wanted, terminals }
    }

    /// Whether a person looks at the results.
    pub(crate) fn draws(&self) -> bool {
        self.terminals.out
    }

    /// Whether every detail is wanted.
    pub(crate) fn verbose(&self) -> bool {
        self.wanted.verbose
    }

    /// Prints a result, in the form that is wanted.
    pub(crate) fn result(
        &mut self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut result = match self.wanted.format {
            Format::Json => json(),
            Format::Text => text::printable(&text()),
        };
        if !result.ends_with('\n') {
            result.push('\n');
        }
        Ok(self.out.write_all(result.as_bytes())?)
    }

    /// Prints what is meant for another program, as it is.
    pub(crate) fn verbatim(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Prints what a command says of a file it wrote: as JSON always, as text unless quiet.
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

    /// Tells what the user should know; no flag silences it.
    pub(crate) fn warn(&mut self, warning: &str) {
        self.say(&format!("warning: {warning}"));
    }

    /// Tells what was done, where progress is shown.
    pub(crate) fn done(&mut self, what: &str) {
        if !self.wanted.quiet && (self.terminals.err || self.wanted.verbose) {
            self.say(&format!("✓ {what}"));
        }
    }

    /// Tells why the work is not done.
    pub(crate) fn error(&mut self, message: &str) {
        self.say(&format!("error: {message}"));
    }

    /// Progress over `total` samples.
    pub(crate) fn progress(&mut self, total: Option<usize>) -> Progress<'_> {
        match self.wanted {
            OutputArguments { quiet: true, .. } => Progress::Silent,
            _ if self.terminals.err => Progress::bar(total),
            OutputArguments { verbose: true, .. } => Progress::lines(&mut *self.err),
            _ => Progress::Silent,
        }
    }

    /// Hands on whatever is still held back.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    fn say(&mut self, line: &str) {
        say(self.err, line);
    }
}

/// One line on standard error. Nothing can be done when it cannot be written.
pub(crate) fn say(err: &mut dyn Write, line: &str) {
    let line = line.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let _ = writeln!(err, "{}", text::printable(&line)).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_said_is_one_line() {
        let mut err = Vec::new();
        say(&mut err, "error: two\n  lines\n\u{7}");
        assert_eq!(String::from_utf8_lossy(&err), "error: two lines \\u{7}\n");
    }
}
