//! Stores finished results in a file, so that an interrupted run can be continued.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::LayerRow;
use crate::QuantizeError;

/// The finished rows, and what they belong to.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct JournalEntries {
    /// A fingerprint of the model, the plan, the ranges, the samples and the engine.
    fingerprint: String,
    /// The engine that ran the float model: one that chooses may choose another one later.
    #[serde(default)]
    engine: Option<String>,
    pub(super) layers: Vec<LayerRow>,
}

/// The file with the finished rows, if any.
pub(super) struct Journal {
    path: Option<PathBuf>,
    pub(super) known: JournalEntries,
    /// Keeps other processes away. It is a file of its own, which stays: the file with the rows is
    /// replaced by each new one, and a lock does not pass to the file that takes its place.
    _lock: Option<File>,
}

impl Journal {
    /// Reads the finished rows; none if the file does not exist yet.
    ///
    /// # Errors
    /// The file cannot be read, is not such a file, or belongs to other inputs.
    pub(super) fn open(path: Option<&Path>, fingerprint: String) -> Result<Journal, QuantizeError> {
        let none = JournalEntries { fingerprint, ..JournalEntries::default() };
        let Some(path) = path else {
            return Ok(Journal { path: None, known: none, _lock: None });
        };
        finished(path, &none.fingerprint)?; // a file that is refused gets no lock beside it
        let lock = locked(path)?;
        let known = finished(path, &none.fingerprint)?.unwrap_or(none);
        Ok(Journal { path: Some(path.to_owned()), known, _lock: Some(lock) })
    }

    /// Says which engine ran the float model.
    ///
    /// # Errors
    /// Another one measured the finished rows.
    pub(super) fn ran_by(&mut self, engine: &str) -> Result<(), QuantizeError> {
        let other = self.known.engine.as_ref().is_some_and(|before| before != engine);
        if let Some(path) = self.path.as_deref().filter(|_| other && !self.known.layers.is_empty())
        {
            return Err(refused(path, OTHER));
        }
        self.known.engine = Some(engine.to_owned());
        Ok(())
    }

    /// Whether the row of a layer is finished.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.row(name).is_some()
    }

    /// The row of a layer, if it is finished.
    pub(super) fn row(&self, name: &str) -> Option<&LayerRow> {
        self.known.layers.iter().find(|row| row.name == name)
    }

    /// Adds a finished row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(&mut self, row: LayerRow) -> Result<(), QuantizeError> {
        self.known.layers.push(row);
        let Some(path) = &self.path else { return Ok(()) };
        let text = serde_json::to_string(&self.known).unwrap_or_default();
        replace(path, &text).map_err(|error| unwritable(path, &error))
    }
}

/// The finished rows of a file; none if it does not exist yet.
///
/// # Errors
/// The file cannot be read, is not such a file, or has another fingerprint.
fn finished(path: &Path, fingerprint: &str) -> Result<Option<JournalEntries>, QuantizeError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, &format!("which cannot be read: {error}"))),
    };
    let known: JournalEntries = serde_json::from_str(&text).map_err(|error| {
        refused(path, &format!("which is not a file of sensitivity results: {error}"))
    })?;
    if known.fingerprint != fingerprint {
        return Err(refused(path, OTHER));
    }
    Ok(Some(known))
}

/// Why rows of other inputs are refused.
const OTHER: &str = "which belongs to another model, plan or engine, or to other ranges or \
                     samples: name another file, or delete it";

fn refused(path: &Path, what: &str) -> QuantizeError {
    QuantizeError::option("resume", format!("is `{}`, {what}", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> QuantizeError {
    refused(path, &format!("which cannot be written: {error}"))
}

/// The file that is locked while rows are added to `path`.
///
/// # Errors
/// It cannot be written, or another process has locked it.
fn locked(path: &Path) -> Result<File, QuantizeError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(beside(path, ".lock")).map_err(|error| unwritable(path, &error))?;
    // Without locks of the file system nothing keeps another process away.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let what = "which another process is writing: each part of the layers needs a file of its \
                    own";
        return Err(refused(path, what));
    }
    Ok(file)
}

/// The path with more at the end of the name.
fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(more);
    path.with_file_name(name)
}

/// Writes a temporary file beside it and renames that, so that the old file stays intact until
/// then.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let sibling = beside(path, ".tmp");
    fs::write(&sibling, text)?;
    fs::rename(&sibling, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_do_not_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known.json");
        let open = || Journal::open(Some(&path), "a".to_owned());
        let first = open().unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains("which another process is writing"), "{error}");
        drop(first);
        assert!(open().is_ok());
    }

    #[test]
    fn rows_of_another_engine_are_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known.json");
        let open = || Journal::open(Some(&path), "a".to_owned()).unwrap();
        let mut journal = open();
        journal.ran_by("tract").unwrap();
        journal.add(serde_json::from_str(ROW).unwrap()).unwrap();
        drop(journal);
        assert!(open().ran_by("tract").is_ok());
        let error = open().ran_by("onnxruntime").unwrap_err().to_string();
        assert!(error.contains("another model, plan or engine"), "{error}");
    }

    const ROW: &str = r#"{"name": "w", "nodes": [], "op_type": "Conv", "kind": "int8",
        "elements": 1, "weight_error": null, "outputs": []}"#;
}
