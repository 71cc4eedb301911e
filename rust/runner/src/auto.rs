//! The engine that chooses between the two.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;

use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine, InputSpec, Runner, Sample, Sink,
};
use quantize_rs_onnx::{DataType, Model, topological};

use crate::{OnnxRuntime, Tract};

/// Models of this many nodes take tract half a second to prepare, and more.
const MANY_NODES: usize = 500;

/// From here on tract takes milliseconds a sample, and several times as long as ONNX Runtime: bytes
/// of the model, times elements of the sample.
///
/// A bound, not a count: each weight of a convolution meets at most every element of its input.
/// Measured on one core, tract and ONNX Runtime: 0.2 ms and 0.04 ms at 2²⁴ (a CNN for digits), 1.7
/// and 0.6 at 2³³ (a `ResNet` for 32×32), 560 and 40 at 2³³ too (one that keeps its 224×224
/// throughout), 23 and 13 at 2³³ (a transformer), 106 and 26 at 2⁴³ (`ResNet-18`).
const MUCH_WORK: u64 = 1 << 27;

/// How far apart what two engines compute may be, as a part of the largest absolute value.
const TOLERANCE: f32 = 1e-3;

/// Lets [`Tract`] run what it runs right and fast, and [`OnnxRuntime`], where it is given, the rest.
///
/// What it chooses follows from the model and the first sample, never from a clock, and the
/// [`Runner`] says what it was and why:
///
/// | the model | with ONNX Runtime | without |
/// |---|---|---|
/// | has what tract cannot run, or runs wrong | ONNX Runtime | an error with all of it |
/// | has 500 nodes or more | ONNX Runtime | tract |
/// | has inputs that vary in more than their first length | ONNX Runtime | tract |
/// | has more than 2²⁷ bytes × elements of a sample | ONNX Runtime | tract |
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
        match reason(model) {
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

/// Why the model is one for ONNX Runtime, if it is: by what the file says, whatever the sample.
fn reason(model: &Model) -> Option<String> {
    let nodes = model.graph().node.len();
    let mut elements = 0_u64;
    for input in InputSpec::of(model) {
        let lengths = input.shape.as_deref().and_then(|shape| match shape {
            [None, rest @ ..] | rest => rest.iter().copied().collect::<Option<Vec<usize>>>(),
        });
        let Some(lengths) = lengths else {
            let name = input.name;
            return Some(format!("input `{name}` varies in shape, and it is prepared but once"));
        };
        let all = lengths.into_iter().fold(1_u64, |all, length| all.saturating_mul(length as u64));
        elements = elements.saturating_add(all);
    }
    if nodes >= MANY_NODES {
        return Some(format!("it prepares a model of {nodes} nodes sooner"));
    }
    let is_much = model.byte_len().saturating_mul(elements) >= MUCH_WORK;
    is_much.then(|| "it runs a model of this size several times as fast".to_owned())
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
        // Where no value is finite the ends are not.
        let finite = ends.into_iter().filter(|end| end.is_finite());
        let largest = finite.map(f32::abs).fold(0.0, f32::max);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn between(least: f32, greatest: f32) -> Extent {
        Extent { shape: vec![2], least, greatest, other: 0 }
    }

    #[test]
    fn engines_agree_up_to_a_thousandth_of_the_largest_value() {
        let cases = [
            (between(-1.0, 2.0), true),
            (between(-1.001, 2.001), true),
            (between(-1.0, 2.003), false),
            (between(-1.003, 2.0), false),
            (Extent { shape: vec![1, 2], ..between(-1.0, 2.0) }, false),
            (Extent { other: 1, ..between(-1.0, 2.0) }, false),
        ];
        for (other, near) in cases {
            assert_eq!(between(-1.0, 2.0).is_near(&other), near, "{other}");
        }
        let nothing = || between(f32::INFINITY, f32::NEG_INFINITY);
        assert!(nothing().is_near(&nothing()));
        assert!(!nothing().is_near(&between(0.0, 0.0)));
        assert!(between(0.0, 1e-40).is_near(&between(0.0, 0.0)));
    }

    #[test]
    fn of_several_differences_the_first_of_the_graph_is_told() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/residual_add.onnx");
        let model = Model::open(path).unwrap();
        let taps = ["conv3_y", "relu1_y", "x", "add1_y"].map(str::to_owned);
        let task = Task { model: &model, taps: &taps, sample: &Sample::default() };
        let extents = |ends: [f32; 4]| {
            Extents(ends.into_iter().map(|end| between(0.0, end)).enumerate().collect())
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
