//! Commands that fail: an exit code, a reason, and nothing written.

use std::fs;

use crate::common::{DIGITS, FIXTURES, Folder, SAMPLES, run};

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
        (vec!["quantize", DIGITS, "-b", "7"], 2, "--bits is 7, expected 2, 3, 4, 5, 6, 8 or 16"),
        (vec!["quantize", DIGITS, "-b", "300"], 2, "300"),
        (vec!["quantize", DIGITS, "--layer-bits", "w"], 2, "NAME=VALUE"),
        (vec!["quantize", DIGITS, "--layer-bits", "w=x"], 2, "is `x`, expected one of int2"),
        (vec!["quantize", DIGITS, "--layer-bits", "*=7"], 2, "--layer-bits is 7"),
        (vec!["quantize", DIGITS, "--block-size", "5"], 2, "--block-size is 5"),
        (vec!["quantize", DIGITS, "-q", "-v"], 2, "cannot be used with"),
        (vec!["quantize"], 2, "<MODEL>"),
        ([weight, &["no_such_layer"]].concat(), 2, "--exclude names `no_such_layer`"),
        ([weight, &["zz*"]].concat(), 2, "fits no weight, bias or node"),
        ([weight, &["conv1,fc1"]].concat(), 2, "its own: --exclude conv1 --exclude fc1"),
        (
            vec!["prune", DIGITS, "--sparsity", "0.5", "--exclude", "conv1,fc1"],
            2,
            "its own: --exclude conv1 --exclude fc1",
        ),
        (
            vec!["float16", DIGITS, "--exclude", "conv1,fc1"],
            2,
            "its own: --exclude conv1 --exclude fc1",
        ),
        (vec!["quantize", &none], 1, "no such file"),
        (vec!["quantize", &garbage], 1, "not a well-formed ONNX model"),
        (vec!["info", &garbage], 1, "not a well-formed ONNX model"),
        (vec!["quantize", SAMPLES], 1, "not an ONNX model, but a NumPy array (.npy)"),
        (vec!["info", FIXTURES], 1, "is a directory"),
        (vec!["quantize", DIGITS, "-o", FIXTURES], 1, "is a directory"),
        (vec!["quantize", DIGITS, "-o", &nowhere], 1, "there is no directory"),
        ([calibrate, data, &["-o", &nowhere]].concat(), 1, "there is no directory"),
        (calibrate.to_vec(), 2, "<--calibration-data <PATH>|--ranges <FILE>|--dry-run>"),
        ([calibrate, &["--data", &none]].concat(), 1, "no such file"),
        ([calibrate, &["--data", DIGITS]].concat(), 1, ".onnx"),
        ([calibrate, &["--ranges", &ranges]].concat(), 1, "ranges.json`)"),
        ([calibrate, &["--ranges", &none]].concat(), 1, "no such file"),
        ([calibrate, data, &["--ranges", &ranges]].concat(), 2, "cannot be used with"),
        ([calibrate, data, &["-o", SAMPLES]].concat(), 2, "--output would overwrite"),
        (vec!["quantize", DIGITS, "--verify", SAMPLES, "-o", SAMPLES], 2, "would overwrite"),
        (
            vec!["mixed-precision", DIGITS, "--min-sqnr", "20", "--data", SAMPLES, "-o", SAMPLES],
            2,
            "would overwrite",
        ),
        ([calibrate, data, &["--ranges-out", DIGITS]].concat(), 2, "would overwrite"),
        ([calibrate, data, &["--ranges-out", SAMPLES]].concat(), 2, "would overwrite"),
        ([calibrate, data, &["--ranges-out", &nowhere]].concat(), 1, "there is no directory"),
        ([calibrate, data, &["--threads", "0"]].concat(), 2, "--threads"),
        (
            [calibrate, data, &["--seed", "1"]].concat(),
            2,
            "--seed is for --calibration-data random",
        ),
        ([calibrate, &["--data", "random", "--limit", "1"]].concat(), 2, "--limit is for files"),
        (
            [calibrate, &["--data", "random", "--num-samples", "0"]].concat(),
            2,
            "--num-samples is 0, expected 1 or more",
        ),
        ([calibrate, data, &["--limit", "-1"]].concat(), 2, "--limit is -1, expected"),
        ([calibrate, data, &["--limit", "x"]].concat(), 2, "--limit is `x`, expected"),
        (vec!["prune", DIGITS, "--threshold", "-1"], 2, "threshold is -1"),
        (vec!["prune", DIGITS], 2, "<--threshold <X>|--sparsity <PART>>"),
        (vec!["mixed-precision", DIGITS], 2, "<--target-size <SIZE>|--min-sqnr <DB>>"),
        (vec!["config"], 2, "--schema"),
        (
            [calibrate, data, &["--method", "percentile:10"]].concat(),
            2,
            "error: --method is `percentile:10`",
        ),
        (
            [calibrate, data, &["--method", "minmx"]].concat(),
            2,
            "error: --method is `minmx`, expected one of minmax, moving_average, percentile, \
             entropy, mse, auto; did you mean `minmax`?\n",
        ),
        ([calibrate, data, &["--activations", "int4"]].concat(), 2, "int4"),
        ([calibrate, data, &["--block-size", "32"]].concat(), 2, "argument '--block-size'"),
        (vec!["frobnicate", DIGITS], 2, "frobnicate"),
        (vec![], 2, "Usage"),
    ];
    refused(cases);
}

#[test]
fn flags_without_effect_are_refused() {
    let inputs = Folder::new();
    let ranges = inputs.path("ranges.json");
    let made = run(&[
        "calibrate",
        DIGITS,
        "--data",
        SAMPLES,
        "--limit",
        "2",
        "--ranges-out",
        &ranges,
        "-o",
        &inputs.path("made.onnx"),
    ]);
    assert_eq!(made.code, 0, "{made:?}");
    let run_by = [
        (&["--engine", "tract"][..], ["--validation-data", "--calibration-data"]),
        (&["--onnxruntime", "x.so"], ["--validation-data", "--calibration-data"]),
        (&["--threads", "2"], ["--validation-data", "--calibration-data"]),
    ];
    for flags in
        [["--limit", "1"], ["--num-samples", "5"], ["--sample-shape", "1,8,8"], ["--seed", "3"]]
    {
        let answer = run(&[&["calibrate", DIGITS, "--ranges", &ranges][..], &flags].concat());
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.err.contains("'--ranges <FILE>' cannot be used with"), "{answer:?}");
    }
    for (flag, value) in
        [("--weight-algorithm", "gptq"), ("--rounding-effort", "best"), ("--memory-limit", "9")]
    {
        for command in [&["quantize", DIGITS][..], &["sensitivity", DIGITS]] {
            let answer = run(&[command, &[flag, value]].concat());
            let said = format!("error: {flag} has no effect without samples");
            assert_eq!((answer.code, answer.err.contains(&said)), (2, true), "{answer:?}");
        }
    }
    let commands = [
        &["quantize", DIGITS][..],
        &["calibrate", DIGITS, "--ranges", &ranges],
        &["mixed-precision", DIGITS, "--target-size", "0.5"],
        &["sensitivity", DIGITS],
    ];
    for command in commands {
        for (flags, needed) in &run_by {
            let answer = run(&[command, *flags].concat());
            assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{command:?} {flags:?}");
            assert!(needed.iter().any(|flag| answer.err.contains(flag)), "{answer:?}");
        }
        let image = run(&[command, &["--mean", "0.5"]].concat());
        if command[0] == "quantize" || command[0] == "calibrate" {
            assert_eq!(run(&[command, &["--scores", "logits"]].concat()).code, 2, "{command:?}");
        }
        assert!(image.code == 2 && image.err.contains("--mean is for images"), "{image:?}");
    }
    for flags in [&["--activations", "int8"][..], &["--no-smooth"], &["--no-bias-correction"]] {
        let answer = run(&[&["sensitivity", DIGITS], flags].concat());
        assert!(answer.code == 2 && answer.err.contains("--calibration-data"), "{answer:?}");
    }
    let folder = Folder::new();
    let out = folder.path("new");
    for command in ["float16", "variants"] {
        for (flags, _) in &run_by {
            let answer = run(&[&[command, DIGITS, "-o", &out], *flags].concat());
            assert_eq!(answer.code, 2, "{command} {flags:?}");
            assert!(answer.err.contains("--calibration-data"), "{answer:?}");
        }
    }
    assert_eq!(run(&["float16", DIGITS, "-o", &out, "--enough-sqnr", "5"]).code, 2);
    assert_eq!(run(&["variants", DIGITS, "-o", &out, "--only", "none"]).code, 2);
    assert!(folder.is_empty(), "{:?}", folder.names());
    let both = run(&["benchmark", DIGITS, DIGITS, "--mean", "0.5"]);
    assert!(both.code == 2 && both.err.contains("--mean is for images"), "{both:?}");
    let methods = ["calibrate", DIGITS, "--data", SAMPLES, "--compare-methods"];
    for flags in [&["--verify", SAMPLES][..], &["--min-sqnr", "3"], &["--html", "a.html"]] {
        assert_eq!(run(&[&methods[..], flags].concat()).code, 2, "{flags:?}");
    }
}

/// Runs a command that fails: it has the exit code and a reason, and prints and writes nothing.
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
        ([calibrate, &["--compare-methods"]].concat(), 2, "--calibration-data"),
        (vec!["ranges"], 2, "Usage"),
        (vec!["ranges", "merge", &none, &none], 1, "no such file"),
        (vec!["ranges", "merge", &ranges], 2, "2 values required"),
        (vec!["ranges", "merge", &ranges, &ranges], 1, "ranges.json`)"),
        ([convert, &[&ranges, "-o", &nowhere]].concat(), 1, "there is no directory"),
        ([convert, &[&ranges, "-o", &ranges]].concat(), 2, "would overwrite"),
        ([convert, &[&ranges]].concat(), 1, "ranges.json`)"),
        ([convert, &[&cache]].concat(), 1, "calibration.cache: line 2"),
    ]);
}
