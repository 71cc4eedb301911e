//! Opening the library of ONNX Runtime: in a separate process, because it can be done only once.
#![cfg(feature = "onnxruntime")]

mod installed;

use std::path::Path;

use quantize_rs_runner::OnnxRuntime;

fn refusal(path: &Path) -> String {
    let error = OnnxRuntime::open(path).expect_err("no library").to_string();
    assert!(error.contains(&*path.to_string_lossy()), "{error}");
    error
}

#[test]
fn only_a_library_is_loaded_and_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libonnxruntime.so.1.0.0");
    std::fs::write(&text, b"no library").unwrap();
    let missing = folder.path().join("missing");
    let program = std::env::current_exe().unwrap();
    for path in [&text, &missing, folder.path(), &program] {
        let error = refusal(path);
        assert!(error.contains("`pip install onnxruntime`"), "{error}");
    }

    let Some(path) = installed::library() else { return };
    OnnxRuntime::open(&path).unwrap();
    OnnxRuntime::open(&path).unwrap();
    let copy = folder.path().join("libonnxruntime.so.1.31.1");
    std::fs::copy(&path, &copy).unwrap();
    assert!(refusal(&copy).contains("already"));
}

#[test]
fn the_environment_variable_sets_the_path() {
    let found = OnnxRuntime::find();
    match std::env::var_os("ORT_DYLIB_PATH") {
        Some(path) => assert_eq!(found, Some(path.into())),
        None => assert!(found.is_none_or(|path| path.is_file())),
    }
}
