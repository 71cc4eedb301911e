//! `completions` and `man`: shell completion scripts and manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args;
use crate::console::Console;
use crate::failure::{Failure, said};
use crate::output_path;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArguments {
    /// The shell
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The command, such as `ranges merge` [default: the page of all]
    command: Vec<String>,
    /// Write the pages of all commands to this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(
    args: &CompletionArguments,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (mut command, mut script) = (args::command(), Vec::new());
    clap_complete::generate(args.shell, &mut command, "quantize-rs", &mut script);
    console.verbatim(&script)
}

pub(crate) fn man(args: &ManArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if let Some(folder) = &args.dir {
        return pages(folder);
    }
    let mut command = whole();
    for name in &args.command {
        let known = command.get_subcommands().map(|sub| sub.get_name().to_owned());
        let known: Vec<String> = known.collect();
        let Some(sub) = command.find_subcommand(name) else {
            let message =
                format!("there is no command `{name}`, expected one of {}", known.join(", "));
            return Err(Failure::Misuse(message));
        };
        command = sub.clone();
    }
    console.verbatim(&page(command)?)
}

/// Writes a page for each command.
fn pages(folder: &Path) -> Result<(), Failure> {
    let refused = |error: &std::io::Error| {
        Failure::Refused(format!("cannot write `{}`: {}", folder.display(), said(error)))
    };
    std::fs::create_dir_all(folder).map_err(|error| refused(&error))?;
    let mut waiting = vec![whole()];
    while let Some(command) = waiting.pop() {
        waiting.extend(command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let page = String::from_utf8_lossy(&page(command)?).into_owned();
        output_path::write(&folder.join(format!("{name}.1")), &page)?;
    }
    Ok(())
}

/// The command with derived properties, such as the displayed names of its subcommands.
fn whole() -> Command {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    command
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
