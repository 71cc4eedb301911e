//! The file of an interrupted run: each weight that was rounded, by what it was rounded from.
//!
//! A line is a JSON object; the first one names the kind of file. A line is only valid once it
//! ends, so a run that is killed while it writes loses no more than that line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::QuantizeError;
use crate::ranges::RoundedWeight;
use crate::util::fnv::Fnv;

/// The first line.
const HEADER: &str = "{\"file\":\"rounded weights of quantize_rs\",\"version\":1}\n";

/// A finished weight; nothing if it stays as it was.
#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    key: u64,
    weight: Cow<'a, str>,
    rounded: Option<Cow<'a, RoundedWeight>>,
}

/// What a line is read for first: the weight itself may be large.
#[derive(Deserialize)]
struct EntryKey {
    key: u64,
}

/// Finished weights by the key of everything that they depend on, if there is a file for them.
pub(crate) struct StateFile(Option<OpenFile>);

struct OpenFile {
    path: PathBuf,
    file: File,
    /// Where the line of a key begins, and how long it is.
    lines: HashMap<u64, (u64, usize)>,
    end: u64,
}

impl StateFile {
    /// Opens the file, or creates it. Nothing is stored without a path.
    ///
    /// # Errors
    /// The file cannot be read or written, is of another kind, or another process writes it.
    pub(crate) fn open(path: Option<&Path>) -> Result<StateFile, QuantizeError> {
        let Some(path) = path else { return Ok(StateFile(None)) };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| unusable(path, &error))?;
        // Without locks of the file system nothing keeps another process away.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(refused(path, "which another process is writing"));
        }
        let mut open = OpenFile { path: path.to_owned(), file, lines: HashMap::new(), end: 0 };
        match open.scan() {
            Ok(true) => Ok(StateFile(Some(open))),
            Ok(false) => Err(refused(
                path,
                "which is not a file of rounded weights of this version: name another file, or \
                 delete it",
            )),
            Err(error) => Err(unusable(path, &error)),
        }
    }

    /// The weight of this key: as it was stored, or as `round` makes it now.
    ///
    /// # Errors
    /// Those of `round`, or the file cannot be read or written.
    pub(super) fn once(
        &mut self,
        weight: &str,
        key: impl FnOnce() -> u64,
        round: impl FnOnce() -> Result<Option<RoundedWeight>, QuantizeError>,
    ) -> Result<Option<RoundedWeight>, QuantizeError> {
        let Some(open) = &mut self.0 else { return round() };
        let key = key();
        if let Some(known) = open.find(key).map_err(|error| unusable(&open.path, &error))? {
            return Ok(known.rounded.map(Cow::into_owned));
        }
        let rounded = round()?;
        open.add(key, weight, rounded.as_ref()).map_err(|error| unusable(&open.path, &error))?;
        Ok(rounded)
    }
}

impl OpenFile {
    /// Finds the lines, and drops one that does not end. `false` if this is another kind of file.
    fn scan(&mut self) -> io::Result<bool> {
        let mut lines = BufReader::new(&self.file);
        let mut line = Vec::new();
        lines.by_ref().take(HEADER.len() as u64).read_until(b'\n', &mut line)?;
        if line != HEADER.as_bytes() {
            // A run that was killed at once left a part of the header.
            if !HEADER.as_bytes().starts_with(&line) {
                return Ok(false);
            }
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(HEADER.as_bytes())?;
            self.end = HEADER.len() as u64;
            return Ok(true);
        }
        let mut at = line.len() as u64;
        loop {
            line.clear();
            let length = lines.read_until(b'\n', &mut line)?;
            if !line.ends_with(b"\n") {
                break;
            }
            // A line that was damaged is rounded again.
            if let Ok(EntryKey { key }) = serde_json::from_slice(&line) {
                self.lines.insert(key, (at, length));
            }
            at += length as u64;
        }
        self.file.set_len(at)?;
        self.end = at;
        Ok(true)
    }

    /// The stored entry of a key.
    fn find(&mut self, key: u64) -> io::Result<Option<Entry<'static>>> {
        let Some((at, length)) = self.lines.get(&key).copied() else { return Ok(None) };
        let mut line = vec![0; length];
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut line)?;
        Ok(serde_json::from_slice(&line).ok())
    }

    fn add(&mut self, key: u64, weight: &str, made: Option<&RoundedWeight>) -> io::Result<()> {
        let rounded = made.map(Cow::Borrowed);
        let entry = Entry { key, weight: weight.into(), rounded };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(&line)?;
        self.lines.insert(key, (self.end, line.len()));
        self.end += line.len() as u64;
        Ok(())
    }
}

fn refused(path: &Path, what: &str) -> QuantizeError {
    QuantizeError::option("resume_rounding", format!("is `{}`, {what}", path.display()))
}

fn unusable(path: &Path, error: &io::Error) -> QuantizeError {
    refused(path, &format!("which cannot be read or written: {error}"))
}

/// The key of a weight: a hash of all that its rounding depends on.
#[derive(Default)]
pub(super) struct Key(Fnv);

impl Key {
    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.word(bytes.len() as u64);
        self.0.bytes(bytes);
    }

    pub(super) fn floats(&mut self, values: impl IntoIterator<Item = f32>) {
        values.into_iter().for_each(|value| self.0.word(value.to_bits().into()));
        self.0.word(u64::MAX);
    }

    pub(super) fn doubles<'a>(&mut self, values: impl IntoIterator<Item = &'a f64>) {
        values.into_iter().for_each(|value| self.0.word(value.to_bits()));
        self.0.word(u64::MAX);
    }

    pub(super) fn word(&mut self, word: u64) {
        self.0.word(word);
    }

    pub(super) fn finish(self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: fn() -> Result<Option<RoundedWeight>, QuantizeError> = || Ok(None);
    const NEVER: fn() -> Result<Option<RoundedWeight>, QuantizeError> =
        || panic!("the weight is known");

    #[test]
    fn a_line_that_does_not_end_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.jsonl");
        {
            let mut state = StateFile::open(Some(&path)).unwrap();
            for key in [1, 2] {
                state.once("w", || key, NOTHING).unwrap();
            }
            let twice = StateFile::open(Some(&path)).err().unwrap();
            assert!(twice.to_string().contains("another process is writing"), "{twice}");
        }
        let whole = std::fs::read(&path).unwrap();
        let cuts = 0..whole.len();
        for cut in cuts {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut state = StateFile::open(Some(&path)).unwrap();
            let lines = whole[..cut].split(|byte| *byte == b'\n').count() - 1;
            assert_eq!(state.0.as_ref().unwrap().lines.len(), lines.saturating_sub(1), "{cut}");
            state.once("w", || 2, NOTHING).unwrap();
            state.once("w", || 2, NEVER).unwrap();
        }
    }

    #[test]
    fn another_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, b"\x08\x0a model").unwrap();
        let error = StateFile::open(Some(&path)).err().unwrap();
        assert!(error.to_string().contains("not a file of rounded weights"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"\x08\x0a model");
    }
}
