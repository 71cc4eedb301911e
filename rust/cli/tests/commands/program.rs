//! Help, streams, and the program around the function.

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
    // Progress and warnings cannot be written, but the command succeeds.
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
    // With a target there is no warning about this processor.
    let samples = ["--data", SAMPLES, "--limit", "32", "--target", "x86"];
    let calibrated = program(&[&["calibrate", DIGITS][..], &samples].concat());
    assert!(calibrated.status.success());
    assert_eq!(String::from_utf8_lossy(&calibrated.stderr), "");
    assert_eq!(folder.names(), ["model_calibrated.onnx", "model_quantized.onnx"]);
    assert_eq!(program(&["quantize", "none.onnx"]).status.code(), Some(1));
    assert_eq!(program(&["quantize", DIGITS, "-b", "5"]).status.code(), Some(2));
}
