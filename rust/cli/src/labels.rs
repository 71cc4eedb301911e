//! Reads the labels of samples from a file.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::InputSpec;
use quantize_rs_onnx::DataType;
use quantize_rs_runner::samples;

use crate::failure::{Failure, said};
use crate::options;

/// What the right classes are.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Accuracy")]
pub(crate) struct ClassArguments {
    #[arg(long, value_name = "FILE", help = options::help("labels"))]
    pub(crate) labels: Option<PathBuf>,
    #[arg(long, value_name = "NAME", help = options::help("scores"))]
    pub(crate) scores: Option<String>,
}

impl ClassArguments {
    /// The labels, if they are given.
    pub(crate) fn labels(&self) -> Result<Option<Vec<i64>>, Failure> {
        self.labels.as_deref().map(labels).transpose()
    }
}

/// The integers in a file.
fn labels(path: &Path) -> Result<Vec<i64>, Failure> {
    let refused = |what: &str| Failure::Refused(format!("labels in `{}`: {what}", path.display()));
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy")) {
        let dtype = Some(DataType::Int64);
        let spec = InputSpec { name: "labels".to_owned(), dtype, shape: Some(vec![None]) };
        let mut rows = samples::open(path, &[spec], None)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next_sample() {
            let row = row?;
            let values = row.inputs.iter().flat_map(|(_, tensor)| tensor.data.as_chunks::<8>().0);
            found.extend(values.map(|bytes| i64::from_le_bytes(*bytes)));
        }
        return Ok(found);
    }
    let text = fs::read_to_string(path).map_err(|error| refused(&said(&error)))?;
    let words = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
    let parsed = words
        .map(|word| word.parse().map_err(|_| refused(&format!("`{word}` is no whole number"))));
    parsed.collect()
}
