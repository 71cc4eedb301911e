//! Blocks are searched many at a time: each must get the parameters that it gets alone.

// Arithmetic on small numbers.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use proptest::prelude::*;
use quantize_rs_math::kernels::reference::{dequantize_one, quantize_one};
use quantize_rs_math::{
    Granularity, Layout, Params, QSpec, QType, Range, WeightMethod, fit, params, ranges,
};

/// Numbers that are random, or equal, or few, or extreme.
fn elements(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let kinds = 0..8_u8;
    (prop::collection::vec(-1.0_f32..1.0, len), kinds).prop_map(|(mut elements, kind)| {
        for (index, x) in elements.iter_mut().enumerate() {
            *x = match kind {
                0 => (*x * 3.0).round(),
                1 => x.abs(),
                2 => -x.abs() * 3e38,
                3 => *x * 1e-42,
                4 if index % 3 > 0 => 0.0,
                5 => 0.25,
                6 => (*x * 8.0).round() * 1e37,
                _ => *x * x.abs(),
            };
        }
        elements
    })
}

fn specs() -> Vec<QSpec> {
    let types = [QType::Int2, QType::UInt2, QType::Int4, QType::UInt4, QType::Int8, QType::UInt8];
    let spec = |qtype, symmetric| QSpec::new(qtype, symmetric, Granularity::PerTensor);
    let turning = |qtype| QSpec { allows_negative_scale: true, ..spec(qtype, true) };
    types
        .iter()
        .flat_map(|qtype| [spec(*qtype, false), spec(*qtype, true), turning(*qtype)])
        .collect()
}

/// The parameters of each group, found alone.
fn alone(data: &[f32], layout: &Layout, spec: &QSpec, method: WeightMethod) -> Vec<Params> {
    let mut groups = vec![Vec::new(); layout.groups()];
    data.iter().enumerate().for_each(|(index, x)| groups[layout.group_of(index)].push(*x));
    let of = |x: &Vec<f32>| {
        let layout = Layout::of(&[x.len()], Granularity::PerTensor).unwrap();
        fit(x, &layout, &ranges(x, &layout), spec, method)[0]
    };
    groups.iter().map(of).collect()
}

/// The candidate of the least squared error of an asymmetric grid, the first of equal ones.
fn least(x: &[f32], spec: &QSpec) -> Params {
    let range = ranges(x, &Layout::of(&[x.len()], Granularity::PerTensor).unwrap())[0];
    let Range { min, max } = range.widened_to_zero();
    let kept = 1.0 - 1.2 / (spec.levels() as f32 - 1.0).max(2.4);
    let [whole, others @ ..] = [(1.0, 1.0), (kept, 1.0), (1.0, kept), (kept, kept)]
        .map(|(below, above)| params(Range { min: min * below, max: max * above }, spec));
    // As many steps on both sides of 0.
    let (lo, hi) = spec.grid();
    let middle = (lo + hi + 1) / 2;
    let scale = (f64::from(max) / f64::from(hi - middle)) as f32;
    let balanced = Params { scale: scale.max(f32::MIN_POSITIVE), zero_point: middle };
    let balanced = (max == -min && max > 0.0).then_some(balanced);
    let candidates = [whole].into_iter().chain(balanced).chain(others);
    let error = |params: &Params| -> f64 {
        let squared = |x: &f32| {
            let back = dequantize_one(quantize_one(*x, *params, spec), *params, spec.qtype);
            (f64::from(*x) - f64::from(back)).powi(2)
        };
        x.iter().map(squared).sum()
    };
    let less = |a: Params, b: Params| if error(&b) < error(&a) { b } else { a };
    candidates.reduce(less).unwrap()
}

#[test]
fn groups_without_elements_have_parameters() {
    for granularity in [Granularity::PerTensor, Granularity::PerAxis { axis: 0 }] {
        let layout = Layout::of(&[0], granularity).unwrap();
        for method in [WeightMethod::Mse, WeightMethod::MinMax] {
            let spec = QSpec::new(QType::Int8, true, granularity);
            let found = fit(&[], &layout, &ranges(&[], &layout), &spec, method);
            assert_eq!(found, vec![Params { scale: 1.0, zero_point: 0 }; layout.groups()]);
        }
    }
}

#[test]
fn weights_of_a_grid_around_0_are_on_the_steps() {
    let ternary = [-0.3_f32, 0.0, 0.3, 0.3, -0.3, 0.0, 0.0, 0.3];
    let binary = [0.3_f32, -0.3, -0.3, 0.3];
    for qtype in [QType::Int2, QType::UInt2, QType::Int4, QType::UInt4, QType::Int8, QType::UInt8] {
        let spec = QSpec::new(qtype, false, Granularity::PerTensor);
        for method in [WeightMethod::Mse, WeightMethod::MinMax] {
            for data in [&ternary[..], &binary] {
                let layout = Layout::of(&[data.len()], spec.granularity).unwrap();
                let found = fit(data, &layout, &ranges(data, &layout), &spec, method)[0];
                for x in data {
                    let back = dequantize_one(quantize_one(*x, found, &spec), found, qtype);
                    assert!((back - x).abs() < 1e-7, "{x} {back} {found:?} {qtype:?} {method}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn neighbours_change_nothing(data in elements(11 * 3 * 37), block_size in 1..12_usize) {
        for spec in specs() {
            for method in [WeightMethod::Mse, WeightMethod::MinMax] {
                for shape in [[11, 3 * 37], [3 * 37, 11], [1, 11 * 3 * 37]] {
                    for axis in [0, 1] {
                        let granularity = Granularity::Blocked { axis, block_size };
                        let layout = Layout::of(&shape, granularity).unwrap();
                        let spec = QSpec { granularity, ..spec };
                        let found = fit(&data, &layout, &ranges(&data, &layout), &spec, method);
                        let expected = alone(&data, &layout, &spec, method);
                        prop_assert_eq!(found, expected, "{:?} {:?} {:?}", spec, shape, method);
                    }
                }
            }
        }
    }

    #[test]
    fn mse_finds_the_least_squared_error(data in elements(20 * 32)) {
        let granularity = Granularity::Blocked { axis: 1, block_size: 32 };
        let layout = Layout::of(&[1, 20 * 32], granularity).unwrap();
        for qtype in [QType::UInt2, QType::UInt4, QType::Int4, QType::UInt8] {
            let spec = QSpec::new(qtype, false, granularity);
            let found =
                fit(&data, &layout, &ranges(&data, &layout), &spec, WeightMethod::Mse);
            let expected: Vec<_> = data.chunks(32).map(|x| least(x, &spec)).collect();
            prop_assert_eq!(found, expected, "{:?}", qtype);
        }
    }
}
