use super::columns::{MANY_TILES, TILE, finite_range};
use super::*;
use crate::kernels::reference;
use crate::weight::fit_float_zero;

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

/// The layout computed step by step from the definition.
fn by_definition(cut: &MatMulNBitsSpec, data: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<i32>) {
    let spec = cut.spec();
    let bits = cut.qtype.bits() as usize;
    let (mut blobs, mut scales, mut points) = (Vec::new(), Vec::new(), Vec::new());
    for column in 0..cut.width {
        for block in 0..cut.blocks() {
            let rows = block * cut.block_size..((block + 1) * cut.block_size).min(cut.depth);
            let x: Vec<f32> = rows.map(|row| data[row * cut.width + column]).collect();
            let found = cut.fit(&x, finite_range(&x).unwrap(), &spec);
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

#[test]
fn blobs_are_those_of_the_definition() {
    for qtype in [QType::UInt2, QType::UInt4, QType::UInt8] {
        for (depth, width) in
            [(16, 1), (32, 130), (40, 3), (5, 4), (1, 257), (40, MANY_TILES * TILE + 5)]
        {
            for symmetric in [false, true] {
                let cut = cut(depth, width, qtype, symmetric);
                let data = numbers(depth * width);
                let (blobs, columns) = cut.quantize(&data).unwrap();
                let (expected, scales, points) = by_definition(&cut, &data);
                assert_eq!(blobs, expected, "{cut:?}");
                assert_eq!(columns.scales, scales, "{cut:?}");
                let ZeroPoints::Packed(packed) = columns.zero_points else { panic!("{cut:?}") };
                for (column, points) in points.chunks(cut.blocks()).enumerate() {
                    let bytes = &packed[column * cut.zero_points_len()..];
                    let found = crate::pack::unpack(bytes, qtype.bits(), false, points.len());
                    let found: Vec<i32> =
                        found.iter().map(|point| i32::from(*point as u8)).collect();
                    assert_eq!(found, points, "{cut:?}");
                }
            }
        }
    }
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
                let found = fit_float_zero(&x, finite_range(&x).unwrap(), &cut.spec());
                assert_eq!((columns.scales[block], points[block]), (found.scale, found.zero_point));
                let blob = &blobs[block * cut.blob_len()..][..cut.blob_len()];
                let bit = row % 16 * qtype.bits() as usize;
                let code = f32::from(blob[bit / 8] >> (bit % 8) & (qtype.max() as u8));
                let steps = x[row % 16] / found.scale + found.zero_point;
                assert_eq!(code, steps.round_ties_even().clamp(0.0, qtype.max() as f32));
                let back = (code - found.zero_point) * found.scale;
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
