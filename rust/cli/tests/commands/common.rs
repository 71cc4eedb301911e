//! Shared by tests of commands: models, an output folder, and the result of a command.

use std::fs;

use serde_json::Value;

pub(crate) const DIGITS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
pub(crate) const SAMPLES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/calibration.npy");
pub(crate) const FIXTURES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u8,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn run(args: &[&str]) -> Answer {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once(&"quantize-rs").chain(args).copied();
    let code = quantize_rs_cli::run_with(args, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Answer { code, out: text(out), err: text(err) }
}

/// A folder to write to.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

pub(crate) fn size(path: &str) -> u64 {
    fs::metadata(path).expect("a file").len()
}
