//! The engine that chooses: which engine it uses, when, and the reason that it gives.
#![cfg(all(feature = "onnxruntime", feature = "tract"))]

mod installed;
mod shown;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quantize_rs::{CalibrationErrorKind, Engine, Sample};
use quantize_rs_onnx::{DataType, Edit, Model, Tensor, TensorProto};
use quantize_rs_runner::{Auto, Tract};
use shown::{all_values, fixture, fixtures, node, onnxruntime, run, sample_for, slow_model};

fn auto() -> Option<Auto> {
    onnxruntime().cloned().map(Auto::with)
}

/// A model, a node that tract does not support or computes incorrectly, and the message.
fn models_beyond_tract() -> Vec<(Model, &'static str)> {
    let with = |edits: Vec<Edit>| {
        let mut model = fixture("conv2d_relu");
        model.apply(edits).unwrap();
        model
    };
    let output = || Edit::AddOutput("last".to_owned());
    vec![
        (fixture("loop_subgraph"), "operator Loop (`loop1`)"),
        (fixture("local_function"), "operator DenseLeaky of domain local (`denseleaky1`)"),
        (fixture("sequence_values"), "operator ConcatFromSequence (`concatfromsequence1`)"),
        (
            with(vec![node("GlobalLpPool", &["relu1_y"], "last", &[("p", 1)]), output()]),
            "operator GlobalLpPool, which is computed incorrectly (`last_node`)",
        ),
        (
            with(vec![
                node("LpPool", &["relu1_y"], "pooled", &[]),
                node("Det", &["pooled"], "last", &[]),
                output(),
            ]),
            "operator Det (`last_node`); operator LpPool (`pooled_node`)",
        ),
    ]
}

#[test]
fn auto_uses_onnxruntime_for_models_that_tract_cannot_run() {
    for (model, what) in models_beyond_tract() {
        let alone = Auto::without("it is on holiday");
        let sample = sample_for(&model, 2);
        let error = alone.prepare(&model, &[], &sample).err().expect("a refusal");
        assert!(matches!(error.kind(), CalibrationErrorKind::NoEngine { .. }));
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains("pip install onnxruntime"), "{error}");
        assert!(error.to_string().contains("; it is on holiday"), "{error}");
        if let Some(both) = auto().filter(|_| !what.contains("LpPool (`pooled")) {
            let runner = both.prepare(&model, &[], &sample).unwrap();
            assert_eq!(runner.engine(), Some("onnxruntime"));
            let note = runner.note().expect("why");
            assert!(note.starts_with("run by onnxruntime, because tract fails: "), "{note}");
            assert!(note.contains(what), "{note}");
        }
    }
}

#[test]
fn auto_uses_tract_only_if_both_engines_agree() {
    let Some(onnxruntime) = onnxruntime() else { return };
    for name in fixtures() {
        let auto = Auto::with(onnxruntime.clone());
        let model = fixture(&name);
        let sample = sample_for(&model, 2);
        let Ok((observed, tract)) = all_values(&Tract, &model, &sample) else { continue };
        let runner = auto.prepare(&model, &observed, &sample).unwrap();
        let note = runner.note().expect("why");
        if name == "huge_weights" {
            // Whether a sum of numbers this large is finite depends on the order.
            assert_eq!(runner.engine(), Some("onnxruntime"));
            let begins =
                "run by onnxruntime, because for the first sample tract computes `conv1_y`";
            assert!(note.starts_with(begins), "{note}");
            assert_eq!(run(&*runner, &sample).unwrap().0.len(), observed.len());
            continue;
        }
        if note.contains("has dynamic axes") {
            assert_eq!(runner.engine(), Some("onnxruntime"), "{name}");
            continue;
        }
        assert_eq!(runner.engine(), Some("tract"), "{name}");
        let unchecked = onnxruntime.prepare(&model, &observed, &sample).is_err();
        assert_eq!(note.contains("unchecked"), unchecked, "{name}: {note}");
        assert_eq!(run(&*runner, &sample).unwrap(), run(&*tract, &sample).unwrap(), "{name}");
    }
}

#[test]
fn auto_uses_tract_without_onnxruntime() {
    let model = fixture("residual_add");
    let auto = Auto::without("no onnxruntime is installed");
    let runner = auto.prepare(&model, &[], &sample_for(&model, 1)).unwrap();
    let note = "run by tract: no onnxruntime is installed";
    assert_eq!((runner.engine(), runner.note()), (Some("tract"), Some(note)));
}

#[test]
fn auto_uses_onnxruntime_for_slow_models() {
    let Some(onnxruntime) = onnxruntime() else { return };
    let mut deep = fixture("conv2d_relu");
    let mut edits: Vec<Edit> = (0..500)
        .map(|step| node("Relu", &[&format!("r{step}")], &format!("r{}", step + 1), &[]))
        .collect();
    edits.push(node("Relu", &["x"], "r0", &[]));
    edits.push(Edit::AddOutput("r500".to_owned()));
    deep.apply(edits).unwrap();
    let mut heavy = fixture("conv2d_relu");
    let weight = Tensor::from_f32(vec![12, 10_000], &vec![0.5; 120_000]);
    heavy
        .apply(vec![
            Edit::AddInitializer(TensorProto::new("weight", &weight)),
            node("MatMul", &["x", "weight"], "last", &[]),
            Edit::AddOutput("last".to_owned()),
        ])
        .unwrap();
    let cases = [
        (deep, "it prepares a model with 503 nodes faster"),
        (heavy, "it runs a model of this size several times as fast"),
        (fixture("dynamic_shape"), "input `x` has dynamic axes, and one session runs all shapes"),
    ];
    for (model, why) in cases {
        let auto = Auto::with(onnxruntime.clone());
        let runner = auto.prepare(&model, &[], &sample_for(&model, 8)).unwrap();
        assert_eq!(runner.engine(), Some("onnxruntime"));
        assert_eq!(runner.note(), Some(&*format!("run by onnxruntime: {why}")));
        assert!(runner.any_shape());
    }
}

#[test]
fn if_both_engines_fail_both_errors_are_reported() {
    let Some(auto) = auto() else { return };
    let model = fixture("custom_domain");
    let error = auto.prepare(&model, &[], &sample_for(&model, 1)).err().expect("a refusal");
    assert!(matches!(error.kind(), CalibrationErrorKind::NoEngine { .. }));
    for what in ["operator Sparkle of domain acme.ops (`sparkle1`)", "Sparkle(-1) is not a regist"]
    {
        assert!(error.to_string().contains(what), "{error}");
    }
    // An error of the sample is reported once.
    let model = fixture("conv2d_relu");
    let sample = Sample { inputs: vec![] };
    let error = auto.prepare(&model, &[], &sample).err().expect("a refusal");
    assert!(error.kind().category() == "input_mismatch", "{error}");
}

/// A model that converts numbers to integers, and samples on which the engines agree and do not: a
/// number that int32 cannot represent becomes the nearest one in one engine, and the smallest in
/// the other.
fn cutting_model() -> (Model, Sample, Sample) {
    let mut model = fixture("mlp_relu");
    let to = |dtype: DataType| [("to", i64::from(dtype.number()))];
    let edits = vec![
        node("Cast", &["x"], "whole", &to(DataType::Int32)),
        node("Cast", &["whole"], "last", &to(DataType::Float)),
        Edit::AddOutput("last".to_owned()),
    ];
    model.apply(edits).unwrap();
    let sample = |rows: usize, value: f32| {
        let x = Tensor::from_f32(vec![rows, 16], &vec![value; rows * 16]);
        Sample { inputs: vec![("x".to_owned(), x)] }
    };
    (model, sample(1, 2.5), sample(2, 1e10))
}

#[test]
fn auto_chooses_once_whatever_the_order_of_the_samples() {
    let Some(onnxruntime) = onnxruntime() else { return };
    let (model, one, two) = cutting_model();
    let observed = ["last".to_owned()];
    let auto = Auto::with(onnxruntime.clone());
    for _ in 0..2 {
        assert_eq!(auto.prepare(&model, &observed, &one).unwrap().engine(), Some("tract"));
    }
    let error = auto.prepare(&model, &observed, &two).err().expect("a refusal");
    assert!(error.to_string().contains("computes `last`"), "{error}");
    assert!(error.to_string().contains("engine=\"onnxruntime\""), "{error}");
    // Another model, such as a quantized one, uses the same engine and is not compared.
    let mut other = model.clone();
    other.apply(vec![node("Relu", &["last"], "more", &[])]).unwrap();
    assert_eq!(auto.prepare(&other, &observed, &two).unwrap().engine(), Some("tract"));

    let auto = Auto::with(onnxruntime.clone());
    for sample in [&two, &one] {
        assert_eq!(auto.prepare(&model, &observed, sample).unwrap().engine(), Some("onnxruntime"));
    }
}

#[test]
fn a_cancelled_comparison_ends_at_once() {
    let Some(onnxruntime) = onnxruntime() else { return };
    let model = slow_model(400);
    let sample = sample_for(&model, 1600);
    let stop = Arc::new(AtomicBool::new(false));
    let auto = Auto::with(onnxruntime.clone()).stopped_by(Arc::clone(&stop));
    let (error, took) = std::thread::scope(|scope| {
        let prepare = || auto.prepare(&model, &[], &sample).map(drop);
        let prepared = scope.spawn(prepare);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!prepared.is_finished(), "it is not slow");
        stop.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        (prepared.join().unwrap().unwrap_err(), begun.elapsed())
    });
    assert_eq!(error.kind(), &CalibrationErrorKind::Cancelled);
    assert!(took < Duration::from_secs(5), "{took:?}"); // 1 s when alone
}
