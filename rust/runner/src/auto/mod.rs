//! The engine that chooses between tract and ONNX Runtime.

mod engine_choice;
mod value_summary;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use quantize_rs::{
    CalibrationError, Engine, InputSpec, RanOperators, Sample, Session, TimedSession,
};
use quantize_rs_onnx::Model;

use crate::{OnnxRuntime, Tract};
use engine_choice::EngineRequest;

/// tract takes half a second or more to prepare models with this many nodes.
const MIN_NODES_FOR_ONNXRUNTIME: usize = 500;

/// The maximum amount of work for tract: bytes of the model, times elements of the sample. Above
/// it, tract takes milliseconds per sample, and several times as long as ONNX Runtime.
///
/// It is an upper bound, not a count of operations: each weight of a convolution is applied to at
/// most every element of its input. Measured on one core, with tract and ONNX Runtime: 0.2 ms and
/// 0.04 ms at 2²⁴ (a CNN for digits), 1.7 and 0.6 at 2³³ (a `ResNet` for 32×32), 560 and 40 at 2³³
/// too (one with 224×224 in every layer), 23 and 13 at 2³³ (a transformer), 106 and 26 at 2⁴³
/// (`ResNet-18`).
const MAX_TRACT_WORK: u64 = 1 << 27;

/// Uses [`Tract`] for models that it runs correctly and fast, and [`OnnxRuntime`], if available,
/// for all others.
///
/// The choice is made once, for the first sample. It depends on the model and that sample, never on
/// timings, and the note of the [`Session`] gives the reason:
///
/// | the model | with ONNX Runtime | without |
/// |---|---|---|
/// | has nodes that tract cannot run correctly | ONNX Runtime | an error that lists them |
/// | has 500 nodes or more | ONNX Runtime | tract |
/// | has inputs with dynamic axes other than the first | ONNX Runtime | tract |
/// | has more than 2²⁷ bytes × elements of a sample | ONNX Runtime | tract |
/// | is smaller | tract if both agree on the first sample, otherwise ONNX Runtime | tract |
///
/// They agree if every graph output and every observed value has the same minimum, maximum and root
/// mean square in both, and the same elements at up to 64 positions, within a thousandth of its
/// largest absolute value.
///
/// Samples of other shapes, and other models, use the same engine, so that the result does not
/// depend on the order of the samples. If tract then fails, or differs from ONNX Runtime for
/// another shape, the error suggests ONNX Runtime.
#[derive(Debug)]
pub struct Auto {
    /// The engine for models that tract cannot run, or why it is not available.
    onnxruntime: Result<OnnxRuntime, String>,
    choice: OnceLock<Choice>,
    stop: Arc<AtomicBool>,
}

/// The choice made for the first sample.
#[derive(Debug)]
struct Choice {
    tract: bool,
    /// The reason, as a sentence.
    why: String,
    /// The fingerprint of the model that it was made for.
    model: u64,
    /// Shapes for which both engines were compared.
    compared: Mutex<HashSet<Shapes>>,
}

/// Names and shapes of the inputs.
type Shapes = Vec<(String, Vec<usize>)>;

impl Auto {
    /// Chooses between tract and this engine.
    pub fn with(onnxruntime: OnnxRuntime) -> Auto {
        Auto::of(Ok(onnxruntime))
    }

    /// Uses tract only, for this reason: `no onnxruntime is installed`.
    pub fn without(why: impl Into<String>) -> Auto {
        Auto::of(Err(why.into()))
    }

    fn of(onnxruntime: Result<OnnxRuntime, String>) -> Auto {
        Auto { onnxruntime, choice: OnceLock::new(), stop: Arc::default() }
    }

    /// Stops comparing engines when this is set, as a [`Session`] stops a run.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Auto {
        Auto { stop, ..self }
    }

    /// The runner of the chosen engine; makes the choice if necessary.
    fn prepare_with(
        &self,
        request: EngineRequest<'_>,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let onnxruntime = match &self.onnxruntime {
            Ok(onnxruntime) => onnxruntime,
            Err(why) => return request.alone(why),
        };
        if let Some(choice) = self.choice.get() {
            return request.with_previous_choice(choice, onnxruntime);
        }
        let (runner, why) = match reason(request.model) {
            Some(why) => {
                request.prefer(onnxruntime, &Tract, format!("run by onnxruntime: {why}"))?
            }
            None => request.choose(onnxruntime)?,
        };
        let tract = runner.engine == Tract.name();
        let compared = Mutex::new(HashSet::from([request.shapes()]));
        // It is empty: samples are prepared one at a time.
        let _ = self.choice.set(Choice { tract, why, model: fingerprint(request.model), compared });
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
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        self.prepare_with(EngineRequest {
            model,
            observed,
            sample,
            stop: &self.stop,
            beside: false,
        })
    }

    fn prepare_beside(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        self.prepare_with(EngineRequest { model, observed, sample, stop: &self.stop, beside: true })
    }

    /// As ONNX Runtime, if available, because models are deployed to it.
    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let (engine, name): (&dyn Engine, _) = match &self.onnxruntime {
            Ok(onnxruntime) => (onnxruntime, onnxruntime.name()),
            Err(_) => (&Tract, Tract.name()),
        };
        let timed = engine.timed(model, sample, threads)?;
        Ok(timed.map(|timed| Box::new(NamedTimed { timed, name }) as Box<dyn TimedSession>))
    }

    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<RanOperators>, CalibrationError> {
        match &self.onnxruntime {
            Ok(onnxruntime) => onnxruntime.kernels(model, sample),
            Err(_) => Ok(None),
        }
    }
}

/// The timed runner, and its engine.
struct NamedTimed {
    timed: Box<dyn TimedSession>,
    name: &'static str,
}

impl TimedSession for NamedTimed {
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

/// A fingerprint of the nodes of a model.
fn fingerprint(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in &model.graph().node {
        (&node.op_type, &node.input, &node.output).hash(&mut hasher);
    }
    hasher.finish()
}

/// Why the model should use ONNX Runtime, whatever the sample, if it should.
fn reason(model: &Model) -> Option<String> {
    let nodes = model.graph().node.len();
    let mut elements = 0_u64;
    for input in InputSpec::of(model) {
        let lengths = input.shape.as_deref().and_then(|shape| match shape {
            [None, rest @ ..] | rest => rest.iter().copied().collect::<Option<Vec<usize>>>(),
        });
        let Some(lengths) = lengths else {
            let name = input.name;
            return Some(format!(
                "input `{name}` has dynamic axes, and one session runs all shapes"
            ));
        };
        let all = lengths.into_iter().fold(1_u64, |all, length| all.saturating_mul(length as u64));
        elements = elements.saturating_add(all);
    }
    if nodes >= MIN_NODES_FOR_ONNXRUNTIME {
        return Some(format!("it prepares a model with {nodes} nodes faster"));
    }
    let exceeds = model.byte_len().saturating_mul(elements) >= MAX_TRACT_WORK;
    exceeds.then(|| "it runs a model of this size several times as fast".to_owned())
}
