//! Properties of the arithmetic for every input: the fast kernels equal the definition, and the
//! laws of quantization.

#![allow(clippy::cast_possible_truncation)] // arithmetic on small numbers

use proptest::prelude::*;
use quantize_rs_math::kernels::reference;
use quantize_rs_math::{
    Granularity, Layout, Params, QSpec, QType, Range, WeightMethod, dequantize, fake_quantize, fit,
    metrics, pack, params, quantize, quantize_measured, ranges, ranges_checked, stats::MinMax,
};

/// A float of any magnitude, ties and values that are not finite included.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -300.0_f32..300.0,
        2 => (-600_i16..600).prop_map(|halves| f32::from(halves) / 2.0),
        2 => prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO,
        1 => prop_oneof![
            Just(f32::NAN),
            Just(f32::INFINITY),
            Just(f32::NEG_INFINITY),
            Just(f32::MAX)
        ],
    ]
}

/// A shape and a granularity.
fn any_cut() -> impl Strategy<Value = (Vec<usize>, Granularity)> {
    let shape = prop_oneof![
        8 => prop::collection::vec(1_usize..12, 1..4),
        1 => (1_usize..700, 1_usize..90).prop_map(|(rows, columns)| vec![rows, columns]),
        1 => prop::collection::vec(20_usize..45, 3..4),
    ];
    shape.prop_flat_map(|shape| {
        let rank = shape.len();
        let granularity = prop_oneof![
            Just(Granularity::PerTensor),
            (0..rank).prop_map(|axis| Granularity::PerAxis { axis }),
            (0..rank, 1_usize..40)
                .prop_map(|(axis, block_size)| Granularity::Blocked { axis, block_size }),
        ];
        (Just(shape), granularity)
    })
}

fn any_qtype() -> impl Strategy<Value = QType> {
    prop::sample::select(QType::ALL)
}

/// A spec and a tensor for it.
fn any_tensor(
    float: impl Strategy<Value = f32> + 'static,
) -> impl Strategy<Value = (Vec<f32>, Layout, QSpec)> {
    let float = float.boxed();
    (any_cut(), any_qtype(), any::<[bool; 4]>(), 0..8_u32).prop_flat_map(
        move |((shape, granularity), qtype, [symmetric, narrow, reduced, flips], bits)| {
            let spec = QSpec {
                narrow,
                reduce_range: reduced,
                // A grid has a value beside 0 on either side.
                used_bits: if bits < 2 { 0 } else { bits },
                allows_negative_scale: flips,
                ..QSpec::new(qtype, symmetric, granularity)
            };
            let layout = Layout::of(&shape, granularity).unwrap();
            // Long tensors repeat a short pattern of odd length, which makes them cheap to generate
            // and to shrink.
            let elements = layout.elements();
            prop::collection::vec(float.clone(), 1..=elements.min(257)).prop_map(move |pattern| {
                let data = pattern.into_iter().cycle().take(elements).collect();
                (data, layout.clone(), spec)
            })
        },
    )
}

/// Parameters as other tools may write them: any scale, any zero point.
fn any_params() -> impl Strategy<Value = Params> {
    let scale = prop_oneof![4 => 1e-3_f32..10.0, 1 => prop::num::f32::ANY];
    let zero_point = prop_oneof![6 => -200..200_i32, 1 => any::<i32>()];
    (scale, zero_point).prop_map(|(scale, zero_point)| Params { scale, zero_point })
}

fn own_params(data: &[f32], layout: &Layout, spec: &QSpec) -> Vec<Params> {
    ranges(data, layout).into_iter().map(|range| params(range, spec)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn naive_ranges(data: &[f32], layout: &Layout) -> Vec<Range> {
    let mut ranges = vec![Range::EMPTY; layout.groups()];
    for (index, &x) in data.iter().enumerate() {
        let range = &mut ranges[layout.group_of(index)];
        *range = range.merge(Range { min: x, max: x });
    }
    ranges
}

proptest! {
    #[test]
    fn fast_kernels_equal_the_definition_with_their_own_params(
        (data, layout, spec) in any_tensor(any_float()),
    ) {
        let params = own_params(&data, &layout, &spec);
        let bytes = quantize(&data, &layout, &params, &spec);
        prop_assert_eq!(&bytes, &reference::quantize(&data, &layout, &params, &spec));
        let floats = dequantize(&bytes, &layout, &params, spec.qtype);
        let expected = reference::dequantize(&bytes, &layout, &params, spec.qtype);
        prop_assert_eq!(bits(&floats), bits(&expected));
    }

    #[test]
    fn fast_kernels_equal_the_definition_with_any_params(
        (data, layout, spec) in any_tensor(any_float()),
        pool in prop::collection::vec(any_params(), 1..9),
    ) {
        let params: Vec<_> = pool.into_iter().cycle().take(layout.groups()).collect();
        let bytes = quantize(&data, &layout, &params, &spec);
        prop_assert_eq!(&bytes, &reference::quantize(&data, &layout, &params, &spec));
        let floats = dequantize(&bytes, &layout, &params, spec.qtype);
        // Which NaN results from 0 · inf depends on the processor.
        let expected = reference::dequantize(&bytes, &layout, &params, spec.qtype);
        for (fast, slow) in floats.iter().zip(expected) {
            prop_assert!(fast.to_bits() == slow.to_bits() || fast.is_nan() && slow.is_nan());
        }
    }

    #[test]
    fn measured_metrics_equal_those_of_the_dequantized_tensor(
        (data, layout, spec) in any_tensor(-9.0_f32..9.0),
    ) {
        let params = own_params(&data, &layout, &spec);
        let (bytes, measured) = quantize_measured(&data, &layout, &params, &spec);
        prop_assert_eq!(&bytes, &quantize(&data, &layout, &params, &spec));
        let back = dequantize(&bytes, &layout, &params, spec.qtype);
        prop_assert_eq!(measured, metrics(&data, &back));
    }

    #[test]
    fn ranges_are_those_of_the_groups((data, layout, _) in any_tensor(any_float())) {
        prop_assert_eq!(ranges(&data, &layout), naive_ranges(&data, &layout));
        let refused = data.iter().any(|x| !x.is_finite());
        prop_assert_eq!(ranges_checked(&data, &layout).is_err(), refused);
    }

    #[test]
    fn fitted_scales_are_no_worse_in_any_group_and_clip_by_few_steps(
        (data, layout, spec) in any_tensor(-50.0_f32..50.0),
        method in prop::sample::select(WeightMethod::ALL),
    ) {
        let ranges = ranges(&data, &layout);
        let found = fit(&data, &layout, &ranges, &spec, method);
        let plain = own_params(&data, &layout, &spec);
        // Half of an end always stays: a former step corresponds to at most two of the new ones.
        let clipped = if method == WeightMethod::MinMax { 1.0 } else { 3.5 };
        let clips = match method {
            WeightMethod::Mse => spec.qtype.bits() <= 8,
            WeightMethod::Hqq if !spec.symmetric => spec.qtype.bits() <= 8,
            _ => spec.symmetric && spec.qtype.bits() <= 4,
        };
        let errors = |params: &[Params]| {
            let back = reference::dequantize(
                &reference::quantize(&data, &layout, params, &spec), &layout, params, spec.qtype,
            );
            let mut errors = vec![0.0; layout.groups()];
            for (index, (&x, y)) in data.iter().zip(back).enumerate() {
                let group = layout.group_of(index);
                let error = (f64::from(x) - f64::from(y)).abs();
                errors[group] += error * error;
                let most = f64::from(params[group].error_bound(spec.qtype)) * 2.0 * clipped;
                let holds = !clips || spec.qtype.is_float() || error <= most * (1.0 + 1e-6);
                assert!(holds, "{x} {error} {:?}", params[group]);
            }
            errors
        };
        for (group, (fitted, plain)) in errors(&found).iter().zip(errors(&plain)).enumerate() {
            // Sums are computed in f32 and in another order.
            prop_assert!(*fitted <= plain * (1.0 + 1e-5), "group {group}: {fitted} > {plain}");
        }
    }

    #[test]
    fn blocks_of_columns_are_fitted_like_blocks_of_rows(
        (width, depth) in (1_usize..80, 1_usize..70),
        block_size in 1_usize..70,
        qtype in any_qtype(),
        symmetric in any::<bool>(),
        method in prop::sample::select(WeightMethod::ALL),
        values in prop::collection::vec(-50.0_f32..50.0, 80 * 70),
    ) {
        let rows: Vec<f32> = values[..width * depth].to_vec();
        let columns: Vec<f32> =
            (0..width * depth).map(|at| rows[at % width * depth + at / width]).collect();
        let fitted = |data: &[f32], shape: [usize; 2], axis: usize| {
            let granularity = Granularity::Blocked { axis, block_size };
            let spec = QSpec::new(qtype, symmetric, granularity);
            let spec = QSpec { allows_negative_scale: symmetric, ..spec };
            let layout = Layout::of(&shape, granularity).unwrap();
            fit(data, &layout, &ranges(data, &layout), &spec, method)
        };
        let found = fitted(&columns, [depth, width], 0);
        let expected = fitted(&rows, [width, depth], 1);
        let blocks = depth.div_ceil(block_size);
        for (at, params) in found.iter().enumerate() {
            prop_assert_eq!(*params, expected[at % width * blocks + at / width]);
        }
    }

    #[test]
    fn the_least_error_is_no_more_than_that_of_the_full_range(
        (data, layout, spec) in any_tensor(-50.0_f32..50.0),
    ) {
        let ranges = ranges(&data, &layout);
        let mse = |method| {
            let found = fit(&data, &layout, &ranges, &spec, method);
            quantize_measured(&data, &layout, &found, &spec).1.mse
        };
        let full = mse(WeightMethod::MinMax);
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for method in [WeightMethod::Mse, WeightMethod::Hqq] {
            let least = mse(method);
            prop_assert!(least <= full * (1.0 + 1e-5), "{method}: {least} > {full}");
            let one = alone.install(|| fit(&data, &layout, &ranges, &spec, method));
            prop_assert_eq!(one, fit(&data, &layout, &ranges, &spec, method));
        }
    }

    #[test]
    fn the_error_is_at_most_half_a_step((data, layout, spec) in any_tensor(-50.0_f32..50.0)) {
        // Rounding the scale to f32 moves the ends of a 32-bit grid by many of its steps.
        prop_assume!(spec.qtype != QType::Int32);
        let params = own_params(&data, &layout, &spec);
        let bytes = quantize(&data, &layout, &params, &spec);
        let back = dequantize(&bytes, &layout, &params, spec.qtype);
        for (index, (&x, y)) in data.iter().zip(back).enumerate() {
            let own = params[layout.group_of(index)];
            let ends = own.representable(&spec);
            let error = (f64::from(x) - f64::from(y)).abs();
            // The quotient and the product are each rounded once, by half an ulp of the value.
            let slack = f64::from(x.abs()) * f64::from(f32::EPSILON);
            let inside = (ends.min..=ends.max).contains(&x);
            // The zero point is rounded, which shifts the grid by up to half a step; narrow
            // symmetric grids may leave out one step of a positive end.
            let bound = f64::from(own.error_bound(spec.qtype)) * if inside { 1.0 } else { 2.0 };
            prop_assert!(error <= bound + slack, "{x} became {y} with {own:?}");
        }
    }

    #[test]
    fn the_error_of_floats_is_relative(
        (data, layout, spec) in any_tensor(-50.0_f32..50.0),
        (qtype, digits) in
            prop::sample::select(&[(QType::Float8E4M3FN, 3), (QType::Float8E5M2, 2)][..]),
    ) {
        let spec = QSpec::new(qtype, true, spec.granularity);
        let params = own_params(&data, &layout, &spec);
        let back = dequantize(&quantize(&data, &layout, &params, &spec), &layout, &params, qtype);
        for (index, (&x, y)) in data.iter().zip(back).enumerate() {
            let least = qtype.format().map(|format| format.decode(1)).unwrap_or_default();
            let own = params[layout.group_of(index)];
            let part = x.abs() * 0.5_f32.powi(digits + 1);
            let bound = part.max(own.scale * least / 2.0) * (1.0 + 1e-5);
            prop_assert!((x - y).abs() <= bound, "{x} became {y} with {own:?}");
        }
    }

    #[test]
    fn zero_stays_exactly_zero(
        (data, layout, spec) in any_tensor(prop_oneof![Just(0.0_f32), -50.0_f32..50.0]),
    ) {
        let params = own_params(&data, &layout, &spec);
        let bytes = quantize(&data, &layout, &params, &spec);
        let back = dequantize(&bytes, &layout, &params, spec.qtype);
        for (x, y) in data.iter().zip(back) {
            prop_assert!(*x != 0.0 || y == 0.0);
        }
    }

    #[test]
    fn quantizing_again_changes_nothing((data, layout, spec) in any_tensor(-50.0_f32..50.0)) {
        let params = own_params(&data, &layout, &spec);
        let bytes = quantize(&data, &layout, &params, &spec);
        let back = dequantize(&bytes, &layout, &params, spec.qtype);
        // 32-bit integers have more digits than float32.
        if spec.qtype != QType::Int32 {
            prop_assert_eq!(bytes, quantize(&back, &layout, &params, &spec));
        }
    }

    #[test]
    fn tiny_tensors_keep_their_signal((data, layout, spec) in any_tensor(-3.0_f32..3.0)) {
        // Floats without a scale represent what they can.
        prop_assume!(spec.qtype.is_scaled());
        let sqnr = |data: &[f32]| {
            let params = own_params(data, &layout, &spec);
            quantize_measured(data, &layout, &params, &spec).1.sqnr_db
        };
        let scaled: Vec<f32> = data.iter().map(|x| x * 1e-12).collect();
        let (large, small) = (sqnr(&data), sqnr(&scaled));
        // 1e-12 is not a power of two: an element at a tie can round the other way, and every
        // element, scale and product is off by half an ulp, as in any float32 computation.
        let noise = |decibels: f64| 10_f64.powf(-decibels / 20.0);
        let half_ulps = 3.0 * f64::from(f32::EPSILON) / 2.0;
        let near = (large - small).abs() < 0.5 || (noise(large) - noise(small)).abs() < half_ulps;
        prop_assert!(near, "{large} dB became {small}");
    }

    #[test]
    fn finite_tensors_stay_finite(
        (data, layout, spec) in any_tensor(prop::num::f32::NORMAL | prop::num::f32::ZERO),
    ) {
        let params = own_params(&data, &layout, &spec);
        let bytes = quantize(&data, &layout, &params, &spec);
        let back = dequantize(&bytes, &layout, &params, spec.qtype);
        prop_assert!(back.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn unpacking_undoes_packing(
        (bits, signed) in (prop::sample::select(&[1_u32, 2, 4, 8][..]), any::<bool>()),
        values in prop::collection::vec(any::<i8>(), 0..70),
    ) {
        let fitted: Vec<i8> = values.iter().map(|value| {
            let spare = 8 - bits;
            if signed {
                value << spare >> spare
            } else {
                (value.cast_unsigned() << spare >> spare).cast_signed()
            }
        }).collect();
        let packed = pack::pack(&values, bits);
        prop_assert_eq!(pack::unpack(&packed, bits, signed, values.len()), fitted);
    }

    #[test]
    fn the_order_of_merging_does_not_matter(
        batches in
            prop::collection::vec(prop::collection::vec(any_float(), 0..40), 1..6).prop_shuffle(),
    ) {
        let mut whole = MinMax::default();
        whole.observe(&batches.concat());
        let mut merged = MinMax::default();
        for batch in &batches {
            let mut one = MinMax::default();
            one.observe(batch);
            merged.merge(&one);
        }
        prop_assert_eq!(whole, merged);
        let range = |batch: &Vec<f32>| {
            naive_ranges(batch, &Layout::of(&[batch.len()], Granularity::PerTensor).unwrap())[0]
        };
        let ranges: Vec<_> = batches.iter().map(range).collect();
        let forth = ranges.iter().copied().fold(Range::EMPTY, Range::merge);
        let back = ranges.iter().rev().copied().fold(Range::EMPTY, Range::merge);
        prop_assert_eq!(forth, back);
    }

    #[test]
    fn fake_quantization_equals_quantizing_and_dequantizing(
        data in prop::collection::vec(any_float(), 0..300),
        own in any_params(),
        qtype in any_qtype(),
    ) {
        let spec = QSpec::new(qtype, false, Granularity::PerTensor);
        for (&x, y) in data.iter().zip(fake_quantize(&data, own, &spec)) {
            let q = reference::quantize_one(x, own, &spec);
            let expected = reference::dequantize_one(q, own, qtype);
            prop_assert!(y.to_bits() == expected.to_bits() || y.is_nan() && expected.is_nan());
        }
    }
}

/// Tensors long enough for many chunks and tasks, with lengths that no chunk divides.
#[test]
fn nothing_depends_on_the_number_of_threads() {
    let pools = [1, 2, 5]
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    for shape in [&[23, 67, 89][..], &[2999, 47]] {
        let data: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| (f32::from((i * 7919 % 65_521) as u16) / 32_000.0 - 1.0).powi(3))
            .collect();
        for (granularity, &qtype) in cuts(shape.len())
            .iter()
            .flat_map(|&cut| QType::ALL.iter().map(move |qtype| (cut, qtype)))
        {
            let spec = QSpec::new(qtype, true, granularity);
            let layout = Layout::of(shape, granularity).unwrap();
            let params = own_params(&data, &layout, &spec);
            let run = || {
                let ranges = ranges_checked(&data, &layout).unwrap();
                let (bytes, metrics) = quantize_measured(&data, &layout, &params, &spec);
                let back = bits(&dequantize(&bytes, &layout, &params, qtype));
                (ranges, bytes, metrics, back)
            };
            let [one, two, five] = pools.each_ref().map(|pool| pool.install(run));
            assert!(one == two && one == five, "{granularity:?} {qtype}");
            assert_eq!(one.0, naive_ranges(&data, &layout));
            assert_eq!(one.1, reference::quantize(&data, &layout, &params, &spec));
        }
    }
}

fn cuts(rank: usize) -> Vec<Granularity> {
    let along =
        |axis| [Granularity::PerAxis { axis }, Granularity::Blocked { axis, block_size: 32 }];
    (0..rank).flat_map(along).chain([Granularity::PerTensor]).collect()
}
