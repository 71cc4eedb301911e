//! The files that are mutated: those of the tests, and the models of the folder `SEEDS`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::random::Random;

/// The largest model in bytes: larger ones are slower, and have no other code to reach.
const LARGEST: usize = 24 << 10;

/// What is mutated.
#[derive(Clone)]
pub(crate) struct Corpus {
    models: Arc<[Vec<u8>]>,
}

impl Corpus {
    /// Reads all files.
    pub(crate) fn read() -> Corpus {
        let mut paths = Vec::new();
        for folder in ["tests/fixtures/models", "tests/attacks/files"] {
            walk(&in_repository(folder), &mut paths);
        }
        if let Some(folder) = std::env::var_os("SEEDS").filter(|folder| !folder.is_empty()) {
            let before = paths.len();
            walk(Path::new(&folder), &mut paths);
            assert!(paths.len() > before, "SEEDS names a folder without models");
        }
        paths.sort();
        let read = paths.iter().map(|path| std::fs::read(path).unwrap());
        let models: Vec<Vec<u8>> =
            read.filter(|bytes| (8..LARGEST).contains(&bytes.len())).collect();
        assert!(models.len() > 50, "{}", models.len());
        Corpus { models: models.into() }
    }

    pub(crate) fn models(&self) -> &[Vec<u8>] {
        &self.models
    }

    /// A model, mutated.
    pub(crate) fn mutated(&self, random: &mut Random) -> Vec<u8> {
        let seed = random.of_all(&self.models);
        let other = random.of_all(&self.models);
        crate::mutate::protobuf::mutated(seed, other, random)
    }
}

/// A path of the repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The models in a folder and the folders in it.
fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, into);
        } else if path.extension().is_some_and(|end| end == "onnx") {
            into.push(path);
        }
    }
}
