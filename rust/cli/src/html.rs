//! `--html`: a result as an HTML report, beside what is printed.

use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::Model;

use crate::failure::Failure;
use crate::{options, output_path};

/// A result as an HTML report, beside what is printed.
#[derive(Debug, Default, Args)]
pub(crate) struct HtmlArguments {
    #[arg(long, value_name = "FILE", help_heading = "Output", help = options::help("html"))]
    html: Option<PathBuf>,
}

impl HtmlArguments {
    /// Rejects a file that cannot be written, is one of `others` or is external data of `models`,
    /// before any work is done.
    pub(crate) fn check(&self, others: &[&Path], models: &[&Model]) -> Result<(), Failure> {
        let Some(path) = &self.html else { return Ok(()) };
        output_path::check_apart("--html", path, others)?;
        output_path::check_data("--html", path, models)?;
        output_path::check(path)
    }

    /// Writes the report if it was requested.
    pub(crate) fn write(&self, html: impl FnOnce() -> String) -> Result<(), Failure> {
        self.html.as_ref().map_or(Ok(()), |path| output_path::write(path, &html()))
    }
}
