//! Measures latency. Several models run in turns, so that a busy machine affects all of them alike.

use std::time::{Duration, Instant};

use quantize_rs_onnx::Model;

use crate::calibrate::engine::{Engine, Sample, TimedSession};
use crate::calibrate::pair::FloatTypes;
use crate::error::{CalibrationErrorKind as Kind, while_unchanged};
use crate::graph::uses::Subgraphs;
use crate::graph::{Graph, Producer, ops};
use crate::options::format::ONNX_RUNTIME;
use crate::report::{Latencies, Latency, Speed, WEIGHTS};
use crate::rewrite::with_integer_caches;
use crate::{CalibrationError, QuantizeError, Quantized};

/// How latency is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyOptions {
    /// The maximum number of measured runs of each model.
    pub runs: usize,
    /// The number of warm-up runs of each model, which are not measured.
    pub warm_up: usize,
    /// The number of threads of a run.
    pub threads: usize,
    /// The time limit in seconds: after it no further round starts, once each model ran
    /// `MIN_RUNS` times.
    pub seconds: f64,
}

impl Default for LatencyOptions {
    fn default() -> LatencyOptions {
        LatencyOptions { runs: 100, warm_up: 5, threads: 1, seconds: 10.0 }
    }
}

/// The duration of a turn of one model. Within a turn the caches hold only data of this model, as
/// in deployment.
const TURN: Duration = Duration::from_millis(5);

/// The minimum number of runs of each model.
const MIN_RUNS: usize = 5;

/// Measures models on one sample, in turns.
///
/// Warm-up runs are not measured, nor is the first run of a turn of several runs. `go_on` is called
/// between turns. Returns `None` if the latency of the engine does not predict that of a deployed
/// model.
///
/// ```
/// use std::collections::BTreeMap;
/// use quantize_rs::{LatencyOptions, Sample};
/// # use quantize_rs::{CalibrationError, Engine, Model, Session, TimedSession};
/// # struct Sleepy;
/// # impl TimedSession for Sleepy {
/// #     fn run(&mut self) -> Result<(), CalibrationError> {
/// #         std::thread::sleep(std::time::Duration::from_millis(2));
/// #         Ok(())
/// #     }
/// # }
/// # struct Engines;
/// # impl Engine for Engines {
/// #     fn name(&self) -> &'static str { "sleepy" }
/// #     fn prepare(
/// #         &self, _: &Model, _: &[String], _: &Sample,
/// #     ) -> Result<Box<dyn Session>, CalibrationError> { unreachable!() }
/// #     fn timed(
/// #         &self, _: &Model, _: &Sample, _: usize,
/// #     ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
/// #         Ok(Some(Box::new(Sleepy)))
/// #     }
/// # }
/// # let engine = Engines;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// # let model = Model::open(path)?;
/// # let sample = Sample::default();
/// let options = LatencyOptions { runs: 10, ..LatencyOptions::default() };
/// let found = quantize_rs::latency(&engine, &[&model], &sample, &options, &mut || true)?;
/// let found = found.expect("an engine that can be timed");
/// let latency = found.models[0];
/// assert!(latency.median_ms >= 2.0 && latency.p95_ms >= latency.median_ms);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// Options out of range, or an engine that cannot run a model on the sample.
pub fn latency(
    engine: &dyn Engine,
    models: &[&Model],
    sample: &Sample,
    options: &LatencyOptions,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Latencies>, QuantizeError> {
    let pairs: Vec<(&Model, &Sample)> = models.iter().map(|model| (*model, sample)).collect();
    of_pairs(engine, &pairs, options, go_on)
}

/// As [`latency`], for models that have a sample each.
fn of_pairs(
    engine: &dyn Engine,
    pairs: &[(&Model, &Sample)],
    options: &LatencyOptions,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Latencies>, QuantizeError> {
    let models: Vec<&Model> = pairs.iter().map(|(model, _)| *model).collect();
    while_unchanged(&models, || {
        options.check()?;
        let mut timed = Vec::new();
        let (mut name, mut threads) = (engine.name(), options.threads);
        for (model, sample) in pairs {
            let Some(ready) = engine.timed(model, sample, options.threads)? else {
                return Ok(None);
            };
            name = ready.engine().unwrap_or(name);
            threads = ready.threads().unwrap_or(threads);
            timed.push(Contender { ready, turn: 1, times: Vec::new() });
        }
        let mut ask = || if go_on() { Ok(()) } else { Err(CalibrationError::new(Kind::Cancelled)) };
        for contender in &mut timed {
            ask()?;
            contender.warm_up(options)?;
        }
        let begun = Instant::now();
        let mut round = 0;
        while timed.iter().any(|contender| contender.times.len() < options.runs) {
            let late = begun.elapsed().as_secs_f64() >= options.seconds;
            if late && timed.iter().all(|contender| contender.times.len() >= MIN_RUNS) {
                break;
            }
            // The order rotates, so that no model always follows the heaviest one.
            let count = timed.len();
            for place in 0..count {
                ask()?;
                timed[(round + place) % count].take_turn(options)?;
            }
            round += 1;
        }
        let models = timed.into_iter().map(|contender| Latency::of(contender.times)).collect();
        Ok(Some(Latencies { engine: name.to_owned(), threads, models }))
    })
}

/// Measures the original and the quantized model on a sample; `None` for an engine that does not
/// measure latency.
///
/// # Errors
/// An engine that cannot run one of the models, or a cancelled run.
pub(crate) fn speed(
    engine: &dyn Engine,
    models: [&Model; 2],
    sample: &Sample,
    options: &LatencyOptions,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Speed>, QuantizeError> {
    let [original, quantized] = models;
    let own = FloatTypes::of(quantized).convert(sample);
    let integers = with_integer_caches(&own, quantized)?;
    let pairs = [(original, sample), (quantized, &*integers)];
    let found = of_pairs(engine, &pairs, options, go_on)?;
    Ok(found.as_ref().and_then(Speed::of))
}

/// A measurement that takes about half a second for each model.
pub(crate) const QUICK: LatencyOptions =
    LatencyOptions { runs: 50, warm_up: 2, threads: 1, seconds: 0.5 };

/// What may make a result faster.
pub(crate) fn how_to_be_faster(quantized: &Quantized) -> &'static str {
    let config = &quantized.report().config;
    if let Some(advice) = of_recurrent(quantized) {
        advice
    } else if config.activations.is_some() {
        match config.target {
            None => "compare shows what runs on integers; set the target, or keep the model float",
            Some(_) => "compare shows what runs on integers; otherwise keep the model float",
        }
    } else if config.computes_on_integers() {
        "quantizing activations at run time takes time, most of all for convolutions: calibrate, \
         or keep the layers float that the warnings name"
    } else if config.weights.bits() < 8 {
        "weights of fewer than 8 bits are dequantized before each multiplication: use 8 bits and \
         calibrate, or the output format matmul_nbits for matrices"
    } else {
        "quantized weights are dequantized before each multiplication: calibrate, so that \
         activations are quantized too, or use the output format dynamic"
    }
}

/// What may make a result faster most of whose quantized weights are those of recurrent operators,
/// which compute in float with them.
fn of_recurrent(quantized: &Quantized) -> Option<&'static str> {
    let report = quantized.report();
    let graph = Graph::of(quantized.model()).ok()?;
    let bodies = Subgraphs::of(&graph);
    let nodes = graph.nodes.iter().copied().chain(bodies.nodes().map(|(_, node)| node));
    let (mut lstms, mut all) = (0, 0);
    for node in nodes.filter(|node| ops::is_recurrent(node)) {
        let weights = node.input.iter().skip(1).take(2);
        let found: usize = weights.filter_map(|name| dequantized_elements(&graph, name)).sum();
        all += found;
        lstms += if node.op_type == "LSTM" { found } else { 0 };
    }
    let weights = report.quantized().filter(|(row, _)| WEIGHTS.contains(&row.role));
    let elements = |shape: &Vec<Option<usize>>| shape.iter().copied().product::<Option<usize>>();
    let quantized: usize = weights.filter_map(|(row, _)| elements(row.shape.as_ref()?)).sum();
    if all * 2 <= quantized {
        return None;
    }
    let has_operator = report.config.target.is_none_or(|target| ONNX_RUNTIME.contains(&target));
    Some(if lstms * 2 > all && has_operator && !report.config.dynamic_lstm {
        "the weights of LSTMs are dequantized at every inference: use 8 bits, \
         output_format=\"dynamic\" and dynamic_lstm, which is faster for large ones, or leave them \
         float with exclude"
    } else {
        "the weights of recurrent operators are dequantized at every inference: leave them float \
         with exclude"
    })
}

/// The number of elements of a constant that is dequantized, through nodes that rearrange it.
fn dequantized_elements(graph: &Graph<'_>, name: &str) -> Option<usize> {
    let (mut value, mut dequantized) = (graph.value(name)?, false);
    while let Producer::Node { node, .. } = graph.values[value].producer {
        match graph.nodes[node].op_type.as_str() {
            "DequantizeLinear" => dequantized = true,
            "Cast" | "Reshape" | "Transpose" => {}
            _ => return None,
        }
        value = graph.input(node, 0)?;
    }
    let tensor = graph.constant(value).filter(|_| dequantized)?;
    tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).product()
}

impl LatencyOptions {
    fn check(&self) -> Result<(), QuantizeError> {
        let positive = [("runs", self.runs), ("threads", self.threads)];
        match positive.iter().find(|(_, number)| *number == 0) {
            Some((option, _)) => Err(QuantizeError::option(*option, "is 0, expected 1 or more")),
            None => Ok(()),
        }
    }
}

/// A model under measurement.
struct Contender {
    ready: Box<dyn TimedSession>,
    /// The number of consecutive runs of a turn.
    turn: usize,
    times: Vec<Duration>,
}

impl Contender {
    fn warm_up(&mut self, options: &LatencyOptions) -> Result<(), CalibrationError> {
        let mut least = Duration::MAX;
        for _ in 0..options.warm_up.max(1) {
            least = least.min(self.once()?);
        }
        let turn = TURN.as_nanos() / least.as_nanos().max(1);
        self.turn = usize::try_from(turn).unwrap_or(usize::MAX).clamp(1, options.runs);
        Ok(())
    }

    fn take_turn(&mut self, options: &LatencyOptions) -> Result<(), CalibrationError> {
        if self.turn > 1 {
            self.once()?;
        }
        for _ in 0..self.turn.min(options.runs.saturating_sub(self.times.len())) {
            let time = self.once()?;
            self.times.push(time);
        }
        Ok(())
    }

    fn once(&mut self) -> Result<Duration, CalibrationError> {
        let begun = Instant::now();
        self.ready.run()?;
        Ok(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts its runs; the first ones are slow.
    struct Slow(usize);

    impl TimedSession for Slow {
        fn run(&mut self) -> Result<(), CalibrationError> {
            self.0 += 1;
            std::thread::sleep(Duration::from_millis(if self.0 <= 3 { 60 } else { 6 }));
            Ok(())
        }
    }

    #[test]
    fn warm_up_runs_are_not_measured() {
        let options = LatencyOptions { runs: 4, warm_up: 3, ..LatencyOptions::default() };
        let mut slow = Contender { ready: Box::new(Slow(0)), turn: 1, times: Vec::new() };
        slow.warm_up(&options).unwrap();
        for _ in 0..9 {
            slow.take_turn(&options).unwrap();
        }
        let found = Latency::of(slow.times);
        assert_eq!(found.runs, 4);
        assert!(found.p95_ms < 50.0, "{found}");
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(LatencyOptions { runs: 0, ..LatencyOptions::default() }.check().is_err());
        assert!(LatencyOptions { threads: 0, ..LatencyOptions::default() }.check().is_err());
    }
}
