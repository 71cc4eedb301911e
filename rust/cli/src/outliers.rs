//! `outliers`: finds weights with elements far from all others.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, OutlierOptions, Outliers, outliers};

use crate::ascii_histogram;
use crate::console::Console;
use crate::failure::Failure;

/// Arguments of `outliers`.
#[derive(Debug, Args)]
pub(crate) struct OutlierArguments {
    /// The model
    model: PathBuf,
    /// How far an outlier is beyond the quartiles, in multiples of the interquartile range
    #[arg(long, value_name = "X", default_value_t = OutlierOptions::default().fence)]
    fence: f64,
    /// The number of outliers that are listed for each weight, with -v or as JSON
    #[arg(long, value_name = "N", default_value_t = OutlierOptions::default().most)]
    most: usize,
}

pub(crate) fn run(args: &OutlierArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let options = OutlierOptions { fence: args.fence, most: args.most };
    let found = outliers(&Model::open(&args.model)?, &options)?;
    let reach: Vec<f64> = found.weights.iter().map(|weight| weight.reach).collect();
    let (draws, verbose) = (console.draws(), console.verbose());
    let text = || {
        let table = found.to_string();
        let table = if draws { ascii_histogram::before_lines(&table, &reach) } else { table };
        if verbose { format!("{table}{}", listed(&found)) } else { table }
    };
    console.result(|| found.to_json(), text)
}

/// The outlier channels and elements as text.
fn listed(found: &Outliers) -> String {
    let lines = found.weights.iter().flat_map(|weight| {
        let name = &weight.name;
        let channels = weight.channels.iter();
        let channels =
            channels.map(move |it| format!("{name}, channel {}: {}\n", it.channel, it.largest));
        let elements = weight.furthest.iter();
        channels.chain(elements.map(move |it| format!("{name}{:?}: {}\n", it.index, it.value)))
    });
    lines.collect()
}
