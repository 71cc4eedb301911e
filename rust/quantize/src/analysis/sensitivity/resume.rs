//! Stores finished results in a file, so that an interrupted run can be continued.

use std::fs;
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
    pub(super) layers: Vec<LayerRow>,
}

/// The file with the finished rows, if any.
pub(super) struct Journal {
    path: Option<PathBuf>,
    pub(super) known: JournalEntries,
}

impl Journal {
    /// Reads the finished rows; none if the file does not exist yet.
    ///
    /// # Errors
    /// The file cannot be read, is not such a file, or belongs to other inputs.
    pub(super) fn open(path: Option<&Path>, fingerprint: String) -> Result<Journal, QuantizeError> {
        let none = JournalEntries { fingerprint, layers: Vec::new() };
        let Some(path) = path else { return Ok(Journal { path: None, known: none }) };
        let refused = |what: String| {
            let what = format!("is `{}`, {what}", path.display());
            QuantizeError::option("resume", what)
        };
        let known = match fs::read_to_string(path) {
            Ok(text) => {
                let known: JournalEntries = serde_json::from_str(&text).map_err(|error| {
                    refused(format!("which is not a file of sensitivity results: {error}"))
                })?;
                if known.fingerprint != none.fingerprint {
                    let what = "which belongs to another model, plan or engine, or to other \
                                samples: name another file, or delete it";
                    return Err(refused(what.to_owned()));
                }
                known
            }
            Err(error) if error.kind() == ErrorKind::NotFound => none,
            Err(error) => return Err(refused(format!("which cannot be read: {error}"))),
        };
        Ok(Journal { path: Some(path.to_owned()), known })
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
        replace(path, &text).map_err(|error| {
            let what = format!("is `{}`, which cannot be written: {error}", path.display());
            QuantizeError::option("resume", what)
        })
    }
}

/// Writes a temporary file beside it and renames that, so that the old file stays intact until
/// then.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let sibling = path.with_file_name(name);
    fs::write(&sibling, text)?;
    fs::rename(&sibling, path)
}
