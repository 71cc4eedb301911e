//! `batch`: quantizes the weights of several models.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::WeightType;
use quantize_rs::options::Verb;
use quantize_rs_runner::samples;

use crate::accuracy_control::AccuracyControlArguments;
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::jobs::{self, Job, Manner, Work};
use crate::nothing::NothingArguments;
use crate::options::WeightOptions;
use crate::output_file::OutputFile;
use crate::output_path::place;
use crate::quantize::QuantizeArguments;
use crate::recipe::RecipeArguments;
use crate::samples::SampleArguments;

/// Arguments of `batch`.
#[derive(Debug, Args)]
pub(crate) struct BatchArguments {
    /// The models, folders of models, or patterns such as 'models/*.onnx'
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// The output folder, created if it is missing; `a.onnx` becomes `a_int8.onnx`
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The number of models that are quantized at the same time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    jobs: u16,
    /// Skip models whose output exists
    #[arg(long)]
    skip_existing: bool,
    /// Continue when a model fails; the exit code is still that of a failure
    #[arg(long)]
    continue_on_error: bool,
    #[command(flatten)]
    nothing: NothingArguments,
    #[command(flatten)]
    options: WeightOptions,
}

pub(crate) fn run(args: &BatchArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let config = args.options.config(Verb::Quantize)?;
    args.options.without_samples()?;
    let models = expanded(&args.models)?;
    check_stems(&models)?;
    let mut all: Vec<Job> = models
        .into_iter()
        .map(|model| {
            let output = args.output.join(name(&model, config.weights));
            let (recipe, dry_run) = (RecipeArguments::default(), false);
            let work = Work::Quantize(Box::new(QuantizeArguments {
                model,
                output: OutputFile::at(output),
                dry_run,
                html: HtmlArguments::default(),
                nothing: args.nothing,
                recipe,
                accuracy_control: AccuracyControlArguments::default(),
                samples: SampleArguments::default(),
                engine: EngineArguments::default(),
                options: args.options.clone(),
            }));
            Job::new(work, args.skip_existing, Vec::new())
        })
        .collect();
    jobs::skip_results(&mut all, |_| true);
    let manner = Manner {
        jobs: usize::from(args.jobs),
        continue_on_error: args.continue_on_error,
        continuing: "--continue-on-error",
    };
    jobs::check_apart(&all, manner)?;
    jobs::run(&all, manner, console)
}

/// The files that the paths and patterns match; patterns are for shells that do not expand them.
pub(crate) fn expanded(models: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all: Vec<PathBuf> = Vec::new();
    for pattern in models {
        let found =
            if pattern.is_dir() { in_folder(pattern)? } else { samples::matching_files(pattern)? };
        if found.is_empty() {
            let message = format!("no file fits `{}`", pattern.display());
            return Err(Failure::Refused(message));
        }
        // Several paths and patterns may match the same model.
        all.extend(found.into_iter().filter(|path| !models.contains(path) || path == pattern));
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|path| seen.insert(place(path)));
    Ok(all)
}

/// The models in a folder, sorted by name. Hidden files are left out.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let is_model = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "onnx");
    let mut found: Vec<PathBuf> = samples::entries(folder)?.into_iter().filter(is_model).collect();
    found.sort();
    Ok(found)
}

/// Rejects models with the same name in different folders, whose outputs would be the same file.
pub(crate) fn check_stems(models: &[PathBuf]) -> Result<(), Failure> {
    let mut stems: HashMap<String, &Path> = HashMap::new();
    for model in models {
        if let Some(other) = stems.insert(stem(model), model) {
            let message = format!(
                "`{}` and `{}` would both become `{}…`: quantize one of them by itself",
                other.display(),
                model.display(),
                stem(model)
            );
            return Err(Failure::Misuse(message));
        }
    }
    Ok(())
}

fn stem(model: &Path) -> String {
    model.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The file name of the quantized model: `a_int8.onnx`.
pub(crate) fn name(model: &Path, weights: WeightType) -> String {
    format!("{}_{weights}.onnx", stem(model))
}
