//! Runs work on samples, with progress and Ctrl-C.

use quantize_rs::{Control, Engine, QuantizeError, RANDOM_SAMPLES, SampleEvidence, Samples};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::interrupt;
use crate::samples::SampleArguments;

/// The result of the work.
pub(crate) struct Done<T> {
    pub(crate) found: T,
    /// Warnings about the samples as those of a calibration.
    pub(crate) warnings: Vec<String>,
    /// Those among them that hold for any use of the samples.
    pub(crate) conversions: Vec<String>,
    /// What the warnings follow from.
    pub(crate) evidence: SampleEvidence,
}

/// Runs work on the samples with the engine, and shows the progress.
pub(crate) fn on<T>(
    engine: &dyn Engine,
    (arguments, source): (&EngineArguments, &SampleArguments),
    mut samples: SampleDiagnostics,
    console: &mut Console<'_>,
    work: impl FnOnce(&dyn Engine, &mut dyn Samples, Control<'_>) -> Result<T, QuantizeError>,
) -> Result<Done<T>, Failure> {
    let found =
        shown(arguments, &mut samples, console, |samples, control| work(engine, samples, control))?;
    let (warnings, evidence) = if source.are_random() {
        (vec![RANDOM_SAMPLES.to_owned()], SampleEvidence::of_random())
    } else {
        (samples.warnings(), samples.evidence())
    };
    Ok(Done { found, warnings, conversions: samples.conversions(), evidence })
}

/// Runs work on samples, and shows the progress.
pub(crate) fn shown<T>(
    arguments: &EngineArguments,
    samples: &mut SampleDiagnostics,
    console: &mut Console<'_>,
    work: impl FnOnce(&mut dyn Samples, Control<'_>) -> Result<T, QuantizeError>,
) -> Result<T, Failure> {
    watched(arguments, samples.len_hint(), console, |control| work(samples, control))
}

/// Runs work that needs no samples, and shows the progress.
pub(crate) fn without<T>(
    arguments: &EngineArguments,
    console: &mut Console<'_>,
    work: impl FnOnce(Control<'_>) -> Result<T, QuantizeError>,
) -> Result<T, Failure> {
    watched(arguments, None, console, work)
}

fn watched<T>(
    arguments: &EngineArguments,
    total: Option<usize>,
    console: &mut Console<'_>,
    work: impl FnOnce(Control<'_>) -> Result<T, QuantizeError>,
) -> Result<T, Failure> {
    let mut progress = console.progress(total);
    let mut show = |done| {
        progress.show(done);
        !interrupt::is_pressed()
    };
    let control = Control { threads: arguments.threads(), progress: &mut show };
    let outcome = work(control);
    progress.clear();
    Ok(outcome?)
}
