//! `compare`: a quantized model beside the original.

use std::fs;
use std::path::Path;

use quantize_rs::{CompareOptions, InputSpec, Model, compare};
use quantize_rs_onnx::DataType;
use quantize_rs_runner::samples::{self, Watched};

use crate::args::CompareArguments;
use crate::console::Console;
use crate::failure::{Failure, said};
use crate::work;

pub(crate) fn run(args: &CompareArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let (original, quantized) = (Model::open(&args.original)?, Model::open(&args.quantized)?);
    let inputs = InputSpec::of(&original);
    let Some(samples) = args.samples.open(&inputs)? else {
        return Err(Failure::Misuse("compare needs --data".to_owned()));
    };
    let labels = args.classes.labels.as_deref().map(labels).transpose()?;
    if args.samples.are_random() {
        console.warn("compared on random numbers, which says little of real inputs");
    }
    let options = CompareOptions {
        labels,
        scores: args.classes.scores.clone(),
        latency: args.latency.options(),
    };
    args.page.check(&[&args.original, &args.quantized])?;
    let engine = args.engine.open_deployed()?;
    let samples = Watched::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let done = work::on(&*engine, given, samples, console, |engine, samples, control| {
        compare(&original, &quantized, engine, samples, &options, control)
    })?;
    let found = done.found;
    if console.verbose() {
        found.notes.iter().for_each(|note| console.warn(note));
    }
    args.page.write(|| found.html())?;
    console.result(|| found.to_json(), || found.to_string())?;
    match found.misses(&args.bar.bar()) {
        misses if misses.is_empty() => Ok(()),
        misses => Err(Failure::Refused(format!("below the bar: {}", misses.join("; ")))),
    }
}

/// The whole numbers in a file.
fn labels(path: &Path) -> Result<Vec<i64>, Failure> {
    let refused = |what: &str| Failure::Refused(format!("labels in `{}`: {what}", path.display()));
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy")) {
        let dtype = Some(DataType::Int64);
        let spec = InputSpec { name: "labels".to_owned(), dtype, shape: Some(vec![None]) };
        let mut rows = samples::open(path, &[spec], None)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next_sample() {
            let row = row?;
            let values = row.inputs.iter().flat_map(|(_, tensor)| tensor.data.as_chunks::<8>().0);
            found.extend(values.map(|bytes| i64::from_le_bytes(*bytes)));
        }
        return Ok(found);
    }
    let text = fs::read_to_string(path).map_err(|error| refused(&said(&error)))?;
    let words = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
    let parsed = words
        .map(|word| word.parse().map_err(|_| refused(&format!("`{word}` is no whole number"))));
    parsed.collect()
}
