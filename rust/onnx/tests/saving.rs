//! Saving resolves links, writes external data under a new name, and refuses pipes.

mod encoding;

use std::cell::Cell;
use std::path::Path;

use quantize_rs_onnx::{Edit, ErrorKind, ExternalDataSplit, Model, Tensor, TensorProto, stop_when};

/// A model with one tensor that is large enough to become external.
fn with_large(value: f32) -> Model {
    let mut model = Model::from_bytes(encoding::model(8, &encoding::graph(&[]), &[])).unwrap();
    let tensor = Tensor::from_f32(vec![512], &[value; 512]);
    model.apply(vec![Edit::AddInitializer(TensorProto::new("large", &tensor))]).unwrap();
    model
}

fn large_of(path: &Path) -> f32 {
    let model = Model::open(path).unwrap();
    model.tensor(&model.graph().initializer[0]).unwrap().to_f32().unwrap()[0]
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_model_and_its_data_are_replaced_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for (value, data) in
        [(1.0, "model.onnx.data"), (2.0, "model.onnx.1.data"), (3.0, "model.onnx.data")]
    {
        let saved = with_large(value).save_within(&path, 0).unwrap();
        assert_eq!(saved.data.as_deref(), Some(&*folder.path().join(data)));
        assert_eq!(large_of(&path), value);
        assert_eq!(names(folder.path()), ["model.onnx", data]);
    }
    // This overwrites the files that the model is mapped from.
    let opened = Model::open(&path).unwrap();
    opened.save_within(&path, 0).unwrap();
    opened.save_within(&path, 0).unwrap();
    assert_eq!(large_of(&path), 3.0);
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn data_that_another_model_reads_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    with_large(1.0).save_within(at("model.onnx"), 0).unwrap();
    std::fs::copy(at("model.onnx"), at("edited.onnx")).unwrap();
    with_large(2.0).save_within(at("model.onnx"), 0).unwrap();
    assert_eq!((large_of(&at("model.onnx")), large_of(&at("edited.onnx"))), (2.0, 1.0));
    assert_eq!(
        names(folder.path()),
        ["edited.onnx", "model.onnx", "model.onnx.1.data", "model.onnx.data"]
    );
    // Data inside the new file needs no other.
    std::fs::remove_file(at("edited.onnx")).unwrap();
    with_large(3.0).save_within(at("model.onnx"), u64::MAX).unwrap();
    assert_eq!(names(folder.path()), ["model.onnx", "model.onnx.data"]);
}

#[test]
fn data_of_a_given_name_is_replaced_unless_another_model_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    with_large(0.0).save_within(at("model.onnx"), 0).unwrap();
    for value in [1.0, 2.0] {
        let saved = with_large(value).save_with_data(at("model.onnx"), 0, "_data").unwrap();
        assert_eq!(saved.data, Some(at("model.onnx_data")));
        assert_eq!(large_of(&at("model.onnx")), value);
        assert_eq!(names(folder.path()), ["model.onnx", "model.onnx_data"]);
    }
    // The model reads the file itself.
    let opened = Model::open(at("model.onnx")).unwrap();
    opened.tensor(&opened.graph().initializer[0]).unwrap();
    let error = opened.save_with_data(at("model.onnx"), 0, "_data").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OwnData);
    std::fs::copy(at("model.onnx"), at("edited.onnx")).unwrap();
    let error = with_large(3.0).save_with_data(at("model.onnx"), 0, "_data").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DataInUse);
    assert_eq!(large_of(&at("edited.onnx")), 2.0);
    // A small model needs none.
    let saved = with_large(4.0).save_with_data(at("small.onnx"), u64::MAX, "_data").unwrap();
    assert_eq!((saved.data, large_of(&at("small.onnx"))), (None, 4.0));
}

#[test]
fn a_save_that_is_stopped_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for limit in [0, u64::MAX] {
        with_large(1.0).save_within(&path, limit).unwrap();
        let before = names(folder.path());
        let mut stopped = 0;
        // At each question but those after the file is in place, which it is not asked.
        for allowed in 0.. {
            let asked = Cell::new(0);
            let stop = move || asked.replace(asked.get() + 1) >= allowed;
            match stop_when(stop, || with_large(2.0).save_within(&path, limit)) {
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(*error.kind(), ErrorKind::Stopped);
                    assert!(error.path().unwrap().starts_with(folder.path()), "{error:?}");
                    assert_eq!((large_of(&path), names(folder.path())), (1.0, before.clone()));
                    stopped += 1;
                }
            }
        }
        assert!(stopped > 3, "{stopped}");
        assert_eq!(large_of(&path), 2.0);
        // A call within another one asks both.
        let nested = || stop_when(|| false, || with_large(3.0).save_within(&path, limit));
        assert_eq!(*stop_when(|| true, nested).unwrap_err().kind(), ErrorKind::Stopped);
        // Work after it is not stopped.
        with_large(3.0).save(&path).unwrap();
    }
}

#[test]
fn initializers_can_be_split_off_as_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let external = encoding::bytes(5, &[&encoding::external("far")]);
    let near = encoding::bytes(5, &[&encoding::tensor("near")]);
    let model = encoding::model(8, &encoding::graph(&[&external, &near]), &[]);
    let model = Model::open(encoding::write_beside_weights(folder.path(), &model)).unwrap();

    let ExternalDataSplit { bytes, tensors } = model.split(|_| true).unwrap();
    assert_eq!(tensors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["far", "near"]);
    assert!(tensors.iter().all(|(_, tensor)| tensor.data[..] == encoding::WEIGHTS));
    for file in [&b"location\x12\x010"[..], b"location\x12\x011"] {
        assert!(bytes.windows(file.len()).any(|found| found == file), "{file:?}");
    }
    assert!(Model::from_bytes(bytes).is_err(), "the file it speaks of does not exist");

    let ExternalDataSplit { bytes, tensors } = model.split(|_| false).unwrap();
    assert!(tensors.is_empty());
    assert_eq!(bytes, model.to_bytes().unwrap());
}

#[test]
fn other_files_in_the_folder_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let named = encoding::external_in("v", "model.onnx.+7.data");
    let weights = [encoding::external("w"), named].map(|tensor| encoding::bytes(5, &[&tensor]));
    let weights = weights.concat();
    let old = encoding::model(8, &encoding::graph(&[&weights]), &[]);
    encoding::write_beside_weights(folder.path(), &old);
    for other in ["model.onnx.data", "model.onnx.1.data", "model.onnx.+7.data"] {
        std::fs::write(folder.path().join(other), b"mine").unwrap();
    }
    let saved = with_large(1.0).save_within(&path, 0).unwrap();
    assert_eq!(saved.data.as_deref(), Some(&*folder.path().join("model.onnx.2.data")));
    for other in ["model.onnx.data", "model.onnx.1.data", "model.onnx.+7.data"] {
        assert_eq!(std::fs::read(folder.path().join(other)).unwrap(), b"mine");
    }
    assert_eq!(std::fs::read(folder.path().join("weights.bin")).unwrap(), encoding::WEIGHTS);
    // A file that is not a model has no external data, and may be replaced like any other.
    std::fs::write(&path, b"not a model").unwrap();
    with_large(2.0).save_within(&path, 0).unwrap();
    assert!(folder.path().join("model.onnx.2.data").exists());
}

#[test]
fn the_data_of_the_model_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    with_large(1.0).save_within(at("model.onnx"), 0).unwrap();
    let before = std::fs::read(at("model.onnx.data")).unwrap();
    let model = Model::open(at("model.onnx")).unwrap();
    for limit in [0, u64::MAX] {
        for path in [at("model.onnx.data"), at("./model.onnx.data")] {
            let error = model.save_within(&path, limit).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::OwnData, "{error}");
            assert_eq!(error.path(), Some(&*path));
        }
    }
    assert_eq!(std::fs::read(at("model.onnx.data")).unwrap(), before);
    assert_eq!(names(folder.path()), ["model.onnx", "model.onnx.data"]);
    // The data of another model is a file like any other.
    with_large(2.0).save(at("model.onnx.data")).unwrap();
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn data_that_cannot_be_external_must_fit_in_the_model() {
    // A doc_string of 2 GiB, as a sparse file that takes no disk space.
    let begin = encoding::model(8, &encoding::graph(&[]), &[]);
    let doc_string = 1usize << 31;
    let begin = [begin, encoding::head(6, doc_string)].concat();
    let mut bytes = vec![0u8; begin.len() + doc_string];
    bytes[..begin.len()].copy_from_slice(&begin);
    let model = Model::from_bytes(bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for limit in [0, u64::MAX] {
        let error = model.save_within(folder.path().join("model.onnx"), limit).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
        assert!(names(folder.path()).is_empty());
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_chain_of_links_is_followed_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("t")).unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("l2", at("l1")).unwrap();
        symlink("t/real.onnx", at("l2")).unwrap();
        for _ in 0..2 {
            with_large(1.0).save(at("l1")).unwrap();
            assert!(std::fs::symlink_metadata(at("l1")).unwrap().is_symlink());
            assert!(std::fs::symlink_metadata(at("l2")).unwrap().is_symlink());
            assert_eq!(names(&at("t")), ["real.onnx"]);
        }
        symlink("round", at("round")).unwrap();
        assert!(with_large(1.0).save(at("round")).unwrap_err().io_error().is_some());
    }

    #[test]
    fn external_data_has_the_mode_of_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let data = with_large(1.0).save_within(&path, 0).unwrap().data.unwrap();
        assert_eq!(std::fs::metadata(data).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let external = encoding::bytes(5, &[&encoding::external("w")]);
        let model = encoding::model(8, &encoding::graph(&[&external]), &[]);
        let path = encoding::write_beside_weights(folder.path(), &model);
        let pipe = folder.path().join("weights.bin");
        std::fs::remove_file(&pipe).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe, path] {
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(Model::open(path).map(|_| ())));
            let opened = receiver.recv_timeout(std::time::Duration::from_secs(10));
            let error = opened.expect("it waits for a writer").unwrap_err();
            assert!(error.to_string().contains("pipe"), "{error}");
        }
    }
}

#[cfg(unix)]
#[test]
fn data_that_a_renamed_model_reads_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    with_large(1.0).save_within(at("model.onnx"), 0).unwrap();
    let mut before = "model.onnx";
    for name in ["model.onnx", "renamed.onnx", "renamed.bak"] {
        std::fs::rename(at(before), at(name)).unwrap();
        before = name;
        // What a process that is killed while it replaces the model leaves.
        std::fs::hard_link(at("model.onnx.data"), at(".quantize-rs-old.tmp")).unwrap();
        with_large(2.0).save(at("another.onnx")).unwrap();
        std::fs::remove_file(at("another.onnx")).unwrap();
        let mut both = ["model.onnx.data", name];
        both.sort_unstable();
        assert_eq!(names(folder.path()), both);
        assert_eq!(large_of(&at(name)), 1.0);
    }
    // Without a model that reads it, the data is a leftover, too.
    std::fs::remove_file(at("renamed.bak")).unwrap();
    std::fs::hard_link(at("model.onnx.data"), at(".quantize-rs-old.tmp")).unwrap();
    with_large(2.0).save(at("another.onnx")).unwrap();
    assert_eq!(names(folder.path()), ["another.onnx"]);
}
