//! Rounding with second moments against plain loops in f64.

// Small counts and pseudo-random bits.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::sync::atomic::AtomicBool;

use ndarray::Array2;
use quantize_rs_math::{
    Algorithm, Effort, Granularity, Params, QSpec, QType, Rounded, ScaleBounds, WeightColumns,
    round_columns,
};

static GO_ON: AtomicBool = AtomicBool::new(false);

const EFFORT: Effort = Effort { rounds: 3, passes: 3 };

/// Pseudo-random numbers, approximately normal.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
            (self.0 >> 40) as f64 / f64::from(1 << 24)
        };
        (0..4).map(|_| uniform()).sum::<f64>() * 1.7 - 3.4
    }
}

/// A weight whose inputs are correlated and have different magnitudes.
fn part(depth: usize, width: usize, block: usize, seed: u64) -> WeightColumns {
    let mut random = Random(seed);
    let rows = 2 * depth + 5;
    let mixing = Array2::from_shape_fn((depth, depth), |(row, column)| {
        let magnitude = 1.0 + (row % 7) as f64;
        random.next() * 0.3 + if row == column { magnitude } else { 0.0 }
    });
    let x = Array2::from_shape_fn((rows, depth), |_| random.next() + 0.3).dot(&mixing);
    let blocks = depth.div_ceil(block) as u32;
    WeightColumns {
        depth,
        values: (0..depth * width).map(|_| random.next() as f32).collect(),
        block,
        groups: (0..blocks * width as u32).collect(),
        moments: x.t().dot(&x),
    }
}

fn spec(qtype: QType, symmetric: bool) -> QSpec {
    QSpec::new(qtype, symmetric, Granularity::PerTensor)
}

fn all(parts: &[WeightColumns], spec: &QSpec) -> Vec<Rounded> {
    let groups = parts.iter().map(|part| part.groups.len()).sum();
    round_columns(parts, groups, spec, ScaleBounds::default(), Algorithm::Descent, EFFORT, &GO_ON)
}

/// GPTQ as in the paper: the upper Cholesky factor of the inverse, one row at a time.
fn gptq(part: &WeightColumns, params: &[Params], spec: &QSpec) -> Vec<i16> {
    let (depth, width) = (part.depth, part.width());
    let squares = part.moments.diag().to_vec();
    let mean = squares.iter().sum::<f64>() / depth as f64;
    let mut order: Vec<usize> = (0..depth).collect();
    order.sort_by(|a, b| squares[*b].total_cmp(&squares[*a]).then(a.cmp(b)));
    let damped = Array2::from_shape_fn((depth, depth), |(row, column)| {
        part.moments[[order[row], order[column]]] + if row == column { 0.01 * mean } else { 0.0 }
    });
    let upper = upper_factor(&inverse(damped));
    let (low, high) = spec.grid();
    let mut integers = vec![0; depth * width];
    for column in 0..width {
        let mut weight: Vec<f64> =
            order.iter().map(|at| f64::from(part.values[column * depth + at])).collect();
        for row in 0..depth {
            let block = order[row] / part.block;
            let group = part.groups[column * part.blocks() + block] as usize;
            let (scale, zero) = (f64::from(params[group].scale), params[group].zero_point);
            let integer = (weight[row] / scale).round_ties_even() + f64::from(zero);
            let integer = integer.clamp(f64::from(low), f64::from(high));
            integers[column * depth + order[row]] = integer as i16;
            let error = (weight[row] - (integer - f64::from(zero)) * scale) / upper[[row, row]];
            for later in row + 1..depth {
                weight[later] -= upper[[row, later]] * error;
            }
        }
    }
    integers
}

/// By Gauss-Jordan elimination.
fn inverse(mut a: Array2<f64>) -> Array2<f64> {
    let size = a.nrows();
    let mut found = Array2::eye(size);
    for pivot in 0..size {
        let factor = 1.0 / a[[pivot, pivot]];
        for column in 0..size {
            a[[pivot, column]] *= factor;
            found[[pivot, column]] *= factor;
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = a[[row, pivot]];
            for column in 0..size {
                a[[row, column]] -= factor * a[[pivot, column]];
                found[[row, column]] -= factor * found[[pivot, column]];
            }
        }
    }
    found
}

/// `U` with `a = Uᵀ · U`.
fn upper_factor(a: &Array2<f64>) -> Array2<f64> {
    let size = a.nrows();
    let mut upper = Array2::<f64>::zeros((size, size));
    for row in 0..size {
        for column in row..size {
            let known: f64 = (0..row).map(|at| upper[[at, row]] * upper[[at, column]]).sum();
            let rest = a[[row, column]] - known;
            upper[[row, column]] =
                if row == column { rest.sqrt() } else { rest / upper[[row, row]] };
        }
    }
    upper
}

#[test]
fn gptq_finds_the_integers_of_the_paper() {
    for (depth, width, block) in [(1, 3, 1), (9, 5, 9), (70, 8, 32), (150, 70, 150), (64, 3, 16)] {
        let part = part(depth, width, block, depth as u64);
        for spec in [spec(QType::UInt4, false), spec(QType::Int2, true), spec(QType::Int8, true)] {
            let found = all(std::slice::from_ref(&part), &spec);
            let Rounded { algorithm, params, integers } = &found[1];
            assert_eq!(*algorithm, Algorithm::Gptq);
            assert_eq!(integers[0], gptq(&part, params, &spec), "{depth} × {width}, {spec:?}");
        }
    }
}

#[test]
fn each_algorithm_has_a_smaller_quadratic_error() {
    for bits in [QType::Int2, QType::UInt4, QType::Int4, QType::Int8] {
        for symmetric in [true, false] {
            for block in [32, 96] {
                let parts = [part(96, 20, block, 7), part(96, 3, block, 8)];
                let mut parts = parts;
                let groups = parts[0].groups.len() as u32;
                parts[1].groups.iter_mut().for_each(|group| *group += groups);
                let found = all(&parts, &spec(bits, symmetric));
                let errors: Vec<f64> =
                    found.iter().map(|found| found.quadratic_error(&parts)).collect();
                assert!(errors.is_sorted_by(|a, b| a > b), "{bits} {symmetric}: {errors:?}");
                assert!(errors[2] < 0.7 * errors[0], "{bits} {symmetric} {block}: {errors:?}");
            }
        }
    }
}

#[test]
fn the_relaxed_choice_is_better_than_gptq_and_does_not_depend_on_threads() {
    for (bits, block) in [(QType::Int2, 40), (QType::Int4, 8), (QType::Int8, 40)] {
        let part = part(40, 70, block, 6);
        let spec = spec(bits, false);
        let groups = part.groups.len();
        let rounded = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (bounds, last) = (ScaleBounds::default(), Algorithm::AdaRound);
            let parts = std::slice::from_ref(&part);
            pool.install(|| round_columns(parts, groups, &spec, bounds, last, EFFORT, &GO_ON))
        };
        let found = rounded(1);
        let errors: Vec<f64> =
            found.iter().map(|one| one.quadratic_error(std::slice::from_ref(&part))).collect();
        let (low, high) = spec.grid();
        let [_, gptq, descent, adaround] = errors[..] else { panic!("{errors:?}") };
        assert_eq!(found[3].algorithm, Algorithm::AdaRound);
        if bits == QType::Int8 {
            // Only the two integers around an element are tried, which is less than GPTQ does.
            assert!(adaround < 1.3 * gptq, "{errors:?}");
        } else {
            assert!(adaround < descent && descent < gptq, "{bits}: {errors:?}");
        }
        assert!(found[3].integers[0].iter().all(|q| (low..=high).contains(&i32::from(*q))));
        assert_eq!(rounded(2), found);
        assert_eq!(rounded(7), found);
    }
}

#[test]
fn zeros_stay_zeros() {
    for bits in [QType::Int2, QType::UInt4, QType::Int4, QType::Int8] {
        for symmetric in [true, false] {
            let mut part = part(40, 70, 8, 9);
            part.values.iter_mut().filter(|value| value.abs() < 0.5).for_each(|value| *value = 0.0);
            // Columns of one sign have their zero point at an end of the grid.
            part.values[..400].iter_mut().for_each(|value| *value = value.abs());
            part.values[400..800].iter_mut().for_each(|value| *value = -value.abs());
            let (groups, bounds) = (part.groups.len(), ScaleBounds::default());
            let (spec, last) = (spec(bits, symmetric), Algorithm::AdaRound);
            let parts = std::slice::from_ref(&part);
            for found in round_columns(parts, groups, &spec, bounds, last, EFFORT, &GO_ON) {
                let values = found.values(&part, 0);
                let moved =
                    values.iter().zip(&part.values).filter(|(q, w)| **w == 0.0 && **q != 0.0);
                assert_eq!(moved.count(), 0, "{bits} {symmetric}: {:?}", found.algorithm);
            }
        }
    }
}

#[test]
fn descent_never_raises_the_error_however_long_it_runs() {
    let part = part(40, 9, 8, 3);
    let spec = spec(QType::Int4, false);
    let groups = part.groups.len();
    let error = |rounds, passes| {
        let effort = Effort { rounds, passes };
        let parts = std::slice::from_ref(&part);
        let bounds = ScaleBounds::default();
        let found = round_columns(parts, groups, &spec, bounds, Algorithm::Descent, effort, &GO_ON);
        // With the damping that descent adds to the diagonal.
        let mut damped = part.clone();
        let more = 1e-3 * damped.moments.diag().mean().unwrap();
        damped.moments.diag_mut().iter_mut().for_each(|square| *square += more);
        found[2].quadratic_error(&[damped])
    };
    let errors: Vec<f64> = (0..8).map(|rounds| error(rounds, 1)).collect();
    assert!(errors.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-6)), "{errors:?}");
    assert!(errors[7] < errors[0]);
}

#[test]
fn one_scale_for_all_and_one_per_input_are_respected() {
    let spec = spec(QType::Int8, true);
    let mut tensor = part(30, 12, 30, 5);
    tensor.groups.fill(0);
    let found = round_columns(
        &[tensor.clone()],
        1,
        &spec,
        ScaleBounds::default(),
        Algorithm::Descent,
        EFFORT,
        &GO_ON,
    );
    assert!(found.iter().all(|found| found.params.len() == 1));
    assert!(found[2].quadratic_error(&[tensor.clone()]) < found[0].quadratic_error(&[tensor]));
    let mut inputs = part(30, 12, 1, 5);
    inputs.groups = (0..12).flat_map(|_| 0..30).collect();
    let found = round_columns(
        &[inputs.clone()],
        30,
        &spec,
        ScaleBounds::default(),
        Algorithm::Descent,
        EFFORT,
        &GO_ON,
    );
    assert!(found[2].quadratic_error(&[inputs.clone()]) < found[0].quadratic_error(&[inputs]));
}

#[test]
fn scales_respect_their_bounds() {
    let part = part(16, 4, 16, 2);
    let floors = [2.0, 0.0, 0.0, 0.5];
    let bounds = ScaleBounds { floors: &floors, halves: true };
    let spec = spec(QType::Int4, true);
    for found in round_columns(&[part], 4, &spec, bounds, Algorithm::Descent, EFFORT, &GO_ON) {
        for (params, floor) in found.params.iter().zip(floors) {
            assert!(params.scale.abs() >= floor, "{params:?}");
            assert_eq!(half::f16::from_f32(params.scale).to_f32(), params.scale);
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let parts = [part(70, 90, 32, 11)];
    let spec = spec(QType::UInt4, false);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| all(&parts, &spec))
    };
    assert_eq!(with(1), with(2));
    assert_eq!(with(1), with(7));
}

#[test]
fn inputs_that_were_always_zero_and_empty_weights_are_no_special_case() {
    let mut dead = part(20, 4, 20, 1);
    for at in [3, 4, 19] {
        dead.moments.row_mut(at).fill(0.0);
        dead.moments.column_mut(at).fill(0.0);
    }
    let mut silent = part(5, 2, 5, 1);
    silent.moments.fill(0.0);
    silent.groups = vec![4, 5];
    let empty = WeightColumns {
        depth: 4,
        values: Vec::new(),
        block: 4,
        groups: Vec::new(),
        moments: Array2::eye(4),
    };
    let found = all(&[dead, silent, empty], &spec(QType::Int8, true));
    assert_eq!(found.len(), 3);
    for found in found {
        assert!(found.params.iter().all(|params| params.scale > 0.0 && params.scale < 1.0));
        assert_eq!(found.integers.iter().map(Vec::len).collect::<Vec<_>>(), [80, 10, 0]);
    }
}

#[test]
fn weights_of_inputs_that_were_always_zero_are_not_given_up() {
    let mut half = part(64, 8, 64, 3);
    for at in 32..64 {
        half.moments.row_mut(at).fill(0.0);
        half.moments.column_mut(at).fill(0.0);
    }
    // Few weights are large, as of trained layers.
    half.values.iter_mut().for_each(|value| *value = value.powi(3));
    let parts = [half];
    for found in all(&parts, &spec(QType::Int8, true)) {
        let errors = found.errors(&parts[0], 0);
        let square = |unseen: bool| -> f32 {
            let of = errors.iter().enumerate().filter(|(at, _)| (at % 64 >= 32) == unseen);
            of.map(|(_, error)| error * error).sum()
        };
        let ratio = square(true) / square(false);
        assert!(ratio < 4.0, "{ratio}");
    }
}

#[test]
fn nothing_is_improved_once_it_is_stopped() {
    let parts = [part(90, 60, 90, 4)];
    let (stop, bounds) = (AtomicBool::new(true), ScaleBounds::default());
    let spec = spec(QType::Int8, true);
    let found = round_columns(&parts, 60, &spec, bounds, Algorithm::Descent, EFFORT, &stop);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|later| later.integers == found[0].integers));
    let whole = all(&parts, &spec);
    assert!(whole[1].integers != whole[0].integers && whole[2].integers != whole[1].integers);
}
