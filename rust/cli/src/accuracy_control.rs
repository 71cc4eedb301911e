//! The bar of `quantize` and `calibrate`: what the result has to reach, on which samples it is judged,
//! and what becomes of one that does not reach it.

use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::{Config, GuardOptions, InputSpec, Model, Quantized, Ranges, guarded};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::args::{BarArguments, ClassArguments};
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::images::ImageArguments;
use crate::run_on_samples;
use crate::samples::{self, SampleArguments};

/// What the result has to reach.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Bar, below which nothing is written and the exit code is 1")]
pub(crate) struct GuardArguments {
    /// Samples that the result is judged on, in the forms of calibration data; by default
    /// those of --data, and the report says so, as where both are the same
    #[arg(long, value_name = "PATH")]
    verify: Option<PathBuf>,
    /// Fail where a bar is missed, instead of leaving layers float, worst first, until it holds
    #[arg(long)]
    no_fall_back: bool,
    #[command(flatten)]
    bar: BarArguments,
    #[command(flatten)]
    classes: ClassArguments,
}

/// What the result is judged by, and the samples, which are there.
pub(crate) struct Judged {
    options: GuardOptions,
    samples: SampleDiagnostics,
}

impl GuardArguments {
    /// Gets ready to judge, where that is wished. Samples of a calibration serve where there are no
    /// others.
    pub(crate) fn open(
        &self,
        model: &Model,
        images: &ImageArguments,
        calibrated: Option<&SampleArguments>,
        console: &mut Console<'_>,
    ) -> Result<Option<Judged>, Failure> {
        let bar = self.bar.bar();
        let data = calibrated.and_then(|samples| samples.data.as_deref());
        images.check(&[self.verify(), data])?;
        if self.verify.is_none() && !bar.is_set() && self.classes.labels.is_none() {
            if self.classes.scores.is_some() {
                let message = "--scores has no effect where nothing is judged: give --verify PATH";
                return Err(Failure::Misuse(message.to_owned()));
            }
            return Ok(None);
        }
        let inputs = InputSpec::of(model);
        let (found, random) = match (&self.verify, calibrated) {
            (Some(path), _) => {
                let found = samples::others(path, images, &inputs)?;
                (Some(found), samples::is_random(path))
            }
            // What noise is worth was told before the calibration.
            (None, Some(calibrated)) => (calibrated.open(&inputs)?, false),
            (None, None) => (None, false),
        };
        let Some(found) = found else {
            let message = format!(
                "{} needs --verify PATH: samples that the result is judged on",
                self.first_flag()
            );
            return Err(Failure::Misuse(message));
        };
        if random {
            console.warn("judged on random numbers, which says little of real inputs");
        }
        let options = GuardOptions {
            bar,
            fall_back: !self.no_fall_back,
            labels: self.classes.labels()?,
            scores: self.classes.scores.clone(),
            held_out: self
                .verify()
                .is_some_and(|path| !calibrated.is_some_and(|own| own.hold(path))),
            ..GuardOptions::default()
        };
        options.check()?;
        Ok(Some(Judged { options, samples: SampleDiagnostics::new(found, &inputs) }))
    }

    /// Where samples to judge on are, where others than those of a calibration were named.
    pub(crate) fn verify(&self) -> Option<&Path> {
        self.verify.as_deref()
    }

    /// Files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.verify.iter().chain(&self.classes.labels).map(PathBuf::as_path)
    }

    /// A flag that asks for samples.
    fn first_flag(&self) -> &'static str {
        let BarArguments { min_sqnr, max_accuracy_drop, require_faster } = &self.bar;
        match (min_sqnr, max_accuracy_drop, require_faster) {
            (Some(_), ..) => "--min-sqnr",
            (_, Some(_), _) => "--max-accuracy-drop",
            (.., true) => "--require-faster",
            _ => "--labels",
        }
    }
}

impl Judged {
    /// Makes the model and judges it, as often as is needed.
    pub(crate) fn quantized(
        mut self,
        (model, config): (&Model, &Config),
        ranges: Option<&Ranges>,
        engine: &EngineArguments,
        console: &mut Console<'_>,
    ) -> Result<Quantized, Failure> {
        let (opened, options) = (engine.open_deployed()?, &self.options);
        run_on_samples::shown(engine, &mut self.samples, console, |samples, control| {
            guarded(model, config, ranges, &*opened, samples, options, control)
        })
    }
}
