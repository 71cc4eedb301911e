//! `compare`, `layer-errors`, `sensitivity` and `outliers`: what quantization did to a model, and
//! why.

use std::fs;

use serde_json::Value;

use crate::common::{DIGITS, Folder, SAMPLES, run};

#[test]
fn a_quantized_model_is_compared_with_the_original_and_checked_by_criteria() {
    let folder = Folder::new();
    let small = folder.path("small.onnx");
    assert_eq!(run(&["quantize", DIGITS, "-o", &small, "-q"]).code, 0);
    let compare =
        ["compare", DIGITS, &small, "--data", SAMPLES, "--limit", "8", "--engine", "tract"];
    let with = |more: &[&str]| run(&[&compare[..], more].concat());
    let answer = with(&["--format", "json", "--runs", "3"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
    let found = answer.json();
    assert_eq!((&found["samples"], &found["engine"]), (&8.into(), &"tract".into()));
    assert!(found["sqnr_db"].as_f64().unwrap() > 20.0 && found["ratio"].as_f64().unwrap() > 3.0);
    assert_eq!(found["speed"]["original"]["runs"], 3);
    assert!(with(&["--no-latency"]).out.contains("SQNR dB"));

    let missed = with(&["--no-latency", "--min-sqnr", "200"]);
    assert_eq!(missed.code, 1);
    assert!(
        missed.err.contains("below the accuracy criterion: SQNR is")
            && missed.out.contains("SQNR dB"),
        "{missed:?}"
    );
    assert_eq!(with(&["--no-latency", "--min-sqnr", "20"]).code, 0);
    assert_eq!(with(&["--no-latency", "--require-faster"]).code, 2);
    assert_eq!(with(&["--max-accuracy-drop", "0.01"]).code, 2);

    let labels = folder.path("labels.txt");
    fs::write(&labels, "0,1\n2\n3 \n4\n5\n6\n7\n").expect("written");
    let labelled = with(&["--no-latency", "--labels", &labels, "--max-accuracy-drop", "99.9%"]);
    assert_eq!(labelled.code, 0, "{labelled:?}");
    assert!(labelled.out.contains("8 labels"));
    fs::write(&labels, "0 1\n").expect("written");
    assert_eq!(with(&["--labels", &labels]).code, 1);
    assert_eq!(run(&["compare", DIGITS, &small]).code, 2);
}

#[test]
fn layers_are_ranked_with_data_and_without() {
    let folder = Folder::new();
    let alone = run(&["sensitivity", DIGITS, "--format", "json"]).json();
    assert_eq!((&alone["metric"], &alone["engine"]), (&"weight".into(), &Value::Null));
    let layers = alone["layers"].as_array().unwrap().len();
    let known = folder.path("known.json");
    let data = ["--data", SAMPLES, "--limit", "4", "--engine", "tract", "--resume", &known];
    let command = ["sensitivity", DIGITS, "--weights-only", "--format", "json"];
    let found = run(&[&command[..], &data[..]].concat());
    assert_eq!(found.code, 0, "{found:?}");
    assert_eq!(found.json()["layers"].as_array().unwrap().len(), layers);
    assert!(fs::read_to_string(&known).expect("kept").contains("fingerprint"));
    let other = run(&[&command[..2], &data[..]].concat());
    assert_eq!(other.code, 2, "{other:?}");
    assert!(other.err.contains("--resume is"), "{other:?}");
    assert_eq!(run(&["sensitivity", DIGITS, "--metric", "mse"]).code, 2);
    assert_eq!(run(&["sensitivity", DIGITS, "--metric", "speed"]).code, 2);
}

#[test]
fn the_values_that_lose_the_most_come_first() {
    let folder = Folder::new();
    let small = folder.path("small.onnx");
    assert_eq!(run(&["quantize", DIGITS, "-o", &small, "-q"]).code, 0);
    let data = ["--data", SAMPLES, "--limit", "4", "--engine", "tract"];
    let answer = run(&[&["layer-errors", DIGITS, &small][..], &data[..]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    // Nothing is drawn in a pipe.
    assert!(answer.out.starts_with("value") && !answer.out.contains('█'));
    assert!(answer.out.contains("4 samples (tract)"));
}

#[test]
fn random_numbers_are_warned_of() {
    let folder = Folder::new();
    let (quantized, half) = (folder.path("q.onnx"), folder.path("h.onnx"));
    assert_eq!(run(&["quantize", DIGITS, "-o", &quantized, "-q"]).code, 0);
    let variants = folder.path("variants");
    for command in [
        &["compare", DIGITS, &quantized, "--no-latency"][..],
        &["layer-errors", DIGITS, &quantized],
        &["sensitivity", DIGITS],
        &["mixed-precision", DIGITS, "--target-size", "0.3"],
        &["float16", DIGITS, "-o", &half],
        &["variants", DIGITS, "-o", &variants, "--only", "q8"],
        &["recommend", DIGITS],
    ] {
        let answer = run(&[command, &["--data", "random", "--engine", "tract"]].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.err.contains(" on random numbers"), "{command:?}: {answer:?}");
    }
}

#[test]
fn outliers_lists_what_lies_far_from_the_others() {
    let json = run(&["outliers", DIGITS, "--fence", "1", "--most", "2", "--format", "json"]);
    assert_eq!((json.code, json.err.as_str()), (0, ""));
    let first = json.json()["weights"][0].clone();
    assert_eq!(first["furthest"].as_array().map(Vec::len), Some(2), "{first}");
    let name = first["name"].as_str().expect("a name");
    let text = run(&["outliers", DIGITS, "--fence", "1"]);
    assert!(text.out.contains(name) && !text.out.contains(&format!("{name}[")), "{text:?}");
    let all = run(&["outliers", DIGITS, "--fence", "1", "-v"]);
    assert_eq!(all.out.matches(&format!("{name}[")).count(), 10, "{all:?}");
    assert_eq!(run(&["outliers", DIGITS, "--fence=-1"]).code, 2);
}
