//! The engine that chooses between the two.

mod engine_choice;
mod value_summary;

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use quantize_rs::{CalibrationError, Engine, InputSpec, Runner, Sample, Timed};
use quantize_rs_onnx::Model;

use crate::{OnnxRuntime, Tract};
use engine_choice::EngineChoice;

/// Models of this many nodes take tract half a second to prepare, and more.
const MIN_NODES_FOR_ONNXRUNTIME: usize = 500;

/// From here on tract takes milliseconds a sample, and several times as long as ONNX Runtime: bytes
/// of the model, times elements of the sample.
///
/// A bound, not a count: each weight of a convolution meets at most every element of its input.
/// Measured on one core, tract and ONNX Runtime: 0.2 ms and 0.04 ms at 2²⁴ (a CNN for digits), 1.7
/// and 0.6 at 2³³ (a `ResNet` for 32×32), 560 and 40 at 2³³ too (one that keeps its 224×224
/// throughout), 23 and 13 at 2³³ (a transformer), 106 and 26 at 2⁴³ (`ResNet-18`).
const MAX_TRACT_WORK: u64 = 1 << 27;

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
    fn prepare_with(&self, task: EngineChoice<'_>) -> Result<Box<dyn Runner>, CalibrationError> {
        let onnxruntime = match &self.onnxruntime {
            Ok(onnxruntime) => onnxruntime,
            Err(why) => return task.alone(why),
        };
        if let Some(choice) = self.choice.get() {
            return task.with_previous_choice(choice, onnxruntime);
        }
        let (runner, why) = match reason(task.model) {
            Some(why) => task.prefer(onnxruntime, &Tract, format!("run by onnxruntime: {why}"))?,
            None => task.choose(onnxruntime)?,
        };
        let tract = runner.engine == Tract.name();
        let compared = Mutex::new(HashSet::from([task.shapes()]));
        // It is empty: samples are prepared for one after the other.
        let _ = self.choice.set(Choice { tract, why, model: fingerprint(task.model), compared });
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
        self.prepare_with(EngineChoice { model, taps, sample, stop: &self.stop, beside: false })
    }

    fn prepare_beside(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        self.prepare_with(EngineChoice { model, taps, sample, stop: &self.stop, beside: true })
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

/// A number that tells models apart by their nodes.
fn fingerprint(model: &Model) -> u64 {
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
    if nodes >= MIN_NODES_FOR_ONNXRUNTIME {
        return Some(format!("it prepares a model of {nodes} nodes sooner"));
    }
    let exceeds = model.byte_len().saturating_mul(elements) >= MAX_TRACT_WORK;
    exceeds.then(|| "it runs a model of this size several times as fast".to_owned())
}
