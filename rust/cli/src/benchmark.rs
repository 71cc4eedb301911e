//! `benchmark`: how two models differ in size and structure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, ModelInfo};
use serde::Serialize;

use crate::console::Console;
use crate::failure::Failure;
use crate::text;

/// Arguments of `benchmark`.
#[derive(Debug, Args)]
pub(crate) struct BenchmarkArguments {
    /// The model as it was
    original: PathBuf,
    /// What was made of it
    quantized: PathBuf,
}

/// What two models have of everything.
#[derive(Debug, Serialize)]
struct Benchmark {
    original: Side,
    quantized: Side,
    /// How many times smaller the second is.
    ratio: f64,
    /// Operators of which they have a different number: how many nodes more or fewer.
    operators: BTreeMap<String, i64>,
}

#[derive(Debug, Serialize)]
struct Side {
    path: String,
    /// Bytes of the file and of the data beside it.
    bytes: u64,
    nodes: usize,
    weights: usize,
    parameters: u64,
    weight_bytes: BTreeMap<String, u64>,
    opset: i64,
}

pub(crate) fn run(args: &BenchmarkArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let info = |path: &PathBuf| Model::open(path).map(|model| ModelInfo::of(&model));
    let (original, quantized) = (info(&args.original)?, info(&args.quantized)?);
    let operators: BTreeSet<&String> =
        original.operators.keys().chain(quantized.operators.keys()).collect();
    let count = |info: &ModelInfo, operator: &String| {
        let count = info.operators.get(operator).copied().unwrap_or(0);
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    let operators = operators
        .into_iter()
        .map(|operator| {
            (operator.clone(), count(&quantized, operator) - count(&original, operator))
        })
        .filter(|(_, difference)| *difference != 0)
        .collect();
    #[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
    let ratio = original.bytes as f64 / quantized.bytes.max(1) as f64;
    let original = Side::of(&args.original, original);
    let quantized = Side::of(&args.quantized, quantized);
    let found = Benchmark { original, quantized, ratio, operators };
    console.result(|| text::json(&found), || found.describe())
}

impl Side {
    fn of(path: &std::path::Path, info: ModelInfo) -> Side {
        Side {
            path: path.display().to_string(),
            bytes: info.bytes,
            nodes: info.num_nodes,
            weights: info.initializers,
            parameters: info.parameters,
            weight_bytes: info.weight_bytes,
            opset: info.opset_version,
        }
    }
}

impl Benchmark {
    fn describe(&self) -> String {
        let types: BTreeSet<&String> =
            self.original.weight_bytes.keys().chain(self.quantized.weight_bytes.keys()).collect();
        let row = |label: &str, of: &dyn Fn(&Side) -> String| {
            [label.to_owned(), of(&self.original), of(&self.quantized)]
        };
        let mut lines = vec![
            ["", "Original", "Quantized"].map(str::to_owned),
            row("Size", &|side| text::size(side.bytes)),
            row("Nodes", &|side| side.nodes.to_string()),
            row("Weights", &|side| side.weights.to_string()),
            row("Parameters", &|side| text::grouped(side.parameters)),
            row("Opset", &|side| side.opset.to_string()),
        ];
        for dtype in types {
            lines.push(row(&format!("In {dtype}"), &|side| {
                side.weight_bytes
                    .get(dtype)
                    .map_or_else(|| "-".to_owned(), |bytes| text::size(*bytes))
            }));
        }
        let differences = self.operators.iter().map(|(operator, by)| format!("{operator} {by:+}"));
        let differences: Vec<String> = differences.collect();
        let differences =
            if differences.is_empty() { "the same".to_owned() } else { differences.join(", ") };
        let rows = [("Compression", format!("{:.2}×", self.ratio)), ("Operators", differences)];
        format!("{}{}", text::columns(&lines), text::table(rows))
    }
}
