//! Small examples with known results.

use quantize_rs_math::{
    Granularity, Layout, Metrics, Params, QSpec, QType, dequantize, params, quantize_measured,
    ranges,
};

struct Trip {
    params: Vec<Params>,
    back: Vec<f32>,
    metrics: Metrics,
}

fn trip(
    data: &[f32],
    shape: &[usize],
    qtype: QType,
    symmetric: bool,
    granularity: Granularity,
) -> Trip {
    let spec = QSpec::new(qtype, symmetric, granularity);
    let layout = Layout::of(shape, granularity).unwrap();
    let params: Vec<_> =
        ranges(data, &layout).into_iter().map(|range| params(range, &spec)).collect();
    let (bytes, metrics) = quantize_measured(data, &layout, &params, &spec);
    let back = dequantize(&bytes, &layout, &params, qtype);
    Trip { params, back, metrics }
}

fn per_tensor(data: &[f32], qtype: QType, symmetric: bool) -> Trip {
    trip(data, &[data.len()], qtype, symmetric, Granularity::PerTensor)
}

fn assert_close(found: &[f32], expected: &[f32], eps: f32) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= eps, "{found} for {expected}");
    }
}

#[test]
fn int8_symmetric_round_trip() {
    let data = [-2.0, -1.0, 0.0, 1.0, 2.0];
    let trip = per_tensor(&data, QType::Int8, true);
    assert_eq!(trip.params[0].zero_point, 0);
    assert_close(&trip.back, &data, 0.1);
}

#[test]
fn int8_asymmetric_round_trip() {
    let data = [0.0, 1.0, 2.0, 3.0];
    assert_close(&per_tensor(&data, QType::Int8, false).back, &data, 0.05);
}

#[test]
fn int4_per_channel_has_a_scale_per_channel() {
    let data = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
    let trip = trip(&data, &[2, 3], QType::Int4, true, Granularity::PerAxis { axis: 0 });
    assert_eq!(trip.params.len(), 2);
    assert_eq!(trip.params[0].scale * 10.0, trip.params[1].scale);
    assert!(trip.params.iter().all(|params| params.zero_point == 0));
}

#[test]
fn ones_are_nearly_exact() {
    for &qtype in QType::ALL {
        for symmetric in [false, true] {
            assert!(
                per_tensor(&[1.0; 100], qtype, symmetric).metrics.mse < 0.01,
                "{qtype} {symmetric}"
            );
        }
    }
}

#[test]
fn a_zero_tensor_is_exact() {
    for &qtype in QType::ALL {
        for symmetric in [false, true] {
            let trip = per_tensor(&[0.0; 25], qtype, symmetric);
            assert_eq!(trip.back, [0.0; 25]);
            assert_eq!((trip.metrics.mse, trip.metrics.sqnr_db), (0.0, f64::INFINITY));
        }
    }
}

#[test]
fn extreme_values_survive() {
    for &qtype in QType::ALL {
        for symmetric in [false, true] {
            for data in [
                [f32::MIN, 0.0, f32::MAX],
                [-1e-45, 0.0, 1e-45],
                [-1e6, 1e-6, 1e6],
                [f32::MIN, -1.0, 0.0],
            ] {
                let trip = per_tensor(&data, qtype, symmetric);
                assert!(
                    trip.back.iter().all(|x| x.is_finite()),
                    "{qtype} {data:?} {:?}",
                    trip.back
                );
                assert!(trip.metrics.mse.is_finite());
            }
        }
    }
}

#[test]
fn a_constant_far_from_zero_stays_where_it_is() {
    assert_close(
        &per_tensor(&[10.0, 10.5, 11.0], QType::UInt8, false).back,
        &[10.0, 10.5, 11.0],
        0.022,
    );
    assert_close(&per_tensor(&[-5.0, -4.0], QType::Int8, false).back, &[-5.0, -4.0], 0.01);
    assert_close(&per_tensor(&[7.25; 9], QType::Int8, false).back, &[7.25; 9], 1e-6);
}
