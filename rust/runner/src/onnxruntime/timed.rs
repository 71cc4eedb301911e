//! Sessions that measure their runs, and their profiles.

use std::collections::BTreeMap;
use std::fs;

use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session};
use ort::value::DynValue;
use quantize_rs::{CalibrationError, Sample, TimedSession};
use quantize_rs_onnx::Model;
use serde_json::Value;

use super::{OnnxRuntime, error_parsing, failed, panicked, session, values};
use crate::catch_panic;

/// A session as in deployment, with a sample in its memory.
pub(super) struct OrtTimedSession {
    session: Session,
    given: Vec<(String, DynValue)>,
}

impl OrtTimedSession {
    pub(super) fn of(
        runtime: &OnnxRuntime,
        model: &Model,
        sample: &Sample,
        threads: usize,
        options: impl FnOnce(SessionBuilder) -> ort::Result<SessionBuilder>,
    ) -> Result<OrtTimedSession, CalibrationError> {
        let given = sample.inputs.iter().map(|(name, tensor)| {
            let value = values::value(tensor).map_err(|error| error.at_value(name))?;
            Ok((name.clone(), value))
        });
        let given = given.collect::<Result<_, CalibrationError>>()?;
        let session =
            catch_panic::caught(|| session::of(&runtime.environment, model, threads, options));
        let session = session.unwrap_or_else(|panic| Err(panicked(&panic)))?;
        Ok(OrtTimedSession { session, given })
    }
}

impl TimedSession for OrtTimedSession {
    fn run(&mut self) -> Result<(), CalibrationError> {
        let OrtTimedSession { session, given } = self;
        let given: Vec<(&str, &DynValue)> =
            given.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let run = || -> ort::Result<()> {
            session.run_with_options(given, &RunOptions::new()?).map(drop)
        };
        let outcome = catch_panic::caught(run).map_err(|panic| panicked(&panic))?;
        outcome.map_err(|error| error_parsing::of_running(&error))
    }
}

/// How often each type of operator runs for the sample, according to ONNX Runtime's profile.
///
/// The profile is used instead of the optimized model, which may have weights that cannot be saved,
/// and does not show what a loop runs.
pub(super) fn kernels(
    runtime: &OnnxRuntime,
    model: &Model,
    sample: &Sample,
) -> Result<BTreeMap<String, usize>, CalibrationError> {
    let folder = tempfile::tempdir().map_err(|error| unprofiled().caused_by(error))?;
    let prefix = folder.path().join("profile");
    let profiled = |builder: SessionBuilder| Ok(builder.with_profiling(&prefix)?);
    let mut timed = OrtTimedSession::of(runtime, model, sample, 1, profiled)?;
    timed.run()?;
    let path =
        timed.session.end_profiling().map_err(|error| error_parsing::without_node(&error))?;
    let text = fs::read(path).map_err(|error| unprofiled().caused_by(error))?;
    let events: Vec<Value> =
        serde_json::from_slice(&text).map_err(|error| unprofiled().caused_by(error))?;
    let mut counts = BTreeMap::new();
    for op_type in events.iter().filter_map(operator) {
        *counts.entry(op_type.to_owned()).or_insert(0) += 1;
    }
    Ok(counts)
}

/// The operator of an event, if the event is the run of a kernel.
fn operator(event: &Value) -> Option<&str> {
    let ran = event["cat"] == "Node" && event["name"].as_str()?.ends_with("_kernel_time");
    event["args"]["op_name"].as_str().filter(|_| ran)
}

fn unprofiled() -> CalibrationError {
    failed("onnxruntime's profile of the model cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_are_counted() {
        let event = |cat: &str, name: &str| {
            let args = serde_json::json!({"op_name": "Conv"});
            serde_json::json!({"cat": cat, "name": name, "args": args})
        };
        assert_eq!(operator(&event("Node", "c_kernel_time")), Some("Conv"));
        assert_eq!(operator(&event("Node", "c_fence_before")), None);
        assert_eq!(operator(&event("Session", "model_run_kernel_time")), None);
        assert_eq!(operator(&serde_json::json!({"cat": "Node"})), None);
    }
}
