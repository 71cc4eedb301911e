//! Spans as a file that trace viewers of browsers open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use quantize_rs_onnx::{FinishedSpan, Listening, SpanLevel, SpanListener, listen};
use serde_json::{Value, json};

/// Collects every span of the process until it is written.
///
/// The format is the JSON of Chrome's trace viewer, which Perfetto reads as well: complete events,
/// times in microseconds. Source: "Trace Event Format", Google, section "Complete Events".
///
/// ```
/// use quantize_rs::{ChromeTrace, Config, Model, PreprocessedModel};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let trace = ChromeTrace::begin();
/// PreprocessedModel::of(&Model::open(path)?, Config::default())?;
/// assert!(trace.to_json().contains("plan"));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
pub struct ChromeTrace {
    events: Arc<Events>,
    _listening: Listening,
}

struct Events {
    begun: Instant,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    events: Vec<(FinishedSpan, usize)>,
    /// Threads, numbered in the order of their first span.
    threads: HashMap<ThreadId, usize>,
}

impl ChromeTrace {
    /// Begins to collect.
    pub fn begin() -> ChromeTrace {
        let events = Arc::new(Events { begun: Instant::now(), known: Mutex::default() });
        let listening = listen(Arc::clone(&events) as Arc<dyn SpanListener>);
        ChromeTrace { events, _listening: listening }
    }

    /// The spans that have ended.
    pub fn to_json(&self) -> String {
        let known = self.events.known.lock().unwrap_or_else(PoisonError::into_inner);
        let events = known.events.iter().map(|(span, thread)| self.events.event(span, *thread));
        let events: Vec<Value> = events.collect();
        json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
    }
}

impl Events {
    fn event(&self, span: &FinishedSpan, thread: usize) -> Value {
        let begun = span.begun.saturating_duration_since(self.begun);
        let level = if span.level == SpanLevel::Stage { "stage" } else { "part" };
        let mut event = json!({
            "name": span.name,
            "cat": level,
            "ph": "X",
            "ts": begun.as_secs_f64() * 1e6,
            "dur": span.took.as_secs_f64() * 1e6,
            "pid": std::process::id(),
            "tid": thread,
        });
        if !span.of.is_empty() {
            event["args"] = json!({"of": span.of});
        }
        event
    }
}

impl SpanListener for Events {
    fn finished(&self, span: &FinishedSpan) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = known.threads.len() + 1;
        let thread = *known.threads.entry(thread::current().id()).or_insert(next);
        known.events.push((span.clone(), thread));
    }
}
