//! Quantizes several models, one after another or at the same time, and prints a table of the
//! results.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use quantize_rs::Report;
use serde::Serialize;

use crate::calibrate::CalibrateArguments;
use crate::console::{Console, OutputArguments, Terminals};
use crate::failure::Failure;
use crate::output_path::{Made, place};
use crate::overwriting::{self, Named};
use crate::quantize::QuantizeArguments;
use crate::{calibrate, interrupt, quantize, text};

/// A model to quantize.
pub(crate) enum Work {
    Quantize(Box<QuantizeArguments>),
    Calibrate(Box<CalibrateArguments>),
}

impl Work {
    pub(crate) fn input(&self) -> &Path {
        match self {
            Work::Quantize(args) => &args.model,
            Work::Calibrate(args) => &args.model,
        }
    }

    pub(crate) fn output(&self) -> PathBuf {
        match self {
            Work::Quantize(args) => args.output.path(&args.model, quantize::DONE),
            Work::Calibrate(args) => args.output.path(&args.model, calibrate::DONE),
        }
    }

    fn run(&self, console: &mut Console<'_>) -> Result<Report, Failure> {
        match self {
            Work::Quantize(args) => quantize::report(args, console),
            Work::Calibrate(args) => calibrate::report(args, console),
        }
    }
}

/// A model to quantize, unless its output may be skipped.
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Whether to skip the model if its output exists.
    skip_existing: bool,
    /// The paths of its command line.
    paths: Vec<Named>,
    /// Whether it is skipped, because it is the result of another job.
    is_result: bool,
}

impl Job {
    pub(crate) fn new(work: Work, skip_existing: bool, paths: Vec<Named>) -> Job {
        Job { work, skip_existing, paths, is_result: false }
    }

    pub(crate) fn is_skipped(&self) -> bool {
        self.is_result || self.skip_existing && self.work.output().exists()
    }

    /// The files that it writes, with the argument of each.
    fn writes(&self) -> Vec<(&str, PathBuf)> {
        let beside = self.paths.iter().filter(|(id, _)| overwriting::is_written(id));
        let beside = beside.map(|(id, path)| (id.as_str(), path.clone()));
        std::iter::once(("output", self.work.output())).chain(beside).collect()
    }

    /// The files that it reads, with the argument of each.
    fn reads(&self) -> Vec<(&str, PathBuf)> {
        let written = |id: &str| id == "output" || overwriting::is_written(id);
        let others = self.paths.iter().filter(|(id, _)| id != "model" && !written(id));
        let others = others.map(|(id, path)| (id.as_str(), path.clone()));
        std::iter::once(("model", self.work.input().to_path_buf())).chain(others).collect()
    }
}

/// How jobs are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The number of jobs that run at the same time.
    pub(crate) jobs: usize,
    /// Whether to continue after a failure.
    pub(crate) continue_on_error: bool,
    /// How the user says that.
    pub(crate) continuing: &'static str,
}

/// The results of all jobs.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    done: usize,
    skipped: usize,
    failed: usize,
    not_begun: usize,
    models: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    input: String,
    output: String,
    status: Status,
    bytes_before: Option<u64>,
    bytes_after: Option<u64>,
    ratio: Option<f64>,
    seconds: f64,
    warnings: Vec<String>,
    error: Option<String>,
    /// The exit code of the command for this model alone.
    #[serde(skip)]
    code: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Done,
    Skipped,
    Failed,
    NotBegun,
}

/// Rejects jobs that would write over a file which another job writes or reads. An output that
/// exists and is skipped is not written. Ranges that one job writes may be read by a later one, if
/// they do not run at the same time.
pub(crate) fn check_apart(all: &[Job], manner: Manner) -> Result<(), Failure> {
    let mut readers: HashMap<PathBuf, Vec<(usize, &str)>> = HashMap::new();
    let running = || all.iter().enumerate().filter(|(_, job)| !job.is_skipped());
    for (at, job) in running() {
        for (id, path) in job.reads() {
            readers.entry(place(&path)).or_default().push((at, id));
        }
    }
    let mut writers: HashMap<PathBuf, usize> = HashMap::new();
    for (at, job) in running() {
        let model = job.work.input().display();
        for (id, path) in job.writes() {
            let (place, path) = (place(&path), path.display());
            let other = writers.insert(place.clone(), at).filter(|other| *other != at);
            if let Some(other) = other.map(|other| all[other].work.input().display()) {
                let message = match id {
                    "output" => format!("`{other}` and `{model}` would both become `{path}`"),
                    _ => format!("the jobs of `{other}` and `{model}` would both write `{path}`"),
                };
                return Err(Failure::Misuse(message));
            }
            let passed_on = |reader: usize, input: &str| {
                (id, input) == ("ranges_out", "ranges") && reader > at && manner.jobs == 1
            };
            let others = readers.get(&place).into_iter().flatten();
            let mut others =
                others.filter(|(reader, input)| *reader != at && !passed_on(*reader, input));
            if let Some((reader, input)) = others.next() {
                let what = match id {
                    "output" => format!("what `{model}` becomes"),
                    _ => format!("a file of the job of `{model}`"),
                };
                let over = match *input {
                    "model" => "is to be quantized too".to_owned(),
                    _ => format!("the job of `{}` reads", all[*reader].work.input().display()),
                };
                let message = format!("{what} would be written over `{path}`, which {over}");
                return Err(Failure::Misuse(message));
            }
        }
    }
    Ok(())
}

/// Skips models that are the result of another one which is skipped: `listed` says which were found
/// in a folder, where the results may be, too.
pub(crate) fn skip_results(all: &mut [Job], listed: impl Fn(usize) -> bool) {
    let skipped = all.iter().filter(|job| job.is_skipped());
    let results: HashSet<PathBuf> = skipped.map(|job| place(&job.work.output())).collect();
    for (at, job) in all.iter_mut().enumerate() {
        job.is_result = listed(at) && results.contains(&place(job.work.input()));
    }
}

/// Runs all jobs, prints the table, and fails if any job failed. The folder of an output is created
/// when its job begins, and removed again if nothing was written to it.
pub(crate) fn run(all: &[Job], manner: Manner, console: &mut Console<'_>) -> Result<(), Failure> {
    let folders = Mutex::new(Made::default());
    let rows = if manner.jobs > 1 {
        at_once(all, manner, &folders)
    } else {
        in_turn(all, manner, &folders, console)
    };
    if interrupt::is_pressed() {
        return Err(Failure::Interrupted);
    }
    for row in &rows {
        for warning in &row.warnings {
            console.warn(&format!("{}: {warning}", row.input));
        }
        if let Some(error) = &row.error {
            console.error(&format!("{}: {error}", row.input));
        }
    }
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    let (failed, not_begun) = (count(Status::Failed), count(Status::NotBegun));
    let code = rows.iter().map(|row| row.code).max().unwrap_or(0);
    let (done, skipped) = (count(Status::Done), count(Status::Skipped));
    let outcome = Outcome { done, skipped, failed, not_begun, models: rows };
    console.summary(|| text::json(&outcome), || outcome.to_string())?;
    if failed == 0 {
        return Ok(());
    }
    let left = match not_begun {
        0 => String::new(),
        count => {
            format!(", {count} were not begun ({} goes on)", manner.continuing)
        }
    };
    let message = format!("{failed} of {} models failed{left}", all.len());
    // Misuse that depends on the model, such as a name that it does not have.
    let misuse = code > 1 && failed == all.len();
    Err(if misuse { Failure::Misuse(message) } else { Failure::Refused(message) })
}

fn in_turn(
    all: &[Job],
    manner: Manner,
    folders: &Mutex<Made>,
    console: &mut Console<'_>,
) -> Vec<Row> {
    let mut stopped = false;
    let mut one = |job: &Job| {
        if stopped {
            return Row::of(&job.work, Status::NotBegun);
        }
        let row = row(job, folders, console);
        stopped = row.status == Status::Failed && !manner.continue_on_error;
        stopped |= interrupt::is_pressed();
        row
    };
    all.iter().map(&mut one).collect()
}

/// Runs jobs on several threads, each of which takes the next job that is left.
fn at_once(all: &[Job], manner: Manner, folders: &Mutex<Made>) -> Vec<Row> {
    let rows: Vec<Mutex<Row>> =
        all.iter().map(|job| Mutex::new(Row::of(&job.work, Status::NotBegun))).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work_on = || {
        let (mut out, mut err) = (io::sink(), io::sink());
        let quiet = OutputArguments { quiet: true, ..OutputArguments::default() };
        let mut console = Console::new(&mut out, &mut err, quiet, Terminals::default());
        loop {
            let stopped = failed.load(Ordering::Relaxed) > 0 && !manner.continue_on_error;
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = all.get(index).filter(|_| !stopped && !interrupt::is_pressed()) else {
                return;
            };
            let row = row(job, folders, &mut console);
            if row.status == Status::Failed {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            if let Ok(mut place) = rows[index].lock() {
                *place = row;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..manner.jobs.min(all.len()) {
            // What the system starts no thread for is left to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work_on);
        }
        work_on();
    });
    rows.into_iter().map(|row| row.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

fn row(job: &Job, folders: &Mutex<Made>, console: &mut Console<'_>) -> Row {
    let work = &job.work;
    if job.is_skipped() {
        return Row::of(work, Status::Skipped);
    }
    let begun = Instant::now();
    let mut folders = folders.lock().unwrap_or_else(PoisonError::into_inner);
    let made = folders.make_for(&work.output());
    drop(folders);
    let made = made.and_then(|()| work.run(console));
    let mut row = Row::of(work, Status::Failed);
    row.seconds = begun.elapsed().as_secs_f64();
    match made {
        Ok(report) => Row {
            status: Status::Done,
            bytes_before: Some(report.bytes_before),
            bytes_after: Some(report.bytes_after),
            ratio: Some(report.ratio()),
            warnings: report.warnings,
            ..row
        },
        Err(failure) => {
            let error = failure.message();
            // The table already has the name of the model.
            let named = format!("{}: ", row.input);
            let error = error.strip_prefix(&named).unwrap_or(&error).to_owned();
            Row { error: Some(error), code: failure.code(), ..row }
        }
    }
}

impl Row {
    fn of(work: &Work, status: Status) -> Row {
        Row {
            input: work.input().display().to_string(),
            output: work.output().display().to_string(),
            status,
            bytes_before: None,
            bytes_after: None,
            ratio: None,
            seconds: 0.0,
            warnings: Vec::new(),
            error: None,
            code: 0,
        }
    }
}

impl Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::Done => "done",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
            Status::NotBegun => "not begun",
        })
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), text::size);
        let head = ["Model", "Before", "After", "Ratio", "Status", "Written to"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.models.iter().map(|row| {
            let output =
                if row.status == Status::Done { row.output.clone() } else { "-".to_owned() };
            [
                row.input.clone(),
                size(row.bytes_before),
                size(row.bytes_after),
                row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}×")),
                row.status.to_string(),
                output,
            ]
        }));
        f.write_str(&text::columns(&lines))?;
        writeln!(f, "{} done, {} skipped, {} failed", self.done, self.skipped, self.failed)
    }
}
