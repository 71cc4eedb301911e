//! The program of `docs/rust.md` runs.

use std::process::Command;

/// `cargo test` builds the examples next to the tests.
#[test]
fn the_program_of_the_rust_page_runs() {
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let digits = folder.path().join("examples/digits");
    std::fs::create_dir_all(&digits).unwrap();
    for name in ["digits_cnn.onnx", "calibration.npy"] {
        std::fs::copy(repository.join("examples/digits").join(name), digits.join(name)).unwrap();
    }
    let deps = std::env::current_exe().unwrap();
    let program = deps.ancestors().nth(2).unwrap().join("examples/static_int8");
    let done = Command::new(program).current_dir(folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(folder.path().join("digits.int8.onnx").is_file());
}
