//! `config`: quantizes models as a file of YAML or TOML says. Its keys are the flags of `quantize`
//! and `calibrate`, with the same meaning: each model of the file becomes a command line, which is
//! parsed as if you had typed it.

mod keys;
mod node;
mod schema;
mod toml;
mod yaml;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf, absolute};

use clap::{ArgGroup, ArgMatches, Args, FromArgMatches};
use quantize_rs::options::Verb;
use quantize_rs::text::shell_word;
use quantize_rs::{Plan, WeightType};
use serde::Serialize;

use crate::args::{self, Arguments, Command};
use crate::batch;
use crate::console::Console;
use crate::failure::{Failure, said};
use crate::jobs::{self, Job, Manner, Work};
use crate::output_file::OutputFile;
use crate::output_path::{Made, place};
use crate::overwriting::{self, Named};
use crate::{calibrate, quantize, text};

use keys::{Keys, Options, Section};
pub(crate) use keys::{TYPED_ONLY, WEIGHTS, arguments, help, is_path};
pub(crate) use node::Language;
use node::{At, Node, Wrong};

/// Arguments of `config`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").args(["file", "schema"]).required(true)))]
pub(crate) struct ConfigArguments {
    /// The file: .yaml, .yml or .toml. Its paths are relative to its folder
    file: Option<PathBuf>,
    /// Print the JSON Schema of these files, for editors and validators
    #[arg(long, conflicts_with = "dry_run")]
    schema: bool,
    /// Check all models, print what would be done, and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(
    args: &ConfigArguments,
    matches: &ArgMatches,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let Some(file) = &args.file else {
        let schema = schema::schema();
        let text = || serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n";
        return console.result(|| text::json(&schema), text);
    };
    let language = Language::of(file).map_err(Failure::Misuse)?;
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::Refused(format!("{}: {}", file.display(), said(&error))))?;
    let place = absolute(file).unwrap_or_else(|_| file.clone());
    let folder = place.parent().unwrap_or(Path::new("."));
    let wanted = node::read(&text, language).and_then(|root| Wanted::of(&root, folder));
    let wanted = wanted.map_err(|Wrong { line, what }| {
        let at = line.map_or(String::new(), |line| format!(", line {line}"));
        Failure::Misuse(format!("{}{at}: {what}", file.display()))
    })?;
    let inside = |failure: Failure| match failure {
        Failure::Misuse(what) => Failure::Misuse(format!("{}, {what}", file.display())),
        other => other,
    };
    let typed = overwriting::paths(matches);
    let all = wanted.models.iter().map(|model| model.job(&typed)).collect::<Result<Vec<Job>, _>>();
    let mut all = all.map_err(inside)?;
    jobs::skip_results(&mut all, |at| wanted.models[at].named);
    jobs::check_apart(&all, wanted.manner)?;
    if args.dry_run {
        return show(file, &wanted, &all, console);
    }
    jobs::run(&all, wanted.manner, console)
}

/// The jobs of a file.
struct Wanted {
    models: Vec<Typed>,
    manner: Manner,
}

/// The command line for one model.
struct Typed {
    args: Vec<OsString>,
    /// Whether it is skipped if its output exists.
    skip_existing: bool,
    /// Whether it is one of a batch: the name of its output follows from its options.
    named: bool,
    /// Its place in the file, for error messages.
    place: String,
}

impl Wanted {
    fn of(root: &At<Node>, folder: &Path) -> Result<Wanted, Wrong> {
        let keys = Keys::new(folder);
        let (options, mut rest) = keys.section(root, Section::Whole)?;
        let mut wanted = Wanted {
            models: Vec::new(),
            manner: Manner { jobs: 1, continue_on_error: false, continuing: "`continue_on_error`" },
        };
        wanted.manner(&mut rest)?;
        let skips = skip_existing(&mut rest)?.unwrap_or(false);
        let mut used = vec![false; options.len()];
        for (key, value) in rest {
            match key.value.as_str() {
                "models" => {
                    let Node::List(models) = &value.value else {
                        return Err(Wrong::at(value.line, "`models` is no list"));
                    };
                    for (index, model) in models.iter().enumerate() {
                        let place = format!("line {}, models[{index}]", model.line);
                        wanted.model(&keys, (&options, skips), &mut used, model, place)?;
                    }
                }
                _ => wanted.batch(&keys, (&options, skips), &mut used, &value)?,
            }
        }
        if wanted.models.is_empty() {
            return Err(Wrong::at(root.line, "neither `models` nor `batch` names a model"));
        }
        if let Some(at) = used.iter().position(|used| !used) {
            let option = &options[at];
            return Err(Wrong::at(option.line, keys.misplaced(option, &options)));
        }
        Ok(wanted)
    }

    fn model(
        &mut self,
        keys: &Keys,
        (general, skips): (&Options, bool),
        used: &mut [bool],
        model: &At<Node>,
        place: String,
    ) -> Result<(), Wrong> {
        let (own, mut rest) = keys.section(model, Section::Model)?;
        let skip_existing = skip_existing(&mut rest)?.unwrap_or(skips);
        let path = |name: &str| -> Result<Option<PathBuf>, Wrong> {
            let found = rest.iter().find(|(key, _)| key.value == name);
            found.map(|(_, value)| keys.path(value)).transpose()
        };
        let input =
            path("input")?.ok_or_else(|| Wrong::at(model.line, "this model has no `input`"))?;
        let output =
            path("output")?.ok_or_else(|| Wrong::at(model.line, "this model has no `output`"))?;
        let args = keys.typed(general, used, &own, &input, &output)?;
        self.models.push(Typed { args, skip_existing, named: false, place });
        Ok(())
    }

    fn batch(
        &mut self,
        keys: &Keys,
        (general, skips): (&Options, bool),
        used: &mut [bool],
        batch: &At<Node>,
    ) -> Result<(), Wrong> {
        let (own, mut rest) = keys.section(batch, Section::Batch)?;
        self.manner(&mut rest)?;
        let skip_existing = skip_existing(&mut rest)?.unwrap_or(skips);
        let path = |name: &str| -> Result<PathBuf, Wrong> {
            match rest.iter().find(|(key, _)| key.value == name) {
                Some((_, value)) => keys.path(value),
                None => Err(Wrong::at(batch.line, format!("`batch` has no `{name}`"))),
            }
        };
        let (pattern, folder) = (path("input_dir")?, path("output_dir")?);
        let wrong = |failure: Failure| Wrong::at(batch.line, failure.message());
        let models = batch::expanded(&[pattern]).map_err(wrong)?;
        batch::check_stems(&models).map_err(wrong)?;
        for model in models {
            let place = format!("line {}, batch: {}", batch.line, model.display());
            let args = keys.typed(general, used, &own, &model, &folder)?;
            self.models.push(Typed { args, skip_existing, named: true, place });
        }
        Ok(())
    }

    /// Removes the keys that say how jobs are run.
    fn manner(&mut self, rest: &mut Vec<(At<String>, At<Node>)>) -> Result<(), Wrong> {
        let mut wrong = None;
        rest.retain(|(key, value)| {
            let manner = &mut self.manner;
            match (key.value.as_str(), &value.value) {
                ("continue_on_error", Node::Bool(on)) => manner.continue_on_error = *on,
                ("jobs", Node::Number(count)) => {
                    if let Ok(count @ 1..=256) = count.parse() {
                        manner.jobs = count;
                    } else {
                        let what = format!("`jobs` is {count}, expected 1 to 256");
                        wrong = Some(Wrong::at(value.line, what));
                    }
                }
                ("continue_on_error", _) => wrong = Some(no_bool(key, value)),
                ("jobs", _) => wrong = Some(Wrong::at(value.line, "`jobs` is no number")),
                _ => return true,
            }
            false
        });
        wrong.map_or(Ok(()), Err)
    }
}

/// Removes the key that says whether existing outputs are skipped.
fn skip_existing(rest: &mut Vec<(At<String>, At<Node>)>) -> Result<Option<bool>, Wrong> {
    let Some(at) = rest.iter().position(|(key, _)| key.value == "skip_existing") else {
        return Ok(None);
    };
    match rest.remove(at) {
        (_, At { value: Node::Bool(on), .. }) => Ok(Some(on)),
        (key, value) => Err(no_bool(&key, &value)),
    }
}

fn no_bool(key: &At<String>, value: &At<Node>) -> Wrong {
    Wrong::at(value.line, format!("`{}` is neither true nor false", key.value))
}

/// The file of a result in the output folder of a batch.
fn named(folder: &OutputFile, model: &Path, weights: WeightType) -> OutputFile {
    let folder = folder.output.as_deref().unwrap_or(Path::new("."));
    OutputFile::at(folder.join(batch::name(model, weights)))
}

impl Typed {
    /// The parsed command line, which writes over none of the paths that were `typed`.
    fn job(&self, typed: &[Named]) -> Result<Job, Failure> {
        let at = |what: &str| Failure::Misuse(format!("{}: {what}", self.place));
        let (paths, arguments) = args::command()
            .try_get_matches_from(&self.args)
            .and_then(|matches| {
                let arguments = Arguments::from_arg_matches(&matches)?;
                Ok((overwriting::paths(&matches), arguments))
            })
            .map_err(|error| {
                // The error; the usage follows after an empty line.
                let said = error.to_string();
                let said: Vec<&str> =
                    said.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
                let said = said.join(" ");
                at(said.strip_prefix("error: ").unwrap_or(&said))
            })?;
        let misuse = |failure: Failure| at(&failure.message());
        overwriting::check(&[typed, &paths].concat()).map_err(misuse)?;
        let work = match arguments.command {
            Command::Quantize(mut args) => {
                let config = args.options.config(Verb::Quantize);
                let config = config.map_err(misuse)?;
                if self.named {
                    args.output = named(&args.output, &args.model, config.weights);
                }
                Work::Quantize(args)
            }
            Command::Calibrate(mut args) => {
                let config = args.options.config(Verb::Calibrate);
                let config = config.map_err(misuse)?;
                if self.named {
                    args.output = named(&args.output, &args.model, config.weights);
                }
                Work::Calibrate(args)
            }
            _ => return Err(at("is neither quantized nor calibrated")),
        };
        Ok(Job::new(work, self.skip_existing, paths))
    }
}

/// A job of a dry run.
#[derive(Serialize)]
struct Shown {
    input: String,
    output: String,
    /// The equivalent command line.
    command: Vec<String>,
    /// Values that would be quantized; `None` for a model that is skipped.
    quantized: Option<usize>,
    warnings: Vec<String>,
}

/// The plan of a model, after everything that its run needs was checked. `ranges` are the files
/// that the models before it write.
fn checked(
    work: &Work,
    ranges: &mut HashSet<PathBuf>,
    console: &mut Console<'_>,
) -> Result<Plan, Failure> {
    // The folder of the output is removed again at the end.
    let mut folder = Made::default();
    folder.make_for(&work.output())?;
    let ((_, plan), nothing) = match work {
        Work::Quantize(args) => (quantize::planned(args, console)?, args.nothing),
        Work::Calibrate(args) => {
            let given = args.ranges.ranges.as_deref().map(place);
            let planned = if given.is_some_and(|given| ranges.contains(&given)) {
                calibrate::planned_alone(args)?
            } else {
                calibrate::planned(args, console)?
            };
            ranges.extend(args.ranges.ranges_out.as_deref().map(place));
            (planned, args.nothing)
        }
    };
    nothing.check(&plan)?;
    Ok(plan)
}

fn show(
    file: &Path,
    wanted: &Wanted,
    all: &[Job],
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let mut shown = Vec::new();
    let mut ranges = HashSet::new();
    for (model, job) in wanted.models.iter().zip(all) {
        let work = &job.work;
        let at = |failure: Failure| failure.at(&format!("{}, {}", file.display(), model.place));
        let plan = if job.is_skipped() {
            None
        } else {
            Some(checked(work, &mut ranges, console).map_err(at)?)
        };
        let output = work.output().display().to_string();
        let mut command: Vec<String> =
            model.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        // The command line has the folder; the name of the file follows from the options.
        if let Some(typed) = command.get_mut(4) {
            typed.clone_from(&output);
        }
        shown.push(Shown {
            input: work.input().display().to_string(),
            output,
            command,
            quantized: plan.as_ref().map(|plan| plan.quantized().count()),
            warnings: plan.map(|plan| plan.warnings).unwrap_or_default(),
        });
    }
    let line = |shown: &Shown| {
        let warnings = shown.warnings.iter().map(|warning| format!("\n  warning: {warning}"));
        let command: Vec<String> = shown.command.iter().map(|arg| shell_word(arg)).collect();
        let warnings: String = warnings.collect();
        let what = shown
            .quantized
            .map_or("skipped".to_owned(), |count| format!("{count} values quantized"));
        format!("{}\n  {what}{warnings}\n", command.join(" "))
    };
    console.result(|| text::json(&shown), || shown.iter().map(line).collect())
}
