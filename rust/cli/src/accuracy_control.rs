//! Accuracy control of `quantize` and `calibrate`: the criteria that the result has to meet, the
//! samples that it is evaluated on, and what happens if it misses a criterion.

use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::options::{CheckMode, Fraction};
use quantize_rs::{
    AccuracyControl, AccuracyCriteria, Config, InputSpec, Model, Quantized, Ranges, Samples,
    quantize_with_accuracy_control,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::images::ImageArguments;
use crate::labels::ClassArguments;
use crate::options;
use crate::run_on_samples;
use crate::samples::{self, SampleArguments};

/// What the quantized model has to reach.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Accuracy criteria: where one is missed the exit code is 1")]
pub(crate) struct CriteriaArguments {
    #[arg(long, value_name = "DB", help = options::help("min_sqnr"))]
    pub(crate) min_sqnr: Option<f64>,
    #[arg(
        long,
        value_name = "FRACTION",
        requires = "labels",
        value_parser = options::parsed::<Fraction>("max_accuracy_drop"),
        help = options::help("max_accuracy_drop")
    )]
    pub(crate) max_accuracy_drop: Option<Fraction>,
    #[arg(long, help = options::help("require_faster"))]
    pub(crate) require_faster: bool,
}

impl CriteriaArguments {
    pub(crate) fn chosen(&self) -> AccuracyCriteria {
        AccuracyCriteria {
            min_sqnr: self.min_sqnr,
            max_accuracy_drop: self.max_accuracy_drop.map(|Fraction(drop)| drop),
            require_faster: self.require_faster,
        }
    }
}

const ACCURACY_CONTROL: &str =
    "Accuracy control: where a criterion is missed no model is written and the exit code is 1";

const NO_FALL_BACK: &str = "Fail if an accuracy criterion is missed, instead of leaving the most \
                            sensitive layers in float until it is met";

/// Accuracy criteria, and what happens where the result misses one.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = ACCURACY_CONTROL)]
pub(crate) struct AccuracyControlArguments {
    #[arg(
        id = "validation_data",
        long = "validation-data",
        visible_alias = "verify",
        value_name = "PATH",
        help = options::help("validation_data"),
        long_help = options::long_help("validation_data")
    )]
    verify: Option<PathBuf>,
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        value_parser = options::choice::<CheckMode>("check"),
        help = options::help("check"),
        long_help = options::long_help("check")
    )]
    check: CheckMode,
    #[arg(long, help = NO_FALL_BACK)]
    no_fall_back: bool,
    #[command(flatten)]
    criteria: CriteriaArguments,
    #[command(flatten)]
    classes: ClassArguments,
}

/// The accuracy criteria, and the samples to evaluate the result on.
pub(crate) struct Evaluation {
    options: AccuracyControl,
    samples: SampleDiagnostics,
}

impl AccuracyControlArguments {
    /// Opens the samples that the result is evaluated on, if any are needed. Without others, the
    /// samples of the calibration are used.
    pub(crate) fn open(
        &self,
        model: &Model,
        images: &ImageArguments,
        calibrated: Option<&SampleArguments>,
        console: &mut Console<'_>,
    ) -> Result<Option<Evaluation>, Failure> {
        let criteria = self.criteria.chosen();
        let data = calibrated.and_then(|samples| samples.data.as_deref());
        images.check(&[self.verify(), data])?;
        if self.verify.is_none() && !criteria.is_set() && self.classes.labels.is_none() {
            if self.classes.scores.is_some() {
                let message = "--scores has no effect where nothing is evaluated: give \
                               --validation-data PATH";
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
            // The calibration already warns about random samples.
            (None, Some(calibrated)) => (calibrated.open(&inputs)?, false),
            (None, None) => (None, false),
        };
        let Some(found) = found else {
            let message = format!(
                "{} needs --validation-data PATH: samples that the result is evaluated on",
                self.first_flag()
            );
            return Err(Failure::Misuse(message));
        };
        if random {
            console.warn("evaluated on random numbers, which says little about real inputs");
        }
        let options = AccuracyControl {
            criteria,
            fall_back: !self.no_fall_back,
            labels: self.classes.labels()?,
            scores: self.classes.scores.clone(),
            held_out: self
                .verify()
                .is_some_and(|path| !calibrated.is_some_and(|own| own.hold(path))),
            ..AccuracyControl::default()
        };
        options.check()?;
        Ok(Some(Evaluation { options, samples: SampleDiagnostics::new(found, &inputs) }))
    }

    /// The path of the samples to evaluate on, if they are not those of the calibration.
    pub(crate) fn verify(&self) -> Option<&Path> {
        self.verify.as_deref()
    }

    /// Whether the outputs of a result without accuracy criteria are checked.
    pub(crate) fn checks(&self) -> bool {
        self.check == CheckMode::Auto
    }

    /// Files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.verify.iter().chain(&self.classes.labels).map(PathBuf::as_path)
    }

    /// A flag that needs samples.
    fn first_flag(&self) -> &'static str {
        let CriteriaArguments { min_sqnr, max_accuracy_drop, require_faster } = &self.criteria;
        match (min_sqnr, max_accuracy_drop, require_faster) {
            (Some(_), ..) => "--min-sqnr",
            (_, Some(_), _) => "--max-accuracy-drop",
            (.., true) => "--require-faster",
            _ => "--labels",
        }
    }
}

impl Evaluation {
    /// Quantizes the model and evaluates the result, as often as needed.
    pub(crate) fn quantized(
        mut self,
        (model, config): (&Model, &Config),
        ranges: Option<&Ranges>,
        engine: &EngineArguments,
        console: &mut Console<'_>,
    ) -> Result<Quantized, Failure> {
        let (opened, options) = (engine.open_deployed()?, &self.options);
        let made =
            run_on_samples::shown(engine, &mut self.samples, console, |samples, control| {
                quantize_with_accuracy_control(
                    model, config, ranges, &*opened, samples, options, control,
                )
            })?;
        // The calibration has warned about its own samples.
        if self.options.held_out {
            self.samples.conversions().iter().for_each(|said| console.warn(said));
        }
        Ok(made)
    }
}
