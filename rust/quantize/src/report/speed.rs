//! Compares the latency of a float model with that of the quantized one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::latency::{Latencies, Latency};

/// The latency of both models for one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The float model.
    pub original: Latency,
    /// The quantized model.
    pub quantized: Latency,
    /// The speed-up of the quantized model, by the medians.
    pub speedup: f64,
    /// The number of threads of each run.
    pub threads: usize,
    /// The engine that ran them.
    pub engine: String,
}

/// A result that takes this many times as long as the float model is slower.
const SLOWER: f64 = 1.1;

/// A smaller difference does not count, in milliseconds: it is that of starting an operator.
const NOTICED_MS: f64 = 0.005;

/// A float model that takes less time is too small for a latency that can be relied upon, in
/// milliseconds.
const MIN_MS: f64 = 0.01;

impl Speed {
    /// Whether it predicts the latency of a deployed model: tract computes quantized models in
    /// float.
    pub(crate) fn is_reliable(&self) -> bool {
        self.original.median_ms >= MIN_MS && self.engine != "tract"
    }

    /// Whether the result takes noticeably longer than the float model.
    pub(crate) fn is_slower(&self) -> bool {
        let (float, ours) = (self.original.median_ms, self.quantized.median_ms);
        ours > SLOWER * float && ours - float > NOTICED_MS
    }

    /// The result for a float model and the quantized one; `None` for other numbers of models.
    pub fn of(found: &Latencies) -> Option<Speed> {
        let &[original, quantized] = &found.models[..] else { return None };
        let speedup = original.median_ms / quantized.median_ms;
        let (threads, engine) = (found.threads, found.engine.clone());
        Some(Speed { original, quantized, speedup, threads, engine })
    }

    /// A warning if the quantized model is noticeably slower, with a hint where the engine explains
    /// it.
    pub fn warning(&self) -> Option<String> {
        self.is_slower().then(|| {
            // tract has no integer kernels for these graphs, unlike the engines that models are
            // deployed on.
            let little = match self.engine.as_str() {
                "tract" => "; tract computes it in float: install onnxruntime to measure it there",
                _ => "",
            };
            format!(
                "the quantized model is slower: {:.3} ms, and the original {:.3} ms{little}",
                self.quantized.median_ms, self.original.median_ms
            )
        })
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speed { original, quantized, speedup, threads, engine } = self;
        let plural = if *threads == 1 { "" } else { "s" };
        writeln!(f, "latency: {original}; quantized {quantized}")?;
        writeln!(
            f,
            "{speedup:.2} times as fast ({engine}, {threads} thread{plural}, {} and {} runs)",
            original.runs, quantized.runs
        )
    }
}
