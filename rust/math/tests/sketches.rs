//! Properties of sketches: they depend only on the samples.

// Arithmetic on small numbers.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use proptest::prelude::*;
use quantize_rs_math::stats::{Histogram, Sketch};

/// Floats of all magnitudes that take different code paths.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -30.0_f32..30.0,
        3 => Just(0.0_f32),
        1 => Just(-0.0_f32),
        1 => (-600_i16..600).prop_map(|halves| f32::from(halves) / 2.0),
        1 => -20_000.0_f32..20_000.0,
        1 => prop_oneof![Just(-1e4_f32), Just(-65504.0_f32), Just(f32::MIN), Just(-4096.0_f32)],
        1 => prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL,
        1 => prop_oneof![
            Just(f32::NAN),
            Just(f32::INFINITY),
            Just(f32::NEG_INFINITY),
            Just(f32::MAX)
        ],
    ]
}

/// A tensor: short, or long enough for the scratch histogram.
fn any_sample() -> impl Strategy<Value = Vec<f32>> {
    let len = prop_oneof![4 => 0_usize..50, 1 => 8100_usize..8300, 1 => 8300_usize..40_000];
    (prop::collection::vec(any_float(), 1..120), len)
        .prop_map(|(pattern, len)| pattern.into_iter().cycle().take(len).collect())
}

fn of<'a>(samples: impl IntoIterator<Item = &'a Vec<f32>>) -> Sketch {
    let mut sketch = Sketch::default();
    for sample in samples {
        sketch.observe(sample);
    }
    sketch
}

fn json(sketch: &Sketch) -> String {
    serde_json::to_string(sketch).unwrap()
}

/// The bins of a side, by definition.
fn bins(values: &[f32], exponent: i32, negative: bool) -> Vec<u64> {
    let mut bins = vec![0; Histogram::BINS];
    for x in values.iter().filter(|&&x| (x < 0.0) == negative) {
        bins[(f64::from(x.abs()) / 2_f64.powi(exponent)).floor() as usize] += 1;
    }
    if bins.iter().all(|&count| count == 0) { Vec::new() } else { bins }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_shards_and_serialization_do_not_matter(
        (samples, shuffled) in prop::collection::vec(any_sample(), 0..7)
            .prop_flat_map(|samples| (Just(samples.clone()), Just(samples).prop_shuffle())),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = of(&samples);
        prop_assert_eq!(&whole, &of(&shuffled));
        let (left, right) = shuffled.split_at(cut.index(shuffled.len() + 1));
        for (one, other) in [(left, right), (right, left)] {
            let mut merged: Sketch = serde_json::from_str(&json(&of(one))).unwrap();
            merged.merge(&of(other));
            prop_assert_eq!(&whole, &merged);
            prop_assert_eq!(json(&whole), json(&merged));
        }
        prop_assert_eq!(&serde_json::from_str::<Sketch>(&json(&whole)).unwrap(), &whole);
    }

    #[test]
    fn the_histogram_is_the_one_of_the_definition(
        samples in prop::collection::vec(any_sample(), 1..5),
    ) {
        let sketch = of(&samples);
        let seen = sketch.values();
        let masked = sketch.mask().map_or(0, |mask| mask.count);
        let kept: Vec<f32> = samples.concat().into_iter()
            .filter(|x| x.is_finite() && (masked == 0 || *x > -4096.0))
            .collect();
        prop_assert_eq!(seen.count(), kept.len() as u64);
        prop_assert_eq!(seen.zeros(), kept.iter().filter(|&&x| x == 0.0).count() as u64);
        prop_assert_eq!(seen.bins().map(|bin| bin.count).sum::<u64>(), seen.count());
        let histogram = seen.histogram();
        prop_assert_eq!(histogram.above(), bins(&kept, histogram.exponent(), false));
        prop_assert_eq!(histogram.below(), bins(&kept, histogram.exponent(), true));
        if let Some(absmax) = kept.iter().map(|x| x.abs()).max_by(f32::total_cmp) {
            prop_assert_eq!(seen.range().absmax(), absmax);
            let bins = f64::from(absmax) / histogram.width();
            prop_assert!(bins < 4096.0 && (bins >= 2048.0 || histogram.exponent() == -126));
            let sum: f64 = kept.iter().map(|&x| f64::from(x)).sum();
            let size: f64 = kept.iter().map(|&x| f64::from(x.abs())).sum();
            let mean = seen.mean().unwrap();
            prop_assert!((mean * kept.len() as f64 - sum).abs() <= 1e-12 * size);
        }
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let samples: Vec<Vec<f32>> = (1..9_usize)
        .map(|n| (0..9000 * n).map(|i| ((i * 7919 % 65_521) as f32 / 9e3 - 3.0).powi(3)).collect())
        .collect();
    let alone = of(&samples);
    let merged = std::thread::scope(|scope| {
        let shards: Vec<_> =
            samples.chunks(3).map(|shard| scope.spawn(move || of(shard))).collect();
        let mut merged = Sketch::default();
        shards.into_iter().rev().for_each(|shard| merged.merge(&shard.join().unwrap()));
        merged
    });
    assert_eq!(json(&alone), json(&merged));
}

#[test]
fn malformed_files_are_refused() {
    let text = json(&of(&[vec![1.5, -2.0, 0.0, 0.0]]));
    assert!(serde_json::from_str::<Sketch>(&text).is_ok());
    let near = text.find("\"near\":{").unwrap();
    let count = text[near..].find("\"count\":4").unwrap() + near;
    for (from, to) in [
        ("\"count\":4", "\"count\":5"),
        ("\"min\":-2.0", "\"min\":null"),
        ("\"min\":-2.0", "\"min\":2.0"),
        ("\"max\":1.5", "\"max\":1e300"),
        ("\"zeros\":2", "\"zeros\":3"),
        ("\"exponent\":-10", "\"exponent\":-11"),
        ("\"exponent\":-10", "\"exponent\":2000000000"),
        ("\"above\":\"", "\"above\":\"????"),
        ("\"below\":\"", "\"below\":\"AP//////////AQ=="),
    ] {
        let at = text[near..].find(from).unwrap() + near;
        assert!(at <= count + 400);
        let forged = format!("{}{}{}", &text[..at], to, &text[at + from.len()..]);
        assert!(serde_json::from_str::<Sketch>(&forged).is_err(), "{forged}");
    }
    for (from, to) in [("[-2.0]", "[-1e300]"), ("[1.5]", "[1e39]")] {
        let forged = text.replace(from, to);
        assert!(forged != text && serde_json::from_str::<Sketch>(&forged).is_err(), "{forged}");
    }
}

#[test]
fn a_sketch_is_small_on_disk() {
    let values: Vec<f32> =
        (0..200_000).map(|i| ((i * 7919 % 65_521) as f32 / 6e3 - 5.0).powi(3)).collect();
    let text = json(&of(&[values]));
    assert!(text.len() < 24_000, "{} bytes", text.len());
}
