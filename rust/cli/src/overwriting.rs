//! Rejects a command line that would write over a file which it also names for something else.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use crate::failure::Failure;
use crate::output_path;

/// The arguments of files that are written beside the result.
const WRITTEN: [&str; 4] = ["html", "ranges_out", "save_recipe", "trace"];

/// The arguments of files that the result may replace, or of folders that it may be in.
const REPLACED: [&str; 3] = ["model", "models", "files"];

/// Whether a file of this argument is written beside the result.
pub(crate) fn is_written(id: &str) -> bool {
    WRITTEN.contains(&id)
}

/// A path on the command line, with the name of its argument.
pub(crate) type Named = (String, PathBuf);

/// The paths on the command line of a command.
pub(crate) fn paths(mut matches: &ArgMatches) -> Vec<Named> {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    let of = |id: &clap::Id| -> Vec<Named> {
        // Arguments of other types are no paths.
        let found = matches.try_get_many::<PathBuf>(id.as_str()).ok().flatten();
        found.into_iter().flatten().map(|path| (id.as_str().to_owned(), path.clone())).collect()
    };
    matches.ids().flat_map(of).collect()
}

/// Rejects a file that would be written over another of `paths`.
pub(crate) fn check(paths: &[Named]) -> Result<(), Failure> {
    for (at, (id, path)) in paths.iter().enumerate() {
        let written = WRITTEN.contains(&&**id);
        if !written && id != "output" {
            continue;
        }
        let flag = format!("--{}", id.replace('_', "-"));
        let kept = |other: &str| written || ![&WRITTEN[..], &REPLACED].concat().contains(&other);
        let others = paths.iter().enumerate().filter(|(other, (id, _))| *other != at && kept(id));
        let others: Vec<&Path> = others.map(|(_, (_, path))| path.as_path()).collect();
        output_path::check_apart(&flag, path, &others)?;
        if written {
            output_path::check_no_model(&flag, path)?;
        }
    }
    Ok(())
}
