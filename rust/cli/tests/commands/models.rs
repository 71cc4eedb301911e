//! `info`, `prune`, `convert`, `optimize`: commands other than quantization.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{DIGITS, FIXTURES, Folder, SAMPLES, run, size};

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
fn the_names_of_0_10_mean_the_same() {
    let shown = |format: &str| run(&["info", DIGITS, "--format", format]);
    assert_eq!(shown("human").out, shown("text").out);
    assert_eq!(shown("human").code, 0);
    let folder = Folder::new();
    let made = ["calibrate", "calibrate-matrix"].map(|command| {
        let path = folder.path(command);
        let samples = ["--data", SAMPLES, "--limit", "2", "--engine", "tract"];
        let answer = run(&[&[command, DIGITS, "-q", "-o", &path][..], &samples].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        fs::read(path).expect("written")
    });
    assert_eq!(made[0], made[1]);
    let help = run(&["--help"]).out;
    assert!(!help.contains("human") && !help.contains("calibrate-matrix"), "{help}");
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
    assert!(run(&passes).out.contains("into the weights of"));
    let unknown = run(&["optimize", &model, "-o", &out, "--skip", "fold"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("merge_duplicates"), "{}", unknown.err);
    assert!(run(&["optimize", "--help"]).out.contains("removes unused nodes and constants"));
}

#[test]
fn recommend_says_why_and_gives_a_command_that_runs() {
    let folder = Folder::new();
    let model = folder.path("my model.onnx");
    fs::copy(DIGITS, &model).expect("copied");
    let found = run(&["recommend", &model, "--data", SAMPLES, "--target", "arm"]);
    assert_eq!((found.code, found.err.as_str()), (0, ""), "{found:?}");
    let measured = "measured: latency not measured, outputs with an SQNR of ";
    for part in ["static: weights and activations in 8 bits", "Conv do", "--target arm", measured] {
        assert!(found.out.contains(part), "{part} is not in {found:?}");
    }
    let json = run(&["recommend", &model, "--format", "json"]).json();
    assert_eq!((&json["way"], &json["bits"]), (&"static".into(), &8.into()), "{json}");
    assert!(json["command"].as_str().is_some_and(|text| text.contains("--data SAMPLES ")));
    let missing = folder.path("none.npy");
    let missing = run(&["recommend", &model, "--data", &missing]);
    assert!(missing.code == 1 && missing.err.contains("none.npy"), "{missing:?}");
    let images = folder.path("images");
    fs::create_dir(&images).expect("created");
    let flags = ["--size", "8", "--scale", "0.5"];
    let none = run(&[&["recommend", &model, "--data", &images][..], &flags].concat());
    assert!(none.code == 1 && none.err.contains("no calibration samples"), "{none:?}");
    let stray = run(&[&["recommend", &model, "--data", SAMPLES][..], &flags].concat());
    assert!(stray.code == 2 && stray.err.contains("--size is for images"), "{stray:?}");
    let noise = run(&["recommend", &model, "--data", "random", "--format", "json"]).json();
    assert_eq!(noise, json, "noise is no sample");
    let other = json["otherwise"][0]["command"].as_str().expect("a command");
    let (_, rest) = other.split_once("quantize-rs quantize ").expect("quantize");
    let words: Vec<&str> = rest.split('\'').filter(|word| *word != " -o ").collect();
    let [_, from, to, flags] = words[..] else { panic!("{words:?}") };
    assert_eq!(from, model);
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let made = run(&[&["quantize", from, "-o", to][..], &flags].concat());
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(run(&["validate", from, to]).code, 0);
    let help = run(&["recommend", "--help"]).out;
    assert!(help.contains("convolutions do at least half of the work"), "{help}");
}
