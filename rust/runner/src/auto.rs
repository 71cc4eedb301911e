//! The engine that chooses between the two.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;

use quantize_rs::{CalibrationError, CalibrationErrorKind, Engine, Runner, Sample, Sink};
use quantize_rs_onnx::{DataType, Model, topological};

use crate::{OnnxRuntime, Tract};

/// Models of this many nodes take tract seconds to prepare.
const MANY_NODES: usize = 500;

/// Models of this many bytes of weights take tract clearly longer to run.
const LARGE: u64 = 8 << 20;

/// How far apart what two engines compute may be, as a part of the largest absolute value.
const TOLERANCE: f32 = 1e-3;

/// Lets [`Tract`] run what it runs right and fast, and [`OnnxRuntime`], where it is given, the rest.
///
/// What it chooses follows from the model and the first sample, never from a clock, and the
/// [`Runner`] says what it was and why:
///
/// | the model | with ONNX Runtime | without |
/// |---|---|---|
/// | has 500 nodes or 8 MiB of weights, or more | ONNX Runtime | tract |
/// | has what tract cannot run, or runs wrong | ONNX Runtime | an error with all of it |
/// | is smaller | tract, when both agree on the first sample; else ONNX Runtime | tract |
///
/// They agree when every graph output and every tapped value has the same least and greatest
/// element in both, to a thousandth of its largest absolute value.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    /// The engine for what tract cannot do.
    pub onnxruntime: Option<OnnxRuntime>,
}

impl Engine for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        let Some(onnxruntime) = &self.onnxruntime else {
            let runner = Tract.prepare(model, taps, sample)?;
            let (engine, taps) = (Tract.name(), taps.len());
            return Ok(Box::new(Chosen { engine, why: None, taps, runner }));
        };
        let task = Task { model, taps, sample };
        match large(model) {
            Some(why) => task.prefer(onnxruntime, &Tract, &why),
            None => task.compare(onnxruntime),
        }
    }
}

/// What is to be prepared.
#[derive(Clone, Copy)]
struct Task<'a> {
    model: &'a Model,
    taps: &'a [String],
    sample: &'a Sample,
}

impl Task<'_> {
    fn prepare(self, engine: &dyn Engine) -> Result<Box<dyn Runner>, CalibrationError> {
        engine.prepare(self.model, self.taps, self.sample)
    }

    /// The runner of `engine`, or that of `other` where this one fails.
    fn prefer(
        self,
        engine: &dyn Engine,
        other: &dyn Engine,
        why: &str,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        match self.prepare(engine) {
            Ok(runner) => {
                Ok(self.chosen(engine, runner, format!("run by {}: {why}", engine.name())))
            }
            Err(failure) => self.instead(engine, failure, other),
        }
    }

    /// The runner of `other`, because of a failure of `engine`.
    fn instead(
        self,
        engine: &dyn Engine,
        failure: CalibrationError,
        other: &dyn Engine,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        if let CalibrationErrorKind::InputMismatch(_) = failure.kind() {
            return Err(failure);
        }
        match self.prepare(other) {
            Ok(runner) => {
                let why =
                    format!("run by {}, because {} fails: {failure}", other.name(), engine.name());
                Ok(self.chosen(other, runner, why))
            }
            Err(second) => {
                let both = format!("{failure}; and {} fails too: {second}", other.name());
                let kind = CalibrationErrorKind::Unsupported(both);
                Err(CalibrationError::new(kind).caused_by(failure))
            }
        }
    }

    /// The runner of tract, if ONNX Runtime computes the same of the sample; else its own.
    fn compare(self, onnxruntime: &OnnxRuntime) -> Result<Box<dyn Runner>, CalibrationError> {
        let mut values = self.taps.to_vec();
        values.extend(float_outputs(self.model).filter(|name| !self.taps.contains(name)));
        let task = Task { taps: &values, ..self };
        let (tract, ours) = match task.prepare(&Tract).and_then(|runner| task.shown_by(runner)) {
            Ok(shown) => shown,
            Err(failure) => return self.instead(&Tract, failure, onnxruntime),
        };
        let shown = task.prepare(onnxruntime).and_then(|runner| task.shown_by(runner));
        let (onnxruntime_runner, theirs) = match shown {
            Ok(shown) => shown,
            Err(failure) => {
                let why = format!("run by tract, unchecked because onnxruntime fails: {failure}");
                return Ok(self.chosen(&Tract, tract, why));
            }
        };
        Ok(match task.first_difference(&ours, &theirs)? {
            None => {
                let why =
                    "run by tract; onnxruntime computes the same of the first sample".to_owned();
                self.chosen(&Tract, tract, why)
            }
            Some(difference) => {
                let why = format!("run by onnxruntime, because of the first sample {difference}");
                self.chosen(onnxruntime, onnxruntime_runner, why)
            }
        })
    }

    /// What the runner shows of the sample.
    fn shown_by(
        self,
        runner: Box<dyn Runner>,
    ) -> Result<(Box<dyn Runner>, Extents), CalibrationError> {
        let mut extents = Extents::default();
        runner.run(self.sample, &mut extents, &AtomicBool::new(false))?;
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
            let kind = CalibrationErrorKind::Engine("the nodes have no order".to_owned());
            CalibrationError::new(kind).caused_by(error)
        })?;
        let made = order.iter().flat_map(|node| &nodes[*node].output);
        let ranks: HashMap<&String, usize> =
            made.enumerate().map(|(rank, name)| (name, rank + 1)).collect();
        let mut taps: Vec<usize> = (0..self.taps.len()).collect();
        taps.sort_by_key(|tap| ranks.get(&self.taps[*tap]).copied().unwrap_or(0));
        Ok(taps.into_iter().find_map(|tap| {
            let (ours, theirs) = (ours.0.get(&tap)?, theirs.0.get(&tap)?);
            let name = &self.taps[tap];
            let what = || format!("tract computes `{name}` {ours}, and onnxruntime {theirs}");
            (!ours.is_near(theirs)).then(what)
        }))
    }

    fn chosen(self, engine: &dyn Engine, runner: Box<dyn Runner>, why: String) -> Box<dyn Runner> {
        Box::new(Chosen { engine: engine.name(), why: Some(why), taps: self.taps.len(), runner })
    }
}

/// Why the model is one for ONNX Runtime, if it is.
fn large(model: &Model) -> Option<String> {
    let (nodes, bytes) = (model.graph().node.len(), model.byte_len());
    let is_large = nodes >= MANY_NODES || bytes >= LARGE;
    is_large.then(|| {
        let mebibytes = bytes >> 20;
        format!("the model is large ({nodes} nodes, {mebibytes} MiB), and it is clearly faster")
    })
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
struct Chosen {
    engine: &'static str,
    why: Option<String>,
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
        self.why.as_deref()
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

/// Where the values of each tap lie.
#[derive(Default)]
struct Extents(HashMap<usize, Extent>);

/// Where the values of one tap lie.
struct Extent {
    shape: Vec<usize>,
    /// Of the finite values.
    least: f32,
    greatest: f32,
    /// Values that are infinite or no numbers.
    other: usize,
}

impl Sink for Extents {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        self.0.insert(
            tap,
            Extent {
                shape: shape.to_vec(),
                least: finite().fold(f32::INFINITY, f32::min),
                greatest: finite().fold(f32::NEG_INFINITY, f32::max),
                other: values.len() - finite().count(),
            },
        );
    }
}

impl Extent {
    fn is_near(&self, other: &Extent) -> bool {
        let ends = [self.least, self.greatest, other.least, other.greatest];
        let largest = ends.into_iter().map(f32::abs).fold(0.0, f32::max);
        // Whoever flushes subnormal numbers to 0 is right too.
        let allowed = TOLERANCE * largest + f32::MIN_POSITIVE;
        let near = |a: f32, b: f32| a == b || (a - b).abs() <= allowed;
        self.shape == other.shape
            && self.other == other.other
            && near(self.least, other.least)
            && near(self.greatest, other.greatest)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "as {:?} between {} and {}", self.shape, self.least, self.greatest)?;
        if self.other > 0 {
            write!(f, " with {} values that are not finite", self.other)?;
        }
        Ok(())
    }
}
