//! How long a float model and what became of it take, side by side.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::latency::{Latencies, Latency};

/// How long both models take for one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The float model.
    pub original: Latency,
    /// The quantized model.
    pub quantized: Latency,
    /// How many times faster the quantized model is, by the medians.
    pub speedup: f64,
    /// Threads that each run was computed on.
    pub threads: usize,
    /// Who ran them.
    pub engine: String,
}

impl Speed {
    /// What was measured of a float model and of the quantized one; `None` of other numbers of models.
    pub fn of(found: &Latencies) -> Option<Speed> {
        let &[original, quantized] = &found.models[..] else { return None };
        let speedup = original.median_ms / quantized.median_ms;
        let (threads, engine) = (found.threads, found.engine.clone());
        Some(Speed { original, quantized, speedup, threads, engine })
    }

    /// What the caller should know: that the quantized model is slower, and where that says little.
    pub fn warning(&self) -> Option<String> {
        (self.speedup < 1.0).then(|| {
            // It has no integer kernels for these graphs, unlike what models are deployed to.
            let little = match self.engine.as_str() {
                "tract" => {
                    "; tract computes it in float, install onnxruntime to see how fast it is there"
                }
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
