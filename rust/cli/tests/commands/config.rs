//! `config` and `--save-recipe`: runs described by files.

use std::fs;

use serde_json::Value;

use crate::common::{DIGITS, FIXTURES, Folder, SAMPLES, run};

pub(crate) fn file(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.path(name);
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn a_file_quantizes_what_it_names_as_flags_would() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("digits.onnx")).expect("copied");
    fs::copy(SAMPLES, folder.path("samples.npy")).expect("copied");
    fs::create_dir(folder.path("more")).expect("made");
    for name in ["gemm_plain", "conv2d_relu"] {
        let from = format!("{FIXTURES}/{name}.onnx");
        fs::copy(from, folder.path(&format!("more/{name}.onnx"))).expect("copied");
    }
    let yaml = "\
bits: 8
per_channel: true
models:
  - input: digits.onnx
    output: a.onnx
  - input: digits.onnx
    output: b.onnx
    bits: 4
    per_channel: false
    layer_bits: {conv1.weight: 8}
    exclude_layers: ['*fc2*']
  - input: digits.onnx
    output: c.onnx
    calibration:
      data: samples.npy
      limit: 40
      method: mse
      smooth: false
batch:
  input_dir: more/*.onnx
  output_dir: out
  skip_existing: true
";
    let toml = "\
bits = 8
per_channel = true
[[models]]
input = 'digits.onnx'
output = 'a.onnx'
[[models]]
input = 'digits.onnx'
output = 'b.onnx'
bits = 4
per_channel = false
exclude_layers = ['*fc2*']
[models.layer_bits]
'conv1.weight' = 8
[[models]]
input = 'digits.onnx'
output = 'c.onnx'
calibration = { data = 'samples.npy', limit = 40, method = 'mse', smooth = false }
[batch]
input_dir = 'more'
output_dir = 'out'
skip_existing = true
";
    let alone = folder.path("alone.onnx");
    let expected: Vec<(&str, Vec<u8>)> = [
        ("a.onnx", &["quantize", DIGITS, "--per-channel"][..]),
        (
            "b.onnx",
            &[
                "quantize",
                DIGITS,
                "-b4",
                "--per-channel=false",
                "--layer-bits",
                "conv1.weight=8",
                "--exclude",
                "*fc2*",
            ],
        ),
        (
            "c.onnx",
            &[
                "calibrate",
                DIGITS,
                "--per-channel",
                "--data",
                SAMPLES,
                "--limit",
                "40",
                "--method",
                "mse",
                "--no-smooth",
            ],
        ),
    ]
    .into_iter()
    .map(|(name, args)| {
        let answer = run(&[args, &["-q", "-o", &alone]].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        (name, fs::read(&alone).expect("read"))
    })
    .collect();
    for path in [file(&folder, "c.yaml", yaml), file(&folder, "c.toml", toml)] {
        let dry = run(&["config", &path, "--dry-run"]);
        assert_eq!((dry.code, dry.err.as_str()), (0, ""), "{dry:?}");
        assert_eq!(dry.out.matches("values quantized").count(), 5, "{dry:?}");
        assert!(!fs::exists(folder.path("a.onnx")).expect("looked"));
        let done = run(&["config", &path, "--format", "json"]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.json()["done"], 5);
        for (name, expected) in &expected {
            assert_eq!(&fs::read(folder.path(name)).expect("made"), expected, "{path} {name}");
            fs::remove_file(folder.path(name)).expect("removed");
        }
        assert!(fs::exists(folder.path("out/gemm_plain_int8.onnx")).expect("looked"));
        fs::remove_dir_all(folder.path("out")).expect("removed");
    }
}

#[test]
fn how_samples_are_run_is_for_models_that_some_are_run_for() {
    let folder = Folder::new();
    let models = format!(
        "models:\n  - {{input: {DIGITS}, output: a.onnx}}\n  - {{input: {DIGITS}, output: b.onnx, \
         data: {SAMPLES}}}\n"
    );
    let path = file(&folder, "c.yaml", &format!("threads: 2\nengine: tract\n{models}"));
    let shown = run(&["config", &path, "--dry-run", "--format", "json"]).json();
    let command = |at: usize| shown[at]["command"].to_string();
    assert!(!command(0).contains("--threads") && command(1).contains("--threads=2"), "{shown}");
    let alone = format!("threads: 2\nmodels:\n  - {{input: {DIGITS}, output: a.onnx}}\n");
    let none = run(&["config", &file(&folder, "c.yaml", &alone)]);
    assert!(none.code == 2 && none.err.contains("line 1: `threads` is for models"), "{none:?}");
}

#[test]
fn the_folder_of_an_output_is_created_when_it_is_written() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("digits.onnx")).expect("copied");
    fs::write(folder.path("bad.onnx"), "not a model").expect("written");
    let there = |name: &str| fs::exists(folder.path(name)).expect("looked");
    for (text, name) in [
        ("models:\n  - {input: digits.onnx, output: new/in/m.onnx}", "new/in/m.onnx"),
        ("batch:\n  input_dir: d*.onnx\n  output_dir: new/in", "new/in/digits_int8.onnx"),
    ] {
        let path = file(&folder, "c.yaml", text);
        assert_eq!(run(&["config", &path, "--dry-run"]).code, 0);
        assert!(!there("new"));
        let answer = run(&["config", &path]);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(there(name));
        fs::remove_dir_all(folder.path("new")).expect("removed");
    }
    let text = "models:\n  - {input: bad.onnx, output: new/in/m.onnx}";
    let failed = run(&["config", &file(&folder, "c.yaml", text)]);
    assert!(failed.code == 1 && failed.err.contains("not a well-formed"), "{failed:?}");
    assert!(!there("new"));
}

#[test]
fn an_existing_output_is_skipped_where_that_is_said() {
    let folder = Folder::new();
    for name in ["a.onnx", "b.onnx"] {
        fs::copy(DIGITS, folder.path(name)).expect("copied");
    }
    let statuses = |general: &str, model: &str, batch: &str| {
        for name in ["a.int8.onnx", "b_int8.onnx"] {
            fs::write(folder.path(name), "old").expect("written");
        }
        let text = format!(
            "{general}models:\n  - input: a.onnx\n    output: a.int8.onnx\n{model}batch:\n  \
             input_dir: b.onnx\n  output_dir: .\n{batch}"
        );
        let path = file(&folder, "c.yaml", &text);
        let json = run(&["config", &path, "--format", "json"]).json();
        [0, 1].map(|at| json["models"][at]["status"].as_str().map(str::to_owned))
    };
    let (yes, no) = ("skip_existing: true\n", "skip_existing: false\n");
    let (own, none) = (|text: &str| format!("    {text}"), String::new());
    let of_batch = |text: &str| format!("  {text}");
    for (general, model, batch, expected) in [
        ("", &none, &none, ["done", "done"]),
        ("", &none, &of_batch(yes), ["done", "skipped"]),
        ("", &own(yes), &none, ["skipped", "done"]),
        (yes, &none, &none, ["skipped", "skipped"]),
        (yes, &own(no), &none, ["done", "skipped"]),
        (yes, &none, &of_batch(no), ["skipped", "done"]),
    ] {
        let found = statuses(general, model, batch);
        assert_eq!(
            found,
            expected.map(|status| Some(status.to_owned())),
            "{general}{model}{batch}"
        );
    }
    let path = file(&folder, "c.yaml", "models:\n  - {input: a, output: b, skip_existing: 1}");
    let wrong = run(&["config", &path]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("line 2: `skip_existing` is neither true nor false"), "{wrong:?}");
}

#[test]
fn the_key_that_goes_on_after_a_failure_is_named() {
    let folder = Folder::new();
    fs::write(folder.path("bad.onnx"), "not a model").expect("written");
    let model = |name: &str| format!("  - {{input: bad.onnx, output: {name}.onnx}}\n");
    let text = format!("models:\n{}{}", model("a"), model("b"));
    let stopped = run(&["config", &file(&folder, "c.yaml", &text)]);
    assert_eq!(stopped.code, 1, "{stopped:?}");
    assert!(stopped.err.contains("1 were not begun (`continue_on_error` goes on)"), "{stopped:?}");
}

#[test]
fn an_output_that_is_skipped_may_be_that_of_another_model() {
    let folder = Folder::new();
    fs::copy(DIGITS, folder.path("a.onnx")).expect("copied");
    let text = "models:\n  - {input: a.onnx, output: out/a_int8.onnx}\nbatch:\n  \
                input_dir: a.onnx\n  output_dir: out\n  skip_existing: true\n";
    let path = file(&folder, "c.yaml", text);
    let refused = run(&["config", &path]);
    assert!(refused.code == 2 && refused.err.contains("would both become"), "{refused:?}");
    fs::create_dir(folder.path("out")).expect("made");
    fs::write(folder.path("out/a_int8.onnx"), "old").expect("written");
    let json = run(&["config", &path, "--format", "json"]).json();
    assert_eq!((&json["done"], &json["skipped"]), (&1.into(), &1.into()), "{json}");
    fs::write(&path, text.replace("true", "false")).expect("written");
    assert_eq!(run(&["config", &path]).code, 2);
}

#[test]
fn what_is_wrong_is_named_with_its_line_before_anything_is_done() {
    let folder = Folder::new();
    let cases = [
        ("per_chanel: true", "line 1: there is no key `per_chanel`; did you mean `per_channel`?"),
        (
            "models:\n  - input: a\n    ouptut: b",
            "line 3: there is no key `ouptut`; did you mean `output`?",
        ),
        ("xyzzy: 1", "line 1: there is no key `xyzzy`"),
        ("bits: 8", "neither `models` nor `batch`"),
        ("models:\n  - input: a", "line 2: this model has no `output`"),
        ("models: {}", "`models` is no list"),
        ("models: [a]", "a model is keys and values"),
        ("batch:\n  input_dir: none*.onnx\n  output_dir: out", "line 2: no file fits"),
        (
            "method: mse\nmodels:\n  - {input: a, output: b}",
            "line 1: `method` is for models that are calibrated",
        ),
        (
            "models:\n  - {input: a, output: b, method: mse}",
            "line 2: `method` is for models that are calibrated",
        ),
        (
            "models:\n  - {input: a, output: b, data: c, block_size: 32}",
            "line 2: `block_size` is not for models that are",
        ),
        (
            "include: []\nmodels:\n  - {input: a, output: b}",
            "line 1: `include` is empty: leave it out, or name something",
        ),
        ("models:\n  - {input: a, output: b, bits: 7}", "line 2, models[0]: --bits is 7"),
        (
            "models:\n  - {input: a, output: b, bits: x}",
            "line 2, models[0]: --bits is `x`, expected a whole number",
        ),
        (
            "models:\n  - {input: a, output: b, per_channel: 1}",
            "line 2: `per_channel` is neither true nor false",
        ),
        ("models:\n  - {input: a, output: b, bits: 4, bits: 8}", "line 2"),
        (
            "mode: static\nmodels:\n  - {input: a, output: b}",
            "line 1: `mode: static` is for models that are calibrated: give `calibration_data`",
        ),
        (
            "models:\n  - {input: a, output: b, mode: static}",
            "line 2: `mode: static` is for models that are calibrated",
        ),
        (
            "models:\n  - {input: a, output: b, verify: c, max_accuracy_drop: 0.01}",
            "c.yaml, line 2, models[0]: the following required arguments were not provided: \
             --labels",
        ),
        ("mode: qat\nmodels: []", "line 1: `mode` is `qat`, expected static, dynamic or weights"),
        ("jobs: 0\nmodels: []", "line 1: `jobs` is 0"),
        ("models:\n  - {input: a, output: b}\n  - {input: c, output: b}", "would both become"),
        ("save_statistics: true\nmodels: []", "`save_statistics` needs"),
        ("- 1", "expected keys and values"),
        ("bits: [", "line 1"),
    ];
    for (text, reason) in cases {
        let path = file(&folder, "c.yaml", text);
        let answer = run(&["config", &path]);
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{text}: {answer:?}");
        assert!(answer.err.contains(reason), "{text}: {answer:?}");
        assert_eq!(answer.err.lines().count(), 1, "{answer:?}");
    }
    let none = run(&["config", &folder.path("none.yaml")]);
    assert_eq!(none.code, 1, "{none:?}");
    let json = run(&["config", &file(&folder, "c.json", "{}")]);
    assert_eq!(json.code, 2, "{json:?}");
    assert!(json.err.contains(".yaml, .yml or .toml"), "{json:?}");
    assert_eq!(folder.names(), ["c.json", "c.yaml"]);
}

#[test]
fn the_schema_of_files_has_every_option_by_each_of_its_names() {
    let schema = run(&["config", "--schema"]).json();
    let properties = &schema["$defs"]["options"]["properties"];
    for name in ["bits", "excluded_layers", "data", "calibration_data", "overrides", "mode"] {
        assert!(properties[name].is_object(), "{name}");
    }
    assert_eq!(properties["bits"]["enum"], serde_json::json!([2, 3, 4, 5, 6, 8, 16]));
    let rows = quantize_rs::options::rows();
    for row in rows.iter().filter(|row| row.is_on(quantize_rs::options::Surface::File)) {
        assert!(properties[row.name]["description"].is_string(), "{}", row.name);
    }
    let shown = run(&["config", "--schema", "--format", "json"]);
    assert_eq!(shown.out.lines().count(), 1);
}

#[test]
fn what_is_excluded_for_all_models_stays_excluded_in_each() {
    let folder = Folder::new();
    let text = format!(
        "excluded_layers: [conv1.weight]
models:
  - input: {DIGITS}
    output: a.onnx
    exclude: [conv2.weight]
"
    );
    let answer = run(&["config", &file(&folder, "c.yaml", &text)]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let out = folder.path("b.onnx");
    let flags = ["--exclude", "conv2.weight", "--exclude", "conv1.weight"];
    let by_flags = run(&[&["quantize", DIGITS, "-o", &out][..], &flags].concat());
    assert_eq!(by_flags.code, 0, "{by_flags:?}");
    assert!(fs::read(folder.path("a.onnx")).expect("a") == fs::read(out).expect("b"));
}

#[test]
fn overrides_stand_in_files() {
    let folder = Folder::new();
    let text = format!(
        "per_channel: true
models:
  - input: {DIGITS}
    output: a.onnx
    overrides:
      - match: {{name: conv1.weight}}
        weights: float32
      - match: {{pattern: '*'}}
        weights: uint8
"
    );
    let answer = run(&["config", &file(&folder, "c.yaml", &text)]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let out = folder.path("b.onnx");
    let flags = ["--per-channel", "--weights", "uint8", "--layer-types", "conv1.weight=float32"];
    let by_flags = run(&[&["quantize", DIGITS, "-o", &out][..], &flags].concat());
    assert_eq!(by_flags.code, 0, "{by_flags:?}");
    assert!(fs::read(folder.path("a.onnx")).expect("a") == fs::read(out).expect("b"));
    let wrong = text.replace("pattern: '*'", "pattern: nothing");
    let answer = run(&["config", &file(&folder, "c.yaml", &wrong)]);
    assert!(answer.code == 2 && answer.err.contains("has the pattern `nothing`"), "{answer:?}");
}

#[test]
fn a_mode_of_its_own_takes_precedence() {
    let folder = Folder::new();
    let file = folder.path("c.yaml");
    let model = |name: &str, own: &str| {
        format!("  - {{input: '{DIGITS}', output: {name}.onnx, data: '{SAMPLES}'{own}}}\n")
    };
    let models = [model("a", ", mode: weights"), model("b", ", mode: dynamic"), model("c", "")];
    fs::write(&file, format!("mode: dynamic\nmodels:\n{}", models.concat())).expect("written");
    let shown = run(&["config", &file, "--dry-run", "--format", "json"]).json();
    let typed: Vec<String> = shown
        .as_array()
        .expect("a list")
        .iter()
        .map(|job| job["command"].as_array().expect("a command"))
        .map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
        .collect();
    let is = |at: usize, command: &str, dynamic: bool| {
        let typed = &typed[at];
        assert!(typed.starts_with(&format!("quantize-rs {command} ")), "{typed}");
        assert_eq!(typed.contains("--output-format=dynamic"), dynamic, "{typed}");
    };
    is(0, "quantize", false);
    is(1, "quantize", true);
    is(2, "calibrate", false);
    let wrong = format!("mode: weights\nmethod: mse\nmodels:\n{}", model("a", ""));
    fs::write(&file, wrong).expect("written");
    let answer = run(&["config", &file, "--dry-run"]);
    assert!(answer.err.contains("`mode` says otherwise"), "{answer:?}");
}

const OVERRIDES: &str = r#"[{"match": {"op_type": "Gemm"}, "weights": "int4"}]"#;

#[test]
fn general_options_apply_to_the_models_that_they_mean() {
    let folder = Folder::new();
    let (ranges, made) = (folder.path("r.json"), folder.path("m.onnx"));
    let data = ["calibrate", DIGITS, "--data", SAMPLES, "--limit", "2", "-o", &made];
    assert_eq!(run(&[&data[..], &["--ranges-out", &ranges]].concat()).code, 0);
    let shown = |general: &str, models: &[&str]| {
        let path = folder.path("wanted.yaml");
        let model = |(at, own): (usize, &&str)| {
            format!("  - input: {DIGITS}\n    output: {at}.onnx\n{own}")
        };
        let models: String = models.iter().enumerate().map(model).collect();
        fs::write(&path, format!("{general}models:\n{models}")).expect("written");
        run(&["config", &path, "--dry-run", "--format", "json"])
    };
    let sampled = format!("    calibration_data: {SAMPLES}\n");
    let saved = format!("    ranges: {ranges}\n");
    let nearest = format!("{sampled}    weight_algorithm: nearest\n");
    let answer = shown("limit: 2\nrounding_effort: best\n", &[&sampled, "", &saved, &nearest]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let has = |at: usize, flag: &str| answer.json()[at]["command"].to_string().contains(flag);
    let found = |flag: &str| (0..4).map(|at| has(at, flag)).collect::<Vec<_>>();
    assert_eq!(found("--limit"), [true, false, false, true]);
    assert_eq!(found("--rounding-effort"), [true, false, true, false]);
    for (option, models, said) in [
        ("limit: 2\n", &[&*saved][..], "`limit` says which samples are used"),
        ("rounding_effort: best\n", &[""], "`rounding_effort` is for rounding with samples"),
    ] {
        let answer = shown(option, models);
        assert!(answer.code == 2 && answer.err.contains(said), "{answer:?}");
    }
    assert_eq!(shown("weight_algorithm: nearest\n", &[""]).code, 0);
}

#[test]
fn a_recipe_repeats_its_run_byte_for_byte() {
    let folder = Folder::new();
    let (out, ranges) = (folder.path("m.onnx"), folder.path("ranges.json"));
    let runs = [
        &["quantize", DIGITS, "--per-channel", "--symmetric", "--native-int4", "-b", "4"][..],
        &[
            "quantize",
            DIGITS,
            "--exclude",
            "conv1*",
            "--exclude",
            "re:fc.*",
            "--op-types",
            "Conv,Gemm",
        ],
        &["quantize", DIGITS, "--layer-bits", "conv1.weight=uint8", "--output-format", "dynamic"],
        &["quantize", DIGITS, "--weights", "uint8", "--narrow-range", "false", "--no-optimize"],
        &["quantize", DIGITS, "--weights", "uint8", "--data", SAMPLES, "--limit", "40"],
        &["calibrate", DIGITS, "--data", SAMPLES, "--limit", "40", "--method", "percentile:99.9"],
        &[
            "calibrate",
            DIGITS,
            "--data",
            "random",
            "--num-samples",
            "4",
            "--seed",
            "7",
            "--target",
            "arm",
        ],
        &["calibrate", DIGITS, "--data", SAMPLES, "--ranges-out", &ranges, "--no-smooth"],
        &["quantize", DIGITS, "--verify", SAMPLES, "--min-sqnr", "39.75", "--engine", "tract"],
        &["quantize", DIGITS, "--sparsity", "0.25", "--no-equalize"],
        &["quantize", DIGITS, "--overrides", OVERRIDES, "--prune", "0.01"],
    ];
    let (number, off) =
        (["sparsity: 0.25", "sparsity = 0.25"], ["equalize: false", "equalize = false"]);
    for args in runs {
        for name in ["recipe.yaml", "recipe.toml"] {
            let recipe = folder.path(name);
            let answer = run(&[args, &["-q", "-o", &out, "--save-recipe", &recipe]].concat());
            assert_eq!(answer.code, 0, "{answer:?}");
            let first = fs::read(&out).expect("written");
            fs::remove_file(&out).expect("removed");
            let again = run(&["config", &recipe, "-q"]);
            let text = fs::read_to_string(&recipe).expect("read");
            assert_eq!(again.code, 0, "{text}\n{again:?}");
            assert_eq!(fs::read(&out).expect("written again"), first, "{text}");
            if args.contains(&"--sparsity") {
                assert!(number.iter().any(|said| text.contains(said)), "{text}");
                assert!(off.iter().any(|said| text.contains(said)), "{text}");
            }
            assert!(text.contains("m.onnx\"") && !text.contains(&folder.path("m.onnx")), "{text}");
        }
    }
    for (path, code) in
        [(folder.path("recipe.json"), 2), (out.clone(), 2), (folder.path("none/recipe.yaml"), 1)]
    {
        let answer = run(&["quantize", DIGITS, "-o", &out, "--save-recipe", &path]);
        assert_eq!(answer.code, code, "{answer:?}");
    }
}

#[test]
fn a_recipe_names_a_folder_that_is_called_random() {
    let folder = Folder::new();
    let (images, recipe) = (folder.path("random"), folder.path("recipe.yaml"));
    fs::create_dir(&images).expect("made");
    for at in 0..4 {
        let pixels =
            image::GrayImage::from_fn(8, 8, |x, y| [(x * y * 3 + at).to_le_bytes()[0]].into());
        pixels.save(folder.path(&format!("random/{at}.png"))).expect("written");
    }
    let out = folder.path("m.onnx");
    let args = ["calibrate", DIGITS, "--data", &images, "-o", &out, "--save-recipe", &recipe];
    let answer = run(&args);
    assert_eq!(answer.code, 0, "{answer:?}");
    let first = fs::read(&out).expect("written");
    let text = fs::read_to_string(&recipe).expect("read");
    assert!(text.contains("\"./random\""), "{text}");
    assert_eq!(run(&["config", &recipe, "-q"]).code, 0, "{text}");
    assert_eq!(fs::read(&out).expect("written again"), first);
}
