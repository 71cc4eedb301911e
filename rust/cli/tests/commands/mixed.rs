//! `mixed-precision`: bits for each layer, and the model with them.

use std::fs;

use crate::common::{DIGITS, Folder, SAMPLES, run};

#[test]
fn a_size_is_met_by_the_model_that_is_written() {
    let folder = Folder::new();
    let out = folder.path("out.onnx");
    let asked = ["mixed-precision", DIGITS, "-o", &out, "--bits", "8,4", "--target-size", "0.2"];
    let answer = run(&[&asked[..], &["--format", "json"]].concat());
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
    let (before, after) = (fs::metadata(DIGITS).unwrap().len(), fs::metadata(&out).unwrap().len());
    assert!(after * 5 <= before, "{after} of {before} bytes");
    assert_eq!(answer.json()["bytes_after"], after);
    let validated = run(&["validate", DIGITS, &out]);
    assert_eq!(validated.code, 0, "{validated:?}");

    // The built-in engine does not support 4-bit types.
    let asked = ["mixed-precision", DIGITS, "-o", &out, "--bits", "8", "--target-size", "0.5"];
    let samples = ["--data", SAMPLES, "--limit", "8", "--engine", "tract"];
    let text = run(&[&asked[..], &samples].concat());
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.out.contains("SQNR") && text.out.contains("written to"), "{text:?}");
}

#[test]
fn what_cannot_be_met_writes_nothing() {
    let folder = Folder::new();
    let out = folder.path("out.onnx");
    let command = ["mixed-precision", DIGITS, "-o", &out];
    for (more, code) in [
        (&["--target-size", "0.01"][..], 2),
        (&["--target-size", "0.5", "--bits", "7"], 2),
        (&["--target-size", "0.5", "--min-sqnr", "20"], 2),
        (&["--min-sqnr", "20"], 2),
        (&[], 2),
    ] {
        let answer = run(&[&command[..], more].concat());
        assert_eq!(answer.code, code, "{answer:?}");
        assert!(fs::metadata(&out).is_err(), "{more:?}");
    }
}
