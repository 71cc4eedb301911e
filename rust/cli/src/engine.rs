//! Who runs the model on samples.

use std::path::{Path, PathBuf};
use std::thread;

use clap::{Args, ValueEnum};
use quantize_rs::Engine;
use quantize_rs_runner::{Auto, OnnxRuntime, Tract};

use crate::failure::Failure;
use crate::interrupt;

/// Who runs the model on samples, and on how many threads.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Calibration")]
pub(crate) struct EngineArguments {
    #[command(flatten)]
    choice: EngineChoice,
    /// Samples that run at once, each on a thread of its own [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

/// Who runs the model.
#[derive(Debug, Default, Args)]
pub(crate) struct EngineChoice {
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
    /// tract for small models that it runs right; for others onnxruntime, where it is installed
    #[default]
    Auto,
    /// What is built in
    Tract,
    /// ONNX Runtime, where it is installed
    Onnxruntime,
}

impl EngineArguments {
    /// Samples that run at once.
    pub(crate) fn threads(&self) -> usize {
        match self.threads {
            Some(threads) => usize::from(threads),
            None => thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Where the library of ONNX Runtime was said to be.
    pub(crate) fn library(&self) -> Option<&Path> {
        self.choice.onnxruntime.as_deref()
    }

    /// As [`EngineChoice::open_deployed`].
    pub(crate) fn open_deployed(&self) -> Result<Box<dyn Engine>, Failure> {
        self.choice.open_deployed()
    }

    /// The engine.
    pub(crate) fn open(&self) -> Result<Box<dyn Engine>, Failure> {
        self.choice.open()
    }
}

impl EngineChoice {
    /// The engine that stands for those that models are deployed to: `auto` is ONNX Runtime where it
    /// is installed, and tract else.
    pub(crate) fn open_deployed(&self) -> Result<Box<dyn Engine>, Failure> {
        let library = self.onnxruntime.clone().or_else(OnnxRuntime::find);
        match (self.engine, library) {
            (EngineName::Auto, Some(library)) => Ok(Box::new(OnnxRuntime::open(&library)?)),
            (EngineName::Auto, None) => Ok(Box::new(Tract)),
            _ => self.open(),
        }
    }

    fn open(&self) -> Result<Box<dyn Engine>, Failure> {
        let library = self.onnxruntime.clone().or_else(OnnxRuntime::find);
        Ok(match (self.engine, library) {
            (EngineName::Auto, None) => Box::new(Auto::without("no onnxruntime was found")),
            (EngineName::Auto, Some(library)) => match OnnxRuntime::open(&library) {
                Ok(onnxruntime) => {
                    Box::new(Auto::with(onnxruntime).stopped_by(interrupt::pressed()))
                }
                // Who says where it is wants no other.
                Err(error) if self.onnxruntime.is_some() => return Err(error.into()),
                Err(error) => Box::new(Auto::without(error.to_string())),
            },
            (EngineName::Tract, _) => Box::new(Tract),
            (EngineName::Onnxruntime, Some(library)) => Box::new(OnnxRuntime::open(&library)?),
            (EngineName::Onnxruntime, None) => {
                let message = "--engine onnxruntime: it is not installed here: `pip install \
                               onnxruntime`, or say where it is with --onnxruntime";
                return Err(Failure::Misuse(message.to_owned()));
            }
        })
    }
}
