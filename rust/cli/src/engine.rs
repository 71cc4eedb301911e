//! Who runs the model on samples.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use quantize_rs::Engine;
use quantize_rs_runner::{Auto, OnnxRuntime, Tract};

use crate::failure::Failure;

/// Who runs the model on samples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration")]
pub(crate) struct EngineArguments {
    /// Who runs the model on samples
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    engine: EngineName,
    /// The library of ONNX Runtime, libonnxruntime.so or the like [default: that of the active
    /// Python environment]
    #[arg(long, value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
}

/// The engines there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum EngineName {
    /// tract where it runs the model as well, onnxruntime where that is installed
    #[default]
    Auto,
    /// What is built in
    Tract,
    /// ONNX Runtime, where it is installed
    Onnxruntime,
}

impl EngineArguments {
    /// Where the library of ONNX Runtime was said to be.
    pub(crate) fn library(&self) -> Option<&Path> {
        self.onnxruntime.as_deref()
    }

    /// The engine, and what the caller should know of it.
    pub(crate) fn open(&self) -> Result<(Box<dyn Engine>, Option<String>), Failure> {
        let library = self.onnxruntime.clone().or_else(OnnxRuntime::find);
        let engine: Box<dyn Engine> = match (self.engine, library) {
            (EngineName::Auto, library) => {
                let opened = library.as_deref().map(OnnxRuntime::open).transpose();
                let (onnxruntime, note) = match opened {
                    // Who says where it is wants no other.
                    Err(error) if self.onnxruntime.is_some() => return Err(error.into()),
                    Err(error) => (None, Some(format!("without onnxruntime: {error}"))),
                    Ok(onnxruntime) => (onnxruntime, None),
                };
                return Ok((Box::new(Auto { onnxruntime }), note));
            }
            (EngineName::Tract, _) => Box::new(Tract),
            (EngineName::Onnxruntime, Some(library)) => Box::new(OnnxRuntime::open(&library)?),
            (EngineName::Onnxruntime, None) => {
                let message = "--engine onnxruntime: it is not installed here: `pip install \
                               onnxruntime`, or say where it is with --onnxruntime";
                return Err(Failure::Misuse(message.to_owned()));
            }
        };
        Ok((engine, None))
    }
}
