//! A cache of encoded weights.

use std::collections::HashMap;

use bytes::Bytes;
use quantize_rs_onnx::Tensor;

use super::EncodedTensor;
use super::smooth_quant::KnownGains;
use crate::plan::ValuePlan;

/// Encoded weights of one model, and what smoothing gains for its values, to be reused by several
/// results that differ in the ranges of activations.
#[derive(Default)]
pub(crate) struct WeightCache {
    weights: HashMap<String, Weight>,
    pub(crate) gains: KnownGains,
}

struct Weight {
    /// The source bytes. Holding them prevents their address from being reused.
    floats: Bytes,
    how: ValuePlan,
    encoded: EncodedTensor,
}

impl WeightCache {
    /// The weight of this name, if it was encoded from the same floats in the same way, and its
    /// scales are at least `floors`.
    pub(super) fn find(
        &self,
        name: &str,
        floats: &Tensor,
        how: &ValuePlan,
        floors: &[f32],
    ) -> Option<EncodedTensor> {
        let found = self.weights.get(name)?;
        let same = |a: &[u8], b: &[u8]| a.as_ptr() == b.as_ptr() && a.len() == b.len();
        let scales = found.encoded.scale.to_f32()?;
        let highest = floors.iter().copied().fold(0.0, f32::max);
        let each = floors.len() == scales.len();
        let enough = scales.iter().enumerate().all(|(group, scale)| {
            let floor = if each { floors[group] } else { highest };
            scale.abs() >= floor
        });
        let fits = enough && found.how == *how && same(&found.floats, &floats.data);
        fits.then(|| found.encoded.clone())
    }

    /// Stores a weight whose scales depend only on the weight. `floats` must be borrowed from the
    /// model: copies have a different address each time and would not be found again.
    pub(super) fn learn(
        &mut self,
        name: &str,
        floats: Bytes,
        how: &ValuePlan,
        encoded: &EncodedTensor,
    ) {
        let weight = Weight { floats, how: how.clone(), encoded: encoded.clone() };
        self.weights.insert(name.to_owned(), weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::encode_cached;
    use crate::graph::Graph;
    use crate::{Config, Model, Plan};

    const DIGITS: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");

    #[test]
    fn a_cached_weight_is_reused_unless_its_source_differs() {
        let model = Model::open(DIGITS).unwrap();
        let graph = Graph::of(&model).unwrap();
        let mut known = WeightCache::default();
        let mut made = |per_channel: bool| {
            // Named, so that none is stored otherwise because it is small.
            let include = Some(vec!["*".to_owned()]);
            let config = Config { per_channel: Some(per_channel), include, ..Config::default() };
            let plan = Plan::draft(&graph, config).unwrap();
            encode_cached(&graph, &plan, None, Some(&mut known)).unwrap().weights
        };
        let place = |found: &EncodedTensor| found.quantized.data.as_ptr();
        let (first, again, other) = (made(true), made(true), made(false));
        assert_eq!(first.len(), 5);
        for (name, found) in &first {
            assert_eq!(place(&again[name]), place(found), "{name}");
            assert_ne!(place(&other[name]), place(found), "{name}");
            assert_eq!(other[name].scale.shape.len(), 0);
        }
    }

    #[test]
    fn a_bias_that_needs_larger_scales_bypasses_the_cache() {
        let model = Model::open(DIGITS).unwrap();
        let graph = Graph::of(&model).unwrap();
        let config = Config { per_channel: Some(false), ..Config::default() };
        let plan = Plan::draft(&graph, config).unwrap();
        let mut known = WeightCache::default();
        encode_cached(&graph, &plan, None, Some(&mut known)).unwrap();
        let (value, how) = plan.quantized().next().unwrap();
        let name = &value.name;
        let floats = model.tensor(graph.constant(graph.value(name).unwrap()).unwrap()).unwrap();
        let scale = known.weights[name].encoded.scale.to_f32().unwrap()[0];
        assert!(known.find(name, &floats, how, &[]).is_some());
        assert!(known.find(name, &floats, how, &[scale]).is_some());
        assert!(known.find(name, &floats, how, &[scale.next_up()]).is_none());
        assert!(known.find("other", &floats, how, &[]).is_none());
        let moved = Tensor { data: floats.data.to_vec().into(), ..floats };
        assert!(known.find(name, &moved, how, &[]).is_none());
    }
}
