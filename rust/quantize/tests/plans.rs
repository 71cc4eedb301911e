//! The plan of every fixture as text: a change of policy is a readable diff.
//!
//! After an intended change: `INSTA_UPDATE=always cargo test -p quantize-rs --test plans`.

use std::fmt::Write;
use std::path::Path;

use quantize_rs::{Config, Graph, Model, Plan, PreprocessedModel, QType, Target};

#[test]
fn every_fixture_is_planned_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".onnx").map(str::to_owned))
        .collect();
    names.sort();
    let weights = Config { per_channel: Some(true), symmetric: Some(true), ..Config::default() };
    let activations = Config { activations: Some(QType::UInt8), ..weights.clone() };
    for name in names {
        let model = Model::open(folder.join(format!("{name}.onnx"))).unwrap();
        let mut text = String::new();
        for (title, config) in [("weights", &weights), ("activations", &activations)] {
            match PreprocessedModel::of(&model, config.clone()).map(|prepared| prepared.plan()) {
                Ok(plan) => write!(text, "{title}\n\n{plan}\n").unwrap(),
                Err(error) => writeln!(text, "{title}\n\nrefused: {error}\n").unwrap(),
            }
        }
        insta::assert_snapshot!(name, text);
    }
}

/// Sums, branches and functions between convolutions, a transformer, and what has no kernel.
const OF_EACH_KIND: [&str; 5] =
    ["residual_add", "concat_branches", "conv_sigmoid", "transformer_block", "conv_transpose"];

#[test]
fn every_target_places_as_it_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    for name in OF_EACH_KIND {
        let model = Model::open(folder.join(format!("{name}.onnx"))).unwrap();
        let graph = Graph::of(&model).unwrap();
        let mut text = String::new();
        for target in Target::ALL {
            let config = Config { per_channel: Some(true), ..Config::for_target(*target) };
            let plan = Plan::of(&graph, config).unwrap();
            writeln!(text, "{target}\n\n{plan}").unwrap();
            plan.warnings.iter().for_each(|warning| writeln!(text, "warning: {warning}").unwrap());
        }
        insta::assert_snapshot!(format!("targets_{name}"), text);
    }
}
