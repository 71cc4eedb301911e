//! Properties of all fixtures: unedited parts are written back byte for byte.

use std::path::{Path, PathBuf};

use quantize_rs_onnx::{DataType, Edit, Model, Tensor, TensorProto};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixtures() -> Vec<PathBuf> {
    let folder = repository().join("tests/fixtures/models");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .collect();
    paths.sort();
    assert!(paths.len() > 100, "the fixtures are made by tests/fixtures/make.py");
    paths
}

fn has_external_data(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "external_data")
}

#[test]
fn an_unedited_model_round_trips_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    for path in fixtures() {
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        if has_external_data(&path) {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(model.to_bytes().unwrap(), bytes, "{}", path.display());
        let copy = folder.path().join("copy.onnx");
        let saved = model.save(&copy).unwrap();
        assert_eq!(saved.bytes, bytes.len() as u64);
        assert_eq!(std::fs::read(&copy).unwrap(), bytes, "{}", path.display());
        assert_eq!(model.byte_len(), bytes.len() as u64);
    }
}

/// Adds an initializer to every fixture and removes it again: the graph is encoded again, and every
/// node and tensor in it must be unchanged.
#[test]
fn unedited_messages_stay_byte_for_byte() {
    for path in fixtures() {
        let before = Model::open(&path).unwrap();
        let mut after = before.clone();
        let tensor = Tensor::from_f32(vec![1], &[1.0]);
        after
            .apply(vec![Edit::AddInitializer(TensorProto::new("added_by_test", &tensor))])
            .unwrap();
        after.apply(vec![Edit::RemoveInitializer("added_by_test".to_owned())]).unwrap();
        let again = Model::from_bytes(after.to_bytes().unwrap()).unwrap();
        let nodes = |model: &Model| {
            let mut nodes: Vec<Vec<u8>> =
                model.graph().node.iter().map(quantize_rs_onnx::Raw::to_bytes).collect();
            nodes.sort();
            nodes
        };
        assert_eq!(nodes(&before), nodes(&again), "{}", path.display());
        let tensors = |model: &Model| {
            model
                .graph()
                .initializer
                .iter()
                .map(quantize_rs_onnx::Raw::to_bytes)
                .collect::<Vec<_>>()
        };
        if !has_external_data(&path) {
            assert_eq!(tensors(&before), tensors(&again), "{}", path.display());
        }
    }
}

#[test]
fn nodes_are_sorted_topologically() {
    let mut model =
        Model::open(repository().join("tests/fixtures/models/nodes_out_of_order.onnx")).unwrap();
    model.apply(vec![]).unwrap();
    let mut made: Vec<&str> = model.graph().input.iter().map(|input| input.name.as_str()).collect();
    made.extend(model.graph().initializer.iter().map(|tensor| tensor.name.as_str()));
    for node in &model.graph().node {
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            assert!(made.contains(&input.as_str()), "{input} is consumed before it is produced");
        }
        made.extend(node.output.iter().map(String::as_str));
    }
}

#[test]
fn external_data_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(repository().join("tests/fixtures/models/external_data.onnx")).unwrap();
    let inline = folder.path().join("inline.onnx");
    assert_eq!(model.save(&inline).unwrap().data, None);
    let inline = Model::open(&inline).unwrap();
    let beside = folder.path().join("beside.onnx");
    let saved = inline.save_within(&beside, 0).unwrap();
    assert_eq!(saved.data.as_deref(), Some(&*folder.path().join("beside.onnx.data")));
    let beside = Model::open(&beside).unwrap();
    assert_eq!(beside.byte_len(), saved.bytes);
    for ((a, b), c) in model
        .graph()
        .initializer
        .iter()
        .zip(&inline.graph().initializer)
        .zip(&beside.graph().initializer)
    {
        let tensor = model.tensor(a).unwrap();
        assert_eq!(inline.tensor(b).unwrap(), tensor);
        assert_eq!(beside.tensor(c).unwrap(), tensor);
    }
    assert!(Model::from_bytes(std::fs::read(folder.path().join("beside.onnx")).unwrap()).is_err());
}

#[test]
fn typed_fields_and_raw_data_have_the_same_elements() {
    let model =
        Model::open(repository().join("tests/fixtures/models/typed_data_fields.onnx")).unwrap();
    for tensor in &model.graph().initializer {
        let found = model.tensor(tensor).unwrap();
        assert_eq!(found.data.len(), found.dtype.byte_len(found.elements()).unwrap());
        if found.dtype == DataType::Float {
            assert!(found.to_f32().unwrap().iter().all(|value| value.is_finite()));
        }
    }
}

#[cfg(unix)]
mod saving {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn model() -> Model {
        Model::open(repository().join("tests/fixtures/models/conv2d_relu.onnx")).unwrap()
    }

    fn entries(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn the_mode_of_an_existing_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        model().save(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link.onnx"), folder.path().join("target.onnx"));
        symlink(&target, &link).unwrap();
        for _ in 0..2 {
            model().save(&link).unwrap();
            assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
            assert!(std::fs::metadata(&target).unwrap().is_file());
        }
        assert_eq!(entries(folder.path()), 2);
    }

    #[test]
    fn directories_and_devices_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            [folder.path().to_owned(), folder.path().join("new/"), folder.path().join("new/.")]
        {
            assert!(model().save(path).unwrap_err().to_string().contains("is a directory"));
        }
        assert!(model().save("/dev/null").unwrap_err().to_string().contains("device"));
        assert!(
            model()
                .save(folder.path().join("missing/model.onnx"))
                .unwrap_err()
                .io_error()
                .is_some()
        );
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn a_model_can_be_written_over_the_file_it_is_read_from() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        // Large enough to be memory-mapped.
        let mut large = model();
        let tensor = Tensor::from_f32(vec![1 << 19], &vec![1.5; 1 << 19]);
        large.apply(vec![Edit::AddInitializer(TensorProto::new("large", &tensor))]).unwrap();
        large.save(&path).unwrap();
        let mapped = Model::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        mapped.save(&path).unwrap();
        mapped.save(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(entries(folder.path()), 1);
    }
}

/// Damaged files are refused or read, without a panic; models that were read can be written.
#[test]
fn damaged_models_do_not_panic() {
    // A linear congruential generator: every run of the test damages the same bytes.
    let mut state = 7u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below.max(1)
    };
    for path in fixtures() {
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..40 {
            let mut damaged = bytes.clone();
            for _ in 0..=random(4) {
                let at = random(damaged.len());
                damaged[at] = u8::try_from(random(256)).unwrap();
            }
            damaged.truncate(damaged.len() - random(2) * random(damaged.len()));
            if let Ok(model) = Model::from_bytes(damaged.clone()) {
                assert_eq!(model.to_bytes().unwrap(), damaged);
            }
        }
    }
}
