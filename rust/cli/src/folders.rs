//! Folders that are made for what is to be written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, said};

/// Folders that were made. Those that nothing was written to go again with this.
#[derive(Default)]
pub(crate) struct Made {
    /// Each after those it lies in.
    folders: Vec<PathBuf>,
}

impl Made {
    /// Makes a folder, and those it lies in, unless it is there.
    pub(crate) fn make(&mut self, folder: &Path) -> Result<(), Failure> {
        let ours: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        // The last ancestor of a relative path is no name.
        let ours = ours.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty());
        self.folders.extend(ours.map(Path::to_path_buf));
        fs::create_dir_all(folder).map_err(|error| {
            Failure::Refused(format!("cannot write to `{}`: {}", folder.display(), said(&error)))
        })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for folder in self.folders.iter().rev() {
            // What holds something cannot be removed so, and stays.
            let _ = fs::remove_dir(folder);
        }
    }
}
