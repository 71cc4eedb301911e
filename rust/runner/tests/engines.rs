//! The engines side by side: they show the same values, and report what they cannot run.
#![cfg(all(feature = "onnxruntime", feature = "tract"))]

mod installed;
mod shown;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quantize_rs::{CalibrationError, CalibrationErrorKind, Engine, Sample, ValueSink};
use quantize_rs_onnx::{DataType, Edit, Tensor};
use quantize_rs_runner::Tract;
use shown::{
    Seen, Shown, all_values, engines, fixture, fixtures, node, onnxruntime, run, sample_for,
    slow_model,
};

/// Without a library, all other tests here pass after checking tract only; this one fails.
#[test]
fn there_is_an_onnxruntime_to_test_with() {
    assert!(
        onnxruntime().is_some(),
        "HALF OF THESE TESTS DID NOT RUN: no ONNX Runtime. `make .venv/created` installs one; or \
         set ORT_DYLIB_PATH to its library"
    );
}

/// Fixtures that the engines refuse, and a part of the message.
const REFUSED: &[(&str, &str, &str)] = &[
    ("tract", "bf16_weights", "element type bfloat16 (`w`)"),
    ("tract", "custom_domain", "operator Sparkle of domain acme.ops (`sparkle1`)"),
    ("tract", "double_model", "node `gemm1` (Gemm): tract: "),
    ("tract", "local_function", "operator DenseLeaky of domain local (`denseleaky1`)"),
    ("tract", "loop_subgraph", "operator Loop (`loop1`)"),
    ("tract", "many_types", "element type bfloat16 (`a_bfloat16`)"),
    ("tract", "many_types_ir13", "element type bfloat16 (`a_bfloat16`)"),
    ("tract", "many_types_outputs", "element type bfloat16 (`a_bfloat16`)"),
    (
        "tract",
        "sequence_values",
        "operator ConcatFromSequence (`concatfromsequence1`); operator SequenceConstruct",
    ),
    ("tract", "sparse_initializer", "sparse initializers (`w_sparse`)"),
    ("onnxruntime", "custom_domain", "acme.ops:Sparkle(-1) is not a registered function/op"),
    ("onnxruntime", "duplicate_node_names", "two nodes with same node name (same)"),
];

/// Whether an error only means that the library is older than the model.
fn asks_for_a_newer_one(error: &CalibrationError) -> bool {
    let error = error.to_string();
    error.contains("Unsupported model IR version") || error.contains("is under development")
}

/// The order of a sum depends on the engine; in float16 every step of it is rounded.
fn tolerance(fixture: &str) -> f32 {
    if fixture.starts_with("fp16") { 2e-3 } else { 1e-5 }
}

#[test]
fn the_engines_show_the_same_values_and_refuse_the_rest_by_name() {
    for name in fixtures() {
        let model = fixture(&name);
        let sample = sample_for(&model, 2);
        let mut all: Vec<BTreeMap<String, Shown>> = Vec::new();
        for engine in engines() {
            let refused = REFUSED.iter().find(|row| (row.0, row.1) == (engine.name(), &name));
            let shown = all_values(engine, &model, &sample).and_then(|(observed, runner)| {
                let seen = run(&*runner, &sample)?.0;
                assert_eq!(seen.len(), observed.len(), "{name}");
                Ok(seen
                    .into_iter()
                    .map(|(index, shown)| (observed[index].clone(), shown))
                    .collect())
            });
            match (shown, refused) {
                (Ok(shown), None) => all.push(shown),
                (Err(error), Some((.., what))) => {
                    assert!(error.to_string().contains(what), "{name}: {error}");
                }
                (Err(error), None) => {
                    assert!(asks_for_a_newer_one(&error), "{name}: {}: {error}", engine.name());
                }
                (Ok(_), Some(_)) => panic!("{name}: {} runs it by now", engine.name()),
            }
        }
        if let [ours, theirs] = &all[..] {
            assert!(ours.keys().all(|value| theirs.contains_key(value)), "{name}");
            for (value, (shape, values)) in ours {
                let (other_shape, others) = &theirs[value];
                assert_eq!(shape, other_shape, "{name}: {value}");
                // Engines may flush subnormal numbers to 0.
                let largest = values.iter().fold(0_f32, |max, x| max.max(x.abs()));
                let allowed = tolerance(&name) * largest + f32::MIN_POSITIVE;
                let differs = |(a, b): &(&f32, &f32)| a != b && (*a - *b).abs() > allowed;
                let first = values.iter().zip(others).position(|pair| differs(&pair));
                assert_eq!(first, None, "{name}: {value}");
            }
        }
    }
}

#[test]
fn one_runner_of_onnxruntime_takes_samples_of_any_shape() {
    let Some(onnxruntime) = onnxruntime() else { return };
    let model = fixture("dynamic_shape");
    let (observed, runner) = all_values(onnxruntime, &model, &sample_for(&model, 8)).unwrap();
    assert!(runner.any_shape());
    for any in [8, 11, 16] {
        let sample = sample_for(&model, any);
        let own = onnxruntime.prepare(&model, &observed, &sample).unwrap();
        assert_eq!(run(&*runner, &sample).unwrap(), run(&*own, &sample).unwrap());
        assert!(!Tract.prepare(&model, &observed, &sample).unwrap().any_shape());
    }
}

#[test]
fn every_observed_value_is_shown_at_its_index() {
    let model = fixture("output_is_input");
    let sample = sample_for(&model, 1);
    let x = sample.get("x").and_then(Tensor::to_f32).unwrap();
    let observed = ["again", "x", "same", "x", "again"].map(str::to_owned);
    for engine in engines() {
        let seen = run(&*engine.prepare(&model, &observed, &sample).unwrap(), &sample).unwrap();
        assert_eq!(
            seen.0.into_values().map(|(_, values)| values).collect::<Vec<_>>(),
            vec![x.clone(); 5]
        );
    }
}

#[test]
fn constants_are_the_same_in_each_run() {
    let model = fixture("weight_transpose");
    let sample = sample_for(&model, 1);
    let observed = ["transpose1_y", "w"].map(str::to_owned);
    let mut all = engines().into_iter().map(|engine| {
        let runner = engine.prepare(&model, &observed, &sample).unwrap();
        let seen = run(&*runner, &sample).unwrap();
        assert_eq!(run(&*runner, &sample).unwrap(), seen);
        seen
    });
    let first = all.next().unwrap();
    assert!(all.all(|seen| seen == first));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let model = fixture("conv2d_relu");
    let sample = sample_for(&model, 1);
    let wrong = Sample {
        inputs: vec![("x".to_owned(), Tensor::from_f32(vec![1, 12, 12, 3], &[0.0; 432]))],
    };
    for engine in engines() {
        let refusal = |observed: &[&str], sample: &Sample| {
            let observed: Vec<String> = observed.iter().map(|name| (*name).to_owned()).collect();
            engine.prepare(&model, &observed, sample).err().expect("a refusal")
        };
        let error = refusal(&[], &wrong);
        let message = "input `x`: expected float32 [?, 3, 12, 12], got float32 [1, 12, 12, 3]";
        let (expected, found) = ("float32 [?, 3, 12, 12]", "float32 [1, 12, 12, 3]");
        let kind = CalibrationErrorKind::WrongInput {
            input: "x".to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        };
        assert_eq!(error.kind(), &kind);
        assert_eq!(error.kind().to_string(), message);
        let message = "the main graph has no value `relu9` to observe (`relu9`)";
        assert_eq!(refusal(&["relu9"], &sample).to_string(), message);
        assert_eq!(refusal(&[""], &sample).value(), Some(""));
    }
}

#[test]
fn a_failing_node_is_named_and_the_next_sample_runs() {
    let model = fixture("gather_embedding");
    let good = sample_for(&model, 1);
    let mut bad = good.clone();
    let ids = &mut bad.inputs[0].1;
    ids.data = [1_i64 << 40; 6].iter().flat_map(|id| id.to_le_bytes()).collect();
    for engine in engines() {
        let runner = engine.prepare(&model, &["gather1_y".to_owned()], &good).unwrap();
        let error = run(&*runner, &bad).unwrap_err();
        let begins = format!("node `gather1` (Gather): {}: ", engine.name());
        assert!(error.to_string().starts_with(&begins), "{error}");
        assert_eq!(error.value(), Some("gather1"));
        run(&*runner, &good).unwrap();
    }
}

#[test]
fn threads_share_a_runner_and_each_sees_its_own_sample() {
    let model = fixture("residual_add");
    let sample = sample_for(&model, 1);
    let times = |factor: f32| {
        let inputs = sample.inputs.iter().map(|(name, tensor)| {
            let values: Vec<f32> = tensor.to_f32().unwrap().iter().map(|x| x * factor).collect();
            (name.clone(), Tensor::from_f32(tensor.shape.clone(), &values))
        });
        Sample { inputs: inputs.collect() }
    };
    let samples = [1.0, -2.0, 0.5, 3.0].map(times);
    for engine in engines() {
        let (_, runner) = all_values(engine, &model, &sample).unwrap();
        let alone = samples.each_ref().map(|sample| run(&*runner, sample).unwrap());
        std::thread::scope(|scope| {
            for (sample, alone) in samples.iter().zip(&alone) {
                let runner = &*runner;
                scope.spawn(move || {
                    for _ in 0..32 {
                        assert_eq!(run(runner, sample).unwrap(), *alone, "{}", engine.name());
                    }
                });
            }
        });
    }
}

#[test]
fn a_run_that_is_cancelled_ends_at_once() {
    let model = slow_model(2000);
    let sample = sample_for(&model, 800);
    for engine in engines() {
        let runner = engine.prepare(&model, &["slow2000".to_owned()], &sample).unwrap();
        let cancelled = AtomicBool::new(false);
        let (error, took) = std::thread::scope(|scope| {
            let run = scope.spawn(|| runner.run(&sample, &mut Seen::default(), &cancelled));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!run.is_finished(), "it is not slow");
            cancelled.store(true, Ordering::Relaxed);
            let begun = Instant::now();
            (run.join().unwrap().unwrap_err(), begun.elapsed())
        });
        assert_eq!(error.kind(), &CalibrationErrorKind::Cancelled);
        assert!(took < Duration::from_secs(5), "{}: {took:?}", engine.name()); // 1 s when alone
        // a run that is already cancelled does not begin
        let error = runner.run(&sample, &mut Seen::default(), &cancelled).unwrap_err();
        assert_eq!(error.kind(), &CalibrationErrorKind::Cancelled);
    }
}

#[test]
fn a_long_run_after_a_short_one_is_cancelled_too() {
    let model = slow_model(2000);
    let (short, long) = (sample_for(&model, 2), sample_for(&model, 800));
    let Some(engine) = onnxruntime() else { return };
    let runner = engine.prepare(&model, &["slow2000".to_owned()], &short).unwrap();
    for _ in 0..2 {
        run(&*runner, &short).unwrap();
    }
    let cancelled = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let run = scope.spawn(|| runner.run(&long, &mut Seen::default(), &cancelled));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!run.is_finished(), "it is not slow");
        cancelled.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        assert!(run.join().unwrap().is_err());
        begun.elapsed()
    });
    assert!(took < Duration::from_secs(5), "{took:?}"); // 1 s when alone
}

#[test]
fn a_panic_of_the_sink_is_an_error() {
    struct Panics;
    impl ValueSink for Panics {
        fn observe(&mut self, _index: usize, _shape: &[usize], _values: &[f32]) {
            panic!("no more");
        }
    }
    let model = fixture("conv2d_relu");
    let sample = sample_for(&model, 1);
    for engine in engines() {
        let runner = engine.prepare(&model, &["relu1_y".to_owned()], &sample).unwrap();
        let error = runner.run(&sample, &mut Panics, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("panicked: no more"), "{error}");
        run(&*runner, &sample).unwrap();
    }
}

#[test]
fn tract_rounds_at_casts_to_float16() {
    let mut model = fixture("conv2d_relu");
    let (half, single) =
        (i64::from(DataType::Float16.number()), i64::from(DataType::Float.number()));
    let edits = vec![
        node("Cast", &["x"], "half", &[("to", half)]),
        node("Add", &["half", "half"], "sum", &[]),
        node("Cast", &["sum"], "single", &[("to", single)]),
        Edit::AddOutput("single".to_owned()),
    ];
    model.apply(edits).unwrap();
    let mut sample = sample_for(&model, 1);
    let mut values = sample.inputs[0].1.to_f32().unwrap();
    values[0] = 1e9;
    sample.inputs[0].1 = Tensor::from_f32(vec![1, 3, 12, 12], &values);
    let expected: Vec<f32> =
        values.iter().map(|x| half::f16::from_f32(*x).to_f32() * 2.0).collect();
    assert_eq!(expected[0], f32::INFINITY);
    // ONNX Runtime itself removes such a pair of casts.
    let runner = Tract.prepare(&model, &["single".to_owned()], &sample).unwrap();
    assert_eq!(run(&*runner, &sample).unwrap().0[&0].1, expected);
}
