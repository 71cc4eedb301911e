//! Finds an ONNX Runtime for the tests.

use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library that the tests run with: that of `ORT_DYLIB_PATH` or of the repository's `.venv`.
pub(crate) fn library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH") {
        return Some(path.into());
    }
    let versions = repository().join(".venv/lib").read_dir().ok()?.flatten();
    let folders = versions.map(|entry| entry.path().join("site-packages/onnxruntime/capi"));
    let files = folders.filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let mut files = files.map(|entry| entry.path());
    files.find(|path| path.to_string_lossy().contains("/libonnxruntime."))
}
