//! Reductions of floats and integers.
//!
//! Floats are accumulated in float64 and rounded once.

// The number of elements is exact in float64.
#![allow(clippy::cast_precision_loss)]

use quantize_rs_onnx::{DataType, Tensor};

use super::elements::{Element, tensor, values};
use super::numbers::rounded;
use super::views::View;
use super::{Call, Evaluate, axis_of};

pub(super) const ALL: &[(&str, Evaluate)] = &[
    ("ReduceProd", |call| reduce(call, None, Some(i64::wrapping_mul))),
    ("ReduceSum", |call| reduce(call, Some(sum), Some(i64::wrapping_add))),
    ("ReduceMin", |call| reduce(call, Some(least), Some(i64::min))),
    ("ReduceMax", |call| reduce(call, Some(largest), Some(i64::max))),
    ("ReduceMean", |call| reduce(call, Some(mean), None)),
    ("ReduceL1", |call| reduce(call, Some(|all| all.iter().map(|it| it.abs()).sum()), None)),
    ("ReduceL2", |call| reduce(call, Some(|all| squares(all).sqrt()), None)),
    ("ReduceSumSquare", |call| reduce(call, Some(squares), None)),
];

/// The reduction of floats.
type Floats = fn(&[f64]) -> f64;

/// The reduction of two integers.
type Integers = fn(i64, i64) -> i64;

fn sum(all: &[f64]) -> f64 {
    all.iter().sum()
}

fn squares(all: &[f64]) -> f64 {
    all.iter().map(|it| it * it).sum()
}

fn least(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

pub(super) fn mean(all: &[f64]) -> f64 {
    sum(all) / all.len() as f64
}

/// Reduces along some axes, or all.
fn reduce(call: &Call<'_>, floats: Option<Floats>, integers: Option<Integers>) -> Option<Tensor> {
    let source = call.input(0)?;
    let rank = source.shape.len();
    let given = call.ints_or("axes", 1, Vec::new)?;
    if given.is_empty() && call.node.int("noop_with_empty_axes", 0) != 0 {
        // Runtimes disagree on the others.
        let same = ["ReduceSum", "ReduceMean", "ReduceMin", "ReduceMax", "ReduceProd"];
        return same.contains(&call.node.op_type.as_str()).then(|| source.clone());
    }
    let mut axes: Vec<usize> =
        given.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?;
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    if axes.iter().any(|axis| source.shape[*axis] == 0) {
        return None;
    }
    let (sorted, run) = with_axes_last(call, source, &axes)?;
    let keep = call.node.int("keepdims", 1) != 0;
    let shape: Vec<usize> =
        (0..rank)
            .filter_map(|axis| {
                if axes.contains(&axis) { keep.then_some(1) } else { Some(source.shape[axis]) }
            })
            .collect();
    match source.dtype {
        DataType::Float => {
            let reduced = reduced::<f32>(&sorted, run, floats?)?;
            let narrow: Option<Vec<f32>> = reduced.into_iter().map(rounded).collect();
            Some(tensor(shape, narrow?))
        }
        DataType::Double => Some(tensor(shape, reduced::<f64>(&sorted, run, floats?)?)),
        DataType::Int64 => {
            let with = integers?;
            let made = |run: &[i64]| run.iter().copied().reduce(with).unwrap_or_default();
            Some(tensor(shape, values::<i64>(&sorted)?.chunks(run).map(made)))
        }
        DataType::Int32 => {
            let with = integers?;
            let wide = |run: &[i32]| run.iter().map(|it| i64::from(*it)).reduce(with);
            let made = |run: &[i32]| i32::try_from(wide(run).unwrap_or_default()).ok();
            let narrow: Option<Vec<i32>> = values::<i32>(&sorted)?.chunks(run).map(made).collect();
            Some(tensor(shape, narrow?))
        }
        _ => None,
    }
}

/// The elements in such an order that those along the axes are contiguous, and how many those are.
pub(super) fn with_axes_last(
    call: &Call<'_>,
    source: &Tensor,
    axes: &[usize],
) -> Option<(Tensor, usize)> {
    let view = View::of(&source.shape)?;
    let (last, first): (Vec<usize>, Vec<usize>) =
        (0..source.shape.len()).partition(|axis| axes.contains(axis));
    let order = || first.iter().chain(&last);
    let view = View {
        shape: order().map(|axis| view.shape[*axis]).collect(),
        strides: order().map(|axis| view.strides[*axis]).collect(),
        offset: 0,
    };
    let run: usize = last.iter().map(|axis| source.shape[*axis]).product();
    Some((view.copy(call.limit, source)?, run.max(1)))
}

/// Each run of floats reduced; `None` if any is not finite, where runtimes may differ.
fn reduced<T: Element + Into<f64>>(sorted: &Tensor, run: usize, with: Floats) -> Option<Vec<f64>> {
    let mut wide = Vec::with_capacity(run);
    values::<T>(sorted)?
        .chunks(run)
        .map(|run| {
            wide.clear();
            wide.extend(run.iter().map(|it| (*it).into()));
            let finite = wide.iter().all(|it: &f64| it.is_finite());
            Some(with(&wide)).filter(|found| finite && found.is_finite())
        })
        .collect()
}
