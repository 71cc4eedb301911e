//! `completions` and `man`, and the reference in docs/cli.md: all from the one table of flags.

use std::fmt::Write;
use std::fs;

use crate::common::{Folder, run};

#[test]
fn every_shell_gets_a_script_that_knows_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let answer = run(&["completions", shell]);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{shell}");
        for word in ["quantize-rs", "calibrate", "per-channel", "completions"] {
            assert!(answer.out.contains(word), "{word} is not in the script for {shell}");
        }
    }
    assert_eq!(run(&["completions", "csh"]).code, 2);
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    let page = run(&["man"]);
    assert_eq!((page.code, page.err.as_str()), (0, ""));
    assert!(page.out.contains(".TH quantize-rs 1"), "{}", page.out);
    assert!(run(&["man", "ranges", "merge"]).out.contains("as if one calibration"));
    let unknown = run(&["man", "frobnicate"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("calibrate"), "{unknown:?}");
    assert_eq!(run(&["man", "--dir", &folder.path("man")]).code, 0);
    let pages = fs::read_dir(folder.path("man")).expect("made").count();
    assert_eq!(pages, 1 + commands().len());
    assert!(fs::exists(folder.path("man/quantize-rs-ranges-merge.1")).expect("looked"));
}

/// Every command, those of `ranges` too.
fn commands() -> Vec<Vec<String>> {
    let listed = |args: &[&str]| -> Vec<String> {
        let help = run(&[args, &["--help"]].concat()).out;
        let part = help.split("Commands:\n").nth(1).unwrap_or_default();
        let lines = part.lines().take_while(|line| line.starts_with("  "));
        lines
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let mut all = Vec::new();
    for name in listed(&[]) {
        let inner = listed(&[&name]);
        all.push(vec![name.clone()]);
        all.extend(inner.into_iter().map(|inner| vec![name.clone(), inner]));
    }
    all
}

/// `QUANTIZE_RS_WRITE=1 cargo test -p quantize-rs-cli shell` writes the file.
#[test]
fn the_reference_is_what_the_commands_say() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let mut text = String::from(
        "# The command line\n\nThe help of every command. A test writes this file. Exit codes: \
         0 for success, 1 for a model or\ndata that was refused, 2 for a command line that is not \
         valid, 130 for Ctrl-C.\n",
    );
    let help = |args: &[&str]| run(&[args, &["--help"]].concat()).out;
    let mut section = |name: &str, help: String| {
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end())
            .expect("text");
    };
    section("quantize-rs", help(&[]));
    for command in commands() {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        section(&args.join(" "), help(&args));
    }
    if std::env::var_os("QUANTIZE_RS_WRITE").is_some() {
        fs::write(file, &text).expect("written");
    }
    let there = fs::read_to_string(file).unwrap_or_default();
    assert!(there == text, "docs/cli.md is not what the commands say: see the doc of this test");
}
