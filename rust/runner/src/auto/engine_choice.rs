//! Chooses the engine of one model, and checks whether both engines compute the same.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use quantize_rs::{
    CalibrationError, CalibrationErrorKind as Kind, Engine, Sample, Session, ValueSink, with_causes,
};
use quantize_rs_onnx::{DataType, Model, topological};

use super::value_summary::ValueSummaries;
use super::{Choice, Shapes, fingerprint};
use crate::{OnnxRuntime, Tract};

/// What to prepare.
#[derive(Clone, Copy)]
pub(super) struct EngineRequest<'a> {
    pub(super) model: &'a Model,
    pub(super) observed: &'a [String],
    pub(super) sample: &'a Sample,
    pub(super) stop: &'a AtomicBool,
    /// Whether other sessions use the cores at the same time.
    pub(super) beside: bool,
}

/// The result of running a sample with both engines.
enum Agreement {
    /// Both agree; tract's runner.
    Same(Box<dyn Session>),
    /// tract's runner, and the error of ONNX Runtime.
    Unchecked(Box<dyn Session>, CalibrationError),
    /// ONNX Runtime's runner, and the first difference.
    Different(Box<dyn Session>, String),
    /// tract cannot run the model.
    Fails(CalibrationError),
}

impl EngineRequest<'_> {
    fn prepare(self, engine: &dyn Engine) -> Result<Box<dyn Session>, CalibrationError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(CalibrationError::new(Kind::Cancelled));
        }
        let prepare = if self.beside { Engine::prepare_beside } else { Engine::prepare };
        prepare(engine, self.model, self.observed, self.sample)
    }

    /// The runner of tract when ONNX Runtime is not available.
    pub(super) fn alone(self, why: &str) -> Result<Box<dyn Session>, CalibrationError> {
        match self.prepare(&Tract) {
            Ok(runner) => Ok(Box::new(self.by(&Tract, runner, &format!("run by tract: {why}")))),
            Err(failure) if is_caller_error(&failure) => Err(failure),
            Err(failure) => Err(unsupported(format!("{failure}; {why}"), failure)),
        }
    }

    /// The runner of `engine`, or that of `other` if this one fails, with the reason.
    pub(super) fn prefer(
        self,
        engine: &dyn Engine,
        other: &dyn Engine,
        why: String,
    ) -> Result<(ChosenRunner, String), CalibrationError> {
        match self.prepare(engine) {
            Ok(runner) => Ok((self.by(engine, runner, &why), why)),
            Err(failure) => self.fall_back(engine, failure, other),
        }
    }

    /// The runner of `other` after a failure of `engine`.
    fn fall_back(
        self,
        engine: &dyn Engine,
        failure: CalibrationError,
        other: &dyn Engine,
    ) -> Result<(ChosenRunner, String), CalibrationError> {
        if is_caller_error(&failure) {
            return Err(failure);
        }
        match self.prepare(other) {
            Ok(runner) => {
                let failure = with_causes(&failure);
                let why =
                    format!("run by {}, because {} fails: {failure}", other.name(), engine.name());
                Ok((self.by(other, runner, &why), why))
            }
            Err(second) if is_caller_error(&second) => Err(second),
            Err(second) => {
                let [first, then] = [&failure, &second].map(|error| with_causes(error));
                let both = format!("{first}; and {} fails too: {then}", other.name());
                // That of ONNX Runtime, to which models are deployed.
                let cause = if other.name() == Tract.name() { failure } else { second };
                Err(unsupported(both, cause))
            }
        }
    }

    /// The runner of tract if ONNX Runtime computes the same values for the first sample; otherwise
    /// that of ONNX Runtime.
    pub(super) fn choose(
        self,
        onnxruntime: &OnnxRuntime,
    ) -> Result<(ChosenRunner, String), CalibrationError> {
        let (engine, runner, why): (&dyn Engine, _, _) = match self.compare(onnxruntime)? {
            Agreement::Same(runner) => {
                let why = "run by tract; onnxruntime computes the same values for the first sample";
                (&Tract, runner, why.to_owned())
            }
            Agreement::Unchecked(runner, failure) => {
                let failure = with_causes(&failure);
                let why = format!("run by tract, unchecked because onnxruntime fails: {failure}");
                (&Tract, runner, why)
            }
            Agreement::Different(runner, how) => {
                let why = format!("run by onnxruntime, because for the first sample {how}");
                (onnxruntime, runner, why)
            }
            Agreement::Fails(failure) => return self.fall_back(&Tract, failure, onnxruntime),
        };
        Ok((self.by(engine, runner, &why), why))
    }

    /// The runner of the engine chosen earlier, for another sample or another model.
    pub(super) fn with_previous_choice(
        self,
        choice: &Choice,
        onnxruntime: &OnnxRuntime,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let Choice { tract, why, model, compared } = choice;
        let (engine, other): (&dyn Engine, &dyn Engine) =
            if *tract { (&Tract, onnxruntime) } else { (onnxruntime, &Tract) };
        if *model != fingerprint(self.model) {
            // Quantized models may differ between engines by a step, which does not matter.
            let (runner, _) = self.prefer(engine, other, why.clone())?;
            return Ok(Box::new(runner));
        }
        let is_new =
            *tract && compared.lock().unwrap_or_else(PoisonError::into_inner).insert(self.shapes());
        let runner = if is_new {
            match self.compare(onnxruntime)? {
                Agreement::Same(runner) | Agreement::Unchecked(runner, _) => runner,
                Agreement::Different(_, how) => return Err(require_onnxruntime(&how)),
                Agreement::Fails(failure) if is_caller_error(&failure) => return Err(failure),
                Agreement::Fails(failure) => {
                    let how = format!("tract fails: {}", with_causes(&failure));
                    return Err(require_onnxruntime(&how).caused_by(failure));
                }
            }
        } else {
            self.prepare(engine)?
        };
        Ok(Box::new(self.by(engine, runner, why)))
    }

    /// Runs the sample with both engines.
    fn compare(self, onnxruntime: &OnnxRuntime) -> Result<Agreement, CalibrationError> {
        let mut values = self.observed.to_vec();
        values.extend(float_outputs(self.model).filter(|name| !self.observed.contains(name)));
        let request = EngineRequest { observed: &values, ..self };
        let (tract, ours) =
            match request.prepare(&Tract).and_then(|runner| request.summarize(runner)) {
                Ok(shown) => shown,
                Err(failure) => return Ok(Agreement::Fails(failure)),
            };
        let shown = request.prepare(onnxruntime).and_then(|runner| request.summarize(runner));
        let (runner, theirs) = match shown {
            Ok(shown) => shown,
            Err(failure) if is_caller_error(&failure) => return Err(failure),
            Err(failure) => return Ok(Agreement::Unchecked(tract, failure)),
        };
        Ok(match request.first_difference(&ours, &theirs)? {
            None => Agreement::Same(tract),
            Some(difference) => Agreement::Different(runner, difference),
        })
    }

    /// The summaries of the values of a sample.
    fn summarize(
        self,
        runner: Box<dyn Session>,
    ) -> Result<(Box<dyn Session>, ValueSummaries), CalibrationError> {
        let mut summaries = ValueSummaries::default();
        runner.run(self.sample, &mut summaries, self.stop)?;
        Ok((runner, summaries))
    }

    /// The first value in topological order that differs.
    fn first_difference(
        self,
        ours: &ValueSummaries,
        theirs: &ValueSummaries,
    ) -> Result<Option<String>, CalibrationError> {
        let nodes = &self.model.graph().node;
        let order = topological(nodes).map_err(|error| {
            CalibrationError::engine(None, "the nodes have no order").caused_by(error)
        })?;
        let made = order.iter().flat_map(|node| &nodes[*node].output);
        let ranks: HashMap<&String, usize> =
            made.enumerate().map(|(rank, name)| (name, rank + 1)).collect();
        let mut observed: Vec<usize> = (0..self.observed.len()).collect();
        observed.sort_by_key(|index| ranks.get(&self.observed[*index]).copied().unwrap_or(0));
        Ok(observed.into_iter().find_map(|index| {
            let (ours, theirs) = ours.0.get(&index)?.difference(theirs.0.get(&index)?)?;
            let name = &self.observed[index];
            Some(format!("tract computes `{name}` {ours}, and onnxruntime {theirs}"))
        }))
    }

    fn by(self, engine: &dyn Engine, runner: Box<dyn Session>, why: &str) -> ChosenRunner {
        ChosenRunner {
            engine: engine.name(),
            why: why.to_owned(),
            observed: self.observed.len(),
            runner,
        }
    }

    pub(super) fn shapes(self) -> Shapes {
        let inputs = self.sample.inputs.iter();
        let mut shapes: Shapes =
            inputs.map(|(name, value)| (name.clone(), value.shape.clone())).collect();
        shapes.sort();
        shapes
    }
}

/// Whether the error is not that of an engine: the sample is invalid, or the caller cancelled.
fn is_caller_error(failure: &CalibrationError) -> bool {
    matches!(failure.kind().category(), "input_mismatch" | "cancelled")
}

fn unsupported(failures: String, cause: CalibrationError) -> CalibrationError {
    CalibrationError::new(Kind::NoEngine { failures }).caused_by(cause)
}

/// The error when tract was chosen for an earlier sample and cannot be used for this one.
fn require_onnxruntime(how: &str) -> CalibrationError {
    let what = format!(
        "{how}, although both engines agreed on the first sample: use `engine=\"onnxruntime\"` or \
         `--engine onnxruntime`"
    );
    CalibrationError::engine(None, what)
}

/// The float outputs of the model, which both engines can show.
fn float_outputs(model: &Model) -> impl Iterator<Item = String> {
    let shown = [DataType::Float, DataType::Float16].map(DataType::number);
    let outputs = model.graph().output.iter().filter(move |output| {
        output.tensor_type().is_some_and(|tensor| shown.contains(&tensor.elem_type))
    });
    outputs.map(|output| output.name.clone())
}

/// A runner, and why it was chosen.
pub(super) struct ChosenRunner {
    pub(super) engine: &'static str,
    why: String,
    /// The number of requested values; the runner may have more.
    observed: usize,
    runner: Box<dyn Session>,
}

impl Session for ChosenRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.runner.run(sample, &mut FirstValues { sink, observed: self.observed }, cancelled)
    }

    fn any_shape(&self) -> bool {
        self.runner.any_shape()
    }

    fn engine(&self) -> Option<&'static str> {
        Some(self.engine)
    }

    fn note(&self) -> Option<&str> {
        Some(&self.why)
    }
}

/// Passes on only the first values.
struct FirstValues<'a> {
    sink: &'a mut dyn ValueSink,
    observed: usize,
}

impl ValueSink for FirstValues<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        if index < self.observed {
            self.sink.observe(index, shape, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::value_summary::ValueSummary;

    #[test]
    fn the_first_difference_in_the_graph_is_reported() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/residual_add.onnx");
        let model = Model::open(path).unwrap();
        let observed = ["conv3_y", "relu1_y", "x", "add1_y"].map(str::to_owned);
        let (sample, stop) = (Sample::default(), AtomicBool::new(false));
        let request = EngineRequest {
            model: &model,
            observed: &observed,
            sample: &sample,
            stop: &stop,
            beside: false,
        };
        let summaries = |ends: [f32; 4]| {
            ValueSummaries(
                ends.into_iter()
                    .map(|end| ValueSummary::of(&[2], &[0.0, end]))
                    .enumerate()
                    .collect(),
            )
        };
        let ours = summaries([1.0; 4]);
        let first = |theirs| request.first_difference(&ours, &summaries(theirs)).unwrap();
        assert_eq!(first([1.0; 4]), None);
        let message = first([2.0, 3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            message,
            "tract computes `relu1_y` as [2] between 0 and 1, \
             and onnxruntime as [2] between 0 and 3"
        );
        assert!(first([2.0; 4]).unwrap().contains("`x`"));
    }
}
