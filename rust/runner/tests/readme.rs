//! The programme of the README runs.

mod example {
    include!("../examples/static_int8.rs");

    pub(super) fn run() {
        main().unwrap();
    }
}

#[test]
fn the_programme_of_the_readme_runs() {
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let digits = folder.path().join("examples/digits");
    std::fs::create_dir_all(&digits).unwrap();
    for name in ["digits_cnn.onnx", "calibration.npy"] {
        std::fs::copy(repository.join("examples/digits").join(name), digits.join(name)).unwrap();
    }
    std::env::set_current_dir(folder.path()).unwrap();
    example::run();
    assert!(folder.path().join("digits.int8.onnx").is_file());
}
