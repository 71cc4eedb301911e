//! Lists images: those in a folder, or those that match a pattern.

use std::fs;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;
use quantize_rs::{CalibrationError, CalibrationErrorKind};

use crate::samples::{data, io_error};

/// Extensions of supported images, in lower case and without the dot.
pub const IMAGE_EXTENSIONS: &[&str] = &["jpg", "jpeg", "png"];

/// The characters that make a path a pattern, unless a file has exactly that name.
const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// Whether `path` is that of images: a folder, an image, or a pattern.
pub fn is_image_path(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(metadata) => metadata.is_dir() || is_image(path),
        Err(_) => path.to_string_lossy().contains(WILDCARDS),
    }
}

/// The files that match a pattern such as `models/*.onnx`, sorted. A path that is not a pattern, or
/// that exists under exactly that name, is returned as it is. Hidden files are left out.
///
/// # Errors
/// The pattern is not valid.
pub fn matching_files(path: &Path) -> Result<Vec<PathBuf>, CalibrationError> {
    if fs::metadata(path).is_ok() || !path.to_string_lossy().contains(WILDCARDS) {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = by_pattern(path)?;
    found.sort();
    Ok(found)
}

/// The images at `path`, sorted by path. Hidden files are left out.
pub(super) fn listed(path: &Path) -> Result<Vec<PathBuf>, CalibrationError> {
    let found = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => in_folder(path)?,
        Ok(_) => vec![path.to_path_buf()],
        Err(_) if path.to_string_lossy().contains(WILDCARDS) => by_pattern(path)?,
        Err(error) => return Err(io_error(path, error)),
    };
    let mut images: Vec<PathBuf> = found.into_iter().filter(|path| is_image(path)).collect();
    if images.is_empty() {
        let known: Vec<String> = IMAGE_EXTENSIONS.iter().map(|known| format!(".{known}")).collect();
        return Err(none(&format!("there is no {}", known.join(", ")), path));
    }
    images.sort();
    Ok(images)
}

/// The error when there are no images at `path`.
pub(super) fn none(why: &str, path: &Path) -> CalibrationError {
    let kind = CalibrationErrorKind::NoSamples { reason: why.to_owned() };
    CalibrationError::new(kind).at_value(path.to_string_lossy())
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    extension.is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str()))
}

/// The files in a folder, without those in its subfolders.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, CalibrationError> {
    let entries = entries(folder)?;
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.into_iter().partition(|path| path.is_dir());
    if !files.iter().any(|path| is_image(path)) && !folders.is_empty() {
        let all = folder.join("**");
        let why =
            format!("it has folders and no images, `{}` includes all subfolders", all.display());
        return Err(none(&why, folder));
    }
    Ok(files)
}

/// The entries of a folder that are not hidden, in no order.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, CalibrationError> {
    let entries = fs::read_dir(folder).map_err(|error| io_error(folder, error))?;
    let paths = entries.map(|entry| entry.map(|entry| folder.join(entry.file_name())));
    let hidden = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    };
    paths
        .filter(|path| !path.as_ref().is_ok_and(hidden))
        .collect::<Result<_, _>>()
        .map_err(|error| io_error(folder, error))
}

/// The files that match a pattern. Folders that exist under exactly the name of a part are taken
/// for it. `**` does not follow links to folders, which may be circular.
fn by_pattern(path: &Path) -> Result<Vec<PathBuf>, CalibrationError> {
    let wild = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(WILDCARDS);
    let mut root = PathBuf::new();
    let mut rest = path.components().skip_while(|part| *part == Component::CurDir).peekable();
    while let Some(part) = rest.next_if(|part| !wild(part) || root.join(part).is_dir()) {
        root.push(part);
    }
    let rest: PathBuf = rest.collect();
    let pattern = rest.to_string_lossy();
    let matcher = GlobBuilder::new(&pattern).literal_separator(true).build().map_err(|error| {
        data(format!("is not a valid pattern of paths: {error}"))
            .at_value(path.to_string_lossy())
            .caused_by(error)
    })?;
    let matcher = matcher.compile_matcher();
    let deep = pattern.contains("**");
    let depth = if deep { usize::MAX } else { rest.components().count() };
    let (mut found, mut folders) = (Vec::new(), vec![(root.clone(), 1)]);
    while let Some((folder, level)) = folders.pop() {
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let Ok(entries) = entries(here) else {
            continue; // nothing that can be read fits the pattern
        };
        for entry in entries {
            let entry = entry.strip_prefix(".").map(Path::to_path_buf).unwrap_or(entry);
            if entry.is_dir() {
                if level < depth && !(deep && entry.is_symlink()) {
                    folders.push((entry, level + 1));
                }
            } else if matcher.is_match(entry.strip_prefix(&root).unwrap_or(&entry)) {
                found.push(entry);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_may_begin_with_the_working_folder() {
        // The tests run in the folder of the crate.
        let expected = [Path::new("src/lib.rs")];
        for pattern in ["src/l?b.rs", "./src/l?b.rs", "./s*c/lib.rs", "././sr[c]/lib.rs"] {
            assert_eq!(by_pattern(Path::new(pattern)).expect(pattern), expected, "{pattern}");
        }
        assert_eq!(by_pattern(Path::new("./Cargo.tom?")).expect("one"), [Path::new("Cargo.toml")]);
    }
}
