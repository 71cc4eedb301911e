//! The commands as a user types them: codes, streams, and what is written.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quantize_rs::{Method, Target};
use serde_json::Value;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/calibration.npy");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");

/// What a command answered.
#[derive(Debug)]
struct Answer {
    code: u8,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn run(args: &[&str]) -> Answer {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once(&"quantize-rs").chain(args).copied();
    let code = quantize_rs_cli::run_with(args, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Answer { code, out: text(out), err: text(err) }
}

/// A folder to write to.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn size(path: &str) -> u64 {
    fs::metadata(path).expect("a file").len()
}

#[test]
fn prune_sets_small_weights_to_0_and_counts_them() {
    let (folder, source) = (Folder::new(), format!("{FIXTURES}/opset13.onnx"));
    let path = folder.path("sparse.onnx");
    let half = ["prune", &source, "-o", &path, "--sparsity", "0.5", "--format", "json"];
    let answer = run(&half);
    assert_eq!(answer.code, 0, "{answer:?}");
    let count = |key: &str| answer.json()[key].as_u64().unwrap();
    let weights = answer.json()["weights"].as_array().unwrap().len() as u64;
    assert!(count("zeros").abs_diff(count("elements") / 2) <= weights, "{answer:?}");
    let relative = ["--threshold", "0.1", "--mode", "relative", "--per", "channel"];
    let answer = run(&[&["prune", &source, "-o", &path], &relative[..]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("weights are 0"), "{answer:?}");
    for wrong in [&["--sparsity", "2"][..], &[], &["--threshold", "1", "--sparsity", "1"]] {
        let answer = run(&[&["prune", &source, "-o", &path], wrong].concat());
        assert_eq!(answer.code, 2, "{answer:?}");
    }
    assert_eq!(folder.names(), ["sparse.onnx"]);
}

#[test]
fn convert_writes_a_model_of_newer_operators() {
    let (folder, source) = (Folder::new(), format!("{FIXTURES}/opset9_conv.onnx"));
    let path = folder.path("newer.onnx");
    let answer = run(&["convert", &source, "-o", &path, "--opset", "13"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("opset 9 → 13: 5 nodes changed"), "{answer:?}");
    assert_eq!(run(&["info", &path, "--format", "json"]).json()["opset_version"], 13);
    let answer = run(&["convert", &path, "-o", &folder.path("older.onnx"), "--opset", "9"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("the model has 13"), "{answer:?}");
    assert_eq!(folder.names(), ["newer.onnx"]);
}

#[test]
fn infer_shapes_writes_what_is_known_of_each_value() {
    let (folder, source) = (Folder::new(), format!("{FIXTURES}/conv2d_relu.onnx"));
    let path = folder.path("inferred.onnx");
    let found = run(&["infer-shapes", &source, "-o", &path, "--format", "json"]).json();
    assert_eq!(found["shaped"], found["values"]);
    let answer = run(&["infer-shapes", &path, "-o", &path]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("Values written") && answer.out.contains(" 0"), "{answer:?}");
    assert_eq!(folder.names(), ["inferred.onnx"]);
}

#[test]
fn info_tells_what_is_in_a_model() {
    let text = run(&["info", DIGITS]);
    assert_eq!((text.code, text.err.as_str()), (0, ""));
    for word in ["Opset:", "IR version:", "Producer:", "Nodes:", "float32 [", "Conv ", "kB"] {
        assert!(text.out.contains(word), "{word} is not in {}", text.out);
    }
    let json = run(&["info", DIGITS, "--format", "json"]).json();
    assert_eq!(json["bytes"], size(DIGITS));
    assert_eq!(json["quantized"], false);
    assert_eq!(json["inputs"][0]["dtype"], "float32");
}

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
    assert_eq!(again.code, 0);
    assert!(again.err.starts_with("warning: nothing was quantized"), "{again:?}");
    assert_eq!(fs::read(&path).expect("read"), before);
}

#[test]
fn kept_weights_say_why() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let text = run(&["quantize", DIGITS, "-o", &out, "--min-elements", "1000000"]);
    assert_eq!(text.code, 0);
    assert!(text.out.contains("\nKept:  "), "{}", text.out);
    assert!(text.out.contains("fewer than 1000000"), "{}", text.out);
    assert!(text.err.contains("warning: nothing was quantized"), "{}", text.err);
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let plan = run(&["plan", DIGITS]);
    let static_plan = run(&["plan", DIGITS, "--activations", "uint8"]);
    assert_eq!((plan.code, static_plan.code), (0, 0));
    assert!(static_plan.out.contains("calibration"), "{}", static_plan.out);
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
fn calibrate_measures_activations_and_shows_progress_when_asked() {
    let folder = Folder::new();
    let (out, ranges) = (folder.path("m.onnx"), folder.path("ranges.json"));
    let args = ["calibrate", DIGITS, "--data", SAMPLES, "-o", &out, "--limit", "35"];
    let text = run(&[&args[..], &["-v", "--ranges-out", &ranges]].concat());
    assert_eq!(text.code, 0, "{text:?}");
    let lines: Vec<&str> = text.err.lines().collect();
    let [ten, twenty, thirty, all, end] = lines[..] else { panic!("{lines:?}") };
    assert_eq!(ten, "Processed 10/35 samples");
    assert_eq!(twenty, "Processed 20/35 samples");
    assert_eq!(thirty, "Processed 30/35 samples");
    assert_eq!(all, "Processed 35/35 samples");
    let tracked = end
        .strip_prefix("✓ Calibration complete: ")
        .and_then(|end| end.strip_suffix(" layers tracked"));
    assert!(tracked.is_some_and(|layers| layers != "0"), "{end}");
    assert!(text.out.contains("35 samples run by tract, minmax"), "{}", text.out);
    assert!(text.out.contains("Compression:"), "{}", text.out);

    // Saved ranges give the same file, without a sample.
    let again = folder.path("again.onnx");
    let json = run(&["calibrate", DIGITS, "--ranges", &ranges, "-o", &again, "--format", "json"]);
    assert_eq!((json.code, json.err.as_str()), (0, ""));
    assert_eq!(json.json()["samples"], 35);
    assert_eq!(fs::read(&out).expect("read"), fs::read(&again).expect("read"));

    // Another method finds others in them, as it would have in the samples.
    let mse = folder.path("mse.onnx");
    let direct = run(&[&args[..5], &[&mse, "--limit", "35", "--method", "mse", "-q"]].concat());
    assert_eq!(direct.code, 0);
    let args_of = ["calibrate", DIGITS, "--ranges", &ranges, "--method", "mse", "-o", &again, "-q"];
    assert_eq!(run(&args_of).code, 0);
    assert_eq!(fs::read(&mse).expect("read"), fs::read(&again).expect("read"));
    fs::remove_file(&mse).expect("removed");

    // And so does any number of threads.
    let alone = run(&[&args[..5], &[&again, "--limit", "35", "--threads", "1"]].concat());
    assert_eq!((alone.code, alone.err.as_str()), (0, ""));
    assert_eq!(fs::read(&out).expect("read"), fs::read(&again).expect("read"));
    assert_eq!(folder.names(), ["again.onnx", "m.onnx", "ranges.json"]);
}

#[test]
fn methods_are_named_chosen_and_compared() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let data = ["calibrate", DIGITS, "--data", SAMPLES, "-o", &out];
    let help = run(&["calibrate", "--help"]).out;
    let mut models: Vec<Vec<u8>> = Vec::new();
    for (name, _) in Method::all() {
        assert!(help.contains(&format!("- {name}:")), "{name} is not in {help}");
        let json = run(&[&data[..], &["--method", &name, "--format", "json"]].concat()).json();
        assert_eq!(json["method"], *name);
        models.push(fs::read(&out).expect("written"));
    }
    models.sort();
    models.dedup();
    assert!(models.len() >= 5, "methods that differ in name only: {} models", models.len());
    let percentile = run(&[&data[..], &["--method", "percentile:99.9"]].concat());
    assert!(percentile.out.contains("run by tract, percentile:99.9"), "{percentile:?}");
    let auto = run(&[&data[..], &["--method", "auto", "-v"]].concat()).out;
    assert!(auto.contains("\nMethods:  "), "{auto}");
    assert!(auto.contains(" values"), "{auto}");
    assert!(auto.contains("image: uint8, 0 to 1, "), "{auto}");
    fs::remove_file(&out).expect("removed");

    let text = run(&[&data[..], &["--compare-methods"]].concat());
    assert_eq!((text.code, text.err.as_str()), (0, ""));
    let json = run(&[&data[..], &["--compare-methods", "--format=json"]].concat()).json();
    for row in json["methods"].as_array().expect("rows") {
        let name = row["method"].as_str().expect("a name");
        assert!(text.out.lines().any(|line| line.starts_with(name)), "{name}: {}", text.out);
    }
    assert_eq!(json["samples"], 200);
    assert!(folder.is_empty(), "a comparison writes nothing");
}

#[test]
fn what_calibration_has_to_say_is_in_the_summary() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let few = ["calibrate", DIGITS, "--data", SAMPLES, "--limit", "3", "-o", &out];
    let text = run(&[&few[..], &["--method", "mse"]].concat());
    assert_eq!(text.code, 0);
    assert!(text.err.starts_with("warning: only 3 samples"), "{}", text.err);
    assert_eq!(text.err.lines().count(), 1, "{}", text.err);
    assert!(text.out.contains("\nNotes:"), "{}", text.out);
    assert!(text.out.contains("\nBiases:         5 corrected"), "{}", text.out);
    let none = run(&[&few[..], &["--no-bias-correction"]].concat());
    assert!(!none.out.contains("corrected"), "{}", none.out);
    let json = run(&[&few[..], &["--format", "json"]].concat()).json();
    assert!(json["warnings"].to_string().contains("only 3 samples"), "{json}");
    assert!(json["notes"].is_array());
    let quiet = run(&[&few[..], &["-q"]].concat());
    assert!(quiet.err.starts_with("warning: only 3"), "warnings are not silenced");
    assert_eq!(quiet.out, "");
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
fn ranges_are_shown_merged_compared_and_converted() {
    let folder = Folder::new();
    let files: Vec<String> =
        ["a", "b", "ab", "mse"].iter().map(|name| folder.path(&format!("{name}.json"))).collect();
    let [a, b, ab, mse] = &files[..] else { panic!() };
    let out = folder.path("m.onnx");
    let samples = fs::read(SAMPLES).expect("read");
    let halves = halves(&samples);
    let calibrate = |data: &str, to: &str, method: &str| {
        let args = ["calibrate", DIGITS, "--data", data, "-o", &out, "-q"];
        let answer = run(&[&args[..], &["--ranges-out", to, "--method", method]].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
    };
    for (half, to) in halves.iter().zip([a, b]) {
        let path = folder.path("half.npy");
        fs::write(&path, half).expect("written");
        calibrate(&path, to, "minmax");
    }
    calibrate(SAMPLES, mse, "mse");

    let merged = run(&["ranges", "merge", a, b, "-o", ab]);
    assert_eq!(merged.code, 0, "{merged:?}");
    assert!(merged.out.contains("Samples:        200\n"), "{}", merged.out);
    let whole = folder.path("whole.json");
    calibrate(SAMPLES, &whole, "minmax");
    assert_eq!(fs::read(ab).expect("read"), fs::read(&whole).expect("read"));
    assert_eq!(run(&["ranges", "diff", ab, &whole]).out, "no difference\n");
    let onto_itself = run(&["ranges", "merge", a, b, "-o", a, "-q"]);
    assert_eq!((onto_itself.code, onto_itself.out.as_str()), (0, ""));
    let unlike = run(&["ranges", "merge", ab, mse, "-o", &out]);
    assert_eq!(unlike.code, 1);
    assert!(unlike.err.contains("mse.json: these ranges belong to different"), "{}", unlike.err);

    let shown = run(&["ranges", "show", ab]);
    for part in ["Method:         minmax", "Samples:        200", "image: [0, 1]"] {
        assert!(shown.out.contains(part), "{part} is not in {}", shown.out);
    }
    assert_eq!(run(&["ranges", "show", ab, "--format=json"]).json()["samples"], 200);
    let diff = run(&["ranges", "diff", ab, mse, "--format=json"]).json();
    assert!(diff["differences"].as_array().is_some_and(|all| !all.is_empty()), "{diff}");

    let (cache, back) = (folder.path("calibration.cache"), folder.path("back.json"));
    let version = ["--tensorrt-version", "10300"];
    let to_cache = ["ranges", "convert", ab, "--model", DIGITS, "-o", &cache];
    assert_eq!(run(&[&to_cache[..], &version].concat()).code, 0);
    let text = fs::read_to_string(&cache).expect("read");
    assert!(text.starts_with("TRT-10300-MinMaxCalibration\nimage: 3c010204\n"), "{text}");
    assert_eq!(run(&["ranges", "convert", &cache, "--model", DIGITS, "-o", &back]).code, 0);
    assert!(run(&["ranges", "show", &back]).out.contains("image: [-1, 1]"));
    let other = format!("{FIXTURES}/mlp_relu.onnx");
    let another = run(&["ranges", "convert", ab, "--model", &other, "-o", &back]);
    assert_eq!(another.code, 1);
    assert!(another.err.contains("another model"), "{}", another.err);
}

/// Two `.npy` files with a half of the 200 samples in each.
fn halves(npy: &[u8]) -> [Vec<u8>; 2] {
    let (head, data) = npy.split_at(10 + usize::from(npy[8]));
    let (first, second) = data.split_at(data.len() / 2);
    let mut head = head.to_vec();
    let shape = head.windows(5).position(|text| text == b"(200,").expect("the shape");
    head[shape + 1] = b'1';
    [[&head, first].concat(), [&head, second].concat()]
}

#[test]
fn random_samples_are_asked_for_by_name_and_warned_of() {
    let folder = Folder::new();
    let calibrate = |name: &str, seed: &str| {
        let out = folder.path(name);
        let random = ["--data", "random", "--num-samples", "3", "--seed", seed];
        let options = ["--sample-shape", "1,8,8", "-o", &out, "-q", "--format", "json"];
        let answer = run(&[&["calibrate", DIGITS][..], &random, &options].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.err.starts_with("warning: CALIBRATED WITH RANDOM DATA"), "{answer:?}");
        assert_eq!(answer.err.lines().count(), 1, "told once");
        let json = answer.json();
        assert_eq!(json["samples"], 3);
        assert!(json["warnings"].to_string().contains("RANDOM"));
        fs::read(out).expect("written")
    };
    let first = calibrate("a.onnx", "1");
    assert_eq!(first, calibrate("b.onnx", "1"));
    assert_ne!(first, calibrate("c.onnx", "2"));
}

#[test]
fn refusals_have_a_code_a_reason_and_no_output() {
    let inputs = Folder::new();
    let garbage = inputs.path("garbage.onnx");
    fs::write(&garbage, "not a model").expect("written");
    let ranges = inputs.path("ranges.json");
    fs::write(&ranges, "{}").expect("written");
    let none = inputs.path("none");
    let nowhere = inputs.path("none/m.onnx");
    let weight = &["quantize", DIGITS, "--exclude"][..];
    let calibrate = &["calibrate", DIGITS][..];
    let data = &["--data", SAMPLES][..];
    let cases: Vec<(Vec<&str>, u8, &str)> = vec![
        (vec!["quantize", DIGITS, "-b", "5"], 2, "--bits is 5, expected 2, 4, 8 or 16"),
        (vec!["quantize", DIGITS, "-b", "300"], 2, "300"),
        (vec!["quantize", DIGITS, "--layer-bits", "w"], 2, "NAME=BITS"),
        (vec!["quantize", DIGITS, "--layer-bits", "w=x"], 2, "no number of bits"),
        (vec!["quantize", DIGITS, "--layer-bits", "*=5"], 2, "--layer-bits is 5"),
        (vec!["quantize", DIGITS, "--block-size", "5"], 2, "--block-size is 5"),
        (vec!["quantize", DIGITS, "-q", "-v"], 2, "cannot be used with"),
        (vec!["quantize"], 2, "<MODEL>"),
        ([weight, &["no_such_layer"]].concat(), 2, "--exclude names `no_such_layer`"),
        ([weight, &["zz*"]].concat(), 2, "fits no weight, bias or node"),
        (vec!["quantize", &none], 1, "no such file"),
        (vec!["quantize", &garbage], 1, "not a well-formed ONNX model"),
        (vec!["info", &garbage], 1, "not a well-formed ONNX model"),
        (vec!["info", FIXTURES], 1, "is a directory"),
        (vec!["quantize", DIGITS, "-o", FIXTURES], 1, "is a directory"),
        (vec!["quantize", DIGITS, "-o", &nowhere], 1, "there is no directory"),
        ([calibrate, data, &["-o", &nowhere]].concat(), 1, "there is no directory"),
        (calibrate.to_vec(), 2, "--data"),
        ([calibrate, &["--data", &none]].concat(), 1, "no such file"),
        ([calibrate, &["--data", DIGITS]].concat(), 1, ".onnx"),
        ([calibrate, &["--ranges", &ranges]].concat(), 1, "ranges.json: not a file of ranges"),
        ([calibrate, &["--ranges", &none]].concat(), 1, "no such file"),
        ([calibrate, data, &["--ranges", &ranges]].concat(), 2, "cannot be used with"),
        ([calibrate, data, &["--ranges-out", DIGITS]].concat(), 2, "would overwrite"),
        ([calibrate, data, &["--ranges-out", SAMPLES]].concat(), 2, "would overwrite"),
        ([calibrate, data, &["--ranges-out", &nowhere]].concat(), 1, "there is no directory"),
        ([calibrate, data, &["--threads", "0"]].concat(), 2, "--threads"),
        ([calibrate, data, &["--seed", "1"]].concat(), 2, "--seed is for --data random"),
        ([calibrate, &["--data", "random", "--limit", "1"]].concat(), 2, "--limit is for files"),
        ([calibrate, &["--data", "random", "--num-samples", "0"]].concat(), 1, "no calibration"),
        (
            [calibrate, data, &["--method", "percentile:10"]].concat(),
            2,
            "method is `percentile:10`",
        ),
        ([calibrate, data, &["--method", "min"]].concat(), 2, "method is `min`"),
        ([calibrate, data, &["--activations", "int4"]].concat(), 2, "int4"),
        ([calibrate, data, &["--block-size", "32"]].concat(), 2, "argument '--block-size'"),
        (vec!["frobnicate", DIGITS], 2, "frobnicate"),
        (vec![], 2, "Usage"),
    ];
    refused(cases);
}

/// Runs what cannot be done: the code, a reason, nothing printed as a result, and nothing written.
fn refused(cases: Vec<(Vec<&str>, u8, &str)>) {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    for (mut args, code, reason) in cases {
        if args.len() > 1 && !args.contains(&"-o") && !matches!(args[0], "info" | "frobnicate") {
            args.extend(["-o", &out]);
        }
        let answer = run(&args);
        assert_eq!((answer.code, answer.out.as_str()), (code, ""), "{args:?}: {answer:?}");
        let reason = reason.to_lowercase();
        assert!(answer.err.to_lowercase().contains(&reason), "{args:?}: {answer:?}");
        assert!(folder.is_empty(), "{args:?} wrote {:?}", folder.names());
    }
}

#[test]
fn refusals_of_calibration_and_of_ranges_are_no_different() {
    let inputs = Folder::new();
    let ranges = inputs.path("ranges.json");
    fs::write(&ranges, "{}").expect("written");
    let cache = inputs.path("calibration.cache");
    fs::write(&cache, "TRT-8601-MinMaxCalibration\nx 3\n").expect("written");
    let (none, nowhere) = (inputs.path("none"), inputs.path("none/m.onnx"));
    let calibrate = &["calibrate", DIGITS][..];
    let data = &["--data", SAMPLES][..];
    let convert = &["ranges", "convert", "--model", DIGITS][..];
    refused(vec![
        ([calibrate, data, &["--target", "x87"]].concat(), 2, "x86-avx2"),
        (
            [calibrate, data, &["--target", "tensorrt", "--activations", "uint8"]].concat(),
            2,
            "--activations is uint8, expected int8 or float8e4m3fn for target tensorrt",
        ),
        (
            [calibrate, data, &["--target", "tensorrt", "--activations", "float8"]].concat(),
            2,
            "--weights is int8, expected float8e4m3fn beside float8e4m3fn activations",
        ),
        ([calibrate, data, &["--weights", "float8"]].concat(), 2, "--weights is float8e4m3fn"),
        ([calibrate, data, &["--weights", "float9"]].concat(), 2, "float9"),
        ([calibrate, data, &["--op-types", "Konv"]].concat(), 2, "--op-types"),
        ([calibrate, data, &["--engine", "torch"]].concat(), 2, "onnxruntime"),
        (
            [calibrate, data, &["--engine", "onnxruntime", "--onnxruntime", &none]].concat(),
            1,
            "pip install onnxruntime",
        ),
        ([calibrate, data, &["--compare-methods", "--method", "mse"]].concat(), 2, "--method"),
        ([calibrate, &["--compare-methods"]].concat(), 2, "--data"),
        (vec!["ranges"], 2, "Usage"),
        (vec!["ranges", "merge", &none, &none], 1, "no such file"),
        (vec!["ranges", "merge", &ranges], 2, "2 values required"),
        (vec!["ranges", "merge", &ranges, &ranges], 1, "ranges.json: not a file of ranges"),
        ([convert, &[&ranges, "-o", &nowhere]].concat(), 1, "there is no directory"),
        ([convert, &[&ranges, "-o", &ranges]].concat(), 2, "would overwrite"),
        ([convert, &[&ranges]].concat(), 1, "ranges.json: not a file of ranges"),
        ([convert, &[&cache]].concat(), 1, "calibration.cache: line 2"),
    ]);
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
fn every_fixture_is_shown_planned_and_quantized_or_refused_with_a_reason() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let mut models: Vec<PathBuf> = fs::read_dir(FIXTURES)
        .expect("the fixtures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .collect();
    models.sort();
    assert!(models.len() > 50);
    for model in &models {
        let model = model.to_str().expect("a path in UTF-8");
        assert_eq!(run(&["info", model]).code, 0, "{model}");
        for args in [
            &["info", model][..],
            &["plan", model],
            &["plan", model, "--activations", "int8", "--per-channel"],
            &["quantize", model, "-o", &out],
        ] {
            let answer = run(&[args, &["--format", "json"]].concat());
            match answer.code {
                0 => assert!(answer.json().is_object(), "{args:?}"),
                1 => {
                    assert_eq!(answer.out, "", "{args:?}");
                    assert!(answer.err.starts_with("error: "), "{args:?}: {answer:?}");
                    assert_eq!(answer.err.lines().count(), 1, "{answer:?}");
                }
                code => panic!("{args:?}: {code}"),
            }
            let written = args[0] == "quantize" && answer.code == 0;
            assert_eq!(Path::new(&out).exists(), written, "{args:?}");
        }
        let _ = fs::remove_file(&out);
    }
}

#[test]
fn optimize_writes_a_simpler_model_and_says_what_it_did() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let model = format!("{FIXTURES}/conv_bn_relu.onnx");
    let answer = run(&["optimize", &model, "-o", &out, "--format", "json"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    assert_eq!(answer.json()["steps"][0]["pass"], "fold_batch_norm");
    assert!(Path::new(&out).exists());
    let skipped = ["optimize", &model, "-o", &out, "--skip", "fold_batch_norm,dead"];
    assert!(run(&skipped).out.contains("nothing to do"));
    let passes = ["optimize", &model, "-v", "-o", &out, "--passes", "fold_batch_norm"];
    assert!(run(&passes).out.contains("is in the weights of"));
    let unknown = run(&["optimize", &model, "-o", &out, "--skip", "fold"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("merge_duplicates"), "{}", unknown.err);
    assert!(run(&["optimize", "--help"]).out.contains("takes out what nothing reads"));
}

#[test]
fn help_and_version_are_results() {
    for args in [&["--help"][..], &["calibrate", "--help"], &["--version"]] {
        let answer = run(args);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{args:?}");
        assert!(!answer.out.is_empty());
    }
    assert!(run(&["--version"]).out.starts_with("quantize-rs "));
    let help = run(&["calibrate", "--help"]).out;
    for format in quantize_rs_runner::samples::FORMATS {
        assert!(help.contains(format.extension), "{} is not in {help}", format.extension);
    }
    let none: [&str; 0] = [];
    assert_eq!(quantize_rs_cli::run_with(none, &mut Vec::new(), &mut Vec::new()), 2);
}

/// A stream that takes nothing.
struct Stuck(std::io::ErrorKind);

impl std::io::Write for Stuck {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn a_reader_who_stops_reading_is_no_failure_but_a_full_disk_is() {
    use std::io::ErrorKind;
    for (kind, code) in [(ErrorKind::BrokenPipe, 0), (ErrorKind::StorageFull, 1)] {
        let mut err = Vec::new();
        let args = ["quantize-rs", "info", DIGITS];
        assert_eq!(quantize_rs_cli::run_with(args, &mut Stuck(kind), &mut err), code);
        assert_eq!(err.is_empty(), code == 0);
    }
    // Nobody listens to progress and warnings: the work is done all the same.
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let args = ["quantize-rs", "calibrate", DIGITS, "--data", SAMPLES, "-v", "-o", &out];
    let mut deaf = Stuck(ErrorKind::BrokenPipe);
    assert_eq!(quantize_rs_cli::run_with(args, &mut Vec::new(), &mut deaf), 0);
    assert!(Path::new(&out).exists());
}

#[test]
fn the_program_is_the_function_and_writes_to_the_names_users_know() {
    let folder = Folder::new();
    let program = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quantize-rs"));
        command.args(args).current_dir(folder.0.path()).output().expect("the program runs")
    };
    assert!(program(&["quantize", DIGITS]).status.success());
    let calibrated = program(&["calibrate", DIGITS, "--data", SAMPLES, "--limit", "32"]);
    assert!(calibrated.status.success());
    assert_eq!(String::from_utf8_lossy(&calibrated.stderr), "");
    assert_eq!(folder.names(), ["model_calibrated.onnx", "model_quantized.onnx"]);
    assert_eq!(program(&["quantize", "none.onnx"]).status.code(), Some(1));
    assert_eq!(program(&["quantize", DIGITS, "-b", "5"]).status.code(), Some(2));
}

#[test]
fn a_quantized_model_is_held_against_the_original_and_to_a_bar() {
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

    let bar = with(&["--no-latency", "--min-sqnr", "200"]);
    assert_eq!(bar.code, 1);
    assert!(bar.err.contains("below the bar: SQNR is") && bar.out.contains("SQNR dB"), "{bar:?}");
    assert_eq!(with(&["--no-latency", "--min-sqnr", "20"]).code, 0);
    assert_eq!(with(&["--no-latency", "--require-faster"]).code, 2);
    assert_eq!(with(&["--max-accuracy-drop", "1"]).code, 2);

    let labels = folder.path("labels.txt");
    fs::write(&labels, "0,1\n2\n3 \n4\n5\n6\n7\n").expect("written");
    let labelled = with(&["--no-latency", "--labels", &labels, "--max-accuracy-drop", "100"]);
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
    assert!(answer.out.starts_with("value") && answer.out.contains("4 samples (tract)"));
}
