//! Accuracy criteria of `quantize` and `calibrate`: if one is missed, layers are reverted to float,
//! or nothing is written.

use std::fs;

use serde_json::Value;

use crate::common::{Answer, DIGITS, Folder, SAMPLES, run};

fn names(answer: &Answer) -> Vec<String> {
    let layers = answer.json()["verified"]["float_layers"].as_array().cloned().unwrap_or_default();
    layers.iter().map(|layer| layer["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn layers_fall_back_until_the_criteria_hold_or_nothing_is_written() {
    let folder = Folder::new();
    let out = folder.path("out.onnx");
    let quantize = ["quantize", DIGITS, "-o", &out, "--engine", "tract"];
    let with = |more: &[&str]| run(&[&quantize[..], more].concat());
    let plain = with(&["--verify", SAMPLES, "--format", "json"]).json();
    let [only] = &plain["verified"]["attempts"].as_array().cloned().unwrap_or_default()[..] else {
        panic!("{plain}")
    };
    let measured = only["outputs"][0]["sqnr_db"].as_f64().expect("a number");
    let least = &*format!("{:.3}", measured + 1.0);
    let json = with(&["--verify", SAMPLES, "--min-sqnr", least, "--format", "json"]);
    assert_eq!((json.code, json.err.as_str()), (0, ""), "{json:?}");
    let float = names(&json);
    assert!(!float.is_empty() && json.json()["verified"]["held_out"] == true);
    for name in &float {
        assert_eq!(json.json()["config"]["exclude"].as_array().map(Vec::len), Some(float.len()));
        let values = json.json()["values"].as_array().cloned().unwrap_or_default();
        let row = values.iter().find(|row| row["name"] == **name).cloned().unwrap_or_default();
        assert_eq!(row["why"], "not quantized: left float to meet min_sqnr");
    }
    let compared = run(&[
        "compare",
        DIGITS,
        &out,
        "--data",
        SAMPLES,
        "--engine",
        "tract",
        "--no-latency",
        "--min-sqnr",
        least,
    ]);
    assert_eq!(compared.code, 0, "{compared:?}");
    let text = with(&["--verify", SAMPLES, "--min-sqnr", least]);
    let said = format!("`{}` left float: SQNR", float[0]);
    assert!(text.out.contains("Verified:") && text.out.contains(&said), "{text:?}");

    fs::remove_file(&out).expect("removed");
    let refused = with(&["--verify", SAMPLES, "--min-sqnr", least, "--no-fall-back"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("below the accuracy criterion: SQNR is"), "{refused:?}");
    assert_eq!(with(&["--verify", SAMPLES, "--min-sqnr", "190"]).code, 1);
    for misuse in [
        &["--min-sqnr", "20"][..],
        &["--require-faster"],
        &["--verify", SAMPLES, "--max-accuracy-drop", "0.01"],
        &["--verify", SAMPLES, "--min-sqnr", "nan"],
        &["--verify", SAMPLES, "--size", "8"],
    ] {
        let answer = with(misuse);
        assert_eq!(answer.code, 2, "{answer:?}");
    }
    assert!(folder.is_empty());
}

#[test]
fn the_samples_of_a_calibration_serve_where_there_are_no_others() {
    let folder = Folder::new();
    let (out, ranges) = (folder.path("out.onnx"), folder.path("ranges.json"));
    let calibrate = ["calibrate", DIGITS, "-o", &out, "--engine", "tract", "--format", "json"];
    let with = |more: &[&str]| run(&[&calibrate[..], more].concat());
    let own =
        with(&["--data", SAMPLES, "--limit", "20", "--min-sqnr", "20", "--ranges-out", &ranges]);
    assert_eq!(
        (own.code, &own.json()["verified"]["held_out"]),
        (0, &Value::Bool(false)),
        "{own:?}"
    );
    assert_eq!(own.json()["verified"]["samples"], 20);
    let same = with(&["--data", SAMPLES, "--limit", "20", "--verify", SAMPLES]);
    let held_out = |answer: &Answer| answer.json()["verified"]["held_out"].clone();
    assert_eq!((same.code, held_out(&same)), (0, false.into()), "{same:?}");
    assert!(same.json()["notes"].to_string().contains("on the calibration samples"), "{same:?}");
    let copy = folder.path("copy.npy");
    fs::copy(SAMPLES, &copy).expect("copied");
    let other = with(&["--data", SAMPLES, "--limit", "20", "--verify", &copy]);
    assert_eq!(held_out(&other), true, "{other:?}");
    for (seed, held) in [("0", false), ("1", true)] {
        let noise = ["--data", "random", "--seed", seed, "--verify", "random"];
        assert_eq!(held_out(&with(&noise)), held, "{seed}");
    }
    let saved = ["--ranges", &ranges, "--min-sqnr", "20"];
    assert_eq!(with(&saved).code, 2, "there is nothing to evaluate on");
    let held = with(&[&saved[..], &["--verify", SAMPLES]].concat());
    assert_eq!((held.code, &held.json()["verified"]["held_out"]), (0, &Value::Bool(true)));
    let noise = with(&["--ranges", &ranges, "--verify", "random"]);
    assert!(noise.code == 0 && noise.err.contains("evaluated on random numbers"), "{noise:?}");
}

#[test]
fn a_missed_criterion_says_which_files_were_written() {
    let folder = Folder::new();
    let (out, ranges) = (folder.path("out.onnx"), folder.path("ranges.json"));
    let calibrate = ["calibrate", DIGITS, "-o", &out, "--engine", "tract", "--limit", "20"];
    let missed = ["--data", SAMPLES, "--min-sqnr", "900", "--no-fall-back"];
    let without = run(&[&calibrate[..], &missed].concat());
    assert!(without.code == 1 && without.err.trim_end().ends_with("No model was written"));
    assert!(folder.is_empty());
    let with = run(&[&calibrate[..], &missed, &["--ranges-out", &ranges]].concat());
    let said = format!("No model was written; the ranges were written to {ranges}");
    assert!(with.code == 1 && with.err.trim_end().ends_with(&said), "{with:?}");
    assert!(fs::exists(&ranges).expect("exists") && !fs::exists(&out).expect("exists"));
}

#[test]
fn files_know_the_names_that_others_have_for_it() {
    let folder = Folder::new();
    let labels = folder.path("labels.txt");
    fs::write(&labels, "1\n".repeat(200)).expect("written");
    let shown = |options: &str| {
        let path = folder.path("wanted.yaml");
        let model = format!("models:\n  - input: {DIGITS}\n    output: out.onnx\n");
        fs::write(&path, format!("verify: {SAMPLES}\nlabels: labels.txt\n{options}{model}"))
            .expect("written");
        run(&["config", &path, "--dry-run", "--format", "json"])
    };
    let command = |answer: &Answer| answer.json()[0]["command"].to_string();
    let all = shown("accuracy_threshold: 0.99\nauto_fallback: true\nsensitivity_analysis: true\n");
    assert!(command(&all).contains("--max-accuracy-drop=0.01\""), "{all:?}");
    assert!(!command(&all).contains("no-fall-back"));
    for same in ["max_accuracy_drop: 0.01\n", "max_accuracy_drop: 1%\n"] {
        assert_eq!(shown(same).code, 0, "{same}");
    }
    for off in ["auto_fallback: false\n", "sensitivity_analysis: false\n", "fall_back: false\n"] {
        assert!(command(&shown(off)).contains("--no-fall-back"), "{off}");
    }
    for (wrong, said) in [
        ("auto_fallback: true\nsensitivity_analysis: false\n", "contradicts `auto_fallback`"),
        ("auto_fallback: true\nfall_back: true\n", "say the same"),
        ("accuracy_threshold: 99\n", "expected a fraction from 0 to 1"),
        ("max_accuracy_drop: 1\n", "expected a fraction below 1 or a percentage such as \"1%\""),
        ("accuracy_threshhold: 0.9\n", "did you mean `accuracy_threshold`?"),
        ("auto_fallbak: true\n", "did you mean `auto_fallback`?"),
        ("auto_fallback: 3\n", "neither true nor false"),
    ] {
        let answer = shown(wrong);
        assert!(answer.code == 2 && answer.err.contains(said), "{wrong}: {answer:?}");
    }
}
