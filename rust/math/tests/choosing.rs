//! Properties of all calibration methods.

// Arithmetic on small numbers.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use proptest::prelude::*;
use quantize_rs_math::range::{self, Degenerate, FoundRange, expected_error};
use quantize_rs_math::stats::Sketch;
use quantize_rs_math::{Granularity, QSpec, QType, Range, fake_quantize, metrics, params};

fn spec(qtype: QType, symmetric: bool) -> QSpec {
    QSpec::new(qtype, symmetric, Granularity::PerTensor)
}

fn specs() -> impl Iterator<Item = QSpec> {
    let scaled = QType::ALL.iter().filter(|qtype| qtype.is_scaled());
    scaled.flat_map(|&qtype| [false, true].map(|symmetric| spec(qtype, symmetric)))
}

fn of(samples: &[Vec<f32>]) -> Sketch {
    let mut sketch = Sketch::default();
    for sample in samples {
        sketch.observe(sample);
    }
    sketch
}

fn choose(method: &str, seen: &Sketch, spec: &QSpec) -> FoundRange {
    range::find(method).unwrap().range(seen, spec)
}

/// The measured mean squared error of quantizing.
fn error(values: &[f32], spec: &QSpec, range: Range) -> f64 {
    metrics(values, &fake_quantize(values, params(range, spec), spec)).mse
}

/// Values at equally spaced quantiles of this quantile function.
fn spread(quantile: impl Fn(f64) -> f64) -> Vec<f32> {
    const COUNT: u32 = 200_000;
    (0..COUNT).map(|i| quantile((f64::from(i) + 0.5) / f64::from(COUNT)) as f32).collect()
}

fn uniform() -> Vec<f32> {
    spread(|u| 2.0 * u - 1.0)
}

/// Both tails fall with the fourth power, as in a Student distribution with three degrees of
/// freedom.
fn long_tailed() -> Vec<f32> {
    let half = |u: f64| (1.0 - u).powf(-1.0 / 3.0) - 1.0;
    spread(|u| if u < 0.5 { -half(1.0 - 2.0 * u) } else { half(2.0 * u - 1.0) })
}

/// How much larger than the full range that of `mse` may be if samples tell nothing of others.
fn most_headroom(spec: &QSpec) -> f32 {
    if spec.levels() > 1 << 14 { 4.0 } else { 1.0 }
}

fn after_relu(values: &[f32]) -> Vec<f32> {
    values.iter().map(|x| x.max(0.0)).collect()
}

#[test]
fn names_find_their_method() {
    for finder in range::ALL {
        assert_eq!(range::find(&finder.name()).unwrap().name(), finder.name());
        assert!(!finder.about().is_empty() && !finder.name().contains(':'));
        assert_eq!(range::ALL.iter().filter(|other| other.name() == finder.name()).count(), 1);
        if finder.parameter().is_none() {
            assert!(range::find(&format!("{}:9", finder.name())).is_err());
        }
    }
    for (name, full) in [
        ("percentile:99.9", "percentile:99.9"),
        ("percentile:99.999", "percentile"),
        ("percentile:1e2", "percentile:100"),
        ("percentile:50.5", "percentile:50.5"),
        ("mse:2", "mse:2"),
        ("mse:2.50", "mse:2.5"),
        ("mse:1", "mse"),
        ("entropy:1.0", "entropy:1"),
        ("entropy:2.5", "entropy:2.5"),
    ] {
        assert_eq!(range::find(name).unwrap().name(), full);
    }
    let said = |name: &str| range::find(name).unwrap_err().to_string();
    for wrong in ["", "Minmax", "kl", "min:max", ":", "moving_average:2", "minmax:"] {
        assert!(
            said(wrong).starts_with(&format!("unknown method `{wrong}`, expected one of minmax, "))
        );
    }
    for wrong in ["50", "10", "0", "-99", "100.1", "NaN", "inf", "", "99,9", "99.9:1"] {
        let expected = format!("percentile `{wrong}`, expected a number above 50 and up to 100");
        assert_eq!(said(&format!("percentile:{wrong}")), expected);
    }
    for wrong in ["0.5", "0", "-2", "1001", "NaN", "inf", "", "two"] {
        let expected = format!("weight of clipping `{wrong}`, expected a number from 1 to 1000");
        assert_eq!(said(&format!("mse:{wrong}")), expected);
    }
    for wrong in ["0.5", "0", "-2", "NaN", "inf", "", "two"] {
        let expected =
            format!("ratio of squared errors `{wrong}`, expected a number of at least 1");
        assert_eq!(said(&format!("entropy:{wrong}")), expected);
    }
}

#[test]
fn clipping_may_count_more_than_once() {
    let values = spread(|u| -u.ln());
    let seen = of(std::slice::from_ref(&values));
    for qtype in [QType::UInt8, QType::UInt4] {
        let spec = spec(qtype, false);
        let clipped = |range: Range| {
            let over = |x: &f32| f64::from((x - range.max).max(0.0)).powi(2);
            values.iter().map(over).sum::<f64>() / values.len() as f64
        };
        let mut last = choose("mse", &seen, &spec).range;
        for weight in [2.0, 8.0, 64.0] {
            let range = choose(&format!("mse:{weight}"), &seen, &spec).range;
            assert!(range.max > last.max, "{qtype} {weight}: {range:?}");
            let weighted = |range| error(&values, &spec, range) + (weight - 1.0) * clipped(range);
            assert!(weighted(range) < weighted(last), "{qtype} {weight}: {range:?} and {last:?}");
            last = range;
        }
    }
}

#[test]
fn every_tensor_has_a_range() {
    let cases: [(&[f32], Option<Degenerate>); 9] = [
        (&[], Some(Degenerate::Nothing)),
        (&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], Some(Degenerate::Nothing)),
        (&[0.0, -0.0, 0.0], Some(Degenerate::Constant)),
        (&[-7.5; 100], Some(Degenerate::Constant)),
        (&[f32::MAX; 3], Some(Degenerate::Constant)),
        (&[f32::MIN, f32::MAX], None),
        (&[1e-45, -1e-45, 0.0, 3e-45], None),
        (&[5.0, 5.0, f32::from_bits(5.0_f32.to_bits() + 1)], None),
        (&[1.0, f32::MAX, -1e-40, f32::NAN], None),
    ];
    for (values, note) in cases {
        // Also often enough that the methods have a choice.
        for times in [1, 3000] {
            let seen = of(&vec![values.to_vec(); times]);
            for (finder, spec) in range::ALL.iter().flat_map(|f| specs().map(move |spec| (f, spec)))
            {
                let found = finder.range(&seen, &spec);
                assert!(note.is_none() || found.note == note, "{finder:?} {values:?}: {found:?}");
                let full = seen.range();
                if full.is_empty() {
                    assert_eq!(found.range, Range::EMPTY);
                } else {
                    let most = if finder.name() == "mse" { most_headroom(&spec) } else { 1.0 };
                    let Range { min, max } = found.range;
                    assert!(full.min.min(full.min * most) <= min && min <= max);
                    assert!(
                        max <= full.max.max(full.max * most),
                        "{finder:?} {values:?}: {found:?}"
                    );
                }
                assert!(expected_error(&seen, &spec, found.range).is_finite());
            }
        }
    }
}

#[test]
fn a_missing_choice_is_noted() {
    let (byte, wide) = (spec(QType::UInt8, false), spec(QType::Int16, true));
    let few = of(&[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]);
    for method in ["percentile", "entropy", "mse"] {
        let FoundRange { range, note } = choose(method, &few, &byte);
        assert_eq!(
            (range, note),
            (few.range(), Some(Degenerate::TooFew { values: 5 })),
            "{method}"
        );
    }
    let uniform = of(&[uniform()]);
    for (method, spec, note) in [
        ("minmax", byte, None),
        ("moving_average", byte, Some(Degenerate::OneSample)),
        ("percentile:100", byte, Some(Degenerate::FullRange)),
        ("entropy", byte, Some(Degenerate::FullRange)),
        ("entropy", wide, Some(Degenerate::TooFine)),
        ("entropy", spec(QType::Float8E5M2, true), Some(Degenerate::Floats)),
        ("mse", byte, Some(Degenerate::FullRange)),
    ] {
        assert_eq!(
            choose(method, &uniform, &spec),
            FoundRange { range: uniform.range(), note },
            "{method}"
        );
    }
    let mut sparse = vec![0.0; 100_000];
    sparse[..10].copy_from_slice(&[-1.0, 1.0, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0, -5.0, 5.0]);
    for spec in [byte, wide] {
        let found = choose("percentile:99.9", &of(&[sparse.clone()]), &spec);
        assert_eq!(found.note, Some(Degenerate::MostlyZero));
        assert_eq!(found.range, Range { min: -5.0, max: 5.0 });
    }
    assert_eq!(
        Degenerate::TooFew { values: 5 }.to_string(),
        "5 values are too few to tell which are rare: using the full range, as minmax does"
    );
}

#[test]
fn the_moving_average_is_the_mean_of_the_ends() {
    let samples: Vec<Vec<f32>> = (1..=7_u8)
        .map(|n| (0..100).map(|i| f32::from(n) * (i as f32 / 99.0 - 0.25)).collect())
        .collect();
    let found = choose("moving_average", &of(&samples), &spec(QType::UInt8, false));
    assert_eq!(found, FoundRange { range: Range { min: -1.0, max: 3.0 }, note: None });
}

#[test]
fn entropy_clips_long_tails_but_not_too_far() {
    let values = long_tailed();
    for (values, spec) in [
        (values.clone(), spec(QType::Int8, true)),
        (values.clone(), spec(QType::UInt8, false)),
        (after_relu(&values), spec(QType::UInt8, false)),
        (after_relu(&values), spec(QType::Int8, false)),
    ] {
        let seen = of(std::slice::from_ref(&values));
        let found = choose("entropy", &seen, &spec);
        assert_eq!(found.note, None);
        assert!(found.range.absmax() < 0.9 * seen.range().absmax());
        let [own, too_far] = [found.range, choose("percentile:95", &seen, &spec).range]
            .map(|range| error(&values, &spec, range));
        assert!(own < too_far / 2.0, "{own} and {too_far}");
    }
}

/// Samples of a thousand values with different amplitudes, from half to twice the average.
fn loud_and_soft(count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    let mut sample = || {
        let loudness = (2.0 * next() - 1.0).exp2();
        let mut value =
            || if next() < 0.5 { loudness * next().ln() } else { -loudness * next().ln() };
        (0..1000).map(|_| value() as f32).collect()
    };
    (0..count).map(|_| sample()).collect()
}

#[test]
fn mse_adds_headroom_for_other_samples() {
    let unseen = loud_and_soft(300, 9).concat();
    for spec in specs().filter(|spec| spec.qtype.bits() == 8 && !spec.qtype.is_float()) {
        let on_others = |range| error(&unseen, &spec, range).ln();
        let best = on_others(choose("mse", &of(std::slice::from_ref(&unseen)), &spec).range);
        let (mut blind, mut found, mut beyond) = (0.0, 0.0, 0);
        for seed in 10..60 {
            let samples = loud_and_soft(6, seed);
            // A single sample does not show how far other samples go.
            let joined = of(&[samples.concat()]);
            blind += (on_others(choose("mse", &joined, &spec).range) - best) / 50.0;
            let range = choose("mse", &of(&samples), &spec).range;
            found += (on_others(range) - best) / 50.0;
            beyond += u32::from(range.max > joined.range().max || range.min < joined.range().min);
        }
        assert!(found < 0.9 * blind && found < 0.6, "{found} instead of {blind}: {spec:?}");
        assert!(beyond > 5, "{beyond}: {spec:?}");
    }
}

#[test]
fn sixteen_bits_have_room_for_other_samples_unless_outliers_need_the_steps() {
    let seen = of(&loud_and_soft(6, 10));
    let full = seen.range();
    for spec in specs().filter(|spec| spec.qtype.bits() == 16 && !spec.qtype.is_float()) {
        let found = choose("mse", &seen, &spec);
        assert_eq!((found.note, found.range.absmax()), (None, 4.0 * full.absmax()), "{spec:?}");
        // The steps of a range of 3000 are 0.05, and values of 0.1 are as many as anything.
        let small: Vec<f32> = uniform().iter().map(|x| x / 10.0).collect();
        let outlier = of(&[small, vec![3000.0]]);
        let found = choose("mse", &outlier, &spec);
        assert_eq!((found.note, found.range.max), (Some(Degenerate::FullRange), 3000.0));
        // Everything after a Relu stays there.
        let relu = of(&[after_relu(&uniform())]);
        assert_eq!(choose("mse", &relu, &spec).range.min, 0.0);
        let below = of(&[vec![-3.0, -2.0], vec![-1.0, -1.5]]);
        assert_eq!(choose("mse", &below, &spec).range, Range { min: -12.0, max: -1.0 });
    }
}

#[test]
fn one_outlier_does_not_make_mse_add_headroom() {
    let mut samples = loud_and_soft(100, 3);
    samples[7][500] = 1000.0;
    let seen = of(&samples);
    for spec in specs().filter(|spec| spec.qtype.bits() == 8 && !spec.qtype.is_float()) {
        assert!(choose("mse", &seen, &spec).range.max <= 1000.0, "{spec:?}");
    }
}

#[test]
fn mse_beats_minmax_on_long_tails_and_is_minmax_without_tails() {
    let values = long_tailed();
    let byte_specs = || specs().filter(|spec| spec.qtype.bits() == 8 && !spec.qtype.is_float());
    for values in [values.clone(), after_relu(&values), values.iter().map(|x| -x.abs()).collect()] {
        let seen = of(std::slice::from_ref(&values));
        for spec in byte_specs() {
            let of_method = |method| error(&values, &spec, choose(method, &seen, &spec).range);
            let mse = of_method("mse");
            assert!(mse < of_method("minmax") / 1.1, "{spec:?}");
            for method in ["entropy", "percentile", "percentile:99.9", "moving_average"] {
                assert!(mse < of_method(method) * 1.01, "{method} with {spec:?}");
            }
        }
    }
    let seen = of(&[uniform()]);
    for spec in byte_specs() {
        assert_eq!(choose("mse", &seen, &spec).range, seen.range());
    }
}

#[test]
fn no_method_increases_the_error_of_floats_much() {
    let long = long_tailed();
    for values in [uniform(), after_relu(&long), long] {
        let seen = of(std::slice::from_ref(&values));
        for qtype in [QType::Float8E4M3FN, QType::Float8E5M2] {
            let spec = spec(qtype, true);
            let found = choose("entropy", &seen, &spec);
            assert_eq!(
                found,
                FoundRange { range: seen.range(), note: Some(Degenerate::Floats) },
                "{qtype}"
            );
            let of_method = |method| error(&values, &spec, choose(method, &seen, &spec).range);
            let (mse, minmax) = (of_method("mse"), of_method("minmax"));
            assert!(mse <= minmax * 1.001 && mse > minmax / 2.0, "{qtype}: {mse} and {minmax}");
        }
    }
}

#[test]
fn the_expected_error_equals_the_measured_one() {
    let long = long_tailed();
    for values in [uniform(), after_relu(&long), long] {
        let seen = of(std::slice::from_ref(&values));
        for spec in specs().filter(|spec| spec.qtype != QType::Int32) {
            for part in [1.0, 0.3, 0.05] {
                let full = seen.range();
                let range = Range { min: full.min * part, max: full.max * part * 0.8 };
                let (real, expected) =
                    (error(&values, &spec, range), expected_error(&seen, &spec, range));
                assert!(
                    (expected / real - 1.0).abs() < 0.02,
                    "{expected} for {real} with {spec:?}"
                );
            }
        }
    }
    assert_eq!(expected_error(&Sketch::default(), &spec(QType::Int8, true), Range::EMPTY), 0.0);
    let constant = of(&[vec![3.7; 99]]);
    assert!(expected_error(&constant, &spec(QType::UInt8, false), constant.range()) < 1e-12);
}

#[test]
fn masked_values_do_not_change_the_range() {
    let scores: Vec<f32> = long_tailed().into_iter().map(|x| x.clamp(-40.0, 30.0)).collect();
    let honest = of(&[scores.clone(), scores.clone()]);
    for mask in [-1e4, -65504.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
        let masked = scores.iter().map(|x| x + mask);
        let seen = of(&[scores.iter().copied().chain(masked).collect(), scores.clone()]);
        for (finder, spec) in range::ALL.iter().flat_map(|f| specs().map(move |spec| (f, spec))) {
            assert_eq!(finder.range(&seen, &spec), finder.range(&honest, &spec), "{finder:?}");
        }
    }
}

/// A tensor with one of the distributions of activations, at any scale.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => -1.0_f32..1.0,
        2 => Just(0.0_f32),
        1 => -8.0_f32..50.0,
        1 => -300.0_f32..0.0,
    ];
    let scale = prop_oneof![4 => Just(1.0_f32), 1 => 1e-30_f32..1e30];
    let relu = any::<bool>();
    (prop::collection::vec(value, 1..6000), scale, relu).prop_map(|(values, scale, relu)| {
        values.into_iter().map(|x| if relu { x.max(0.0) * scale } else { x * scale }).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ranges_lie_within_the_values_and_mse_has_the_least_error(
        values in any_values(),
        qtype in prop::sample::select(QType::ALL),
        symmetric in any::<bool>(),
        far in prop::bool::weighted(0.2),
    ) {
        let mut values = values;
        if far {
            values.extend([-9000.0, 20_000.0]);
        }
        let spec = spec(qtype, symmetric);
        let squares = values.iter().map(|x| f64::from(*x).powi(2));
        let mean_square = squares.sum::<f64>() / values.len() as f64;
        let seen = of(&[values]);
        let full = seen.range();
        let mut errors = Vec::new();
        for finder in range::ALL {
            let FoundRange { range, note } = finder.range(&seen, &spec);
            let most = if finder.name() == "mse" { most_headroom(&spec) } else { 1.0 };
            prop_assert!(full.min.min(full.min * most) <= range.min && range.min <= range.max);
            prop_assert!(range.max <= full.max.max(full.max * most));
            prop_assert!(range == full || note.is_none(), "{note:?}");
            errors.push(expected_error(&seen, &spec, range));
        }
        let minmax = errors[0];
        // Headroom costs at most two bits of 16, and leaves 60 dB.
        let most = if most_headroom(&spec) > 1.0 { minmax.max(1e-6 * mean_square) } else { minmax };
        prop_assert!(errors[4] <= most, "{errors:?}");
    }

    #[test]
    fn headroom_is_bounded_and_symmetric(
        samples in prop::collection::vec(any_values(), 2..6),
        qtype in prop::sample::select(QType::ALL),
        symmetric in any::<bool>(),
        masked in any::<bool>(),
    ) {
        let spec = spec(qtype, symmetric);
        let negated: Vec<Vec<f32>> =
            samples.iter().map(|sample| sample.iter().map(|x| -x).collect()).collect();
        let mut seen = of(&samples);
        let (full, found) = (seen.range(), choose("mse", &seen, &spec).range);
        let most = most_headroom(&spec).max(2.0);
        prop_assert!(full.min.min(full.min * most) <= found.min && found.min <= found.max);
        prop_assert!(found.max <= full.max.max(full.max * most));
        prop_assert!(full.min < 0.0 || found.min == full.min, "{found:?} {full:?}");
        prop_assert!(full.max > 0.0 || found.max == full.max, "{found:?} {full:?}");
        prop_assert!(expected_error(&seen, &spec, found).is_finite());
        // The grid of symmetric integers is the same on both sides; values far below 0 could be a
        // mask.
        if symmetric && qtype == QType::Int8 && full.absmax() < 1000.0 {
            let other = choose("mse", &of(&negated), &spec).range;
            prop_assert_eq!((other.min, other.max), (-found.max, -found.min));
        }
        if masked && full.absmax() < 100.0 && full.absmax() > 0.0 {
            let count = samples.iter().map(Vec::len).sum::<usize>();
            seen.observe(&vec![-1e9; count]);
            prop_assert_eq!(choose("mse", &seen, &spec).range, found);
        }
    }

    #[test]
    fn percentiles_are_in_the_bin_of_the_sorted_value(
        values in any_values(),
        percentile in 50.1_f64..99.99,
    ) {
        let seen = of(std::slice::from_ref(&values));
        let width = seen.values().histogram().width();
        let method = format!("percentile:{percentile}");
        let left_out = (100.0 - percentile) / 100.0 * values.len() as f64;
        prop_assume!(left_out >= 1.0);
        let largest_but = |mut values: Vec<f32>| {
            values.sort_by(f32::total_cmp);
            f64::from(values[values.len() - 1 - left_out.floor() as usize])
        };
        let near = |found: f32, sorted: f64| (f64::from(found) - sorted).abs() <= width * 1.001;
        let magnitudes = values.iter().map(|x| x.abs()).collect();
        let negated = values.iter().map(|x| -x).collect();
        let FoundRange { range, note } = choose(&method, &seen, &spec(QType::Int8, true));
        if note.is_none() {
            prop_assert!(near(range.absmax(), largest_but(magnitudes)), "{range:?}");
        }
        let FoundRange { range, note } = choose(&method, &seen, &spec(QType::UInt8, false));
        if note.is_none() {
            prop_assert!(near(range.max, largest_but(values.clone())), "{range:?}");
            prop_assert!(near(range.min, -largest_but(negated)), "{range:?}");
        }
    }
}
