//! Work on samples: shown while it goes on, and stopped by Ctrl-C.

use quantize_rs::{Control, Engine, QuantizeError, Samples};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::interrupt;
use crate::samples::SampleArguments;

/// What came of the work.
pub(crate) struct Done<T> {
    pub(crate) found: T,
    /// What is to be said of the samples that somebody calibrates with.
    pub(crate) warnings: Vec<String>,
}

/// Does some work on the samples with the engine, and shows how far it has come.
pub(crate) fn on<T>(
    engine: &dyn Engine,
    (arguments, source): (&EngineArguments, &SampleArguments),
    mut samples: SampleDiagnostics,
    console: &mut Console<'_>,
    work: impl FnOnce(&dyn Engine, &mut dyn Samples, Control<'_>) -> Result<T, QuantizeError>,
) -> Result<Done<T>, Failure> {
    let found =
        shown(arguments, &mut samples, console, |samples, control| work(engine, samples, control))?;
    // Noise was warned of before.
    let warnings = if source.are_random() { Vec::new() } else { samples.warnings() };
    Ok(Done { found, warnings })
}

/// Does some work on samples, and shows how far it has come.
pub(crate) fn shown<T>(
    arguments: &EngineArguments,
    samples: &mut SampleDiagnostics,
    console: &mut Console<'_>,
    work: impl FnOnce(&mut dyn Samples, Control<'_>) -> Result<T, QuantizeError>,
) -> Result<T, Failure> {
    let mut progress = console.progress(samples.len_hint());
    let mut show = |done| {
        progress.show(done);
        !interrupt::is_pressed()
    };
    let control = Control { threads: arguments.threads(), progress: &mut show };
    let outcome = work(samples, control);
    progress.clear();
    Ok(outcome?)
}
