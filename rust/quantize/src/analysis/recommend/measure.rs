//! Measures recommended strategies on samples, and corrects the recommendation where its result is
//! slower than the float model or far from it.

use std::fmt::Write as _;
use std::{fmt, mem};

use quantize_rs_onnx::Model;
use serde::Serialize;

use super::render_call::Files;
use super::{
    Alternative, Reason, Recommendation, RecommendedOptions, Request, Strategy, recommend,
    render_call,
};
use crate::analysis::compare::compare_outputs;
use crate::analysis::latency::QUICK;
use crate::analysis::reduced_range::{GAIN_DB, reduced};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::calibrate::pair::SliceSamples;
use crate::calibrate::{Control, calibrate};
use crate::error::while_unchanged;
use crate::report::assessment::FAR_DB;
use crate::report::{Speed, worst_sqnr};
use crate::{
    CalibrationError, CompareOptions, Config, Method, PreprocessedModel, QuantizeError, Target,
};

/// The number of samples that are read.
const MAX_SAMPLES: usize = 20;

/// One sample in this many is not used for calibration, but to measure the error.
const HELD_OUT: usize = 4;

/// A gain in accuracy that is noticed, in dB.
const NOTICED_DB: f64 = 3.0;

/// A gain in speed that is noticed, as a factor.
const NOTICED_SPEED: f64 = 1.1;

/// Sizes and latencies of at least this ratio are alike.
const ALIKE: f64 = 0.95;

/// What was measured of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredStrategy {
    /// The number of samples of the error.
    pub samples: usize,
    /// The engine.
    pub engine: String,
    /// The lowest SQNR of the outputs in dB; `None` if there is no float output.
    pub sqnr_db: Option<f64>,
    /// The latency of the float model divided by that of the result; `None` if the engine or the
    /// target does not allow to measure it.
    pub speedup: Option<f64>,
    /// Whether it takes noticeably longer than the float model.
    pub is_slower: bool,
    /// The size of the result in bytes.
    pub bytes: u64,
    /// The size of the float model in bytes.
    pub bytes_original: u64,
}

impl MeasuredStrategy {
    fn is_poor(&self) -> bool {
        self.sqnr_db.is_some_and(|db| db.is_nan() || db < FAR_DB)
    }

    fn is_good(&self) -> bool {
        !self.is_slower && !self.is_poor()
    }

    /// What is wrong with it, if it is not good.
    fn fault(&self) -> &'static str {
        if self.is_poor() { "far from the float model" } else { "slower" }
    }

    /// Whether this is noticeably more accurate or faster than another, and in nothing worse.
    fn improves_on(&self, other: &MeasuredStrategy) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "sizes of files, compared to 5 percent")]
        let smaller = other.bytes as f64 / self.bytes.max(1) as f64;
        let faster = match (self.speedup, other.speedup) {
            (Some(ours), Some(theirs)) => ours / theirs,
            _ => 1.0,
        };
        let db = |all: &MeasuredStrategy| match all.sqnr_db {
            Some(db) if db.is_nan() => f64::NEG_INFINITY,
            found => found.unwrap_or(0.0),
        };
        let (ours, theirs) = (db(self), db(other));
        let is_better = ours >= theirs + NOTICED_DB || faster >= NOTICED_SPEED;
        is_better && ours >= theirs && faster >= ALIKE && smaller >= ALIKE
    }
}

impl fmt::Display for MeasuredStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.speedup {
            Some(speedup) if speedup < 1.0 => {
                write!(f, "{:.2} times the time of the float model", 1.0 / speedup)?;
            }
            Some(speedup) => write!(f, "{speedup:.2} times as fast as the float model")?,
            None => f.write_str("latency not measured")?,
        }
        if let Some(db) = self.sqnr_db {
            write!(f, ", outputs with an SQNR of {db:.1} dB")?;
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes of files, shown to two digits")]
        let part = self.bytes as f64 / self.bytes_original.max(1) as f64;
        let Self { samples, engine, .. } = self;
        let plural = if *samples == 1 { "" } else { "s" };
        write!(f, ", {:.0} % of its size ({samples} sample{plural}, {engine})", part * 1e2)
    }
}

/// Recommends how to quantize a model, as [`recommend`], and measures the strategy and its
/// alternatives on at most 20 samples.
///
/// Where the result of the strategy takes more than 1.1 times the time of the float model, or has
/// an SQNR below 10 dB, the fastest alternative without that fault is recommended in its place, or
/// else one that is more accurate or faster and in nothing worse. The rule is then `measured`. A
/// quarter of the samples is not used for calibration, but for the error; with fewer than four, all
/// are used for both.
///
/// # Errors
/// A model that cannot be quantized at all, no samples, samples that do not fit the model, or a
/// cancelled run. A strategy that cannot be measured is no error: a reason says why.
pub fn recommend_measured(
    model: &Model,
    wanted: Request<'_>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    mut control: Control<'_>,
) -> Result<Recommendation, QuantizeError> {
    while_unchanged(&[model], || {
        let mut found = recommend(model, wanted)?;
        if found.choice.way == Strategy::Nothing {
            return Ok(found);
        }
        let taken: Vec<Sample> = std::iter::from_fn(|| samples.next_sample())
            .take(MAX_SAMPLES)
            .collect::<Result<_, CalibrationError>>()?;
        if taken.is_empty() {
            return Err(CalibrationError::no_samples().into());
        }
        let mut measurement =
            Measurement { model, wanted, engine, taken: &taken, control: &mut control };
        match measurement.of(&found.choice) {
            Ok(measured) => found.measured = Some(measured),
            Err(error) => found.reasons.push(not_measured(error)?),
        }
        for other in &mut found.otherwise {
            other.measured = match measurement.of(&other.choice) {
                Ok(measured) => Some(measured),
                Err(error) => not_measured(error).map(|_| None)?,
            };
        }
        let files = Files::of(model.path(), wanted.samples);
        Ok(found.corrected(&files))
    })
}

/// The reason that says why a strategy was not measured.
fn not_measured(error: QuantizeError) -> Result<Reason, QuantizeError> {
    if error.is_cancelled() {
        return Err(error);
    }
    let text = format!("not measured: {error}");
    Ok(Reason { rule: MEASURED, text })
}

/// The rule of a recommendation that measurement decided.
const MEASURED: &str = "measured";

impl Recommendation {
    /// The recommendation with the alternative that is measured to be better, if there is one.
    fn corrected(mut self, files: &Files) -> Recommendation {
        let Some(measured) = &self.measured else { return self };
        if measured.is_good() {
            return self;
        }
        let speed = |other: &Alternative| {
            let measured = other.measured.as_ref().filter(|measured| measured.is_good())?;
            Some(measured.speedup.unwrap_or(1.0))
        };
        let others = 0..self.otherwise.len();
        let good = others
            .clone()
            .filter_map(|index| Some((index, speed(&self.otherwise[index])?)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        let improvement = |index: &usize| {
            let other = self.otherwise[*index].measured.as_ref();
            other.is_some_and(|other| other.improves_on(measured))
        };
        let better = good.map(|(index, _)| index).or_else(|| others.clone().find(improvement));
        let fault = measured.fault();
        let Some(index) = better else {
            let text = format!("measured {fault}, and no alternative is better: {measured}");
            self.reasons.insert(0, Reason { rule: MEASURED, text });
            return self;
        };
        let chosen = self.otherwise.remove(index);
        let way = self.choice.way.name();
        let mut text = format!("{way} was measured and is {fault}: {measured}");
        if let Some(new) = chosen.measured.as_ref().filter(|new| !new.is_good()) {
            let name = chosen.choice.way.name();
            let _ = write!(text, "; {name} is better, but also {}", new.fault());
        }
        let when = "what the operators of the model suggest, measured slower or less accurate";
        let Alternative { choice, python, command, measured, .. } = chosen;
        let replaced = Alternative {
            choice: mem::replace(&mut self.choice, choice),
            when,
            python: mem::replace(&mut self.python, python),
            command: mem::replace(&mut self.command, command),
            measured: mem::replace(&mut self.measured, measured),
        };
        self.otherwise.push(replaced);
        self.samples = (self.choice.way == Strategy::Static).then(|| files.samples());
        // The reasons that remain are about the model, not about the options replaced.
        self.reasons.retain(|reason| OF_THE_MODEL.contains(&reason.rule));
        self.reasons.insert(0, Reason { rule: MEASURED, text });
        self.rule = MEASURED;
        self
    }
}

/// The reasons that hold for every strategy.
const OF_THE_MODEL: [&str; 2] = ["largest", "target"];

/// Whether the latency on this machine predicts that of the target.
fn runs_here(target: Option<Target>) -> bool {
    match target.unwrap_or(Target::X86) {
        Target::X86 => cfg!(target_arch = "x86_64"),
        Target::Arm => cfg!(target_arch = "aarch64"),
        _ => false,
    }
}

/// Measures strategies on the same samples.
struct Measurement<'a, 'c> {
    model: &'a Model,
    wanted: Request<'a>,
    engine: &'a dyn Engine,
    taken: &'a [Sample],
    control: &'a mut Control<'c>,
}

impl Measurement<'_, '_> {
    /// What the recommended call makes: where sums saturate on this processor, it may take weights
    /// of 7 bits.
    fn of(&mut self, choice: &RecommendedOptions) -> Result<MeasuredStrategy, QuantizeError> {
        let (quantized, measured) = self.with(render_call::config(choice, self.wanted.target)?)?;
        let Some(config) = reduced(&quantized, &measured.engine) else { return Ok(measured) };
        let least = measured.sqnr_db.map(|db| db + GAIN_DB);
        match self.with(config) {
            Ok((_, better)) if better.sqnr_db > least => Ok(better),
            Err(error) if error.is_cancelled() => Err(error),
            _ => Ok(measured),
        }
    }

    fn with(&mut self, config: Config) -> Result<(Quantized, MeasuredStrategy), QuantizeError> {
        let Self { model, wanted, engine, taken, control } = self;
        let here = runs_here(wanted.target);
        let prepared = PreprocessedModel::of(model, config)?;
        let plan = prepared.plan();
        let is_held_out = |index: usize| taken.len() >= HELD_OUT && index % HELD_OUT == 1;
        let part = |held_out: bool| {
            let all = taken.iter().enumerate();
            all.filter(|(index, _)| taken.len() < HELD_OUT || is_held_out(*index) == held_out)
                .map(|(_, sample)| sample.clone())
                .collect::<Vec<Sample>>()
        };
        let ranges = if plan.needs_calibration() {
            let samples = part(false);
            let mut samples = SliceSamples(samples.iter());
            let control = Control { threads: control.threads, progress: &mut *control.progress };
            let method = Method::default();
            Some(calibrate(&prepared.model, &plan, *engine, &mut samples, &method, control)?)
        } else {
            None
        };
        let plan = ranges
            .as_ref()
            .map_or_else(|| plan.clone(), |ranges| plan.clone().without_unseen(ranges));
        let quantized = plan.apply(&prepared.model, ranges.as_ref())?;
        let samples = part(true);
        let mut samples = SliceSamples(samples.iter());
        let options =
            CompareOptions { latency: here.then_some(QUICK), ..CompareOptions::default() };
        let control = Control { threads: control.threads, progress: &mut *control.progress };
        let found =
            compare_outputs(model, quantized.model(), *engine, &mut samples, &options, control)?;
        let speed = found.speed.filter(Speed::is_reliable);
        let measured = MeasuredStrategy {
            samples: found.samples,
            sqnr_db: worst_sqnr(&found.outputs),
            speedup: speed.as_ref().map(|speed| speed.speedup),
            is_slower: speed.as_ref().is_some_and(Speed::is_slower),
            engine: found.engine,
            bytes: found.bytes_quantized,
            bytes_original: found.bytes_original,
        };
        Ok((quantized, measured))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::recommend::Facts;

    fn measured(speedup: f64, sqnr_db: f64, bytes: u64) -> MeasuredStrategy {
        MeasuredStrategy {
            samples: 1,
            engine: "onnxruntime".to_owned(),
            sqnr_db: Some(sqnr_db),
            speedup: Some(speedup),
            is_slower: speedup < 0.9,
            bytes,
            bytes_original: 400,
        }
    }

    /// The recommendation after a strategy and its alternative were measured.
    fn corrected(first: MeasuredStrategy, other: MeasuredStrategy) -> Recommendation {
        let found = Recommendation {
            model: None,
            target: None,
            choice: RecommendedOptions::of(Strategy::Dynamic),
            rule: "recurrent",
            reasons: Vec::new(),
            samples: None,
            python: String::new(),
            command: String::new(),
            measured: Some(first),
            otherwise: vec![Alternative {
                choice: RecommendedOptions::of(Strategy::Weights),
                when: "memory matters",
                python: String::new(),
                command: String::new(),
                measured: Some(other),
            }],
            facts: Facts::default(),
        };
        found.corrected(&Files::of(None, None))
    }

    #[test]
    fn an_alternative_that_is_better_in_one_thing_and_worse_in_none_is_recommended() {
        let slow = || measured(0.5, 30.0, 100);
        for better in
            [measured(1.2, 20.0, 100), measured(0.6, 30.0, 100), measured(0.49, 41.0, 104)]
        {
            let found = corrected(slow(), better);
            assert_eq!((found.rule, found.choice.way), (MEASURED, Strategy::Weights));
            let text = &found.reasons[0].text;
            assert!(text.starts_with("dynamic was measured and is slower"), "{text}");
            let is_slow = found.measured.as_ref().is_some_and(|found| found.is_slower);
            assert_eq!(text.ends_with("; weights is better, but also slower"), is_slow, "{text}");
            assert_eq!(found.otherwise[0].choice.way, Strategy::Dynamic);
        }
        for worse in [
            measured(1.2, 5.0, 100),
            measured(0.6, 29.0, 100),
            measured(0.6, 41.0, 120),
            measured(0.4, 41.0, 100),
            measured(0.51, 31.0, 100),
        ] {
            let found = corrected(slow(), worse);
            assert_eq!((found.rule, found.choice.way), ("recurrent", Strategy::Dynamic));
            assert!(found.reasons[0].text.contains("no alternative is better"));
        }
    }
}
