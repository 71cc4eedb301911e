//! A process that is killed while it saves: the old file or the new one is whole, and what is left
//! of the other is removed by the next save.
//!
//! `KILLS=200 cargo test -p quantize-rs-onnx --test killed` kills more often.
#![cfg(unix)]

mod encoding;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use quantize_rs_onnx::{Edit, Model, Tensor, TensorProto};

/// Elements of the one tensor: a file of 2 MB takes longer to write than to rename.
const ELEMENTS: usize = 500_000;

/// The folder in which the child saves.
const FOLDER: &str = "QUANTIZE_RS_KILLED_IN";

fn with_tensor(value: f32) -> Model {
    let mut model = Model::from_bytes(encoding::model(8, &encoding::graph(&[]), &[])).unwrap();
    let tensor = Tensor::from_f32(vec![ELEMENTS], &vec![value; ELEMENTS]);
    model.apply(vec![Edit::AddInitializer(TensorProto::new("w", &tensor))]).unwrap();
    model
}

/// Saves a model in a few ways in turn: with external data and without, over the one before.
fn save(path: &Path, round: u16) {
    let limit = if round.is_multiple_of(3) { u64::MAX } else { 0 };
    with_tensor(f32::from(round)).save_within(path, limit).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Asserts that the model is one of those that were saved.
fn assert_whole(path: &Path) {
    let model = Model::open(path).unwrap();
    let values = model.tensor(&model.graph().initializer[0]).unwrap().to_f32().unwrap();
    assert_eq!(values.len(), ELEMENTS);
    assert!(values.iter().all(|value| *value == values[0]), "parts of two models");
}

#[test]
#[ignore = "the process that the other test kills"]
fn saves_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = PathBuf::from(folder).join("model.onnx");
    println!("ready");
    for round in (0..u16::MAX).cycle() {
        save(&path, round);
    }
}

#[test]
fn a_killed_save_leaves_a_whole_model_and_nothing_that_stays() {
    let kills: u64 = std::env::var("KILLS").map_or(20, |kills| kills.parse().unwrap());
    let mut found = BTreeMap::<String, u64>::new();
    for number in 0..kills {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        save(&path, 1);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "saves_until_it_is_killed", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")), "the child saves");
        // The same moments each time, spread evenly over 100 ms.
        std::thread::sleep(Duration::from_micros(number * 61_803 % 100_000));
        child.kill().unwrap();
        child.wait().unwrap();

        assert_whole(&path);
        let hidden = |name: &&String| name.starts_with(".quantize-rs-");
        let left = names(folder.path()).iter().filter(hidden).count();
        *found.entry(format!("{left} hidden files")).or_default() += 1;
        save(&path, 1);
        assert_whole(&path);
        let names = names(folder.path());
        assert!(
            names.len() == 2 && names.iter().all(|name| name.starts_with("model")),
            "{names:?}"
        );
    }
    println!("{kills} kills: {found:?}");
}

#[test]
fn data_of_a_killed_save_is_removed_and_data_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The data of `model.onnx` is complete, and the model was not replaced.
    save(&at("model.onnx"), 1);
    fs::write(at("model.onnx.1.data"), b"new").unwrap();
    fs::hard_link(at("model.onnx.1.data"), at(".quantize-rs-new.tmp")).unwrap();
    // The former data of `other.onnx` was not removed, or is still in use.
    save(&at("other.onnx"), 1);
    fs::hard_link(at("other.onnx.data"), at(".quantize-rs-old.tmp")).unwrap();
    // What has the name of data, but not of a killed save.
    fs::write(at("model.onnx.2.data"), b"mine").unwrap();
    fs::write(at("notes"), b"mine").unwrap();
    fs::hard_link(at("notes"), at(".quantize-rs-notes.tmp")).unwrap();
    // A file that a living process writes.
    let living = File::create(at(".quantize-rs-living.tmp")).unwrap();
    living.lock().unwrap();

    save(&at("third.onnx"), 0);
    let expected = [
        ".quantize-rs-living.tmp",
        "model.onnx",
        "model.onnx.2.data",
        "model.onnx.data",
        "notes",
        "other.onnx",
        "other.onnx.data",
        "third.onnx",
    ];
    assert_eq!(names(folder.path()), expected);
    for name in ["model.onnx", "other.onnx"] {
        assert_whole(&at(name));
    }
}

#[test]
fn saves_to_one_path_at_once_leave_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::thread::scope(|scope| {
        for first in 0..4 {
            let path = &path;
            scope.spawn(move || (0..8).for_each(|round| save(path, first + round)));
        }
    });
    assert_whole(&path);
    save(&path, 1);
    assert_eq!(names(folder.path()).len(), 2, "{:?}", names(folder.path()));
}
