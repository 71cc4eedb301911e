//! Matrix products of float32 constants, accumulated in float64 and rounded once.

use quantize_rs_onnx::{NodeProto, Tensor};

use super::elements::{tensor, values};
use super::numbers::rounded;
use super::views::{View, common, spread};
use super::{Call, Evaluate};

pub(super) const ALL: &[(&str, Evaluate)] = &[("MatMul", matmul), ("Gemm", gemm)];

/// The number of products.
pub(super) fn work(node: &NodeProto, inputs: &[Option<Tensor>]) -> Option<usize> {
    let (a, b) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?);
    let columns = match b.shape.as_slice() {
        [_] => 1,
        [rows, _] if node.int("transB", 0) != 0 => *rows,
        [.., columns] => *columns,
        [] => return None,
    };
    // A matrix of the left may be multiplied by several of the right.
    let batches = |tensor: &Tensor| tensor.shape.iter().rev().skip(2).product::<usize>().max(1);
    a.elements().checked_mul(columns)?.checked_mul(batches(b))
}

fn matmul(call: &Call<'_>) -> Option<Tensor> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (left, right) = (a.shape.len() == 1, b.shape.len() == 1);
    let with_shape = |from: &Tensor, shape: Vec<usize>| Tensor { shape, ..from.clone() };
    let a = if left { with_shape(a, vec![1, a.elements()]) } else { a.clone() };
    let b = if right { with_shape(b, vec![b.elements(), 1]) } else { b.clone() };
    let ([first @ .., rows, depth], [second @ .., inner, columns]) = (&a.shape[..], &b.shape[..])
    else {
        return None;
    };
    if depth != inner {
        return None;
    }
    let batch = common(&[first, second])?;
    let of = |batch: &[usize], matrix: [usize; 2]| [batch, &matrix].concat();
    let mut shape = of(&batch, [*rows, *columns]);
    call.fits(&shape, 4)?;
    let a = floats(&spread(call, &a, &of(&batch, [*rows, *depth]))?)?;
    let b = floats(&spread(call, &b, &of(&batch, [*depth, *columns]))?)?;
    let mut made = Vec::new();
    for (a, b) in a.chunks((rows * depth).max(1)).zip(b.chunks((depth * columns).max(1))) {
        made.extend(product(a, b, *depth, *columns));
    }
    // An axis that was added is removed.
    if right {
        shape.pop();
    }
    if left {
        shape.remove(shape.len() - 1 - usize::from(!right));
    }
    finished(shape, &made)
}

fn gemm(call: &Call<'_>) -> Option<Tensor> {
    let matrix = |input: usize, transposed: &str| {
        let tensor = call.input(input)?;
        let view = View::of(&tensor.shape).filter(|view| view.shape.len() == 2)?;
        if call.node.int(transposed, 0) == 0 {
            return Some(tensor.clone());
        }
        let View { mut shape, mut strides, offset } = view;
        shape.reverse();
        strides.reverse();
        View { shape, strides, offset }.copy(call.limit, tensor)
    };
    let (a, b) = (matrix(0, "transA")?, matrix(1, "transB")?);
    let (depth, columns) = (a.shape[1], b.shape[1]);
    if b.shape[0] != depth {
        return None;
    }
    let shape = vec![a.shape[0], columns];
    call.fits(&shape, 4)?;
    let (alpha, beta) = (call.node.float("alpha", 1.0), call.node.float("beta", 1.0));
    let mut made = product(&floats(&a)?, &floats(&b)?, depth, columns);
    for it in &mut made {
        *it *= f64::from(alpha);
    }
    if let Some(addend) = call.input(2) {
        let addend = floats(&spread(call, addend, &shape)?)?;
        made.iter_mut().zip(addend).for_each(|(it, more)| *it += f64::from(beta) * more);
    }
    finished(shape, &made)
}

fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    Some(values::<f32>(tensor)?.into_iter().map(f64::from).collect())
}

/// The product of two matrices in C order.
fn product(a: &[f64], b: &[f64], depth: usize, columns: usize) -> Vec<f64> {
    let mut made = Vec::new();
    for row in a.chunks(depth.max(1)) {
        let start = made.len();
        made.resize(start + columns, 0.0);
        for (factor, line) in row.iter().zip(b.chunks(columns.max(1))) {
            made[start..].iter_mut().zip(line).for_each(|(it, other)| *it += factor * other);
        }
    }
    made
}

/// Rounds; `None` if an element is not finite, or the matrices are empty.
fn finished(shape: Vec<usize>, made: &[f64]) -> Option<Tensor> {
    let narrow: Vec<f32> = made.iter().map(|it| rounded(*it)).collect::<Option<_>>()?;
    let complete = !narrow.is_empty() && shape.iter().product::<usize>() == narrow.len();
    complete.then(|| tensor(shape, narrow))
}
