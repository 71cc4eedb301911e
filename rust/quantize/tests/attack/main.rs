//! Mutated models against everything that takes a model: each is refused with an error, or what
//! comes out can be read. No input may cause a panic, or take more than ten seconds.
//!
//! `make attack N=1000000` runs a million; the ordinary test runs a few. A number stands for an
//! input: `FIRST=123 N=1` runs that one again.

#[path = "../common/mod.rs"]
mod common;
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Even, Numbers, files};
use mutate::{Random, mutated};
use quantize_rs::{
    Config, Control, Format, HalfOptions, Method, Model, PreprocessedModel, Ranges, Target,
    calibrate, convert_half, convert_opset, infer_shapes, optimize, validate,
};

/// The largest seed in bytes: larger ones are slower, and have no other code to reach.
const LARGEST: usize = 24 << 10;

/// No input may take longer.
const SLOWEST: Duration = Duration::from_secs(10);

fn seeds() -> Vec<Vec<u8>> {
    let attacks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attacks/files");
    let attacks = std::fs::read_dir(attacks).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = files();
    paths.extend(attacks.filter(|path| path.extension().is_some_and(|end| end == "onnx")));
    paths.sort();
    let read = paths.iter().map(|path| std::fs::read(path).unwrap());
    read.filter(|bytes| (8..LARGEST).contains(&bytes.len())).collect()
}

/// Configurations of all kinds.
fn config(random: &mut Random) -> Config {
    let mut config = match random.below(4) {
        0 => Config::default(),
        1 => Config::for_target(Target::ALL[random.below(Target::ALL.len())]),
        2 => {
            let output_format = Format::ALL[random.below(Format::ALL.len())];
            Config { output_format, ..Config::default() }
        }
        _ => common::with_activations(),
    };
    if config.output_format == Format::MatMulBnb4 || random.below(3) == 0 {
        let names = ["int4", "uint8", "nf4", "int2", "float8e4m3fn", "mxfp4", "int16", "fp4"];
        config.weights = names[random.below(names.len())].parse().unwrap();
    }
    if random.below(3) == 0 {
        config.block_size = Some(16 << random.below(3));
    }
    if random.below(4) == 0 {
        config.per_channel = Some(random.below(2) == 0);
        config.symmetric = Some(random.below(2) == 0);
    }
    config.smooth = random.below(2) == 0;
    config.allow_larger = true;
    config
}

/// Runs one input; whether a quantized model came out.
fn attack(bytes: &[u8], random: &mut Random) -> bool {
    let Ok(model) = Model::from_bytes(bytes.to_vec()) else { return false };
    let readable = |model: &Model| {
        if let Ok(bytes) = model.to_bytes() {
            Model::from_bytes(bytes).expect("what is written can be read");
        }
    };
    match random.below(8) {
        0 => drop(optimize(&model, None, &[]).map(|done| readable(done.model()))),
        1 => drop(infer_shapes(&model).map(|(done, _)| readable(&done))),
        2 => {
            let opset = [7, 11, 13, 17, 19, 21, 23, 25, 28][random.below(9)];
            drop(convert_opset(&model, opset).map(|(done, _)| readable(&done)));
        }
        3 => {
            let options = HalfOptions { keep_io: random.below(2) == 0, ..HalfOptions::default() };
            drop(convert_half(&model, &options).map(|done| readable(done.model())));
        }
        _ => {}
    }
    let Ok(prepared) = PreprocessedModel::of(&model, config(random)) else { return false };
    let (prepared, plan) = (&prepared.model, prepared.plan());
    let control = Control { threads: 1, progress: &mut |_| true };
    let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
    let ranges = calibrate(prepared, &plan, &engine, &mut samples, &Method::default(), control);
    let Ok(ranges) = ranges else { return false };
    let Ok(done) = plan.apply(prepared, Some(&ranges)) else { return false };
    readable(done.model());
    let _ = validate(&model, done.model(), None);
    true
}

/// JSON that was written, with some bytes changed.
fn attack_text(text: &str, random: &mut Random) {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        bytes[at] = b"0123456789-.eE{}[]\",:nulltrue "[random.below(29)];
    }
    let text = String::from_utf8_lossy(&bytes);
    drop(Ranges::from_json(&text).map(|ranges| ranges.using(&Method::default())));
    drop(serde_json::from_str::<Config>(&text).map(|config| config.check()));
}

/// Runs the inputs of these numbers; the count of those from which a model came out.
fn run(first: u64, count: u64, threads: usize) -> u64 {
    let seeds = seeds();
    assert!(seeds.len() > 50, "{}", seeds.len());
    let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
    let faults: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let known = {
        let model = common::fixture("avgpool_gap");
        let plan = common::plan(&model, common::with_activations());
        let config = serde_json::to_string(&plan.config).unwrap();
        [common::ranges(&model, &plan).to_json(), config]
    };
    let running: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for own in &running {
            let (next, done, faults, seeds, known) = (&next, &done, &faults, &seeds, &known);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= first + count {
                        own.store(u64::MAX, Ordering::Relaxed);
                        return;
                    }
                    own.store(number, Ordering::Relaxed);
                    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    random.next();
                    let started = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        if number % 16 == 0 {
                            attack_text(&known[random.below(2)], &mut random);
                            return false;
                        }
                        let seed = &seeds[random.below(seeds.len())];
                        let other = &seeds[random.below(seeds.len())];
                        let bytes = mutated(seed, other, &mut random);
                        attack(&bytes, &mut random)
                    }));
                    done.fetch_add(u64::from(matches!(outcome, Ok(true))), Ordering::Relaxed);
                    let what = outcome.err().map(|panic| {
                        let text = panic.downcast_ref::<String>().cloned();
                        text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
                            .unwrap_or_default()
                    });
                    let slow = started.elapsed() > SLOWEST;
                    if let Some(what) = what.or_else(|| slow.then(|| "slow".to_owned())) {
                        eprintln!("input {number}: {what}");
                        faults.lock().unwrap().push(format!("{number}: {what}"));
                    }
                }
            });
        }
        let mut shown = Instant::now();
        while running.iter().any(|own| own.load(Ordering::Relaxed) != u64::MAX)
            || next.load(Ordering::Relaxed) < first + count
        {
            std::thread::sleep(Duration::from_millis(20));
            if shown.elapsed() > Duration::from_secs(30) {
                shown = Instant::now();
                let at: Vec<u64> = running.iter().map(|own| own.load(Ordering::Relaxed)).collect();
                eprintln!(
                    "{} inputs in {:.0} s, {} faults, now {at:?}",
                    next.load(Ordering::Relaxed) - first,
                    begun.elapsed().as_secs_f64(),
                    faults.lock().unwrap().len(),
                );
            }
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
    done.into_inner()
}

#[test]
fn some_mutated_models_are_quantized_or_refused() {
    let done = run(0, 1500, 2);
    assert!(done > 150, "{done}");
}

#[test]
#[ignore = "as long as you like: make attack N=1000000"]
fn many_mutated_models_are_quantized_or_refused() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |n| n.parse().unwrap());
    let (first, count, threads) = (number("FIRST", 0), number("N", 100_000), number("THREADS", 2));
    let done = run(first, count, usize::try_from(threads).unwrap());
    println!("{count} inputs, {done} of them were quantized, no fault");
}
