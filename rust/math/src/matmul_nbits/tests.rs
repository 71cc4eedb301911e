use super::columns::{COLUMNS, MANY_TILES};
use super::*;
use crate::kernels::reference;
use crate::weight::fit_float_zeros;
use crate::weight::lanes::{Ends, LANES};
use crate::{Layout, Range, fit};

fn numbers(len: usize) -> Vec<f32> {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * next()).collect()
}

fn cut(depth: usize, width: usize, qtype: QType, symmetric: bool) -> MatMulNBitsSpec {
    let method = WeightMethod::Mse;
    let (transposed, params) = (false, BlockParamTypes::Plain);
    let block_size = 16;
    let used_bits = 0;
    MatMulNBitsSpec {
        depth,
        width,
        transposed,
        block_size,
        qtype,
        used_bits,
        symmetric,
        method,
        params,
    }
}

/// Columns of zeros, of a constant, of few distinct numbers, of subnormal numbers, of numbers near
/// the largest, of one sign, and with an outlier.
fn odd_numbers(depth: usize, width: usize) -> Vec<f32> {
    let mut data = numbers(depth * width);
    for (index, x) in data.iter_mut().enumerate() {
        *x = match index % width % 8 {
            0 => 0.0,
            1 => -0.7,
            2 => (*x * 4.0).round(),
            3 => *x * 1e-40,
            4 => *x * 3e38,
            5 => x.abs(),
            6 if index / width == 1 => 50.0,
            _ => *x,
        };
    }
    data
}

fn range_of(x: &[f32]) -> Range {
    Range {
        min: x.iter().copied().fold(f32::INFINITY, f32::min),
        max: x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
    }
}

/// The parameters of a block that is quantized alone.
fn fitted(cut: &MatMulNBitsSpec, x: &[f32]) -> Params {
    let spec = cut.spec();
    let layout = Layout::of(&[x.len()], Granularity::PerTensor).unwrap();
    let range = range_of(x);
    let wide = cut.symmetric && cut.qtype == QType::UInt8 && cut.method == WeightMethod::MinMax;
    let turned = wide && range.max > -range.min;
    let range = if turned { Range { min: -range.max, max: -range.min } } else { range };
    let Params { scale, zero_point } = fit(x, &layout, &[range], &spec, cut.method)[0];
    let found = Params { scale: if turned { -scale } else { scale }, zero_point };
    if cut.params == BlockParamTypes::HalfScales { found.in_halves(&spec) } else { found }
}

/// The layout computed step by step from the definition.
fn by_definition(cut: &MatMulNBitsSpec, data: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<i32>) {
    let spec = cut.spec();
    let bits = cut.qtype.bits() as usize;
    let (mut blobs, mut scales, mut points) = (Vec::new(), Vec::new(), Vec::new());
    for column in 0..cut.width {
        for block in 0..cut.blocks() {
            let rows = block * cut.block_size..((block + 1) * cut.block_size).min(cut.depth);
            let x: Vec<f32> = rows.map(|row| data[row * cut.width + column]).collect();
            let found = fitted(cut, &x);
            let mut blob = vec![0_u8; cut.blob_len()];
            for (i, x) in x.iter().enumerate() {
                let code = reference::quantize_one(*x, found, &spec) as u8;
                blob[i * bits / 8] |= code << (i * bits % 8);
            }
            blobs.extend(blob);
            scales.push(found.scale);
            points.push(found.zero_point);
        }
    }
    (blobs, scales, points)
}

/// Compares with the definition. Returns the metrics.
fn check(cut: &MatMulNBitsSpec, data: &[f32]) -> Metrics {
    let (blobs, columns) = cut.quantize(data).unwrap();
    let (expected, scales, points) = by_definition(cut, data);
    assert_eq!(blobs, expected, "{cut:?}");
    assert_eq!(columns.scales, scales, "{cut:?}");
    let ZeroPoints::Packed(packed) = columns.zero_points else { panic!("{cut:?}") };
    for (column, points) in points.chunks(cut.blocks()).enumerate() {
        let bytes = &packed[column * cut.zero_points_len()..];
        let found = crate::pack::unpack(bytes, cut.qtype.bits(), false, points.len());
        let found: Vec<i32> = found.iter().map(|point| i32::from(*point as u8)).collect();
        assert_eq!(found, points, "{cut:?}");
    }
    columns.metrics
}

#[test]
fn blobs_are_those_of_the_definition() {
    for qtype in [QType::UInt2, QType::UInt4, QType::UInt8] {
        for (depth, width) in
            [(16, 1), (32, 130), (40, 3), (5, 4), (1, 257), (40, MANY_TILES * COLUMNS + 5)]
        {
            for symmetric in [false, true] {
                check(&cut(depth, width, qtype, symmetric), &numbers(depth * width));
            }
        }
    }
}

#[test]
fn blobs_of_odd_numbers_are_those_of_the_definition() {
    let of_halves = BlockParamTypes::HalfScales;
    for qtype in [QType::UInt2, QType::UInt4, QType::UInt8] {
        for symmetric in [false, true] {
            for method in [WeightMethod::Mse, WeightMethod::MinMax, WeightMethod::Hqq] {
                for params in [BlockParamTypes::Plain, of_halves] {
                    for block_size in [8, 16, 24, 64] {
                        let cut = cut(51, 45, qtype, symmetric);
                        let cut = MatMulNBitsSpec { block_size, method, params, ..cut };
                        check(&cut, &odd_numbers(51, 45));
                    }
                }
            }
            let few = MatMulNBitsSpec { used_bits: 2, ..cut(51, 45, qtype, symmetric) };
            check(&few, &odd_numbers(51, 45));
        }
    }
}

#[test]
fn metrics_are_those_of_the_dequantized_matrix() {
    for qtype in [QType::UInt2, QType::UInt4, QType::UInt8] {
        let data = odd_numbers(51, 45);
        let cut = cut(51, 45, qtype, false);
        let found = check(&cut, &data);
        let mut back = data.clone();
        for column in 0..45 {
            for start in (0..51).step_by(16) {
                let rows = start..51.min(start + 16);
                let x: Vec<f32> = rows.clone().map(|row| data[row * 45 + column]).collect();
                let params = fitted(&cut, &x);
                for (row, x) in rows.zip(x) {
                    let q = reference::quantize_one(x, params, &cut.spec());
                    back[row * 45 + column] = reference::dequantize_one(q, params, qtype);
                }
            }
        }
        let expected = crate::metrics(&data, &back);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
        assert!(near(found.mse, expected.mse), "{found:?} {expected:?}");
        assert!(near(found.sqnr_db, expected.sqnr_db), "{found:?} {expected:?}");
        assert!(near(found.max_abs, expected.max_abs), "{found:?} {expected:?}");
        assert!((found.cosine - expected.cosine).abs() < 1e-6, "{found:?} {expected:?}");
    }
    let exact: Vec<f32> = (0..48).map(|i| (i % 16 - 8) as f32 * 0.1).collect();
    let (_, columns) = cut(16, 3, QType::UInt4, true).quantize(&exact).unwrap();
    assert_eq!(columns.metrics.max_abs, 0.0);
    assert_eq!(columns.metrics.sqnr_db, f64::INFINITY);
}

/// The scale and the float zero point of a block.
fn float_zero(x: &[f32], spec: &QSpec) -> (f32, f32) {
    let rows: Vec<_> = x.iter().map(|x| [*x; LANES]).collect();
    let range = range_of(x);
    let ends = Ends { min: [range.min; LANES], max: [range.max; LANES] };
    let found = fit_float_zeros(&rows, 1, &ends, spec);
    (found.scale[0], found.zero[0])
}

#[test]
fn each_block_has_its_float_zero_point() {
    for qtype in [QType::UInt2, QType::UInt4] {
        for (depth, width) in [(16, 1), (32, 130), (40, 3), (5, 4)] {
            let method = WeightMethod::Hqq;
            let cut = MatMulNBitsSpec {
                method,
                params: BlockParamTypes::FloatZeroPoints,
                ..cut(depth, width, qtype, false)
            };
            let data = numbers(depth * width);
            let (blobs, columns) = cut.quantize(&data).unwrap();
            let ZeroPoints::Floats(points) = columns.zero_points else { panic!("{cut:?}") };
            let mut error = 0.0;
            for index in 0..data.len() {
                let (row, column) = (index / width, index % width);
                let block = column * cut.blocks() + row / 16;
                let x: Vec<f32> = (row / 16 * 16..depth.min(row / 16 * 16 + 16))
                    .map(|row| data[row * width + column])
                    .collect();
                let found = float_zero(&x, &cut.spec());
                assert_eq!((columns.scales[block], points[block]), found);
                let blob = &blobs[block * cut.blob_len()..][..cut.blob_len()];
                let bit = row % 16 * qtype.bits() as usize;
                let code = f32::from(blob[bit / 8] >> (bit % 8) & (qtype.max() as u8));
                let steps = x[row % 16] / found.0 + found.1;
                assert_eq!(code, steps.round_ties_even().clamp(0.0, qtype.max() as f32));
                let back = (code - found.1) * found.0;
                error += f64::from(x[row % 16] - back).powi(2);
            }
            let mse = error / data.len() as f64;
            assert!((columns.metrics.mse - mse).abs() <= 1e-6 * mse, "{cut:?}");
        }
    }
}

#[test]
fn zero_points_stay_integers_where_floats_gain_nothing() {
    let floats = MatMulNBitsSpec {
        params: BlockParamTypes::FloatZeroPoints,
        ..cut(32, 3, QType::UInt4, false)
    };
    let hqq = MatMulNBitsSpec { method: WeightMethod::Hqq, ..floats };
    for cut in [floats, MatMulNBitsSpec { symmetric: true, ..hqq }] {
        let (_, columns) = cut.quantize(&numbers(96)).unwrap();
        assert!(matches!(columns.zero_points, ZeroPoints::Packed(_)), "{cut:?}");
    }
}

#[test]
fn a_transposed_matrix_has_the_same_blobs() {
    for (depth, width) in [(48, 200), (40, 3)] {
        let plain = cut(depth, width, QType::UInt4, false);
        let data = numbers(depth * width);
        let turned: Vec<f32> =
            (0..depth * width).map(|i| data[i % depth * width + i / depth]).collect();
        let transposed = MatMulNBitsSpec { transposed: true, ..plain };
        let (blobs, columns) = plain.quantize(&data).unwrap();
        let (other, turned) = transposed.quantize(&turned).unwrap();
        assert_eq!((blobs, columns.scales), (other, turned.scales));
        assert_eq!(columns.zero_points, turned.zero_points);
    }
}

#[test]
fn the_largest_magnitude_is_exact_on_either_side() {
    for sign in [1.0, -1.0] {
        let data: Vec<f32> = (0..16).map(|i| sign * (4.0 - i as f32 / 4.0)).collect();
        let method = WeightMethod::MinMax;
        let cut = MatMulNBitsSpec { method, ..cut(16, 1, QType::UInt4, true) };
        let (blobs, columns) = cut.quantize(&data).unwrap();
        assert_eq!(columns.scales, [-sign * 0.5]);
        assert_eq!(blobs[0] & 0xf, 0);
    }
}

#[test]
fn non_finite_elements_are_reported() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut data = numbers(40 * 3);
        data[77] = odd;
        let found = cut(40, 3, QType::UInt4, false).quantize(&data);
        assert!(matches!(found, Err(MathError::NonFinite { index: 77, .. })), "{found:?}");
    }
}

#[test]
fn empty_and_zero_matrices_are_quantized() {
    let (blobs, columns) = cut(0, 3, QType::UInt4, false).quantize(&[]).unwrap();
    assert!(blobs.is_empty() && columns.scales.is_empty());
    let (blobs, columns) = cut(16, 1, QType::UInt4, true).quantize(&[0.0; 16]).unwrap();
    assert_eq!((blobs, columns.scales), (vec![0x88; 8], vec![1.0]));
    assert!(cut(16, 2, QType::UInt4, true).quantize(&[0.0; 16]).is_err());
}
