//! `quantize` and `plan`: what is written, reported, and left unchanged.

use std::collections::BTreeSet;
use std::fs;

use quantize_rs::Target;
use serde_json::Value;

use crate::common::{DIGITS, Folder, SAMPLES, run, size};

#[test]
fn quantize_writes_the_model_and_says_what_it_cost() {
    let folder = Folder::new();
    let out = folder.path("small.onnx");
    let text = run(&["quantize", DIGITS, "-o", &out, "--per-channel", "--symmetric", "-v"]);
    assert_eq!((text.code, text.err.as_str()), (0, ""), "{text:?}");
    #[allow(clippy::cast_precision_loss)] // small files
    let ratio = size(DIGITS) as f64 / size(&out) as f64;
    for line in ["Original size:", "Quantized size:", "Weights:", "SQNR"] {
        assert!(text.out.contains(line), "{line} is not in {}", text.out);
    }
    assert!(text.out.contains(&format!("{ratio:.2}×\n")), "{}", text.out);
    assert!(ratio > 3.0, "{ratio}");
    assert_eq!(run(&["info", &out, "--format=json"]).json()["quantized"], true);

    let json = run(&["--format", "json", "quantize", DIGITS, "-o", &out]).json();
    assert_eq!(json["output"], Value::from(out.as_str()));
    assert_eq!(json["bytes_after"], size(&out));
    assert!(json["ratio"].as_f64().is_some_and(|ratio| ratio > 3.0), "{json}");

    let quiet = run(&["quantize", DIGITS, "-o", &out, "-q"]);
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (0, "", ""));
    assert_eq!(folder.names(), ["small.onnx"]);
}

#[test]
fn a_model_may_be_quantized_onto_itself() {
    let folder = Folder::new();
    let path = folder.path("model.onnx");
    fs::copy(DIGITS, &path).expect("copied");
    assert_eq!(run(&["quantize", &path, "-o", &path]).code, 0);
    assert!(size(&path) < size(DIGITS) / 3);
    // There is nothing left to quantize then.
    let before = fs::read(&path).expect("read");
    let again = run(&["quantize", &path, "-o", &path, "-q"]);
    assert_eq!(again.code, 1);
    assert!(again.err.starts_with("error: nothing was quantized: the model holds"), "{again:?}");
    let allowed = run(&["quantize", &path, "-o", &path, "-q", "--allow-unquantized"]);
    assert_eq!(allowed.code, 0);
    assert!(allowed.err.starts_with("warning: nothing was quantized: "), "{allowed:?}");
    assert_eq!(fs::read(&path).expect("read"), before);
}

#[test]
fn kept_weights_say_why() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let text = run(&["quantize", DIGITS, "-o", &out, "--min-elements", "10000"]);
    assert_eq!(text.code, 0);
    assert!(text.out.contains("\nKept:  "), "{}", text.out);
    assert!(text.out.contains("fewer than 10000"), "{}", text.out);
    let none = ["quantize", DIGITS, "-o", &out, "--min-elements", "1000000"];
    for args in [&none[..], &[&none[..], &["--dry-run"]].concat()] {
        let none = run(args);
        let (first, second) = ("`conv1.weight`: has 144 elements, fewer than 1000000", "; `conv2.");
        assert!(none.code == 1 && none.err.contains(first), "{none:?}");
        assert!(none.err.contains(second) && none.err.contains("--allow-unquantized"), "{none:?}");
    }
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let plan = run(&["plan", DIGITS]);
    let static_plan = run(&["plan", DIGITS, "--activations", "uint8"]);
    assert_eq!((plan.code, static_plan.code), (0, 0));
    assert!(static_plan.out.contains("calibration"), "{}", static_plan.out);
    let static_plan_with = |flag: &str| run(&["plan", DIGITS, "--activations", "uint8", flag]);
    let said = "--symmetric=false has no effect on them; with --per-channel=false it has";
    assert!(static_plan_with("--symmetric=false").err.contains(said));
    assert_eq!(static_plan_with("--symmetric").err, "");
    let dry = run(&["quantize", DIGITS, "-o", &out, "--dry-run"]);
    assert_eq!((dry.code, dry.out), (0, plan.out));
    let dry = run(&["calibrate", DIGITS, "-o", &out, "--dry-run"]);
    assert_eq!((dry.code, dry.out), (0, static_plan.out));
    let json = run(&["calibrate", DIGITS, "--data", SAMPLES, "--dry-run", "--format=json"]).json();
    assert_eq!(json["config"]["activations"], "uint8");
    let missing = run(&["calibrate", DIGITS, "--data", &folder.path("no.npy"), "--dry-run"]);
    assert_eq!((missing.code, missing.out.as_str()), (1, ""), "{missing:?}");
    assert!(folder.is_empty());
}

#[test]
fn a_target_and_a_list_of_operators_reach_the_plan() {
    let types = |args: &[&str]| -> BTreeSet<String> {
        let json = run(&[&["plan", DIGITS, "--format=json"], args].concat()).json();
        let values = json["values"].as_array().expect("values").iter();
        let qtype = |value: &Value| {
            Some(value["decision"]["quantize"]["spec"]["qtype"].as_str()?.to_owned())
        };
        values.filter(|value| value["role"] != "weight").filter_map(qtype).collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(types(&[]), set(&[]));
    assert_eq!(types(&["--target", "tensorrt"]), set(&["int8"]), "its biases stay float");
    assert_eq!(types(&["--target", "x86", "--activations", "int8"]), set(&["int8", "int32"]));
    let gemm = run(&["plan", DIGITS, "--op-types", "Gemm", "--activations", "uint8"]).out;
    assert!(gemm.contains("weight of node `fc1` (Gemm)"), "{gemm}");
    assert!(!gemm.contains("weight of node `conv1` (Conv)"), "{gemm}");
    let help = run(&["plan", "--help"]).out;
    for target in Target::ALL {
        assert!(help.contains(target.profile().about), "{target} is not in {help}");
    }
}

#[test]
fn a_name_that_is_nearly_right_is_helped_along() {
    let name = run(&["plan", DIGITS, "--format", "json"]).json()["values"]
        .as_array()
        .and_then(|values| values.iter().find(|value| value["role"] == "weight"))
        .and_then(|value| value["name"].as_str().map(str::to_owned))
        .expect("a weight");
    let answer = run(&["plan", DIGITS, "--exclude", &format!("{name}x")]);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains(&format!("did you mean `{name}`")), "{}", answer.err);
}

#[test]
fn one_command_prunes_and_quantizes() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name);
    let (sparse, two, one) = (path("sparse.onnx"), path("two.onnx"), path("one.onnx"));
    for (pruned, flags) in [
        (&["--threshold", "0.05"][..], &["--prune", "0.05"][..]),
        (&["--sparsity", "0.5"], &["--sparsity", "0.5"]),
    ] {
        assert_eq!(run(&[&["prune", DIGITS, "-o", &sparse], pruned].concat()).code, 0);
        assert_eq!(run(&["quantize", &sparse, "-o", &two]).code, 0);
        let answer = run(&[&["quantize", DIGITS, "-o", &one], flags].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.out.contains("prune, "), "{answer:?}");
        assert_eq!(fs::read(&one).expect("read"), fs::read(&two).expect("read"));
    }
    let both = run(&["quantize", DIGITS, "-o", &one, "--prune", "1", "--sparsity", "1"]);
    assert_eq!(both.code, 2, "{both:?}");
    assert_eq!(run(&["quantize", DIGITS, "-o", &one, "--sparsity", "2"]).code, 2);
}

#[test]
fn samples_correct_biases_and_activations_stay_float() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let samples = ["--data", SAMPLES, "--limit", "40", "--format=json"];
    let report = run(&[&["quantize", DIGITS, "-o", &out], &samples[..]].concat()).json();
    let shown = ["samples", "engine", "corrected_biases"].map(|key| report[key].clone());
    assert_eq!(Value::from(shown.to_vec()), serde_json::json!([40, "tract", 3]));
    let values = report["values"].as_array().expect("values");
    let quantized = values.iter().filter(|row| !row["quantized"].is_null());
    assert!(quantized.into_iter().all(|row| row["role"] == "weight"));
    let answer = run(&["validate", DIGITS, &out]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let answer = run(&["quantize", DIGITS, "-o", &out, "--data", &folder.path("no.npy")]);
    assert_eq!(answer.code, 1, "{answer:?}");
    let answer = run(&["quantize", DIGITS, "-o", &out, "--limit", "4"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    let noise = run(&["quantize", DIGITS, "-o", &out, "--data", "random", "--num-samples", "4"]);
    assert!(noise.err.matches("random values").count() == 1, "{noise:?}");
}
