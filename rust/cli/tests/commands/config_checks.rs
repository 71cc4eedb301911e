//! `config` before it begins: dry runs, and files that one model would write over those of another.

use std::fs;

use crate::common::{DIGITS, Folder, SAMPLES, run};
use crate::config::file;

#[test]
fn a_dry_run_finds_what_would_stop_the_run() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("digits.onnx")).expect("copied");
    let text = "models:\n  - {input: digits.onnx, output: digits.onnx/m.onnx}";
    let path = file(&folder, "c.yaml", text);
    for args in [&["config", path.as_str(), "--dry-run"][..], &["config", &path]] {
        let answer = run(args);
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("cannot write to `"), "{answer:?}");
    }
}

#[test]
fn a_dry_run_prints_words_of_a_shell() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("it's.onnx")).expect("copied");
    let text = "models:\n  - {input: \"it's.onnx\", output: o.onnx, exclude: ['re:fc(1|2)$']}\n";
    let shown = run(&["config", &file(&folder, "all.yaml", text), "--dry-run"]);
    assert!(shown.out.contains(r"it'\''s.onnx'"), "{shown:?}");
    assert!(shown.out.contains("'--exclude=re:fc(1|2)$'"), "{shown:?}");
}

#[test]
fn a_dry_run_fails_where_the_run_would() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("a.onnx")).expect("copied");
    fs::copy(SAMPLES, folder.path("s.npy")).expect("copied");
    for (wrong, code) in [
        ("calibration_data: none.npz", 1),
        ("validation_data: none.npz, min_sqnr: 30", 1),
        ("min_sqnr: 30", 2),
        ("html: none/x.html", 1),
        ("output: /dev/null", 1),
    ] {
        let output = if wrong.starts_with("output") { "" } else { ", output: new/o.onnx" };
        let text = format!("models:\n  - {{input: a.onnx{output}, {wrong}}}\n");
        let config = file(&folder, "all.yaml", &text);
        let (dry, run) = (run(&["config", &config, "--dry-run"]), run(&["config", &config]));
        assert_eq!((dry.code, dry.out.as_str()), (code, ""), "{wrong}: {dry:?}");
        assert!(dry.err.contains("all.yaml, line 2, models[0]: "), "{dry:?}");
        assert_eq!(run.code, code, "{wrong}: {run:?}");
        assert!(!fs::exists(folder.path("new")).expect("asked"));
    }
    for flags in
        [&["--min-sqnr", "30"][..], &["--validation-data", "none.npz"], &["-o", "/dev/null"]]
    {
        let out = folder.path("o.onnx");
        let out = if flags[0] == "-o" { &[][..] } else { &["-o", out.as_str()] };
        let args = [&["quantize", DIGITS, "--dry-run"][..], flags, out].concat();
        assert_ne!(run(&args).code, 0, "{flags:?}");
    }
    // What an earlier model will write, and what is skipped.
    fs::copy(DIGITS, folder.path("there.onnx")).expect("copied");
    let text = "\
models:
  - {input: a.onnx, output: q.onnx, calibration: {data: s.npy, ranges_out: r.json}}
  - {input: a.onnx, output: p.onnx, calibration: {ranges: r.json}}
  - {input: a.onnx, output: there.onnx, skip_existing: true}
";
    let config = file(&folder, "all.yaml", text);
    let shown = run(&["config", &config, "--dry-run", "--format", "json"]);
    let json = shown.json();
    let of = |at: usize| json[at]["quantized"].is_u64();
    assert_eq!([of(0), of(1), of(2)], [true, true, false], "{json}");
}

/// Files that one model of a config would write over those of another.
#[test]
fn no_model_writes_over_what_another_reads_or_writes() {
    let folder = Folder::new();
    for name in ["a.onnx", "b.onnx"] {
        fs::copy(DIGITS, folder.path(name)).expect("copied");
    }
    fs::copy(SAMPLES, folder.path("s.npy")).expect("copied");
    fs::copy(DIGITS, folder.path("old.onnx")).expect("copied");
    let a = "{input: a.onnx, output: qa.onnx, check: none";
    let b = "{input: b.onnx, output: qb.onnx, check: none";
    let cases = [
        (format!("{a}, calibration_data: s.npy}}"), b.replace("qb.onnx", "s.npy") + "}"),
        (format!("{a}, html: r.html}}"), format!("{b}, html: ./r.html}}")),
        (
            format!("{a}, calibration_data: s.npy, ranges_out: r.json}}"),
            format!("{b}, html: r.json}}"),
        ),
        (a.replace("qa.onnx", "a.onnx") + "}", "{input: a.onnx, output: c.onnx}".to_owned()),
        (format!("{a}, html: b.onnx}}"), format!("{b}}}")),
        (format!("{a}, html: qb.onnx}}"), format!("{b}}}")),
        (format!("{a}, html: old.onnx}}"), format!("{b}}}")),
    ];
    for (one, other) in cases {
        let before = folder.names();
        let config = file(&folder, "all.yaml", &format!("models:\n  - {one}\n  - {other}\n"));
        for flags in [&[][..], &["--dry-run"]] {
            let answer = run(&[&["config", &config], flags].concat());
            assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{one} {other}: {answer:?}");
        }
        fs::remove_file(config).expect("removed");
        assert_eq!(folder.names(), before);
    }
    // Ranges that one model writes may be read by the next one, which waits for them.
    let text = |jobs: u32| {
        format!(
            "jobs: {jobs}\nmodels:\n  - {a}, calibration_data: s.npy, ranges_out: r.json}}\n  \
             - {{input: b.onnx, output: qb.onnx, check: none, calibration: {{ranges: r.json}}}}\n"
        )
    };
    let refused = run(&["config", &file(&folder, "all.yaml", &text(2))]);
    assert!(refused.code == 2 && refused.err.contains("r.json"), "{refused:?}");
    let passed_on = run(&["config", &file(&folder, "all.yaml", &text(1))]);
    assert_eq!(passed_on.code, 0, "{passed_on:?}");
}
