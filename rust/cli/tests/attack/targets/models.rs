//! Models: opening them, and all that is done to one that was opened.

use std::fs;
use std::path::Path;

use quantize_rs::{
    Below, Config, Control, Format, HalfOptions, Method, Model, ModelInfo, OutlierOptions,
    PreprocessedModel, Prune, Request, Target, calibrate as run_samples, conformance, convert_half,
    convert_opset, extract, infer_shapes, optimize, outliers, prune, recommend,
    validate as compare, weight_sensitivity,
};

use super::Attack;
use crate::common::{self, Even, Numbers};
use crate::corpus::Corpus;
use crate::mutate::protobuf;
use crate::random::Random;

/// What was written has to be readable.
fn readable(model: &Model) {
    if let Ok(bytes) = model.to_bytes() {
        Model::from_bytes(bytes).expect("what is written can be read");
    }
}

/// Reads all that a model holds.
fn read(model: &Model) {
    for tensor in &model.graph().initializer {
        drop(model.tensor(tensor).map(|tensor| tensor.to_f32()));
    }
    drop(ModelInfo::of(model));
}

/// Opens a model from bytes; an unchanged one is written as the same bytes.
pub(super) fn open(corpus: &Corpus) -> Attack {
    let corpus = corpus.clone();
    Box::new(move |random| {
        let bytes = corpus.mutated(random);
        let Ok(model) = Model::from_bytes(bytes.clone()) else { return false };
        read(&model);
        if let Ok(written) = model.to_bytes() {
            assert!(written == bytes, "an unchanged model is written as other bytes");
        }
        true
    })
}

/// Opens a file with data beside it, and saves it under another name.
pub(super) fn external(corpus: &Corpus) -> Attack {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let mut seeds: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for bytes in corpus.models() {
        let Ok(model) = Model::from_bytes(bytes.clone()) else { continue };
        let _ = fs::remove_file(folder.path().join("m.onnx.data"));
        if model.save_within(&path, 1).is_ok()
            && let Ok(data) = fs::read(folder.path().join("m.onnx.data"))
        {
            seeds.push((fs::read(&path).unwrap(), data));
        }
    }
    assert!(seeds.len() > 20, "{}", seeds.len());
    let inside = folder.path().join("in");
    fs::create_dir(&inside).unwrap();
    fs::write(folder.path().join("a"), [7; 4096]).unwrap();
    fs::create_dir(inside.join("folder")).unwrap();
    std::os::unix::fs::symlink("../a", inside.join("link")).unwrap();
    fs::write(inside.join("m.data"), [1; 4096]).unwrap();
    Box::new(move |random| {
        let _kept = &folder;
        let (model, data) = random.of_all(&seeds);
        let placed = protobuf::with_other_places(model, random).unwrap_or_else(|| model.clone());
        let bytes =
            if random.once_in(3) { protobuf::mutated(&placed, model, random) } else { placed };
        let mut data = data.clone();
        if random.once_in(4) {
            data.truncate(random.below(data.len() + 1));
        }
        fs::write(inside.join("m.onnx.data"), data).unwrap();
        saved(&inside, &bytes)
    })
}

/// Opens a model of these bytes in a folder, reads it and saves it.
fn saved(folder: &Path, bytes: &[u8]) -> bool {
    fs::write(folder.join("m.onnx"), bytes).unwrap();
    let Ok(model) = Model::open(folder.join("m.onnx")) else { return false };
    read(&model);
    readable(&model);
    // Synced files are slow: a few are enough.
    let out = folder.join("out.onnx");
    if bytes.len().is_multiple_of(64) && model.save_within(&out, 1).is_ok() {
        Model::open(&out).expect("what is saved can be opened");
    }
    true
}

/// The functions that change or describe a model and need no samples.
pub(super) fn convert(corpus: &Corpus) -> Attack {
    let corpus = corpus.clone();
    Box::new(move |random| {
        let Ok(model) = Model::from_bytes(corpus.mutated(random)) else { return false };
        match random.below(9) {
            0 => optimize(&model, None, &[]).is_ok_and(|done| {
                readable(done.model());
                true
            }),
            1 => infer_shapes(&model).map(|(done, _)| readable(&done)).is_ok(),
            2 | 3 => {
                let opset = *random.of_all(&[7, 11, 13, 17, 19, 21, 23, 25, 28]);
                convert_opset(&model, opset).map(|(done, _)| readable(&done)).is_ok()
            }
            4 => {
                let keep_io = random.once_in(2);
                let options = HalfOptions { keep_io, ..HalfOptions::default() };
                convert_half(&model, &options).map(|done| readable(done.model())).is_ok()
            }
            5 => {
                let below = Below::Sparsity(0.5);
                let how = Prune { below, per_channel: random.once_in(2), exclude: Vec::new() };
                prune(&model, &how).map(|(done, _)| readable(&done)).is_ok()
            }
            6 => {
                let values: Vec<String> =
                    model.graph().node.iter().flat_map(|node| node.output.clone()).collect();
                let [from, to] = [random.below(values.len()), random.below(values.len())];
                let name = |at: usize| values.get(at).cloned().into_iter().collect::<Vec<_>>();
                extract(&model, &name(from), &name(to)).map(|done| readable(&done.model)).is_ok()
            }
            7 => {
                let target = Some(*random.of_all(Target::ALL));
                let found = recommend(&model, Request { target, samples: None });
                found.map(|found| found.to_string().len() + found.to_json().len()).is_ok()
            }
            _ => outliers(&model, &OutlierOptions::default()).map(|found| found.to_json()).is_ok(),
        }
    })
}

/// Configurations of all kinds.
fn config(random: &mut Random) -> Config {
    let mut config = match random.below(4) {
        0 => Config::default(),
        1 => Config::for_target(*random.of_all(Target::ALL)),
        2 => Config { output_format: *random.of_all(Format::ALL), ..Config::default() },
        _ => common::with_activations(),
    };
    if config.output_format == Format::MatMulBnb4 || random.once_in(3) {
        let names = ["int4", "uint8", "nf4", "int2", "float8e4m3fn", "mxfp4", "int16", "fp4"];
        config.weights = random.of_all(&names).parse().unwrap();
    }
    if random.once_in(3) {
        config.block_size = Some(16 << random.below(3));
    }
    if random.once_in(4) {
        config.per_channel = Some(random.once_in(2));
        config.symmetric = Some(random.once_in(2));
    }
    config.smooth = random.once_in(2);
    config.allow_larger = true;
    config
}

/// Quantizes weights.
pub(super) fn quantize(corpus: &Corpus) -> Attack {
    let corpus = corpus.clone();
    Box::new(move |random| {
        let Ok(model) = Model::from_bytes(corpus.mutated(random)) else { return false };
        let config = Config { activations: None, ..config(random) };
        let Ok(prepared) = PreprocessedModel::of(&model, config) else { return false };
        let plan = prepared.plan();
        drop(plan.to_string());
        if random.once_in(4) {
            drop(weight_sensitivity(&prepared.model, &plan).map(|found| found.to_json()));
        }
        let Ok(done) = plan.apply(&prepared.model, None) else { return false };
        readable(done.model());
        drop(done.report().to_json());
        true
    })
}

/// Calibrates, quantizes and validates.
pub(super) fn calibrate(corpus: &Corpus) -> Attack {
    let corpus = corpus.clone();
    let methods: Vec<Method> = Method::all().filter_map(|(name, _)| name.parse().ok()).collect();
    Box::new(move |random| {
        let Ok(model) = Model::from_bytes(corpus.mutated(random)) else { return false };
        let Ok(prepared) = PreprocessedModel::of(&model, config(random)) else { return false };
        let (prepared, plan) = (&prepared.model, prepared.plan());
        let control = Control { threads: 1, progress: &mut |_| true };
        let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
        let method = random.of_all(&methods);
        let ranges = run_samples(prepared, &plan, &engine, &mut samples, method, control);
        let Ok(ranges) = ranges else { return false };
        let Ok(done) = plan.apply(prepared, Some(&ranges)) else { return false };
        readable(done.model());
        let _ = compare(&model, done.model(), None);
        true
    })
}

/// Validates a quantized model that was mutated.
pub(super) fn validate(_: &Corpus) -> Attack {
    let mut seeds = Vec::new();
    // Some of them have all that is validated.
    for model in common::fixtures().into_values().step_by(4) {
        let formats = Format::ALL.iter().map(|format| Config {
            output_format: *format,
            allow_larger: true,
            ..Config::default()
        });
        for config in formats.chain([common::with_activations()]) {
            let Ok(prepared) = PreprocessedModel::of(&model, config) else { continue };
            let plan = prepared.plan();
            let control = Control { threads: 1, progress: &mut |_| true };
            let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
            let method = Method::full_range();
            let ranges =
                run_samples(&prepared.model, &plan, &engine, &mut samples, &method, control);
            let Ok(ranges) = ranges else { continue };
            let Ok(done) = plan.apply(&prepared.model, Some(&ranges)) else { continue };
            seeds.push((model.clone(), done.to_bytes().unwrap()));
        }
    }
    assert!(seeds.len() > 30, "{}", seeds.len());
    Box::new(move |random| {
        let (original, quantized) = random.of_all(&seeds);
        let (_, other) = random.of_all(&seeds);
        let Ok(model) = Model::from_bytes(protobuf::mutated(quantized, other, random)) else {
            return false;
        };
        drop(conformance(&model, *random.of_all(Target::ALL)));
        let found = compare(original, &model, None);
        found.is_ok_and(|found| {
            drop((found.to_string(), found.to_json()));
            found.passed()
        })
    })
}
