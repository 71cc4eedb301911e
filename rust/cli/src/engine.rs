//! The engine that runs the model on samples.

use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use clap::builder::{PossibleValue, TypedValueParser};
use quantize_rs::Engine;
use quantize_rs::options::EngineName;
use quantize_rs_runner::{Auto, OnnxRuntime, Tract};

use crate::failure::Failure;
use crate::{interrupt, options};

/// Who runs the model on samples, and on how many threads.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Running samples")]
pub(crate) struct EngineArguments {
    #[command(flatten)]
    choice: EngineChoice,
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256),
        help = options::help("threads")
    )]
    threads: Option<u16>,
}

/// The values of `--engine` in commands that measure what a deployed model computes.
pub(crate) fn deployed() -> impl TypedValueParser<Value = EngineName> {
    const AUTO: &str = "ONNX Runtime where it is installed, otherwise tract";
    let about = |value: PossibleValue| match value.get_name() {
        "auto" => value.help(AUTO),
        _ => value,
    };
    options::choice_with::<EngineName>("engine", about)
}

/// Who runs the model.
#[derive(Debug, Default, Args)]
pub(crate) struct EngineChoice {
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        value_parser = options::choice::<EngineName>("engine"),
        help = options::help("engine")
    )]
    engine: EngineName,
    #[arg(long, value_name = "FILE", help = options::help("onnxruntime"))]
    onnxruntime: Option<PathBuf>,
}

impl EngineArguments {
    /// The number of samples that run at the same time.
    pub(crate) fn threads(&self) -> usize {
        match self.threads {
            Some(threads) => usize::from(threads),
            None => thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// The path of the library of ONNX Runtime, if it was given.
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
    /// The engine for measurements of the deployed model: `auto` is ONNX Runtime if it is
    /// installed, else tract.
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
                // If the path of the library was given, its failure is an error.
                Err(error) if self.onnxruntime.is_some() => return Err(error.into()),
                Err(error) => Box::new(Auto::without(error.to_string())),
            },
            (EngineName::Tract, _) => Box::new(Tract),
            (EngineName::OnnxRuntime, Some(library)) => Box::new(OnnxRuntime::open(&library)?),
            (EngineName::OnnxRuntime, None) => {
                let message = "--engine onnxruntime: it is not installed here: `pip install \
                               onnxruntime`, or say where it is with --onnxruntime";
                return Err(Failure::Misuse(message.to_owned()));
            }
        })
    }
}
