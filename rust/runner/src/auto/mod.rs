//! The engine that chooses between the two.

mod extent;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use quantize_rs::{
    CalibrationError, CalibrationErrorKind as Kind, Engine, InputSpec, Runner, Sample, Sink, Timed,
};
use quantize_rs_onnx::{DataType, Model, topological};

use crate::{OnnxRuntime, Tract};
use extent::Extents;

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

/// Lets [`Tract`] run what it runs right and fast, and [`OnnxRuntime`], where there is one, the rest.
///
/// It chooses once, when the first sample comes. What it chooses follows from the model and that
/// sample, never from a clock, and the [`Runner`] says what it was and why:
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
/// element in both, the same root mean square, and the same elements at up to 64 places, to a
/// thousandth of its largest absolute value.
///
/// Samples of other shapes, and other models, go to the engine that was chosen: whatever the order
/// of the samples, one engine runs them all. Where tract then fails on the model, or differs from
/// ONNX Runtime on another shape, that is an error which asks for ONNX Runtime.
#[derive(Debug)]
pub struct Auto {
    /// The engine for what tract cannot do, or why there is none.
    onnxruntime: Result<OnnxRuntime, String>,
    choice: OnceLock<Choice>,
    stop: Arc<AtomicBool>,
}

/// What was chosen for the first sample.
#[derive(Debug)]
struct Choice {
    tract: bool,
    /// Why, in a sentence.
    why: String,
    /// The model that it was chosen for, by its nodes.
    model: u64,
    /// Shapes on which both engines were compared.
    compared: Mutex<HashSet<Shapes>>,
}

/// Names and shapes of the inputs.
type Shapes = Vec<(String, Vec<usize>)>;

impl Auto {
    /// Chooses between tract and this.
    pub fn with(onnxruntime: OnnxRuntime) -> Auto {
        Auto::of(Ok(onnxruntime))
    }

    /// Has tract only, because of this: `no onnxruntime is installed`.
    pub fn without(why: impl Into<String>) -> Auto {
        Auto::of(Err(why.into()))
    }

    fn of(onnxruntime: Result<OnnxRuntime, String>) -> Auto {
        Auto { onnxruntime, choice: OnceLock::new(), stop: Arc::default() }
    }

    /// Gives up comparing when this is set, as a [`Runner`] gives up a run.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Auto {
        Auto { stop, ..self }
    }

    /// The runner of the engine that was chosen, or is chosen now.
    fn run_by(&self, task: Task<'_>) -> Result<Box<dyn Runner>, CalibrationError> {
        let onnxruntime = match &self.onnxruntime {
            Ok(onnxruntime) => onnxruntime,
            Err(why) => return task.alone(why),
        };
        if let Some(choice) = self.choice.get() {
            return task.as_chosen(choice, onnxruntime);
        }
        let (runner, why) = match reason(task.model) {
            Some(why) => task.prefer(onnxruntime, &Tract, format!("run by onnxruntime: {why}"))?,
            None => task.choose(onnxruntime)?,
        };
        let tract = runner.engine == Tract.name();
        let compared = Mutex::new(HashSet::from([task.shapes()]));
        // It is empty: samples are prepared for one after the other.
        let _ = self.choice.set(Choice { tract, why, model: nodes_of(task.model), compared });
        Ok(Box::new(runner))
    }
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
        self.run_by(Task { model, taps, sample, stop: &self.stop, beside: false })
    }

    fn prepare_beside(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        self.run_by(Task { model, taps, sample, stop: &self.stop, beside: true })
    }

    /// As ONNX Runtime, where there is one: that is what models are deployed to.
    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn Timed>>, CalibrationError> {
        let (engine, name): (&dyn Engine, _) = match &self.onnxruntime {
            Ok(onnxruntime) => (onnxruntime, onnxruntime.name()),
            Err(_) => (&Tract, Tract.name()),
        };
        let timed = engine.timed(model, sample, threads)?;
        Ok(timed.map(|timed| Box::new(NamedTimed { timed, name }) as Box<dyn Timed>))
    }

    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<BTreeMap<String, usize>>, CalibrationError> {
        match &self.onnxruntime {
            Ok(onnxruntime) => onnxruntime.kernels(model, sample),
            Err(_) => Ok(None),
        }
    }
}

/// What is timed, and by whom.
struct NamedTimed {
    timed: Box<dyn Timed>,
    name: &'static str,
}

impl Timed for NamedTimed {
    fn run(&mut self) -> Result<(), CalibrationError> {
        self.timed.run()
    }

    fn engine(&self) -> Option<&'static str> {
        Some(self.name)
    }

    fn threads(&self) -> Option<usize> {
        self.timed.threads()
    }
}

/// What is to be prepared.
#[derive(Clone, Copy)]
struct Task<'a> {
    model: &'a Model,
    taps: &'a [String],
    sample: &'a Sample,
    stop: &'a AtomicBool,
    /// Whether others are busy beside it.
    beside: bool,
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
    fn alone(self, why: &str) -> Result<Box<dyn Runner>, CalibrationError> {
        match self.prepare(&Tract) {
            Ok(runner) => Ok(Box::new(self.by(&Tract, runner, &format!("run by tract: {why}")))),
            Err(failure) if is_of_the_caller(&failure) => Err(failure),
            Err(failure) => Err(unsupported(format!("{failure}; {why}"), failure)),
        }
    }

    /// The runner of `engine`, or that of `other` where this one fails, and why.
    fn prefer(
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
    fn choose(self, onnxruntime: &OnnxRuntime) -> Result<(Chosen, String), CalibrationError> {
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
    fn as_chosen(
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

    fn shapes(self) -> Shapes {
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

fn unsupported(what: String, cause: CalibrationError) -> CalibrationError {
    CalibrationError::new(Kind::Unsupported(what)).caused_by(cause)
}

/// The error when tract, which was chosen by an earlier sample, does not do for this one.
fn asks_for_onnxruntime(how: &str) -> CalibrationError {
    let what = format!(
        "{how}, though both computed the same of the first sample: choose `engine=\"onnxruntime\"`, \
         or `--engine onnxruntime`"
    );
    CalibrationError::new(Kind::Engine(what))
}

/// A number that tells models apart by their nodes.
fn nodes_of(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in &model.graph().node {
        (&node.op_type, &node.input, &node.output).hash(&mut hasher);
    }
    hasher.finish()
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
    use super::extent::Extent;
    use super::*;

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
