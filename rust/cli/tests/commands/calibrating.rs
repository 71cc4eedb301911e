//! `calibrate`: samples, methods, and their reports.

use std::fs;

use quantize_rs::Method;

use crate::common::{DIGITS, Folder, SAMPLES, run};

#[test]
fn calibrate_measures_activations_and_shows_progress_when_asked() {
    let folder = Folder::new();
    let (out, ranges) = (folder.path("m.onnx"), folder.path("ranges.json"));
    let args = ["calibrate", DIGITS, "--data", SAMPLES, "-o", &out, "--limit", "35"];
    let named = ["--target", "x86", "-v", "--ranges-out", &ranges];
    let text = run(&[&args[..], &named].concat());
    assert_eq!(text.code, 0, "{text:?}");
    let lines: Vec<&str> = text.err.lines().collect();
    let [ten, twenty, thirty, all, end] = lines[..] else { panic!("{lines:?}") };
    assert_eq!(ten, "Processed 10/35 samples");
    assert_eq!(twenty, "Processed 20/35 samples");
    assert_eq!(thirty, "Processed 30/35 samples");
    assert_eq!(all, "Processed 35/35 samples");
    assert_eq!(end, "✓ 35 samples run by tract");
    assert!(text.out.contains("35 samples run by tract, auto"), "{}", text.out);
    assert!(text.out.contains("Compression:"), "{}", text.out);

    // Saved ranges give the same file, without a sample.
    let again = folder.path("again.onnx");
    let saved = ["calibrate", DIGITS, "--ranges", &ranges, "-o", &again, "--target", "x86"];
    let json = run(&[&saved[..], &["--format", "json"]].concat());
    assert_eq!((json.code, json.err.as_str()), (0, ""));
    assert_eq!(json.json()["samples"], 35);
    assert_eq!(fs::read(&out).expect("read"), fs::read(&again).expect("read"));

    // Another method computes the same ranges from them as from the samples.
    let mse = folder.path("mse.onnx");
    let direct = run(&[&args[..5], &[&mse, "--limit", "35", "--method", "mse", "-q"]].concat());
    assert_eq!(direct.code, 0);
    let args_of = ["calibrate", DIGITS, "--ranges", &ranges, "--method", "mse", "-o", &again, "-q"];
    assert_eq!(run(&args_of).code, 0);
    assert_eq!(fs::read(&mse).expect("read"), fs::read(&again).expect("read"));
    fs::remove_file(&mse).expect("removed");

    // The number of threads does not matter.
    let one = ["--limit", "35", "--threads", "1", "--target", "x86"];
    let alone = run(&[&args[..5], &[&again], &one].concat());
    assert_eq!((alone.code, alone.err.as_str()), (0, ""));
    assert_eq!(fs::read(&out).expect("read"), fs::read(&again).expect("read"));
    assert_eq!(folder.names(), ["again.onnx", "m.onnx", "ranges.json"]);
}

#[test]
fn progress_counts_samples_once_even_if_methods_are_evaluated() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let text = run(&["calibrate", DIGITS, "--data", SAMPLES, "-o", &out, "-v", "--target", "x86"]);
    assert_eq!(text.code, 0, "{text:?}");
    let counts = text.err.lines().filter_map(|line| line.strip_prefix("Processed "));
    let counts: Vec<&str> = counts.collect();
    assert_eq!(counts.last(), Some(&"200/200 samples"), "{counts:?}");
    assert!(counts.iter().all(|line| line.ends_with("/200 samples")), "{counts:?}");
    assert!(text.out.contains("200 samples run by tract, auto"), "{}", text.out);
}

#[test]
fn integers_for_a_float_input_are_named() {
    let folder = Folder::new();
    let (out, pixels) = (folder.path("m.onnx"), folder.path("pixels.npy"));
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (40, 1, 8, 8), }";
    let header = format!("{header:<117}\n");
    let mut file = b"\x93NUMPY\x01\0\x76\0".to_vec();
    file.extend(header.bytes());
    file.extend((0..40 * 64_u32).map(|at| u8::try_from(at * 7 % 251).unwrap_or(0)));
    fs::write(&pixels, file).expect("written");
    let said = "warning: the samples of input `image` are uint8, and the input is float32: ";
    let data = ["--data", &*pixels, "--engine", "tract"];
    for command in [
        &["calibrate", DIGITS, "-o", &out][..],
        &["quantize", DIGITS, "-o", &out],
        &["quantize", DIGITS, "-o", &out, "--verify", &pixels],
        &["compare", DIGITS, DIGITS, "--no-latency"],
        &["layer-errors", DIGITS, DIGITS],
        &["sensitivity", DIGITS],
        &["mixed-precision", DIGITS, "--target-size", "0.5", "--bits", "8"],
    ] {
        let answer = run(&[command, &data].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(answer.err.matches(said).count(), 1, "{command:?}: {}", answer.err);
    }
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
    let few =
        ["calibrate", DIGITS, "--data", SAMPLES, "--limit", "3", "-o", &out, "--target", "x86"];
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
fn the_shape_of_samples_is_compared_with_the_one_given() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let calibrate = |shape: &str| {
        let data = ["--data", SAMPLES, "--limit", "2", "--engine", "tract"];
        run(&[&["calibrate", DIGITS, "-o", &out, "--sample-shape", shape][..], &data].concat())
    };
    let refused = calibrate("3,8,8");
    let said = "--sample-shape is [3, 8, 8], and the samples have the shape [1, 8, 8] without";
    assert_eq!((refused.code, refused.err.contains(said)), (2, true), "{refused:?}");
    assert!(folder.is_empty());
    assert_eq!(calibrate("1,8,8").code, 0);
}

#[test]
fn random_samples_are_asked_for_by_name_and_warned_of() {
    let folder = Folder::new();
    let calibrate = |name: &str, seed: &str| {
        let out = folder.path(name);
        let random = ["--data", "random", "--num-samples", "3", "--seed", seed];
        let options = ["--sample-shape", "1,8,8", "-o", &out, "-q", "--format", "json"];
        let options = [&options[..], &["--target", "x86"]].concat();
        let answer = run(&[&["calibrate", DIGITS][..], &random, &options].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.err.starts_with("warning: calibrated with random values"), "{answer:?}");
        assert_eq!(answer.err.lines().count(), 1, "reported once");
        let json = answer.json();
        assert_eq!(json["samples"], 3);
        assert!(json["warnings"].to_string().contains("random values"));
        fs::read(out).expect("written")
    };
    let first = calibrate("a.onnx", "1");
    assert_eq!(first, calibrate("b.onnx", "1"));
    assert_ne!(first, calibrate("c.onnx", "2"));
}
