//! Files of ranges: JSON, or with second moments the safetensors format.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use quantize_rs_onnx::write_file;

use super::Ranges;
use super::moments::Moments;
use super::moments_file::{self, MomentsFile, OpenError, WriteError};
use crate::{CalibrationError, QuantizeError};

/// The note of ranges as JSON, if second moments were lost.
pub(super) const NO_MOMENTS: &str = "weights are rounded without samples: JSON does not hold \
    second moments, which a saved file does";

impl Ranges {
    /// Writes the ranges and their statistics to a file, completely or not at all: as JSON, or in
    /// the safetensors format if they hold second moments. Those of merged ranges are read and
    /// written input by input.
    ///
    /// # Errors
    /// The file cannot be written, or moments in another file not be read.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), QuantizeError> {
        let path = path.as_ref();
        let Some(moments) = &self.moments else {
            return Ok(write_file(path, self.json().as_bytes())?);
        };
        moments_file::write(path, &self.json(), moments).map_err(|error| match error {
            WriteError::Read(error) => error.into(),
            WriteError::Write(error) => error.into(),
        })
    }

    /// Reads a file that [`Ranges::save`] wrote. Second moments stay in the file until they are
    /// needed.
    ///
    /// # Errors
    /// The file cannot be read, or holds no ranges.
    pub fn load(path: impl AsRef<Path>) -> Result<Ranges, QuantizeError> {
        let path = path.as_ref();
        let failed = |cause| quantize_rs_onnx::Error::io(cause, path);
        let in_file = |error: CalibrationError| error.in_file(path.display().to_string());
        let mut file = File::open(path).map_err(failed)?;
        let mut first = Vec::new();
        file.by_ref().take(MomentsFile::MARK).read_to_end(&mut first).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        if !MomentsFile::is_begun_by(&first) {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(failed)?;
            return Ok(Ranges::from_json(&String::from_utf8_lossy(&bytes)).map_err(in_file)?);
        }
        let (file, text) = match MomentsFile::open(file, path) {
            Ok(opened) => opened,
            Err(OpenError::Io(cause)) if cause.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(failed(cause).into());
            }
            Err(error) => return Err(in_file(error.of_ranges()).into()),
        };
        let ranges = Ranges::from_json(&text).map_err(in_file)?;
        Ok(Ranges { moments: Some(Moments::in_file(file)), ..ranges })
    }

    /// The ranges as JSON on one line, without second moments.
    pub fn to_json(&self) -> String {
        // As below.
        let line = |ranges: &Ranges| serde_json::to_string(ranges).unwrap_or_default();
        if self.moments.is_none() {
            return line(self);
        }
        let mut bare = Ranges { moments: None, ..self.clone() };
        bare.notes.push(NO_MOMENTS.to_owned());
        line(&bare)
    }

    /// The text of a file, for people too.
    fn json(&self) -> String {
        // Serialization cannot fail: all keys are strings.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
