//! Model files that another program changes while they are open.

mod encoding;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use quantize_rs_onnx::{ErrorKind, Model};

/// Files of this size are mapped.
const MAPPED: usize = 65 << 20;
/// Files of this size are read.
const READ: usize = 2 << 20;

/// A model of `elements` zeros in a sparse file, which takes no time to write, and the file that
/// the zeros are in: that of the model, or one beside it.
fn opened(folder: &Path, elements: usize, external: bool) -> (Model, PathBuf) {
    let path = folder.join("model.onnx");
    let uint8 = [encoding::int(1, elements as u64), encoding::int(2, 2), encoding::text(8, "w")];
    let tensor = if external {
        let location = [encoding::text(1, "location"), encoding::text(2, "weights.bin")].concat();
        [uint8.concat(), encoding::bytes(13, &[&location]), encoding::int(14, 1)].concat()
    } else {
        [uint8.concat(), encoding::head(9, elements)].concat()
    };
    let missing = if external { 0 } else { elements };
    let graph = [encoding::graph(&[]), encoding::head(5, tensor.len() + missing), tensor].concat();
    let opset = encoding::bytes(8, &[&encoding::int(2, 17)]);
    let begin = [encoding::int(1, 8), opset, encoding::head(7, graph.len() + missing), graph];
    fs::write(&path, begin.concat()).unwrap();
    let data = if external { folder.join("weights.bin") } else { path.clone() };
    let file = OpenOptions::new().create(true).append(true).open(&data).unwrap();
    file.set_len(file.metadata().unwrap().len() + elements as u64).unwrap();
    (Model::open(&path).unwrap(), data)
}

/// The elements are all zeros, here and in what is written.
fn assert_works(model: &Model) {
    let written = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    for model in [model, &written] {
        let tensor = model.tensor(&model.graph().initializer[0]).unwrap();
        assert!(tensor.data.chunks(4096).all(|part| part == &[0; 4096][..part.len()]));
    }
    model.unchanged().unwrap();
}

fn assert_refused(model: &Model, folder: &Path, file: &Path) {
    // Reading does not end the process.
    let read = model.tensor(&model.graph().initializer[0]);
    let _ = read.map(|tensor| tensor.data.iter().map(|element| u64::from(*element)).sum::<u64>());
    let before = fs::read_dir(folder).unwrap().count();
    for outcome in [
        model.unchanged(),
        model.save(folder.join("other.onnx")).map(drop),
        model.save_within(folder.join("other.onnx"), 0).map(drop),
        model.to_bytes().map(drop),
        model.split(|_| true).map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
        assert_eq!(error.path(), Some(&*file.canonicalize().unwrap()));
        assert!(error.to_string().contains("open it again"), "{error}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), before, "nothing was written");
}

fn writable(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// Ways to change a file in place.
fn changes() -> [fn(&Path); 4] {
    [
        |path| writable(path).set_len(100).unwrap(),
        |path| writable(path).set_len(0).unwrap(),
        |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap(),
        |path| writable(path).write_all(b"other").unwrap(),
    ]
}

#[cfg(unix)]
#[test]
fn a_mapped_file_that_changes_is_refused() {
    for external in [false, true] {
        for change in changes() {
            let folder = tempfile::tempdir().unwrap();
            let (model, file) = opened(folder.path(), MAPPED, external);
            change(&file);
            assert_refused(&model, folder.path(), &file);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_shrinks_while_it_is_saved_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = opened(folder.path(), MAPPED, false);
    // Only the system reads the elements here, not this process.
    changes()[0](&file);
    let error = model.save(folder.path().join("other.onnx")).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn a_file_that_was_read_may_change() {
    for external in [false, true] {
        for change in changes() {
            let folder = tempfile::tempdir().unwrap();
            let (model, file) = opened(folder.path(), READ, external);
            change(&file);
            assert_works(&model);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_or_removed_stays_open() {
    for external in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (model, file) = opened(folder.path(), MAPPED, external);
        fs::write(folder.path().join("new"), b"new").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert_works(&model);
        fs::remove_file(&file).unwrap();
        assert_works(&model);
    }
}

#[cfg(unix)]
#[test]
fn one_model_is_refused_and_another_is_not() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (changed, file) = opened(one.path(), MAPPED, false);
    let (other, _) = opened(two.path(), MAPPED, false);
    changes()[1](&file);
    assert_refused(&changed, one.path(), &file);
    assert_works(&other);
    drop((changed, other));
    let (again, _) = opened(one.path(), MAPPED, false);
    assert_works(&again);
}
