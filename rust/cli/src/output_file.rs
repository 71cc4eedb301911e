//! Where a command writes the model: the path of `-o`, or a name beside the input.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;
use crate::output_path;

/// Where a command writes the model.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputFile {
    /// The path of the result; may be that of the input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Without -o: overwrite the file that the result is written to
    #[arg(long)]
    pub(crate) force: bool,
}

/// The help about a result whose default name says what was done: `quantized`.
pub(crate) fn help(done: &str) -> String {
    format!(
        "The path of the {done} model; may be that of the input [default: NAME.{done}.onnx beside \
         the input NAME.onnx]"
    )
}

impl OutputFile {
    /// This path, which is overwritten if it exists.
    pub(crate) fn at(path: PathBuf) -> OutputFile {
        OutputFile { output: Some(path), force: false }
    }

    /// The path of the result.
    pub(crate) fn path(&self, model: &Path, done: &str) -> PathBuf {
        let beside = || model.with_extension(format!("{done}.onnx"));
        self.output.clone().unwrap_or_else(beside)
    }

    /// The path of the result, if it can be written.
    ///
    /// A name that was not typed is not overwritten without `--force`.
    pub(crate) fn checked(&self, model: &Path, done: &str) -> Result<PathBuf, Failure> {
        let path = self.path(model, done);
        if self.output.is_none() && !self.force && path.exists() {
            let message = format!(
                "`{}` exists: --force overwrites it, and -o FILE names another file",
                path.display()
            );
            return Err(Failure::Refused(message));
        }
        output_path::check(&path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_beside_the_input_and_named_after_it() {
        let cases = [
            ("a/model.onnx", "a/model.quantized.onnx"),
            ("model.v2.onnx", "model.v2.quantized.onnx"),
            ("model", "model.quantized.onnx"),
        ];
        for (model, expected) in cases {
            let found = OutputFile::default().path(Path::new(model), "quantized");
            assert_eq!(found, Path::new(expected));
        }
        let typed = OutputFile::at(PathBuf::from("b.onnx"));
        assert_eq!(typed.path(Path::new("a/model.onnx"), "quantized"), Path::new("b.onnx"));
    }
}
