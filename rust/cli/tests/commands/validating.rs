//! `validate` and `benchmark`: a quantized model beside its original.

use std::fs;

use crate::common::{DIGITS, FIXTURES, Folder, SAMPLES, run, size};

#[test]
fn what_we_write_passes_and_every_layer_is_shown_on_request() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    for how in [
        &["quantize", DIGITS, "--per-channel"][..],
        &["quantize", DIGITS, "-b4"],
        &["quantize", DIGITS, "--output-format", "dynamic"],
        &["calibrate", DIGITS, "--data", SAMPLES, "--limit", "32"],
    ] {
        assert_eq!(run(&[how, &["-q", "-o", &out]].concat()).code, 0);
        let text = run(&["validate", DIGITS, &out]);
        assert_eq!((text.code, text.err.as_str()), (0, ""), "{how:?}: {text:?}");
        assert!(text.out.ends_with("Result:         passed\n"), "{text:?}");
        assert!(!text.out.contains("Layers:"), "{text:?}");
        let text = run(&["validate", DIGITS, &out, "--detailed"]);
        assert!(text.out.contains("Layers:") && text.out.contains("steps)"), "{text:?}");
        let json = run(&["validate", DIGITS, &out, "--format", "json"]).json();
        assert_eq!(json["passed"], true);
        assert!(json["weights"].as_array().is_some_and(|weights| weights.len() > 3), "{json}");
    }
}

#[test]
fn what_was_tampered_with_fails_and_is_named() {
    let folder = Folder::new();
    let (out, wrong) = (folder.path("m.onnx"), folder.path("wrong.onnx"));
    assert_eq!(run(&["quantize", DIGITS, "--per-channel", "-q", "-o", &out]).code, 0);
    let json = run(&["validate", DIGITS, &out, "--format", "json"]).json();
    let name = json["weights"][0]["integers"].as_str().expect("a name").to_owned();

    // One bit of one integer: the elements follow the name of their tensor.
    let bytes = fs::read(&out).expect("read");
    let find = |what: &str| {
        let found = bytes.windows(what.len()).rposition(|window| window == what.as_bytes());
        found.unwrap_or_else(|| panic!("no {what}"))
    };
    let mut changed = bytes.clone();
    let at = find(&name) + name.len() + 20;
    changed[at] ^= 0x20;
    fs::write(&wrong, &changed).expect("written");
    let answer = run(&["validate", DIGITS, &wrong]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.contains(&format!("weights: `{name}`: element ")), "{answer:?}");
    assert!(answer.out.ends_with("Result:         failed\n"), "{answer:?}");
    assert!(answer.err.starts_with("error: 1 thing is wrong"), "{answer:?}");
    let json = run(&["validate", DIGITS, &wrong, "--format", "json"]);
    assert_eq!((json.code, &json.json()["passed"]), (1, &false.into()));

    // One name: its consumer finds no value.
    let mut changed = bytes.clone();
    changed[find(&name)] ^= 1;
    fs::write(&wrong, &changed).expect("written");
    let answer = run(&["validate", DIGITS, &wrong]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.contains(&format!("produces its input `{name}`")), "{answer:?}");
}

#[test]
fn passes_that_were_chosen_are_given_again() {
    let (folder, model) = (Folder::new(), format!("{FIXTURES}/conv_bn_relu.onnx"));
    let out = folder.path("m.onnx");
    assert_eq!(run(&["quantize", &model, "-q", "-o", &out]).code, 0);
    let found = run(&["validate", &model, &out]);
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.out.contains("fold_batch_norm"), "{found:?}");
    assert_eq!(run(&["validate", &model, &out, "--no-optimize"]).code, 1);
    assert_eq!(run(&["validate", &model, &out, "--passes", "fold_batch_norm"]).code, 0);
    assert_eq!(run(&["validate", &model, &out, "--passes", "fold"]).code, 2);
    assert_eq!(run(&["validate", &model, &folder.path("none")]).code, 1);
}

#[test]
fn a_benchmark_counts_bytes_beside_the_file_too() {
    let (folder, model) = (Folder::new(), format!("{FIXTURES}/external_data.onnx"));
    let out = folder.path("m.onnx");
    assert_eq!(run(&["quantize", &model, "-q", "-o", &out]).code, 0);
    let json = run(&["benchmark", &model, &out, "--format", "json"]).json();
    let before = json["original"]["bytes"].as_u64().expect("bytes");
    assert!(before > size(&model), "{json}");
    #[allow(clippy::cast_precision_loss)] // small files
    let ratio = before as f64 / size(&out) as f64;
    assert_eq!(json["ratio"].as_f64(), Some(ratio));
    let text = run(&["benchmark", DIGITS, DIGITS]).out;
    for part in ["Compression:    1.00×", "Operators:      the same", "Parameters"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let text = run(&["benchmark", &model, &out]).out;
    assert!(text.contains("DequantizeLinear +"), "{text}");
}

#[test]
fn a_target_is_held_against_the_file() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let calibrate = ["calibrate", DIGITS, "--data", SAMPLES, "--limit", "8", "-q", "-o", &out];
    assert_eq!(run(&calibrate).code, 0);
    assert_eq!(run(&["validate", DIGITS, &out, "--target", "x86"]).code, 0);
    let wrong = run(&["validate", DIGITS, &out, "--target", "tensorrt"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(
        wrong.out.contains("target: `") && wrong.out.contains("uint8 instead of int8"),
        "{wrong:?}"
    );
    assert_eq!(run(&["validate", DIGITS, &out, "--target", "x87"]).code, 2);
}

#[test]
fn a_benchmark_times_both_models_and_says_on_what() {
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    assert_eq!(run(&["quantize", DIGITS, "-q", "-o", &out]).code, 0);
    let timed = ["benchmark", DIGITS, &out, "--latency", "--runs", "3", "--engine", "tract"];
    let noise = run(&timed);
    assert_eq!(noise.code, 0, "{noise:?}");
    assert!(noise.err.contains("timed on RANDOM NUMBERS"), "{noise:?}");
    for part in ["Latency:", "ms median", "quantized\n", "Speed-up:", "tract, 1 thread, 3 runs"] {
        assert!(noise.out.contains(part), "{part} is not in {noise:?}");
    }
    let real = [&timed[..], &["--data", SAMPLES, "--format", "json"]].concat();
    let real = run(&real);
    assert!(!real.err.contains("RANDOM"), "{real:?}");
    let speed = &real.json()["speed"];
    assert_eq!((&speed["threads"], &speed["engine"]), (&1.into(), &"tract".into()), "{real:?}");
    assert_eq!(speed["original"]["runs"], 3);
    let number = |of: &serde_json::Value| of.as_f64().expect("a number");
    let [before, after] = ["original", "quantized"].map(|model| number(&speed[model]["median_ms"]));
    // Numbers in JSON may differ in the last bit.
    let wrong = number(&speed["speedup"]) * after / before - 1.0;
    assert!(wrong.abs() < 4.0 * f64::EPSILON, "{real:?}");
    let slower = speed["speedup"].as_f64() < Some(1.0);
    assert!(slower || !real.err.contains("is slower"), "{real:?}");
    // Options of the latency are refused without it.
    for flags in [&["--runs", "3"][..], &["--data", SAMPLES], &["--engine", "tract"]] {
        assert_eq!(run(&[&["benchmark", DIGITS, &out], flags].concat()).code, 2, "{flags:?}");
    }
    assert_eq!(run(&[&timed[..], &["--data", SAMPLES, "--limit", "2"]].concat()).code, 2);
    assert!(run(&["benchmark", DIGITS, &out, "--format", "json"]).json()["speed"].is_null());
}
