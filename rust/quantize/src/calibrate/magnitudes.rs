//! The largest magnitude of each float of a model on samples.

use std::collections::BTreeMap;

use quantize_rs_onnx::{DataType, Model};

use super::engine::{Engine, Sample, Samples, ValueSink};
use super::retained::RepeatedSamples;
use super::run::{Control, ValueObserver, observe};
use crate::graph::{Graph, Producer};
use crate::{CalibrationError, QuantizeError};

/// The magnitudes, and how they were found.
pub(crate) struct Magnitudes {
    /// The largest finite magnitude of each float32 value of the main graph that is computed.
    pub(crate) values: BTreeMap<String, f32>,
    /// How many samples were run.
    pub(crate) samples: usize,
    /// The engine that ran them.
    pub(crate) engine: &'static str,
    /// Up to 128 of the samples.
    pub(crate) kept: Vec<Sample>,
}

/// Runs a model on samples, and measures each float.
///
/// # Errors
/// No samples, samples that do not fit the model, or an engine that cannot run it.
pub(crate) fn magnitudes(
    model: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
) -> Result<Magnitudes, QuantizeError> {
    let graph = Graph::of(model)?;
    let computed = (0..graph.values.len()).filter(|value| {
        let sparse = matches!(graph.values[*value].producer, Producer::Sparse);
        let constant = sparse || graph.constant(*value).is_some();
        graph.dtype(*value) == Some(DataType::Float) && !constant
    });
    let names: Vec<String> = computed.map(|value| graph.values[value].name.to_owned()).collect();
    let mut samples = RepeatedSamples::new(samples, true);
    let observer = || Largest { values: vec![0.0; names.len()] };
    let outcome = observe(model, &names, engine, &mut samples, control, observer)?;
    let mut values: BTreeMap<String, f32> = BTreeMap::new();
    for observer in &outcome.observers {
        for (name, largest) in names.iter().zip(&observer.values) {
            let known = values.entry(name.clone()).or_default();
            *known = known.max(*largest);
        }
    }
    let (samples_run, engine) = (outcome.samples, outcome.engine);
    Ok(Magnitudes { values, samples: samples_run, engine, kept: samples.kept() })
}

/// The largest magnitudes that one thread has seen.
struct Largest {
    values: Vec<f32>,
}

impl ValueSink for Largest {
    fn observe(&mut self, index: usize, _: &[usize], values: &[f32]) {
        if let Some(largest) = self.values.get_mut(index) {
            // An infinity is one in 16 bits, too.
            let finite = values.iter().map(|x| x.abs()).filter(|x| x.is_finite());
            *largest = finite.fold(*largest, f32::max);
        }
    }
}

impl ValueObserver for Largest {
    fn begin(&mut self, _: usize, _: &Sample) {}

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        Ok(())
    }
}
