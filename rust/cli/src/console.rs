//! Prints to standard output and standard error.

use std::io::Write;

use clap::{Args, ValueEnum};

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
    Text,
    Json,
}

/// The streams that a command prints to, and how much it prints.
pub(crate) struct Console<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    wanted: OutputArguments,
    terminals: Terminals,
}

/// Which of the streams are terminals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terminals {
    /// Standard output: charts are drawn beside numbers.
    pub(crate) out: bool,
    /// Standard error: a progress bar is drawn.
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
            Format::Text => text::printable(&text()),
        };
        if !result.ends_with('\n') {
            result.push('\n');
        }
        Ok(self.out.write_all(result.as_bytes())?)
    }

    /// Prints bytes for another program, unchanged.
    pub(crate) fn verbatim(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
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
        self.say(&format!("warning: {warning}"));
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
        Ok(self.out.flush()?)
    }

    fn say(&mut self, line: &str) {
        say(self.err, line);
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
    fn whatever_is_said_is_one_line() {
        let mut err = Vec::new();
        say(&mut err, "error: two\n  lines\n\u{7}");
        assert_eq!(String::from_utf8_lossy(&err), "error: two lines \\u{7}\n");
    }
}
