//! The largest magnitude of each channel of the caches of keys and values.

use std::collections::BTreeMap;

use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples, ValueSink};
use super::run::{Control, ValueObserver, observe};
use crate::graph::Graph;
use crate::graph::kv_cache::{KvCache, cached_attention};
use crate::{CalibrationError, QuantizeError};

/// For the present keys and values of each cache, the largest magnitude of each channel, head by
/// head.
///
/// # Errors
/// No samples, samples that do not fit the model, or an engine that cannot run it.
pub(super) fn magnitudes(
    model: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
) -> Result<BTreeMap<String, Vec<f32>>, QuantizeError> {
    let graph = Graph::of(model)?;
    let caches: Vec<KvCache<'_>> =
        cached_attention(&graph).into_iter().flat_map(|found| found.caches).collect();
    let names: Vec<String> = caches.iter().map(|cache| cache.present.to_owned()).collect();
    let widths: Vec<(usize, usize)> =
        caches.iter().map(|cache| (cache.heads, cache.size)).collect();
    let observer = || Largest {
        widths: &widths,
        values: widths.iter().map(|(heads, size)| vec![0.0; heads * size]).collect(),
    };
    let outcome = observe(model, &names, engine, samples, control, observer)?;
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for observer in outcome.observers {
        for (name, found) in names.iter().zip(observer.values) {
            let known = all.entry(name.clone()).or_insert_with(|| vec![0.0; found.len()]);
            for (known, found) in known.iter_mut().zip(found) {
                *known = known.max(found);
            }
        }
    }
    Ok(all)
}

/// The largest magnitudes that one thread has seen.
struct Largest<'a> {
    /// The heads of each cache, and the elements of each.
    widths: &'a [(usize, usize)],
    values: Vec<Vec<f32>>,
}

impl ValueSink for Largest<'_> {
    /// Values have the axes batch, head, position and channel.
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        let (Some(&(heads, size)), Some(largest)) =
            (self.widths.get(index), self.values.get_mut(index))
        else {
            return;
        };
        let [_, _, positions, last] = *shape else { return };
        if last != size || positions == 0 {
            return;
        }
        for (row, numbers) in values.chunks_exact(size).enumerate() {
            let head = row / positions % heads;
            for (largest, x) in largest[head * size..].iter_mut().zip(numbers) {
                if x.is_finite() {
                    *largest = largest.max(x.abs());
                }
            }
        }
    }
}

impl ValueObserver for Largest<'_> {
    fn begin(&mut self, _: usize, _: &Sample) {}

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        Ok(())
    }
}
