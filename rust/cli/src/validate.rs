//! `validate`: checks that a file is the quantized form of its original.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Model, Target, Validation, validate};

use crate::console::Console;
use crate::failure::Failure;
use crate::{options, text};

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArguments {
    /// The original model
    original: PathBuf,
    /// The quantized model
    quantized: PathBuf,
    /// Show the error of every weight
    #[arg(long)]
    detailed: bool,
    /// The passes that ran before quantization, if --passes was given then
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    passes: Option<Vec<String>>,
    /// No pass ran before quantization: --no-optimize was given then
    #[arg(long, conflicts_with = "passes")]
    no_optimize: bool,
    /// Also check that this runtime accepts every quantized node
    #[arg(long, value_name = "NAME", value_parser = options::choice::<Target>("target"))]
    target: Option<Target>,
}

pub(crate) fn run(args: &ValidateArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let original = Model::open(&args.original)?;
    let passes = if args.no_optimize { Some(&[][..]) } else { args.passes.as_deref() };
    let found = match Model::open(&args.quantized) {
        Ok(quantized) => {
            let found = validate(&original, &quantized, passes)?;
            match args.target {
                Some(target) => found.on(&quantized, target)?,
                None => found,
            }
        }
        // A file that cannot be read is an error; a file that is not a model is reported as a
        // problem.
        Err(error) if error.io_error().is_some() => return Err(error.into()),
        Err(error) => Validation::unreadable(error.path(), error.to_string()),
    };
    console.result(|| found.to_json(), || describe(&found, args.detailed))?;
    match found.problems.len() {
        0 => Ok(()),
        1 => Err(Failure::Refused("1 thing is wrong with the quantized model".to_owned())),
        count => {
            Err(Failure::Refused(format!("{count} things are wrong with the quantized model")))
        }
    }
}

fn describe(found: &Validation, detailed: bool) -> String {
    let mut rows = Vec::new();
    let worst = found.weights.iter().min_by(|a, b| a.error.sqnr_db.total_cmp(&b.error.sqnr_db));
    let compared = match worst {
        None if found.not_compared.is_empty() => {
            "no weight of it is stored in integers or narrow floats".to_owned()
        }
        None => "none could be compared".to_owned(),
        Some(worst) => format!(
            "{} compared with the original, the furthest is {}: {:.1} dB",
            found.weights.len(),
            worst.name,
            worst.error.sqnr_db
        ),
    };
    rows.push(("Weights", compared));
    if !found.prepared.is_empty() {
        let steps: Vec<String> = found.prepared.iter().map(ToString::to_string).collect();
        rows.push(("Original", format!("prepared as before quantizing: {}", steps.join("; "))));
    }
    let lines = |lines: Vec<String>| (!lines.is_empty()).then(|| lines.join("\n"));
    if detailed {
        let weights = found.weights.iter().map(ToString::to_string).collect();
        rows.extend(lines(weights).map(|lines| ("Layers", lines)));
    }
    let skipped = found.not_compared.iter();
    let skipped = if detailed {
        lines(skipped.map(|skipped| format!("{}: {}", skipped.name, skipped.why)).collect())
    } else {
        let count = skipped.count();
        (count > 0).then(|| format!("{count} constants, which --detailed names"))
    };
    rows.extend(skipped.map(|lines| ("Not compared", lines)));
    rows.extend(lines(found.notes.clone()).map(|lines| ("Notes", lines)));
    let problems = found.problems.iter().map(ToString::to_string).collect();
    rows.extend(lines(problems).map(|lines| ("Problems", lines)));
    rows.push(("Result", found.summary()));
    text::table(rows)
}
