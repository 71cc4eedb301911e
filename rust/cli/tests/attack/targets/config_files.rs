//! Files for the command `config`, which are also what `--save-recipe` writes: TOML and YAML.

use std::fs;

use quantize_rs_cli::run_with;

use super::Attack;
use crate::corpus::{Corpus, in_repository};
use crate::mutate::text;

const YAML: &str = "\
bits: 8
per_channel: true
jobs: 2
models:
  - input: a.onnx
    output: a.out.onnx
  - input: b.onnx
    output: b.out.onnx
    bits: 4
    layer_bits: {conv1_w: 8}
    exclude_layers: ['*rel*', \"re:relu[0-9]+\"]
  - input: d.onnx
    output: c.out.onnx
    calibration:
      data: samples.npy
      limit: 4
      method: percentile:99.9
      smooth: false
batch:
  input_dir: more/*.onnx
  output_dir: out
  skip_existing: true
  continue_on_error: true
";

const TOML: &str = "\
bits = 8
per_channel = true
[[models]]
input = 'a.onnx'
output = 'a.out.onnx'
[[models]]
input = 'b.onnx'
output = 'b.out.onnx'
bits = 4
exclude_layers = ['*rel*', \"re:relu[0-9]+\"]
[models.layer_bits]
conv1_w = 8
[[models]]
input = 'd.onnx'
output = 'c.out.onnx'
calibration = { data = 'samples.npy', limit = 4, method = 'mse', smooth = false }
[batch]
input_dir = 'more'
output_dir = 'out'
jobs = 2
";

/// Plans what a file says, and writes nothing.
pub(super) fn config(_: &Corpus) -> Attack {
    let folder = tempfile::tempdir().unwrap();
    let put = |from: &str, to: &str| {
        fs::copy(in_repository(from), folder.path().join(to)).unwrap();
    };
    fs::create_dir(folder.path().join("more")).unwrap();
    put("tests/fixtures/models/gemm_plain.onnx", "a.onnx");
    put("tests/fixtures/models/conv2d_relu.onnx", "b.onnx");
    put("tests/fixtures/models/matmul_2d.onnx", "more/c.onnx");
    put("examples/digits/digits_cnn.onnx", "d.onnx");
    put("examples/digits/calibration.npy", "samples.npy");
    Box::new(move |random| {
        let (seed, name) = *random.of_all(&[(YAML, "c.yaml"), (TOML, "c.toml")]);
        let path = folder.path().join(name);
        fs::write(&path, text::mutated(seed, random)).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = ["quantize-rs", "config", path.to_str().unwrap(), "--dry-run"];
        let code = run_with(args, &mut out, &mut err);
        assert!(code <= 2 && (code == 0 || !err.is_empty()), "a failure says why: {code}");
        assert!(!folder.path().join("a.out.onnx").exists(), "a dry run writes nothing");
        code == 0
    })
}
