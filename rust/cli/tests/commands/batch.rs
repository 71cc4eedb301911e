//! `batch`: several models at once.

use std::fs;

use crate::common::{DIGITS, FIXTURES, Folder, run};

fn fixture(name: &str) -> String {
    format!("{FIXTURES}/{name}.onnx")
}

#[test]
fn models_go_to_a_folder_under_names_that_tell_their_bits() {
    let folder = Folder::new();
    let (out, models) = (folder.path("new"), [fixture("gemm_plain"), fixture("conv2d_relu")]);
    let args = ["batch", &models[0], &models[1], "-o", &out, "-b4"];
    let text = run(&args);
    assert_eq!((text.code, text.err.as_str()), (0, ""), "{text:?}");
    assert!(text.out.contains("Model"), "{text:?}");
    assert!(text.out.ends_with("2 done, 0 skipped, 0 failed\n"), "{text:?}");
    for name in ["gemm_plain_int4.onnx", "conv2d_relu_int4.onnx"] {
        let alone = folder.path("alone.onnx");
        let model = fixture(name.trim_end_matches("_int4.onnx"));
        assert_eq!(run(&["quantize", &model, "-b4", "-o", &alone, "-q"]).code, 0);
        let made = fs::read(format!("{out}/{name}")).expect("made");
        assert_eq!(made, fs::read(&alone).expect("read"), "{name}");
    }
    let again = run(&[&args[..], &["--skip-existing", "--format", "json"]].concat()).json();
    assert_eq!((&again["skipped"], &again["done"]), (&2.into(), &0.into()));
    assert_eq!(again["models"][0]["status"], "skipped");
}

#[test]
fn any_number_at_once_gives_the_same() {
    let folder = Folder::new();
    let pattern = format!("{FIXTURES}/conv*_*.onnx");
    let out = |name: &str| folder.path(name);
    for (name, jobs) in [("a", "1"), ("b", "3")] {
        let args = ["batch", &pattern, "-o", &out(name), "--jobs", jobs, "--format", "json"];
        let answer = run(&[&args[..], &["--continue-on-error"]].concat());
        let json = answer.json();
        assert!(json["done"].as_u64().is_some_and(|done| done > 5), "{json}");
    }
    let mut names: Vec<_> = fs::read_dir(out("a"))
        .expect("read")
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    names.sort();
    for name in names {
        let [a, b] = ["a", "b"]
            .map(|folder| fs::read(std::path::Path::new(&out(folder)).join(&name)).expect("read"));
        assert_eq!(a, b, "{name:?}");
    }
}

#[test]
fn folders_that_nothing_was_written_to_are_not_left_behind() {
    let folder = Folder::new();
    let (bad, config) = (folder.path("bad.onnx"), folder.path("all.yaml"));
    fs::write(&bad, "not a model").expect("written");
    let text = "batch:\n  input_dir: 'bad.onnx'\n  output_dir: new/inner\n";
    fs::write(&config, text).expect("written");
    let (new, kept) = (folder.path("new"), folder.path("kept"));
    fs::create_dir(&kept).expect("made");
    let inner = folder.path("new/inner");
    for args in [&["batch", &bad, "-o", &inner][..], &["config", &config][..]] {
        assert_ne!(run(args).code, 0);
        assert!(!fs::exists(&new).expect("asked"), "{args:?}");
    }
    assert_ne!(run(&["batch", &bad, "-o", &kept]).code, 0);
    assert!(fs::exists(&kept).expect("asked"), "it was there before");
    let good = fixture("gemm_plain");
    assert_ne!(run(&["batch", &good, &bad, "-o", &inner]).code, 0);
    assert!(fs::exists(format!("{inner}/gemm_plain_int8.onnx")).expect("asked"));
}

#[test]
fn one_that_fails_stops_the_others_or_does_not_and_the_command_fails() {
    let folder = Folder::new();
    let (out, bad) = (folder.path("new"), folder.path("bad.onnx"));
    fs::write(&bad, "not a model").expect("written");
    let good = fixture("gemm_plain");
    let args = ["batch", &bad, &good, "-o", &out];
    let stopped = run(&args);
    assert_eq!(stopped.code, 1, "{stopped:?}");
    assert!(stopped.err.contains("bad.onnx: not a well-formed"), "{stopped:?}");
    assert!(stopped.err.contains("1 were not begun (--continue-on-error goes on)"), "{stopped:?}");
    assert!(!fs::exists(&out).expect("asked"), "nothing was written");
    for jobs in ["1", "2"] {
        let args = [&args[..], &["--continue-on-error", "--jobs", jobs, "--format=json"]].concat();
        let went_on = run(&args);
        assert_eq!(went_on.code, 1, "{went_on:?}");
        let json = went_on.json();
        assert_eq!((&json["done"], &json["failed"]), (&1.into(), &1.into()), "{json}");
        assert!(json["models"][0]["error"].as_str().is_some_and(|error| error.contains("ONNX")));
    }
}

#[test]
fn what_would_overwrite_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let (out, other) = (folder.path("new"), folder.path("gemm_plain.onnx"));
    fs::copy(DIGITS, &other).expect("copied");
    let good = fixture("gemm_plain");
    let clash = run(&["batch", &good, &other, "-o", &out]);
    assert_eq!((clash.code, clash.out.as_str()), (2, ""), "{clash:?}");
    assert!(clash.err.contains("would both become"), "{clash:?}");
    // The output of one model has the name of another model.
    let taken = folder.path("gemm_plain_int8.onnx");
    fs::copy(DIGITS, &taken).expect("copied");
    let pattern = folder.path("*.onnx");
    let over = run(&["batch", &pattern, "-o", &folder.path("")]);
    assert_eq!((over.code, over.out.as_str()), (2, ""), "{over:?}");
    assert!(over.err.contains("would be written over"), "{over:?}");
    assert!(!std::path::Path::new(&out).exists());
    for (args, code) in [
        (&["batch", &folder.path("none*.onnx"), "-o", &out][..], 1),
        (&["batch", "-o", &out], 2),
        (&["batch", &good], 2),
        (&["batch", &good, "-o", &out, "-b7"], 2),
        (&["batch", &good, "-o", &out, "--jobs", "0"], 2),
    ] {
        let answer = run(args);
        assert_eq!((answer.code, answer.out.as_str()), (code, ""), "{answer:?}");
    }
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn a_folder_is_its_models_whatever_its_name_and_results_in_it_are_left_out() {
    let folder = Folder::new();
    let models = folder.path("models [1]");
    fs::create_dir(&models).expect("made");
    fs::copy(DIGITS, format!("{models}/a.onnx")).expect("copied");
    fs::write(format!("{models}/.hidden.onnx"), "").expect("written");
    let config = folder.path("models [1]/all.yaml");
    let text = "batch: {input_dir: ., output_dir: ., skip_existing: true}\n";
    fs::write(&config, text).expect("written");
    let typed = ["batch", &models, "-o", &models, "--skip-existing"];
    for (args, done, skipped) in [(&typed[..], 1, 0), (&typed, 0, 2), (&["config", &config], 0, 2)]
    {
        let answer = run(&[args, &["--format", "json"]].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        let json = answer.json();
        assert_eq!((&json["done"], &json["skipped"]), (&done.into(), &skipped.into()), "{json}");
    }
    let shown = run(&["config", &config, "--dry-run", "--format", "json"]).json();
    assert!(shown[0]["quantized"].is_null() && shown[1]["quantized"].is_null(), "{shown}");
    // Without --skip-existing, a model there is not overwritten.
    assert_eq!(run(&typed[..4]).code, 2);
    let (one, other) = (format!("{models}/a.onnx"), format!("{models}/./a.onnx"));
    let out = folder.path("out");
    let twice = run(&["batch", &one, &other, "-o", &out, "--format", "json"]);
    assert_eq!(twice.json()["done"], 1, "{twice:?}");
}
