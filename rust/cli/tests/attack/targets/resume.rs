//! Files from which interrupted work is continued.

use std::fs;
use std::path::Path;

use quantize_rs::{
    Config, Control, Method, Model, Plan, PreprocessedModel, Ranges, SensitivityOptions, calibrate,
    sensitivity as rank,
};
use serde_json::Value;

use super::Attack;
use crate::common::{self, Even, Numbers};
use crate::corpus::Corpus;
use crate::mutate::{json, text};
use crate::random::Random;

/// The finished layers of `sensitivity`.
pub(super) fn sensitivity(_: &Corpus) -> Attack {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known.json");
    let model = common::fixture("conv2d_relu");
    let plan = common::plan(&model, common::with_activations());
    let ranges = common::ranges(&model, &plan);
    assert!(ranked(&model, &plan, &ranges, &path));
    let known: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(known["layers"].as_array().is_some_and(|layers| !layers.is_empty()));
    Box::new(move |random| {
        let _kept = &folder;
        let mut seed = known.clone();
        let layers = seed["layers"].as_array_mut().unwrap();
        layers.truncate(random.below(layers.len() + 1));
        fs::write(&path, json::mutated(&seed, random)).unwrap();
        ranked(&model, &plan, &ranges, &path)
    })
}

fn ranked(model: &Model, plan: &Plan, ranges: &Ranges, path: &Path) -> bool {
    let resume = Some(path.to_owned());
    let options = SensitivityOptions { resume, ..SensitivityOptions::default() };
    let control = Control { threads: 1, progress: &mut |_| true };
    let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
    let ranking = rank(model, plan, Some(ranges), &engine, &mut samples, &options, control);
    ranking.is_ok_and(|ranking| {
        drop((ranking.to_string(), ranking.to_json()));
        true
    })
}

/// The finished weights of a calibration that rounds them with samples.
pub(super) fn rounding(_: &Corpus) -> Attack {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounded.jsonl");
    let config = Config {
        resume_rounding: Some(path.clone()),
        weights: "int4".parse().unwrap(),
        allow_larger: true,
        ..Config::default()
    };
    let model = common::upgraded("matmul_2d");
    let prepared = PreprocessedModel::of(&model, config).unwrap();
    let plan = prepared.plan();
    assert!(rounded(&prepared.model, &plan));
    let known = fs::read_to_string(&path).unwrap();
    assert!(known.lines().count() > 1, "{known}");
    Box::new(move |random| {
        let _kept = &folder;
        fs::write(&path, mutated(&known, random)).unwrap();
        rounded(&prepared.model, &plan)
    })
}

/// The file with other lines, or with other values in a line.
fn mutated(known: &str, random: &mut Random) -> String {
    if random.once_in(4) {
        return text::mutated(known, random);
    }
    let mut lines: Vec<String> = known.lines().map(str::to_owned).collect();
    let at = 1 + random.below(lines.len() - 1);
    let entry: Value = serde_json::from_str(&lines[at]).unwrap();
    let mut changed = json::mutated(&entry, random);
    // The key decides whether the rest is read.
    if let Ok(Value::Object(mut entries)) = serde_json::from_str::<Value>(&changed) {
        entries.insert("key".to_owned(), entry["key"].clone());
        changed = Value::Object(entries).to_string();
    }
    lines[at] = changed;
    lines.join("\n") + "\n"
}

fn rounded(model: &Model, plan: &Plan) -> bool {
    let control = Control { threads: 1, progress: &mut |_| true };
    let (engine, mut samples) = (Even::default(), Numbers(vec![0, 1]));
    let ranges = calibrate(model, plan, &engine, &mut samples, &Method::full_range(), control);
    let Ok(ranges) = ranges else { return false };
    plan.apply(model, Some(&ranges)).is_ok_and(|done| {
        Model::from_bytes(done.to_bytes().unwrap()).expect("what is written can be read");
        true
    })
}
