//! Runs passes without quantizing: the result computes the same as the input model.

use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::Model;
use serde::Serialize;

use super::{Pass, Purpose, Step, run};
use crate::QuantizeError;
use crate::error::while_unchanged;

/// An optimized model and the report about it.
#[derive(Clone, Debug)]
pub struct Optimized {
    model: Model,
    report: Optimization,
}

/// A report about the passes that were run on a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Optimization {
    /// The path of the input model; `None` if it was loaded from bytes.
    pub input: Option<String>,
    /// The path of the output model; `None` until it is saved.
    pub output: Option<String>,
    /// The size of the model before, in bytes, including external data.
    pub bytes_before: u64,
    /// The size of the model after, in bytes, including external data.
    pub bytes_after: u64,
    /// The number of nodes in the main graph before.
    pub nodes_before: usize,
    /// The number of nodes in the main graph after.
    pub nodes_after: usize,
    /// The passes that changed the model.
    pub steps: Vec<Step>,
    /// The wall-clock time in seconds, without saving.
    pub seconds: f64,
}

/// Runs passes on a copy of a model that shares its weights. `passes` selects passes by name; by
/// default, all passes run that do not prepare for integers. `skip` excludes passes by name.
///
/// The optimized model computes bit-identical results, with two exceptions: constants that are
/// folded into weights are rounded once, and `widen_floats`, which runs only if you select it by
/// name, rounds less often.
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
/// A pass name is unknown, or a node violates the specification of its operator.
pub fn optimize(
    model: &Model,
    passes: Option<&[String]>,
    skip: &[String],
) -> Result<Optimized, QuantizeError> {
    while_unchanged(&[model], || {
        let begun = Instant::now();
        let passes = chosen(passes, skip)?;
        let (optimized, steps) = run(model, &passes, Purpose::Optimizing)?;
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
    })
}

/// The selected passes, in the order in which they run.
fn chosen(passes: Option<&[String]>, skip: &[String]) -> Result<Vec<&'static Pass>, QuantizeError> {
    let mut chosen = match passes {
        Some(names) => super::named("passes", names)?,
        None => super::optimizing(),
    };
    let skipped = super::named("skip", skip)?;
    chosen.retain(|pass| skipped.iter().all(|skip| skip.name != pass.name));
    Ok(chosen)
}

impl Optimized {
    /// The optimized model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The report.
    pub fn report(&self) -> &Optimization {
        &self.report
    }

    /// Saves the model atomically and returns the completed report.
    ///
    /// # Errors
    /// The same as [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Optimization, QuantizeError> {
        let saved = self.model.save(path.as_ref())?;
        let output = Some(path.as_ref().display().to_string());
        Ok(Optimization { output, bytes_after: saved.bytes, ..self.report.clone() })
    }

    /// The model as the bytes of a single file.
    ///
    /// # Errors
    /// The same as [`Model::to_bytes`].
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
        // Serialization cannot fail: the report has no maps with non-string keys.
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
            writeln!(f, "nothing to optimize")?;
        }
        for step in &self.steps {
            writeln!(f, "{step}")?;
            step.did.iter().try_for_each(|did| writeln!(f, "  {did}"))?;
        }
        Ok(())
    }
}
