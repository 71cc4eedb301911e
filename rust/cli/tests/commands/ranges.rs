//! `ranges`: files of ranges shown, merged, compared and converted.

use std::fs;

use crate::common::{DIGITS, FIXTURES, Folder, SAMPLES, run};

#[test]
fn ranges_are_shown_merged_compared_and_converted() {
    let folder = Folder::new();
    let files: Vec<String> =
        ["a", "b", "ab", "mse"].iter().map(|name| folder.path(&format!("{name}.json"))).collect();
    let [a, b, ab, mse] = &files[..] else { panic!() };
    let out = folder.path("m.onnx");
    let samples = fs::read(SAMPLES).expect("read");
    let halves = halves(&samples);
    let calibrate = |data: &str, to: &str, method: &str| {
        let args = ["calibrate", DIGITS, "--data", data, "-o", &out, "-q"];
        // Weights that are rounded with samples are not merged.
        let own = ["--ranges-out", to, "--method", method, "--weight-algorithm", "nearest"];
        let answer = run(&[&args[..], &own].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
    };
    for (half, to) in halves.iter().zip([a, b]) {
        let path = folder.path("half.npy");
        fs::write(&path, half).expect("written");
        calibrate(&path, to, "minmax");
    }
    calibrate(SAMPLES, mse, "mse");

    let merged = run(&["ranges", "merge", a, b, "-o", ab]);
    assert_eq!(merged.code, 0, "{merged:?}");
    assert!(merged.out.contains("Samples:        200\n"), "{}", merged.out);
    let whole = folder.path("whole.json");
    calibrate(SAMPLES, &whole, "minmax");
    assert_eq!(fs::read(ab).expect("read"), fs::read(&whole).expect("read"));
    assert_eq!(run(&["ranges", "diff", ab, &whole]).out, "no difference\n");
    let onto_itself = run(&["ranges", "merge", a, b, "-o", a, "-q"]);
    assert_eq!((onto_itself.code, onto_itself.out.as_str()), (0, ""));
    let over = run(&["ranges", "merge", ab, a, "-o", &out]);
    assert!(over.code == 2 && over.err.contains("would overwrite the model"), "{over:?}");
    let twice = run(&["ranges", "merge", ab, ab, "-o", &folder.path("twice.json")]);
    assert!(twice.code == 1 && twice.err.contains("is given twice"), "{twice:?}");
    let unlike = run(&["ranges", "merge", ab, mse, "-o", &folder.path("unlike.json")]);
    assert_eq!(unlike.code, 1);
    assert!(unlike.err.contains("mse.json: these ranges have different"), "{}", unlike.err);

    let shown = run(&["ranges", "show", ab]);
    for part in ["Method:         minmax", "Samples:        200", "image: [0, 1]"] {
        assert!(shown.out.contains(part), "{part} is not in {}", shown.out);
    }
    assert_eq!(run(&["ranges", "show", ab, "--format=json"]).json()["samples"], 200);
    let diff = run(&["ranges", "diff", ab, mse, "--format=json"]).json();
    assert!(diff["differences"].as_array().is_some_and(|all| !all.is_empty()), "{diff}");

    let (cache, back) = (folder.path("calibration.cache"), folder.path("back.json"));
    let version = ["--tensorrt-version", "10300"];
    let to_cache = ["ranges", "convert", ab, "--model", DIGITS, "-o", &cache];
    assert_eq!(run(&[&to_cache[..], &version].concat()).code, 0);
    let text = fs::read_to_string(&cache).expect("read");
    assert!(text.starts_with("TRT-10300-MinMaxCalibration\nimage: 3c010204\n"), "{text}");
    assert_eq!(run(&["ranges", "convert", &cache, "--model", DIGITS, "-o", &back]).code, 0);
    assert!(run(&["ranges", "show", &back]).out.contains("image: [-1, 1]"));
    let other = format!("{FIXTURES}/mlp_relu.onnx");
    let another = run(&["ranges", "convert", ab, "--model", &other, "-o", &back]);
    assert_eq!(another.code, 1);
    assert!(another.err.contains("another model"), "{}", another.err);
}

/// Two `.npy` files with a half of the 200 samples in each.
fn halves(npy: &[u8]) -> [Vec<u8>; 2] {
    let (head, data) = npy.split_at(10 + usize::from(npy[8]));
    let (first, second) = data.split_at(data.len() / 2);
    let mut head = head.to_vec();
    let shape = head.windows(5).position(|text| text == b"(200,").expect("the shape");
    head[shape + 1] = b'1';
    [[&head, first].concat(), [&head, second].concat()]
}
