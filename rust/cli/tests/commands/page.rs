//! `--html`: the report as a page, in addition to the printed output.

use std::fs;

use crate::common::{DIGITS, Folder, SAMPLES, run};

#[test]
fn a_page_is_written_where_it_was_asked_for() {
    let folder = Folder::new();
    let (out, page) = (folder.path("m.onnx"), folder.path("m.html"));
    let quantize = ["quantize", DIGITS, "-o", &out, "--html", &page];
    let calibrate = ["calibrate", DIGITS, "--data", SAMPLES, "-o", &out, "--html", &page];
    for (args, histograms) in [(&quantize[..], false), (&calibrate[..], true)] {
        assert_eq!(run(args).code, 0, "{args:?}");
        let text = fs::read_to_string(&page).expect("a page");
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>"), "{args:?}");
        assert!(text.contains("m.onnx"));
        assert_eq!(text.contains("<figure>"), histograms, "{args:?}");
        assert_eq!(folder.names(), ["m.html", "m.onnx"]);
    }
    let small = ["--data", SAMPLES, "--limit", "2", "--engine", "tract", "--html", &page];
    let commands: [(&[&str], &str); 4] = [
        (&["compare", DIGITS, &out, "--no-latency"], "Comparison with the original"),
        (&["layer-errors", DIGITS, &out], "Errors by depth"),
        (&["sensitivity", DIGITS], "Sensitivity: SQNR of the worst output"),
        (&["sensitivity", DIGITS, "--metric", "weight"], "Sensitivity: SQNR of the weight itself"),
    ];
    for (command, title) in commands {
        let done = run(&[command, &small].concat());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(fs::read_to_string(&page).expect("a page").contains(title), "{command:?}");
        let over = [command, &small[..5], &["--html", DIGITS]].concat();
        assert_eq!(run(&over).code, 2, "{over:?}");
    }
    let dry = folder.path("dry.html");
    assert_eq!(run(&["quantize", DIGITS, "--dry-run", "--html", &dry]).code, 0);
    for (path, code) in [(out.as_str(), 2), (DIGITS, 2), ("/none/m.html", 1)] {
        let refused = run(&["quantize", DIGITS, "-o", &out, "--html", path]);
        assert_eq!(refused.code, code, "{refused:?}");
    }
    assert_eq!(run(&[&calibrate[..6], &["--html", SAMPLES]].concat()).code, 2);
    assert_eq!(folder.names(), ["m.html", "m.onnx"]);
}
