//! The passes on their own: a model in, one that computes the same out.

use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::Model;
use serde::Serialize;

use super::{ALL, Pass, Step, When, run};
use crate::QuantizeError;

/// A model after the passes, and the report on them.
#[derive(Clone, Debug)]
pub struct Optimized {
    model: Model,
    report: Optimization,
}

/// What passes did to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Optimization {
    /// Where the model came from; `None` for bytes.
    pub input: Option<String>,
    /// Where it went; `None` while it is in memory.
    pub output: Option<String>,
    /// Bytes of the model before, with the data beside it.
    pub bytes_before: u64,
    /// Bytes of the model after, with the data beside it.
    pub bytes_after: u64,
    /// Nodes of the main graph before.
    pub nodes_before: usize,
    /// Nodes of the main graph after.
    pub nodes_after: usize,
    /// What each pass that found something to do did.
    pub steps: Vec<Step>,
    /// Wall-clock seconds, without those of writing.
    pub seconds: f64,
}

/// Runs passes on a copy of a model, which shares its weights: those of these names, or all that are
/// no preparation for integers, but for those to skip.
///
/// What the model computes stays: bit for bit, but where numbers are folded into weights, which
/// are rounded once, and where `widen_floats`, asked for by name, rounds less.
///
/// ```
/// use quantize_rs::{Model, optimize};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let optimized = optimize(&Model::open(path)?, None, &["merge_duplicates".to_owned()])?;
/// assert!(optimized.report().nodes_after <= optimized.report().nodes_before);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// A pass that there is none of, or a model whose nodes are not what their operators ask for.
pub fn optimize(
    model: &Model,
    passes: Option<&[String]>,
    skip: &[String],
) -> Result<Optimized, QuantizeError> {
    let begun = Instant::now();
    let passes = chosen(passes, skip)?;
    let (optimized, steps) = run(model, &passes, false)?;
    let report = Optimization {
        input: model.path().map(|path| path.display().to_string()),
        output: None,
        bytes_before: model.byte_len(),
        bytes_after: optimized.byte_len(),
        nodes_before: model.graph().node.len(),
        nodes_after: optimized.graph().node.len(),
        steps,
        seconds: begun.elapsed().as_secs_f64(),
    };
    Ok(Optimized { model: optimized, report })
}

/// The passes asked for, in the order in which they run.
fn chosen(passes: Option<&[String]>, skip: &[String]) -> Result<Vec<&'static Pass>, QuantizeError> {
    for (option, names) in [("passes", passes.unwrap_or_default()), ("skip", skip)] {
        if let Some(name) = names.iter().find(|name| ALL.iter().all(|pass| pass.name != **name)) {
            let known: Vec<&str> = ALL.iter().map(|pass| pass.name).collect();
            let what = format!("names `{name}`, expected some of {}", known.join(", "));
            return Err(QuantizeError::option(option, what));
        }
    }
    let wanted = |pass: &&Pass| {
        let asked = |names: &[String]| names.iter().any(|name| name == pass.name);
        passes.map_or(pass.when != When::Integers, asked)
            && !skip.iter().any(|name| name == pass.name)
    };
    Ok(ALL.iter().filter(wanted).collect())
}

impl Optimized {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The report so far.
    pub fn report(&self) -> &Optimization {
        &self.report
    }

    /// Writes the model, complete or not at all, and completes the report.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Optimization, QuantizeError> {
        let saved = self.model.save(path.as_ref())?;
        let output = Some(path.as_ref().display().to_string());
        Ok(Optimization { output, bytes_after: saved.bytes, ..self.report.clone() })
    }

    /// The model as the bytes of one file.
    ///
    /// # Errors
    /// As [`Model::to_bytes`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, QuantizeError> {
        Ok(self.model.to_bytes()?)
    }
}

impl Optimization {
    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }

    /// What [`Optimization::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<> {
        // Names and numbers, no maps with odd keys: this cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl std::fmt::Display for Optimization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Optimization { bytes_before, bytes_after, nodes_before, nodes_after, .. } = self;
        writeln!(
            f,
            "{nodes_before} -> {nodes_after} nodes, {bytes_before} -> {bytes_after} bytes"
        )?;
        if self.steps.is_empty() {
            writeln!(f, "there was nothing to do")?;
        }
        for step in &self.steps {
            writeln!(f, "{step}")?;
            step.did.iter().try_for_each(|did| writeln!(f, "  {did}"))?;
        }
        Ok(())
    }
}
