//! The `quantize-rs` command, as a function.
//!
//! The program and the Python wheel's console script both call [`run`]. Results go to standard
//! output, progress, warnings and errors to standard error. The exit code is 0 on success, 1 if the
//! model or the data was rejected, and 2 if the command line is invalid; nothing is written in the
//! last two cases. It is 130 after Ctrl-C.
//!
//! ```
//! let (mut out, mut err) = (Vec::new(), Vec::new());
//! let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
//! let code = quantize_rs_cli::run_with(["quantize-rs", "info", model], &mut out, &mut err);
//! assert_eq!((code, err.is_empty()), (0, true));
//! assert!(String::from_utf8_lossy(&out).contains("Conv"));
//! ```

mod accuracy_control;
mod args;
mod ascii_histogram;
mod batch;
mod benchmark;
mod calibrate;
mod compare;
mod config;
mod console;
mod convert;
mod engine;
mod failure;
mod half_precision;
mod html;
mod images;
mod infer;
mod info;
mod interrupt;
mod jobs;
mod labels;
mod layer_errors;
mod mixed;
mod nothing;
mod optimize;
mod options;
mod outliers;
mod output_check;
mod output_file;
mod output_path;
mod overwriting;
mod plan;
mod progress;
mod prune;
mod quantize;
mod ranges;
mod recipe;
mod recommend;
mod run_on_samples;
mod samples;
mod sensitivity;
mod shell;
mod summary;
mod text;
mod validate;
mod variants;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches};

use args::{Arguments, Command};
use console::{Console, Terminals};
use failure::Failure;
use quantize_rs::ChromeTrace;

/// Runs the command line `args`, whose first item is the name of the program.
///
/// It does not panic. It installs a handler of Ctrl-C: the first Ctrl-C ends the work, and the
/// process if that takes longer than a second, but a file that is being written is finished; the
/// second ends the process at once.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(status(args))
}

/// As [`run`], but returns the exit code as a number.
pub fn status(args: impl IntoIterator<Item = OsString>) -> u8 {
    interrupt::listen();
    let (out, err) = (io::stdout(), io::stderr());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let colors = !dumb && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let terminals = Terminals { out: out.is_terminal(), err: err.is_terminal(), colors };
    answer(args, &mut out.lock(), &mut &err, terminals)
}

/// As [`run`], but prints to `out` and `err`, which are treated as files and not as terminals, and
/// returns the exit code as a number.
pub fn run_with<T: Into<OsString> + Clone>(
    args: impl IntoIterator<Item = T>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    answer(args, out, err, Terminals::default())
}

fn answer<T: Into<OsString>>(
    args: impl IntoIterator<Item = T>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    terminals: Terminals,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let parsed = args::command().try_get_matches_from(&args).and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok((matches, arguments))
    });
    let (matches, arguments) = match parsed {
        Ok(parsed) => parsed,
        Err(answer) => return help_or_misuse(&answer, out, err),
    };
    let mut console = Console::new(out, err, arguments.output, terminals).typed(&args);
    let outcome = overwriting::check(&overwriting::paths(&matches)).and_then(|()| {
        traced(arguments.trace.as_deref(), || dispatch(arguments.command, &matches, &mut console))
    });
    match outcome.and_then(|()| console.flush()) {
        Ok(()) => 0,
        Err(failure) => {
            // After Ctrl-C, any failure is reported as the interruption.
            let failure = if interrupt::is_pressed() { Failure::Interrupted } else { failure };
            console.error(&failure.message());
            failure.code()
        }
    }
}

/// Runs a command.
fn dispatch(
    command: Command,
    matches: &ArgMatches,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    match command {
        Command::Info(args) => info::run(&args, console),
        Command::Recommend(args) => recommend::run(&args, console),
        Command::Quantize(args) => {
            let output = args.output.path(&args.model, quantize::DONE);
            recipe::keep(&args.recipe, &output, matches, || quantize::run(&args, console))
        }
        Command::Calibrate(args) => {
            let output = args.output.path(&args.model, calibrate::DONE);
            recipe::keep(&args.recipe, &output, matches, || calibrate::run(&args, console))
        }
        Command::Batch(args) => batch::run(&args, console),
        Command::Config(args) => config::run(&args, matches, console),
        Command::Validate(args) => validate::run(&args, console),
        Command::Benchmark(args) => benchmark::run(&args, console),
        Command::Plan(args) => plan::run(&args, console),
        Command::Prune(args) => prune::run(&args, console),
        Command::Convert(args) => convert::run(&args, console),
        Command::InferShapes(args) => infer::run(&args, console),
        Command::Float16(args) => half_precision::run(&args, console),
        Command::Variants(args) => variants::run(&args, console),
        Command::Optimize(args) => optimize::run(&args, console),
        Command::Compare(args) => compare::run(&args, console),
        Command::LayerErrors(args) => layer_errors::run(&args, console),
        Command::Sensitivity(args) => sensitivity::run(&args, console),
        Command::MixedPrecision(args) => mixed::run(&args, console),
        Command::Outliers(args) => outliers::run(&args, console),
        Command::Ranges(command) => ranges::run(&command, console),
        Command::Completions(args) => shell::completions(&args, console),
        Command::Man(args) => shell::man(&args, console),
    }
}

/// Runs work, and writes when each part of it ran to a file, also if it fails.
fn traced(path: Option<&Path>, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let Some(path) = path else { return work() };
    // A model is not overwritten by mistake.
    if path.extension().is_none_or(|extension| extension != "json") {
        let what = format!("--trace is `{}`, expected a name that ends in .json", path.display());
        return Err(Failure::Misuse(what));
    }
    output_path::check(path)?;
    let trace = ChromeTrace::begin();
    let outcome = work();
    // Of two failures the first is reported.
    outcome.and(output_path::write(path, &trace.to_json()))
}

/// Prints the answers of clap: help and version on `out`, misuse on `err`.
fn help_or_misuse<'a>(answer: &clap::Error, out: &'a mut dyn Write, err: &'a mut dyn Write) -> u8 {
    let (stream, code) = if answer.use_stderr() { (err, failure::MISUSE) } else { (out, 0) };
    // A failure to write is ignored.
    let _ = write!(stream, "{}", answer.render()).and_then(|()| stream.flush());
    code
}
