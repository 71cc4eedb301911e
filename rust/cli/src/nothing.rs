//! `--allow-unquantized`: what happens where nothing of a model can be quantized.

use clap::Args;
use quantize_rs::{Plan, options::as_flags};

use crate::failure::Failure;
use crate::options;

/// Whether a model that stays as it is is written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct NothingArguments {
    #[arg(long, help = options::help("allow_unquantized"))]
    allow_unquantized: bool,
}

impl NothingArguments {
    /// Refuses a plan that quantizes nothing, with the reasons, before any work is done.
    pub(crate) fn check(self, plan: &Plan) -> Result<(), Failure> {
        match plan.nothing_quantized() {
            Some(why) if !self.allow_unquantized => Err(Failure::Refused(format!(
                "{}; nothing is written, --allow-unquantized writes the model all the same",
                as_flags(&why)
            ))),
            _ => Ok(()),
        }
    }
}
