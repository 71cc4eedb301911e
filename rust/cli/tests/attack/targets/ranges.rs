//! Saved ranges, and calibration caches of `TensorRT`.

use quantize_rs::{Control, Method, Model, Plan, Ranges, calibrate, tensorrt};
use serde_json::Value;

use super::Attack;
use crate::common::{self, Even, Numbers};
use crate::corpus::Corpus;
use crate::mutate::{json, text};

/// Ranges of a model by some methods.
fn seeds(name: &str, config: quantize_rs::Config) -> (Model, Plan, Vec<Ranges>) {
    let model = common::fixture(name);
    let plan = common::plan(&model, config);
    let methods = Method::all().filter_map(|(name, _)| name.parse::<Method>().ok());
    let found = methods.filter_map(|method| {
        let control = Control { threads: 1, progress: &mut |_| true };
        let (engine, mut samples) = (Even::default(), Numbers(vec![0, 1, 2]));
        calibrate(&model, &plan, &engine, &mut samples, &method, control).ok()
    });
    let found: Vec<Ranges> = found.collect();
    (model, plan, found)
}

/// Reads ranges, does all that is done with them, and applies them.
pub(super) fn ranges(_: &Corpus) -> Attack {
    let rounding = quantize_rs::Config { smooth: true, ..common::with_activations() };
    let mut all = Vec::new();
    for (name, config) in [
        ("avgpool_gap", common::with_activations()),
        ("matmul_2d", common::with_activations()),
        ("conv2d_relu", rounding),
    ] {
        let (model, plan, found) = seeds(name, config);
        assert!(!found.is_empty(), "{name}");
        let documents: Vec<Value> =
            found.iter().map(|ranges| serde_json::from_str(&ranges.to_json()).unwrap()).collect();
        all.push((model, plan, found, documents));
    }
    let methods: Vec<Method> = Method::all().filter_map(|(name, _)| name.parse().ok()).collect();
    Box::new(move |random| {
        let (model, plan, found, documents) = random.of_all(&all);
        let text = json::mutated(random.of_all(documents), random);
        let Ok(ranges) = Ranges::from_json(&text) else { return false };
        Ranges::from_json(&ranges.to_json()).expect("what is written can be read");
        drop(ranges.using(random.of_all(&methods)).map(|ranges| ranges.to_json()));
        let other = random.of_all(found);
        drop(ranges.diff(other).to_string());
        drop(other.merge(&ranges).map(|ranges| ranges.to_json()));
        drop(Ranges::merge_all(&[other.clone(), ranges.clone()]));
        for name in ranges.values.keys() {
            drop(ranges.histogram(name));
        }
        let cache = ranges.to_tensorrt(tensorrt::VERSION);
        drop(Ranges::from_tensorrt(&cache, model));
        plan.apply(model, Some(&ranges)).is_ok_and(|done| {
            Model::from_bytes(done.to_bytes().unwrap()).expect("what is written can be read");
            true
        })
    })
}

/// Reads calibration caches, writes them again, and applies them.
pub(super) fn tensorrt(_: &Corpus) -> Attack {
    let (model, plan, found) = seeds("conv2d_relu", common::with_activations());
    let caches: Vec<String> =
        found.iter().map(|ranges| ranges.to_tensorrt(tensorrt::VERSION)).collect();
    assert!(!caches.is_empty());
    Box::new(move |random| {
        let cache: &String = random.of_all(&caches);
        let cache = text::mutated(cache, random);
        let Ok(ranges) = Ranges::from_tensorrt(&cache, &model) else { return false };
        Ranges::from_json(&ranges.to_json()).expect("what is written can be read");
        drop(ranges.to_tensorrt("1"));
        plan.apply(&model, Some(&ranges)).is_ok()
    })
}
