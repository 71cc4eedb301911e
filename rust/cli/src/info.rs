//! `info`: describes a model.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use quantize_rs::{InputSpec, Model, ModelInfo};

use crate::console::Console;
use crate::failure::Failure;
use crate::text;

/// Arguments of `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The model
    pub(crate) model: PathBuf,
}

pub(crate) fn run(args: &InfoArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let info = ModelInfo::of(&Model::open(&args.model)?);
    console.result(|| text::json(&info), || describe(&info))
}

fn describe(info: &ModelInfo) -> String {
    let opsets = info.opsets.iter().map(|(domain, version)| format!("{version} ({domain})"));
    let bytes = info.weight_bytes.iter().map(|(dtype, bytes)| {
        let bytes = text::size(*bytes);
        format!("{dtype} {bytes}")
    });
    let rows = [
        ("Name", or_dash(&info.name)),
        ("Producer", or_dash(&info.producer)),
        ("Version", info.version.to_string()),
        ("IR version", info.ir_version.to_string()),
        ("Opset", listed(opsets)),
        ("Nodes", info.num_nodes.to_string()),
        ("Inputs", specs(&info.inputs)),
        ("Outputs", specs(&info.outputs)),
        ("Operators", histogram(&info.operators)),
        (
            "Parameters",
            format!("{} in {} initializers", text::grouped(info.parameters), info.initializers),
        ),
        ("Weights", listed(bytes)),
        ("Size", text::size(info.bytes)),
        ("Quantized", if info.quantized { "yes" } else { "no" }.to_owned()),
    ];
    text::table(rows)
}

/// Operators with their counts, the most frequent first.
fn histogram(operators: &BTreeMap<String, usize>) -> String {
    let mut operators: Vec<_> = operators.iter().collect();
    operators.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    listed(operators.into_iter().map(|(operator, count)| format!("{operator} {count}")))
}

/// One input or output per line.
fn specs(specs: &[InputSpec]) -> String {
    or_dash(&specs.iter().map(text::input).collect::<Vec<_>>().join("\n"))
}

fn listed(items: impl Iterator<Item = impl Display>) -> String {
    or_dash(&items.map(|item| item.to_string()).collect::<Vec<_>>().join(", "))
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}
