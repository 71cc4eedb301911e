//! Checks and writes output files, and creates folders for them.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quantize_rs::{Model, QuantizeErrorKind, Quantized, Ranges, Report};
use quantize_rs_onnx::write_file;

use crate::failure::{Failure, said};
use crate::interrupt;

/// Rejects a path that cannot be written, before any work is done.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") {
        let what = "files are not written to standard output: `./-` is a file of that name";
        return Err(Failure::Misuse(what.to_owned()));
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(metadata) if metadata.is_dir() => Err(refused(path, "is a directory, expected a file")),
        Ok(_) => Err(refused(path, "is a device, socket or pipe, expected a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::metadata(folder(path)) {
            Ok(metadata) if metadata.is_dir() => Ok(()),
            _ => Err(refused(path, &format!("there is no directory `{}`", folder(path).display()))),
        },
        Err(error) => Err(refused(path, &said(&error))),
    }
}

/// Rejects a `path` that is one of `others`, which would be overwritten.
pub(crate) fn check_apart(flag: &str, path: &Path, others: &[&Path]) -> Result<(), Failure> {
    match others.iter().find(|other| place(other) == place(path)) {
        None => Ok(()),
        Some(other) => {
            let message =
                format!("{flag} would overwrite `{}`: name another file", other.display());
            Err(Failure::Misuse(message))
        }
    }
}

/// Rejects a model that a file of another kind would overwrite by mistake.
pub(crate) fn check_no_model(flag: &str, path: &Path) -> Result<(), Failure> {
    let is_onnx = |extension: &OsStr| extension.eq_ignore_ascii_case("onnx");
    if !path.extension().is_some_and(is_onnx) || !path.exists() {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::Misuse(format!("{flag} would overwrite the model `{path}`: name another file")))
}

/// Rejects a `path` that is external data of one of `models`.
pub(crate) fn check_data(flag: &str, path: &Path, models: &[&Model]) -> Result<(), Failure> {
    let path = place(path);
    match models.iter().find(|model| model.reads(&path)) {
        None => Ok(()),
        Some(model) => {
            let of = model.path().unwrap_or(Path::new("the model")).display();
            let message =
                format!("{flag} would overwrite external data of `{of}`: name another file");
            Err(Failure::Misuse(message))
        }
    }
}

/// Writes the model and completes its report.
pub(crate) fn save(quantized: &Quantized, path: &Path) -> Result<Report, Failure> {
    interrupt::finishing(|| {
        quantized
            .save(path)
            .map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })
}

/// Writes a text file atomically: programs that have the old file open or mapped keep its bytes.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    interrupt::finishing(|| {
        write_file(path, text.as_bytes()).map_err(|error| unwritten(path, &error))
    })
}

/// Writes ranges atomically.
pub(crate) fn write_ranges(path: &Path, ranges: &Ranges) -> Result<(), Failure> {
    interrupt::finishing(|| {
        ranges.save(path).map_err(|error| match error.kind() {
            QuantizeErrorKind::Model(error) => unwritten(path, error),
            _ => error.into(),
        })
    })
}

fn unwritten(path: &Path, error: &quantize_rs_onnx::Error) -> Failure {
    match error.io_error() {
        Some(cause) => refused(path, &said(cause)),
        None => refused(path, &error.kind().to_string()),
    }
}

/// The absolute path with links resolved, also of a file that does not exist yet.
pub(crate) fn place(path: &Path) -> PathBuf {
    let folder = || folder(path).canonicalize().ok().zip(path.file_name());
    path.canonicalize()
        .or_else(|_| folder().map(|(folder, name)| folder.join(name)).ok_or(()))
        .or_else(|()| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_path_buf())
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::Refused(format!("cannot write `{}`: {what}", path.display()))
}

/// Created folders. Those that are still empty are removed on drop.
#[derive(Default)]
pub(crate) struct Made {
    /// Each after its parent folders.
    folders: Vec<PathBuf>,
}

impl Made {
    /// Creates the folder of a file and its parents, unless they exist.
    pub(crate) fn make_for(&mut self, file: &Path) -> Result<(), Failure> {
        self.make(folder(file))
    }

    /// Creates a folder and its parents, unless they exist.
    pub(crate) fn make(&mut self, folder: &Path) -> Result<(), Failure> {
        let ours: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        // The last ancestor of a relative path is empty.
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
            // Removing a folder that is not empty fails, so it is kept.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_become_a_file_is_refused_beforehand() {
        let folder = tempfile::tempdir().expect("a directory");
        assert!(check(&folder.path().join("new.onnx")).is_ok());
        assert!(check(Path::new("new.onnx")).is_ok());
        let made = |path: &Path| Made::default().make_for(path);
        assert!(made(&folder.path().join("none/none/new.onnx")).is_ok());
        assert!(!folder.path().join("none").exists(), "removed again");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        for path in [file.join("new.onnx"), file.join("none/new.onnx")] {
            assert!(made(&path).is_err(), "{}", path.display());
        }
        let cases = [
            (folder.path().to_path_buf(), "is a directory"),
            (folder.path().join("none/new.onnx"), "there is no directory"),
            #[cfg(unix)]
            (PathBuf::from("/dev/null"), "is a device"),
        ];
        for (path, expected) in cases {
            let message = check(&path).expect_err(expected).message();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_file_is_replaced_in_one_step() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("ranges.json");
        write(&path, "one").expect("written");
        let mut old = fs::File::open(&path).expect("opened");
        write(&path, "two").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "two");
        assert_eq!(io::read_to_string(&mut old).expect("read"), "one");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1, "nothing is left behind");
    }

    #[test]
    #[cfg(unix)]
    fn a_file_keeps_its_mode_and_a_link_is_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a directory");
        let (path, link) = (folder.path().join("ranges.json"), folder.path().join("link"));
        write(&path, "one").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("a mode");
        symlink(&path, &link).expect("a link");
        write(&link, "two").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "two");
        assert!(link.is_symlink());
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn the_same_file_by_another_name_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("a");
        write(&path, "").expect("written");
        let other = folder.path().join(".").join("a");
        assert!(matches!(check_apart("-o", &other, &[&path]), Err(Failure::Misuse(_))));
        assert!(check_apart("-o", &folder.path().join("b"), &[&path]).is_ok());
    }
}
