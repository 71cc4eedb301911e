//! Finds the shared library, and loads it once.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::environment::Environment;
use quantize_rs::CalibrationError;

use super::failed;
use crate::catch_panic;

/// The library that this process has loaded, and the environment shared by all sessions.
static OPENED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// Loads the library at `path`, unless it is already loaded.
pub(super) fn open(path: &Path) -> Result<Environment, CalibrationError> {
    let refused = |what: String| {
        let advice =
            "install a current version with `pip install onnxruntime`, or use the engine tract";
        Err(failed(format!("ONNX Runtime {what}: {advice}")).in_file(path.to_string_lossy()))
    };
    let path = match path.canonicalize() {
        Ok(path) if path.is_file() => path,
        Ok(_) => return refused("cannot be loaded, because the path is not a file".to_owned()),
        Err(error) => return refused(format!("cannot be loaded ({error})")),
    };
    let Ok(mut opened) = OPENED.lock() else {
        return refused("failed in an earlier attempt to load it".to_owned());
    };
    match &*opened {
        Some((loaded, environment)) if *loaded == path => return Ok(environment.clone()),
        Some((loaded, _)) => {
            let loaded = loaded.display();
            let what =
                format!("is already loaded from `{loaded}`, and a process can load only one");
            return Err(failed(what).in_file(path.to_string_lossy()));
        }
        None => {}
    }
    // `ort` would panic on first use without a library, so this must come first.
    let loaded = catch_panic::caught(|| {
        let library = ort::init_from(&path).map_err(|error| error.to_string())?;
        library
            .with_name("quantize-rs")
            .with_telemetry(false)
            .build()
            .map_err(|error| error.to_string())
    });
    match loaded.and_then(|loaded| loaded) {
        Ok(environment) => {
            *opened = Some((path, environment.clone()));
            Ok(environment)
        }
        Err(error) => refused(format!("cannot be loaded ({error})")),
    }
}

/// The library installed in a location that this program can find.
pub(super) fn find() -> Option<PathBuf> {
    if let Some(path) = env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os);
    let program = env::current_exe().ok();
    // `bin/program` of an environment, or on Windows `Scripts\program.exe` or `python.exe`.
    let around = program.iter().flat_map(|program| program.ancestors().skip(1).take(2));
    environments
        .map(PathBuf::from)
        .chain(around.map(Path::to_path_buf))
        .flat_map(|prefix| packages(&prefix))
        .find_map(|packages| newest(&packages.join("onnxruntime").join("capi")))
}

/// The `site-packages` folders of the environment at `prefix`.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = vec![prefix.join("Lib").join("site-packages")];
    let versions = prefix.join("lib").read_dir().into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages"))
        .collect();
    versions.sort();
    folders.extend(versions);
    folders
}

/// The newest library in the folder; an upgrade may have left several.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
    let libraries = entries.filter(|path| path.file_name().is_some_and(is_library));
    libraries.max_by_key(|path| version(path.file_name().unwrap_or_default()))
}

/// `libonnxruntime.so.1.31.1`, `libonnxruntime.1.31.1.dylib` or `onnxruntime.dll`.
fn is_library(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let (begins, ends) = (name.starts_with("libonnxruntime."), name.ends_with(".dylib"));
    match env::consts::OS {
        "windows" => name == "onnxruntime.dll",
        "macos" => begins && ends,
        _ => begins && name.contains(".so"),
    }
}

/// The numbers in a file name.
fn version(name: &OsStr) -> Vec<u64> {
    let name = name.to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_newest_library_of_an_environment_is_found() {
        let prefix = tempfile::tempdir().unwrap();
        let capi = prefix.path().join("lib/python3.13/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.9.0", "libonnxruntime.so.1.31.1"] {
            std::fs::write(capi.join(name), b"").unwrap();
        }
        std::fs::write(capi.join("libonnxruntime_providers_shared.so"), b"").unwrap();
        let found: Vec<PathBuf> = packages(prefix.path())
            .iter()
            .filter_map(|packages| newest(&packages.join("onnxruntime/capi")))
            .collect();
        assert_eq!(found, [capi.join("libonnxruntime.so.1.31.1")]);
    }
}
