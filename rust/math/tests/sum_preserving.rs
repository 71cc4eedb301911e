//! Properties of sum-preserving rounding: it equals the definition and reduces the errors that it
//! promises to.

use proptest::prelude::*;
use quantize_rs_math::kernels::reference;
use quantize_rs_math::{
    Granularity, Layout, Params, QSpec, QType, SumGroups, WeightMethod, dequantize, fit, metrics,
    quantize_preserving_sums_into, ranges,
};

const TYPES: [QType; 6] =
    [QType::Int8, QType::UInt8, QType::Int4, QType::UInt4, QType::Int2, QType::UInt2];

/// A shape of three axes, a granularity of scales, and groups within those that share a scale.
fn any_groups() -> impl Strategy<Value = ([usize; 3], Granularity, SumGroups)> {
    let shape = [1_usize..5, 1_usize..70, 1_usize..30];
    (shape, 0_usize..3, 1_usize..40, 0..5).prop_map(|(shape, axis, block_size, kind)| {
        let channels = Granularity::PerAxis { axis };
        let blocks = Granularity::Blocked { axis, block_size };
        let of = |granularity| SumGroups {
            groups: Layout::of(&shape, granularity).unwrap(),
            part: None,
        };
        let kernels =
            |axis| SumGroups { part: Some(shape[2]), ..of(Granularity::PerAxis { axis }) };
        match kind {
            0 => (shape, Granularity::PerTensor, of(channels)),
            1 => (shape, channels, of(channels)),
            2 => (shape, blocks, of(blocks)),
            3 => (shape, Granularity::PerTensor, kernels(axis.min(1))),
            _ => (shape, Granularity::PerAxis { axis: axis.min(1) }, kernels(axis.min(1))),
        }
    })
}

fn any_weight() -> impl Strategy<Value = (Vec<f32>, Layout, QSpec, SumGroups)> {
    let types = (prop::sample::select(&TYPES), any::<bool>(), any::<bool>());
    (any_groups(), types, any::<u64>()).prop_map(|((shape, granularity, summed), types, seed)| {
        let (qtype, symmetric, flips) = types;
        let mut state = seed;
        let data = (0..shape.iter().product()).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            #[allow(clippy::cast_precision_loss)]
            let x = (state >> 40) as f32 / 8_388_608.0 - 1.0;
            // Some are 0, some are exactly on a step, few are large.
            match state >> 33 & 15 {
                0..3 => 0.0,
                3 => x.signum() * 0.5,
                4 => x * 3.0,
                _ => x,
            }
        });
        let spec = QSpec::new(qtype, symmetric, granularity);
        let spec = QSpec { allows_negative_scale: flips && symmetric && qtype.bits() <= 4, ..spec };
        (data.collect(), Layout::of(&shape, granularity).unwrap(), spec, summed)
    })
}

fn quantized(
    data: &[f32],
    layout: &Layout,
    spec: &QSpec,
    summed: &SumGroups,
) -> (Vec<u8>, Vec<Params>, quantize_rs_math::Metrics) {
    let params = fit(data, layout, &ranges(data, layout), spec, WeightMethod::Mse);
    let mut bytes = vec![0; spec.qtype.packed_len(data.len())];
    let found =
        quantize_preserving_sums_into(data, layout, &params, spec, Some(summed), &mut bytes);
    (bytes, params, found)
}

proptest! {
    #[test]
    fn the_fast_kernel_equals_the_definition((data, layout, spec, summed) in any_weight()) {
        let (bytes, params, found) = quantized(&data, &layout, &spec, &summed);
        let mut expected = reference::quantize(&data, &layout, &params, &spec);
        reference::preserve_sums(&data, &layout, &params, &spec, &summed, &mut expected);
        prop_assert_eq!(&bytes, &expected);
        let floats = dequantize(&bytes, &layout, &params, spec.qtype);
        let measured = metrics(&data, &floats);
        prop_assert!((found.mse - measured.mse).abs() <= measured.mse * 1e-9 + 1e-18);
        let (nearest, adjusted) = (measured.max_abs, found.max_abs);
        prop_assert!((nearest..=nearest * 2.0 + 1e-9).contains(&adjusted));
    }

    #[test]
    fn zeros_stay_and_no_integer_changes_by_more_than_one(
        (data, layout, spec, summed) in any_weight(),
    ) {
        let (bytes, params, _) = quantized(&data, &layout, &spec, &summed);
        let nearest = reference::quantize(&data, &layout, &params, &spec);
        let floats = |bytes: &[u8]| dequantize(bytes, &layout, &params, spec.qtype);
        for (index, (is, was)) in floats(&bytes).into_iter().zip(floats(&nearest)).enumerate() {
            let step = params[layout.group_of(index)].scale.abs();
            prop_assert!((is - was).abs() <= step * 1.001);
            prop_assert!(data[index] != 0.0 || is == was);
        }
    }

    #[test]
    fn squared_errors_and_squared_sums_decrease((data, layout, spec, summed) in any_weight()) {
        let (bytes, params, _) = quantized(&data, &layout, &spec, &summed);
        let nearest = reference::quantize(&data, &layout, &params, &spec);
        let cost = |bytes: &[u8]| {
            let floats = dequantize(bytes, &layout, &params, spec.qtype);
            let mut members = vec![Vec::new(); summed.groups.groups()];
            for (index, (x, float)) in data.iter().zip(floats).enumerate() {
                let error = f64::from(float - x) / f64::from(params[layout.group_of(index)].scale);
                members[summed.groups.group_of(index)].push(error);
            }
            let squared = |errors: &[f64]| errors.iter().sum::<f64>().powi(2);
            let cost = |errors: &Vec<f64>| {
                let parts = summed.part.map_or(0.0, |part| errors.chunks(part).map(squared).sum());
                errors.iter().map(|error| error * error).sum::<f64>() + parts + squared(errors)
            };
            members.iter().map(cost).collect::<Vec<f64>>()
        };
        for (is, was) in cost(&bytes).into_iter().zip(cost(&nearest)) {
            prop_assert!(is <= was * 1.001 + 1e-3, "{is} {was}");
        }
    }
}

#[test]
fn many_elements_keep_their_sum_within_half_a_step() {
    let (rows, columns) = (3, 5000);
    let data: Vec<f32> = (0..rows * columns)
        .map(|at: u32| f32::from(u16::try_from(at * 7919 % 9973).unwrap()) / 9973.0 + 1e-4)
        .collect();
    for granularity in [Granularity::PerAxis { axis: 0 }, Granularity::PerTensor] {
        let shape = [rows as usize, columns as usize];
        let spec = QSpec::new(QType::UInt8, false, granularity);
        let layout = Layout::of(&shape, granularity).unwrap();
        let groups = Layout::of(&shape, Granularity::PerAxis { axis: 0 }).unwrap();
        let summed = SumGroups { groups, part: None };
        let (bytes, params, found) = quantized(&data, &layout, &spec, &summed);
        let floats = dequantize(&bytes, &layout, &params, spec.qtype);
        for (row, (x, float)) in data.chunks(5000).zip(floats.chunks(5000)).enumerate() {
            let off: f64 = x.iter().zip(float).map(|(x, y)| f64::from(*y) - f64::from(*x)).sum();
            let step = f64::from(params[row.min(params.len() - 1)].scale);
            assert!(off.abs() <= step * 0.51, "{granularity:?} {row} {off} {step}");
        }
        assert!(found.sqnr_db > 50.0, "{}", found.sqnr_db);
    }
}

#[test]
fn adjustments_do_not_depend_on_the_number_of_threads() {
    let data: Vec<f32> = (0..300_000_u32)
        .map(|at| (f32::from(u16::try_from(at * 31 % 65_521).unwrap()) / 65_521.0 - 0.3).powi(3))
        .collect();
    for (axis, shape) in [(0, [300, 1000]), (1, [1000, 300])] {
        let spec = QSpec::new(QType::Int8, true, Granularity::PerAxis { axis });
        let layout = Layout::of(&shape, spec.granularity).unwrap();
        let in_pool = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let summed = SumGroups { groups: layout.clone(), part: None };
            pool.install(|| quantized(&data, &layout, &spec, &summed))
        };
        let (one, four) = (in_pool(1), in_pool(4));
        assert_eq!(one.0, four.0);
        assert_eq!(one.2, four.2);
    }
}
