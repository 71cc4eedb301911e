//! Model files that another program changes while they are open.

mod encoding;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use quantize_rs_onnx::{DataType, Edit, ErrorKind, Model, Tensor, TensorProto};

/// Files of this size are mapped.
const MAPPED: usize = 65 << 20;
/// Files of this size are read.
const READ: usize = 2 << 20;

/// The ways to save a model: whole, and with its weights beside it.
const LIMITS: [u64; 2] = [u64::MAX, 0];

fn with_elements(value: u8, elements: usize) -> Model {
    let mut model = Model::from_bytes(encoding::model(8, &encoding::graph(&[]), &[])).unwrap();
    let data = vec![value; elements].into();
    let tensor = Tensor { dtype: DataType::UInt8, shape: vec![elements], data };
    model.apply(vec![Edit::AddInitializer(TensorProto::new("w", &tensor))]).unwrap();
    model
}

/// A model of `elements` bytes in a folder, and the file that they are in.
fn opened(folder: &Path, elements: usize, limit: u64) -> (Model, PathBuf) {
    let path = folder.join("model.onnx");
    let saved = with_elements(7, elements).save_within(&path, limit).unwrap();
    (Model::open(&path).unwrap(), saved.data.unwrap_or(path))
}

/// The elements are all `value`, here and in what is saved.
fn assert_works(model: &Model, folder: &Path, value: u8) {
    let all = |model: &Model| {
        let tensor = model.tensor(&model.graph().initializer[0]).unwrap();
        tensor.data.iter().all(|element| *element == value)
    };
    assert!(all(model));
    model.unchanged().unwrap();
    model.save(folder.join("other.onnx")).unwrap();
    assert!(all(&Model::open(folder.join("other.onnx")).unwrap()));
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
    for limit in LIMITS {
        for change in changes() {
            let folder = tempfile::tempdir().unwrap();
            let (model, file) = opened(folder.path(), MAPPED, limit);
            change(&file);
            assert_refused(&model, folder.path(), &file);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_shrinks_while_it_is_saved_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = opened(folder.path(), MAPPED, u64::MAX);
    // Only the system reads the elements here, not this process.
    changes()[0](&file);
    let error = model.save(folder.path().join("other.onnx")).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn a_file_that_was_read_may_change() {
    for limit in LIMITS {
        for change in changes() {
            let folder = tempfile::tempdir().unwrap();
            let (model, file) = opened(folder.path(), READ, limit);
            change(&file);
            assert_works(&model, folder.path(), 7);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_or_removed_stays_open() {
    for limit in LIMITS {
        let folder = tempfile::tempdir().unwrap();
        let (model, file) = opened(folder.path(), MAPPED, limit);
        fs::write(folder.path().join("new"), b"new").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert_works(&model, folder.path(), 7);
        fs::remove_file(&file).unwrap();
        assert_works(&model, folder.path(), 7);
    }
}

#[cfg(unix)]
#[test]
fn one_model_is_refused_and_another_is_not() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (changed, file) = opened(one.path(), MAPPED, u64::MAX);
    let (other, _) = opened(two.path(), MAPPED, u64::MAX);
    changes()[1](&file);
    assert_refused(&changed, one.path(), &file);
    assert_works(&other, two.path(), 7);
    drop((changed, other));
    let (again, _) = opened(one.path(), MAPPED, u64::MAX);
    assert_works(&again, one.path(), 7);
}
