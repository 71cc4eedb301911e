//! Properties of 8-bit scales.

// Arithmetic on small numbers.
#![allow(clippy::cast_possible_truncation)]

use proptest::prelude::*;
use quantize_rs_math::kernels::reference;
use quantize_rs_math::{
    BlockScales, Granularity, Layout, Params, QSpec, QType, Scales, block_scales, ranges,
};

const LAYOUTS: [(QType, Scales); 3] = [
    (QType::Float4E2M1, Scales::Float8E8M0),
    (QType::Float8E4M3FN, Scales::Float8E8M0),
    (QType::Float4E2M1, Scales::Float8E4M3FN),
];

const BLOCK: usize = 4;

fn spec(qtype: QType, scales: Scales) -> QSpec {
    let granularity = Granularity::Blocked { axis: 0, block_size: BLOCK };
    QSpec { scales, ..QSpec::new(qtype, true, granularity) }
}

fn found(data: &[f32], spec: &QSpec, largest: f32) -> BlockScales {
    let layout = Layout::of(&[data.len()], spec.granularity).unwrap();
    block_scales(data, &layout, &ranges(data, &layout), spec, largest)
}

/// The number that a code represents, computed without the crate's arithmetic.
fn meant(code: u8, scales: Scales, tensor_scale: f32) -> f32 {
    match scales {
        Scales::Float8E8M0 => 2_f64.powi(i32::from(code) - 127) as f32,
        _ => QType::Float8E4M3FN.format().unwrap().decode(u16::from(code)) * tensor_scale,
    }
}

/// The squared error of a block with this scale, and the largest dequantized magnitude.
fn error(block: &[f32], scale: f32, spec: &QSpec) -> (f64, f32) {
    let params = Params { scale, zero_point: 0 };
    let back = |x: &f32| {
        reference::dequantize_one(reference::quantize_one(*x, params, spec), params, spec.qtype)
    };
    let squared = |x: &f32| (f64::from(*x) - f64::from(back(x))).powi(2);
    (block.iter().map(squared).sum(), block.iter().map(|x| back(x).abs()).fold(0.0, f32::max))
}

/// Numbers of all magnitudes, near the limits of float32 included.
fn sizes() -> impl Strategy<Value = Vec<f32>> {
    let number = (-1.0_f32..1.0, prop_oneof![-5_i32..5, -149_i32..127, Just(-130), Just(126)])
        .prop_map(|(x, power)| (f64::from(x) * 2_f64.powi(power)) as f32);
    prop::collection::vec(prop_oneof![9 => number, 1 => Just(0.0)], 1..40)
}

proptest! {
    #[test]
    fn scales_equal_the_values_of_their_codes(
        data in sizes(),
        largest in prop_oneof![Just(f32::MAX), Just(65504.0)],
    ) {
        let data: Vec<f32> = data.iter().map(|x| x.clamp(-largest, largest)).collect();
        for (qtype, scales) in LAYOUTS {
            let spec = spec(qtype, scales);
            let BlockScales { params, codes, tensor_scale } = found(&data, &spec, largest);
            for ((block, params), code) in data.chunks(BLOCK).zip(&params).zip(&codes) {
                prop_assert_eq!(params.scale, meant(*code, scales, tensor_scale));
                prop_assert!(params.scale.is_normal() && params.scale > 0.0);
                prop_assert_eq!(params.zero_point, 0);
                let (_, back) = error(block, params.scale, &spec);
                prop_assert!(back <= largest, "{} comes back as {}", params.scale, back);
                if block.iter().all(|x| *x == 0.0) {
                    prop_assert_eq!(params.scale, tensor_scale);
                }
            }
        }
    }

    #[test]
    fn no_neighbour_of_the_scale_of_the_specification_is_better(data in sizes()) {
        for qtype in [QType::Float4E2M1, QType::Float8E4M3FN] {
            let spec = spec(qtype, Scales::Float8E8M0);
            let above = if qtype == QType::Float4E2M1 { 2 } else { 8 };
            let found = found(&data, &spec, f32::MAX);
            for (block, params) in data.chunks(BLOCK).zip(&found.params) {
                let absmax = block.iter().fold(0.0, |all: f32, x| all.max(x.abs()));
                if !(1e-30..1e30).contains(&absmax) {
                    continue; // the ends of float32: see above
                }
                let floor = 2_f32.powi(absmax.log2().floor() as i32 - above);
                prop_assert!(params.scale == floor || params.scale == 2.0 * floor);
                let scales = [params.scale, floor, 2.0 * floor];
                let [here, low, high] = scales.map(|s| error(block, s, &spec).0);
                prop_assert!(here <= low && here <= high);
            }
        }
    }

    #[test]
    fn two_levels_are_never_worse_than_the_nearest_code(
        data in prop::collection::vec(-1.0_f32..1.0, 1..40),
    ) {
        let spec = spec(QType::Float4E2M1, Scales::Float8E4M3FN);
        let found = found(&data, &spec, f32::MAX);
        for (block, params) in data.chunks(BLOCK).zip(&found.params) {
            let absmax = block.iter().fold(0.0, |all: f32, x| all.max(x.abs()));
            for divisor in [6.0, 4.0] {
                let format = QType::Float8E4M3FN.format().unwrap();
                let nearest = format.encode(absmax / divisor / found.tensor_scale).max(1);
                let nearest = format.decode(nearest) * found.tensor_scale;
                let here = error(block, params.scale, &spec).0;
                let there = error(block, nearest, &spec).0;
                prop_assert!(here <= there, "{} {} {}", params.scale, nearest, absmax);
            }
        }
    }
}

#[test]
fn extreme_float32_tensors_have_scales() {
    for (qtype, scales) in LAYOUTS {
        let spec = spec(qtype, scales);
        for data in [[f32::MAX; 4], [1e-45; 4], [f32::MIN_POSITIVE; 4], [0.0; 4], [-f32::MAX; 4]] {
            let found = found(&data, &spec, f32::MAX);
            let (_, back) = error(&data, found.params[0].scale, &spec);
            assert!(back.is_finite(), "{qtype} {scales:?} {data:?}");
            if data[0].abs() > 1.0 {
                assert!(back > 0.7 * f32::MAX, "{qtype} {scales:?} {back}");
            }
        }
    }
}
