//! `benchmark`: compares two models in size, structure and latency.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use quantize_rs::{InputSpec, LatencyOptions, Model, ModelInfo, Sample, Speed, latency};
use quantize_rs_runner::samples;
use serde::Serialize;

use crate::console::Console;
use crate::engine::EngineChoice;
use crate::failure::Failure;
use crate::interrupt;
use crate::samples::SampleArguments;
use crate::text;

/// How latency is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "Latency")]
pub(crate) struct LatencyArguments {
    /// Do not measure it
    #[arg(long, conflicts_with_all = ["runs", "latency_threads"])]
    pub(crate) no_latency: bool,
    #[command(flatten)]
    pub(crate) timing: TimingArguments,
}

/// How often, and on how many threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Latency")]
pub(crate) struct TimingArguments {
    /// The number of measured runs of each model, without those for warming up [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// The number of threads of a run [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) latency_threads: Option<u16>,
}

impl LatencyArguments {
    /// The options of the measurement; `None` if latency is not measured.
    pub(crate) fn options(&self) -> Option<LatencyOptions> {
        (!self.no_latency).then(|| self.timing.options())
    }
}

impl TimingArguments {
    /// The options of the measurement.
    pub(crate) fn options(&self) -> LatencyOptions {
        let mut options = LatencyOptions::default();
        if let Some(runs) = self.runs.and_then(|runs| usize::try_from(runs).ok()) {
            options.runs = runs;
        }
        if let Some(threads) = self.latency_threads {
            options.threads = usize::from(threads);
        }
        options
    }
}

/// Arguments of `benchmark`.
#[derive(Debug, Args)]
#[command(
    mut_arg("calibration_data", |data| data.requires("latency").help(DATA)),
    mut_arg("runs", |runs| runs.requires("latency")),
    mut_arg("latency_threads", |threads| threads.requires("latency")),
    mut_arg("engine", |engine| engine.requires("latency").help_heading("Latency")),
    mut_arg("onnxruntime", |library| library.requires("latency").help_heading("Latency")),
    // Only one sample is timed.
    mut_arg("limit", |limit| limit.hide(true).conflicts_with("latency")),
    mut_arg("num_samples", |count| count.hide(true).conflicts_with("latency"))
)]
pub(crate) struct BenchmarkArguments {
    /// The original model
    original: PathBuf,
    /// The quantized model
    quantized: PathBuf,
    /// Also measure the latency of both models, in turns, on one sample
    #[arg(long, help_heading = "Latency")]
    latency: bool,
    #[command(flatten)]
    timing: TimingArguments,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineChoice,
}

const DATA: &str = "Samples, as in `calibrate`; the first is used [default: random]";

/// The sizes, operators and latency of two models.
#[derive(Debug, Serialize)]
struct Benchmark {
    original: Side,
    quantized: Side,
    /// The size of the first model divided by that of the second.
    ratio: f64,
    /// The change in the number of nodes, for operators whose number differs.
    operators: BTreeMap<String, i64>,
    /// The latency of both models, if it was measured.
    speed: Option<Speed>,
}

#[derive(Debug, Serialize)]
struct Side {
    path: String,
    /// The size of the file and its external data in bytes.
    bytes: u64,
    nodes: usize,
    weights: usize,
    parameters: u64,
    weight_bytes: BTreeMap<String, u64>,
    opset: i64,
}

pub(crate) fn run(args: &BenchmarkArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let models = [Model::open(&args.original)?, Model::open(&args.quantized)?];
    let speed = if args.latency {
        speed(args, &models, console)?
    } else {
        args.samples.images.check(&[])?;
        None
    };
    let [original, quantized] = models.map(|model| ModelInfo::of(&model));
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
    let found = Benchmark { original, quantized, ratio, operators, speed };
    console.result(|| text::json(&found), || found.describe())?;
    found.speed.as_ref().and_then(Speed::warning).iter().for_each(|said| console.warn(said));
    Ok(())
}

/// Times both models on the first sample.
fn speed(
    args: &BenchmarkArguments,
    models: &[Model; 2],
    console: &mut Console<'_>,
) -> Result<Option<Speed>, Failure> {
    let [original, quantized] = models;
    let sample = sample(args, original)?;
    if args.samples.data.is_none() || args.samples.are_random() {
        console.warn(
            "timed on RANDOM NUMBERS: real inputs may take another time, where they have other \
             lengths or lead another way; give some with --calibration-data PATH",
        );
    }
    let engine = args.engine.open_deployed()?;
    let options = args.timing.options();
    let mut go_on = || !interrupt::is_pressed();
    let found = latency(&*engine, &[original, quantized], &sample, &options, &mut go_on)?;
    Ok(found.as_ref().and_then(Speed::of))
}

/// The sample that both models are timed on.
fn sample(args: &BenchmarkArguments, model: &Model) -> Result<Sample, Failure> {
    let inputs = InputSpec::of(model);
    let mut samples = match args.samples.open(&inputs)? {
        Some(samples) => samples,
        None => samples::random(&inputs, 1, None, 0)?,
    };
    match samples.next_sample() {
        Some(sample) => Ok(sample?),
        None => Err(Failure::Refused("there is no sample to time the models on".to_owned())),
    }
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
        let mut rows =
            vec![("Compression", format!("{:.2}×", self.ratio)), ("Operators", differences)];
        if let Some(Speed { original, quantized, speedup, threads, engine }) = &self.speed {
            let plural = if *threads == 1 { "" } else { "s" };
            rows.push(("Latency", format!("{original}\n{quantized} quantized")));
            let how = format!("{engine}, {threads} thread{plural}, {} runs each", quantized.runs);
            rows.push(("Speed-up", format!("{speedup:.2}× ({how})")));
        }
        format!("{}{}", text::columns(&lines), text::table(rows))
    }
}
