//! One model to be prepared: by which engine, and whether both compute the same.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use quantize_rs::{CalibrationError, CalibrationErrorKind as Kind, Engine, Runner, Sample, Sink};
use quantize_rs_onnx::{DataType, Model, topological};

use super::value_summary::Extents;
use super::{Choice, Shapes, nodes_of};
use crate::{OnnxRuntime, Tract};

/// What is to be prepared.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) model: &'a Model,
    pub(super) taps: &'a [String],
    pub(super) sample: &'a Sample,
    pub(super) stop: &'a AtomicBool,
    /// Whether others are busy beside it.
    pub(super) beside: bool,
}

/// How what the engines compute of a sample compares.
enum Compared {
    /// tract's runner.
    Same(Box<dyn Runner>),
    /// tract's runner, and why ONNX Runtime has none.
    Unchecked(Box<dyn Runner>, CalibrationError),
    /// ONNX Runtime's runner, and how they differ.
    Different(Box<dyn Runner>, String),
    /// tract cannot run it.
    Fails(CalibrationError),
}

impl Task<'_> {
    fn prepare(self, engine: &dyn Engine) -> Result<Box<dyn Runner>, CalibrationError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(CalibrationError::new(Kind::Cancelled));
        }
        let prepare = if self.beside { Engine::prepare_beside } else { Engine::prepare };
        prepare(engine, self.model, self.taps, self.sample)
    }

    /// The runner of tract, where there is no other engine.
    pub(super) fn alone(self, why: &str) -> Result<Box<dyn Runner>, CalibrationError> {
        match self.prepare(&Tract) {
            Ok(runner) => Ok(Box::new(self.by(&Tract, runner, &format!("run by tract: {why}")))),
            Err(failure) if is_of_the_caller(&failure) => Err(failure),
            Err(failure) => Err(unsupported(format!("{failure}; {why}"), failure)),
        }
    }

    /// The runner of `engine`, or that of `other` where this one fails, and why.
    pub(super) fn prefer(
        self,
        engine: &dyn Engine,
        other: &dyn Engine,
        why: String,
    ) -> Result<(Chosen, String), CalibrationError> {
        match self.prepare(engine) {
            Ok(runner) => Ok((self.by(engine, runner, &why), why)),
            Err(failure) => self.instead(engine, failure, other),
        }
    }

    /// The runner of `other`, because of a failure of `engine`.
    fn instead(
        self,
        engine: &dyn Engine,
        failure: CalibrationError,
        other: &dyn Engine,
    ) -> Result<(Chosen, String), CalibrationError> {
        if is_of_the_caller(&failure) {
            return Err(failure);
        }
        match self.prepare(other) {
            Ok(runner) => {
                let why =
                    format!("run by {}, because {} fails: {failure}", other.name(), engine.name());
                Ok((self.by(other, runner, &why), why))
            }
            Err(second) if is_of_the_caller(&second) => Err(second),
            Err(second) => {
                let both = format!("{failure}; and {} fails too: {second}", other.name());
                Err(unsupported(both, failure))
            }
        }
    }

    /// The runner of tract, if ONNX Runtime computes the same of the first sample; else its own.
    pub(super) fn choose(
        self,
        onnxruntime: &OnnxRuntime,
    ) -> Result<(Chosen, String), CalibrationError> {
        let (engine, runner, why): (&dyn Engine, _, _) = match self.compare(onnxruntime)? {
            Compared::Same(runner) => {
                let why = "run by tract; onnxruntime computes the same of the first sample";
                (&Tract, runner, why.to_owned())
            }
            Compared::Unchecked(runner, failure) => {
                let why = format!("run by tract, unchecked because onnxruntime fails: {failure}");
                (&Tract, runner, why)
            }
            Compared::Different(runner, how) => {
                let why = format!("run by onnxruntime, because of the first sample {how}");
                (onnxruntime, runner, why)
            }
            Compared::Fails(failure) => return self.instead(&Tract, failure, onnxruntime),
        };
        Ok((self.by(engine, runner, &why), why))
    }

    /// The runner of the engine that was chosen before, for another sample or another model.
    pub(super) fn as_chosen(
        self,
        choice: &Choice,
        onnxruntime: &OnnxRuntime,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        let Choice { tract, why, model, compared } = choice;
        let (engine, other): (&dyn Engine, &dyn Engine) =
            if *tract { (&Tract, onnxruntime) } else { (onnxruntime, &Tract) };
        if *model != nodes_of(self.model) {
            // Quantized models may differ between engines by a step, of which nothing follows.
            let (runner, _) = self.prefer(engine, other, why.clone())?;
            return Ok(Box::new(runner));
        }
        let is_new =
            *tract && compared.lock().unwrap_or_else(PoisonError::into_inner).insert(self.shapes());
        let runner = if is_new {
            match self.compare(onnxruntime)? {
                Compared::Same(runner) | Compared::Unchecked(runner, _) => runner,
                Compared::Different(_, how) => return Err(asks_for_onnxruntime(&how)),
                Compared::Fails(failure) if is_of_the_caller(&failure) => return Err(failure),
                Compared::Fails(failure) => {
                    let how = format!("tract fails: {failure}");
                    return Err(asks_for_onnxruntime(&how).caused_by(failure));
                }
            }
        } else {
            self.prepare(engine)?
        };
        Ok(Box::new(self.by(engine, runner, why)))
    }

    /// Runs the sample with both.
    fn compare(self, onnxruntime: &OnnxRuntime) -> Result<Compared, CalibrationError> {
        let mut values = self.taps.to_vec();
        values.extend(float_outputs(self.model).filter(|name| !self.taps.contains(name)));
        let task = Task { taps: &values, ..self };
        let (tract, ours) = match task.prepare(&Tract).and_then(|runner| task.shown_by(runner)) {
            Ok(shown) => shown,
            Err(failure) => return Ok(Compared::Fails(failure)),
        };
        let shown = task.prepare(onnxruntime).and_then(|runner| task.shown_by(runner));
        let (runner, theirs) = match shown {
            Ok(shown) => shown,
            Err(failure) if is_of_the_caller(&failure) => return Err(failure),
            Err(failure) => return Ok(Compared::Unchecked(tract, failure)),
        };
        Ok(match task.first_difference(&ours, &theirs)? {
            None => Compared::Same(tract),
            Some(difference) => Compared::Different(runner, difference),
        })
    }

    /// What the runner shows of the sample.
    fn shown_by(
        self,
        runner: Box<dyn Runner>,
    ) -> Result<(Box<dyn Runner>, Extents), CalibrationError> {
        let mut extents = Extents::default();
        runner.run(self.sample, &mut extents, self.stop)?;
        Ok((runner, extents))
    }

    /// The first value in the order of the graph that is not the same in both.
    fn first_difference(
        self,
        ours: &Extents,
        theirs: &Extents,
    ) -> Result<Option<String>, CalibrationError> {
        let nodes = &self.model.graph().node;
        let order = topological(nodes).map_err(|error| {
            let kind = Kind::Engine("the nodes have no order".to_owned());
            CalibrationError::new(kind).caused_by(error)
        })?;
        let made = order.iter().flat_map(|node| &nodes[*node].output);
        let ranks: HashMap<&String, usize> =
            made.enumerate().map(|(rank, name)| (name, rank + 1)).collect();
        let mut taps: Vec<usize> = (0..self.taps.len()).collect();
        taps.sort_by_key(|tap| ranks.get(&self.taps[*tap]).copied().unwrap_or(0));
        Ok(taps.into_iter().find_map(|tap| {
            let (ours, theirs) = ours.0.get(&tap)?.difference(theirs.0.get(&tap)?)?;
            let name = &self.taps[tap];
            Some(format!("tract computes `{name}` {ours}, and onnxruntime {theirs}"))
        }))
    }

    fn by(self, engine: &dyn Engine, runner: Box<dyn Runner>, why: &str) -> Chosen {
        Chosen { engine: engine.name(), why: why.to_owned(), taps: self.taps.len(), runner }
    }

    pub(super) fn shapes(self) -> Shapes {
        let inputs = self.sample.inputs.iter();
        let mut shapes: Shapes =
            inputs.map(|(name, value)| (name.clone(), value.shape.clone())).collect();
        shapes.sort();
        shapes
    }
}

/// Whether no engine is at fault: the sample is, or somebody who does not want to wait.
fn is_of_the_caller(failure: &CalibrationError) -> bool {
    matches!(failure.kind(), Kind::InputMismatch(_) | Kind::Cancelled)
}

fn unsupported(failures: String, cause: CalibrationError) -> CalibrationError {
    CalibrationError::new(Kind::NoEngine { failures }).caused_by(cause)
}

/// The error when tract, which was chosen by an earlier sample, does not do for this one.
fn asks_for_onnxruntime(how: &str) -> CalibrationError {
    let what = format!(
        "{how}, though both computed the same of the first sample: choose `engine=\"onnxruntime\"`, \
         or `--engine onnxruntime`"
    );
    CalibrationError::new(Kind::Engine(what))
}

/// The outputs of the model that it declares to hold floats both engines show.
fn float_outputs(model: &Model) -> impl Iterator<Item = String> {
    let shown = [DataType::Float, DataType::Float16].map(DataType::number);
    let outputs = model.graph().output.iter().filter(move |output| {
        output.tensor_type().is_some_and(|tensor| shown.contains(&tensor.elem_type))
    });
    outputs.map(|output| output.name.clone())
}

/// A runner, and why it is the one.
pub(super) struct Chosen {
    pub(super) engine: &'static str,
    why: String,
    /// How many of the values that it shows were asked for.
    taps: usize,
    runner: Box<dyn Runner>,
}

impl Runner for Chosen {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.runner.run(sample, &mut First { sink, taps: self.taps }, cancelled)
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

/// Passes the first taps on.
struct First<'a> {
    sink: &'a mut dyn Sink,
    taps: usize,
}

impl Sink for First<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        if tap < self.taps {
            self.sink.observe(tap, shape, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::value_summary::Extent;

    #[test]
    fn of_several_differences_the_first_of_the_graph_is_told() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/residual_add.onnx");
        let model = Model::open(path).unwrap();
        let taps = ["conv3_y", "relu1_y", "x", "add1_y"].map(str::to_owned);
        let (sample, stop) = (Sample::default(), AtomicBool::new(false));
        let task = Task { model: &model, taps: &taps, sample: &sample, stop: &stop, beside: false };
        let extents = |ends: [f32; 4]| {
            Extents(ends.into_iter().map(|end| Extent::of(&[2], &[0.0, end])).enumerate().collect())
        };
        let ours = extents([1.0; 4]);
        let first = |theirs| task.first_difference(&ours, &extents(theirs)).unwrap();
        assert_eq!(first([1.0; 4]), None);
        let told = first([2.0, 3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            told,
            "tract computes `relu1_y` as [2] between 0 and 1, and onnxruntime as [2] between 0 and 3"
        );
        assert!(first([2.0; 4]).unwrap().contains("`x`"));
    }
}
