//! Help, streams, and the program around the function.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{DIGITS, Folder, SAMPLES, run};

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

/// A stream whose writes fail.
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
    // The work is done, and the exit code is that of the work.
    let folder = Folder::new();
    let (model, trace) = (folder.path("m.onnx"), folder.path("t.json"));
    let recipe = folder.path("r.yaml");
    let args = ["quantize-rs", "quantize", DIGITS, "-o", &model, "--save-recipe", &recipe];
    let args = [&args[..], &["--trace", &trace]].concat();
    let mut gone = Stuck(ErrorKind::BrokenPipe);
    assert_eq!(quantize_rs_cli::run_with(args, &mut gone, &mut Vec::new()), 0);
    assert_eq!(folder.names(), ["m.onnx", "r.yaml", "t.json"]);
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/gemm_plain.onnx");
    let args = ["quantize-rs", "validate", DIGITS, other];
    assert_eq!(quantize_rs_cli::run_with(args, &mut gone, &mut Vec::new()), 1);
    // Progress and warnings cannot be written, but the command succeeds.
    let folder = Folder::new();
    let out = folder.path("m.onnx");
    let args = ["quantize-rs", "calibrate", DIGITS, "--data", SAMPLES, "-v", "-o", &out];
    let mut deaf = Stuck(ErrorKind::BrokenPipe);
    assert_eq!(quantize_rs_cli::run_with(args, &mut Vec::new(), &mut deaf), 0);
    assert!(Path::new(&out).exists());
}

#[test]
fn the_program_is_the_function_and_writes_beside_the_input() {
    let folder = Folder::new();
    let model = folder.path("digits.onnx");
    fs::copy(DIGITS, &model).expect("copied");
    let program = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quantize-rs"));
        command.args(args).current_dir(folder.0.path()).output().expect("the program runs")
    };
    assert!(program(&["quantize", &model]).status.success());
    // With a target there is no warning about this processor.
    let samples = ["--data", SAMPLES, "--limit", "32", "--target", "x86"];
    let calibrated = program(&[&["calibrate", &*model][..], &samples].concat());
    assert!(calibrated.status.success());
    assert_eq!(String::from_utf8_lossy(&calibrated.stderr), "");
    let made = ["digits.calibrated.onnx", "digits.onnx", "digits.quantized.onnx"];
    assert_eq!(folder.names(), made);
    // What exists is not overwritten unless that is asked for.
    let old = fs::read(folder.path(made[2])).expect("read");
    let again = program(&["quantize", &model, "--bits", "4"]);
    assert_eq!(again.status.code(), Some(1));
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("--force overwrites it"), "{said}");
    assert_eq!(fs::read(folder.path(made[2])).expect("read"), old);
    assert!(program(&["quantize", &model, "--bits", "4", "--force"]).status.success());
    assert_ne!(fs::read(folder.path(made[2])).expect("read"), old);
    for (command, more) in [
        ("optimize", &[][..]),
        ("prune", &["--sparsity", "0.5"]),
        ("convert", &["--opset", "21"]),
        ("infer-shapes", &[]),
    ] {
        let done = program(&[&[command, &*model], more].concat());
        assert!(done.status.success(), "{command}: {done:?}");
        assert_eq!(program(&[&[command, &*model], more].concat()).status.code(), Some(1));
    }
    assert_eq!(program(&["quantize", "none.onnx"]).status.code(), Some(1));
    assert_eq!(program(&["quantize", DIGITS, "-b", "7"]).status.code(), Some(2));
}
