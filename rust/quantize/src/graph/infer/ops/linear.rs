//! Matrix multiplications and operators defined through them.

use quantize_rs_onnx::DataType;

use super::{ANY, Call, SAME, Shape, ShapeRule, Type, all, one};
use crate::graph::infer::dim::Dim;

/// The output, the cached keys and values, and the attention scores.
const ATTENTION: &[Type] = &[Type::Input(0), Type::Input(1), Type::Input(2), Type::Input(0)];

pub(super) const ALL: &[ShapeRule] = &[
    one("MatMul", ANY, |call| matmul(call, 0, 1)),
    one("MatMulInteger", &[Type::Is(DataType::Int32)], |call| matmul(call, 0, 1)),
    one("QLinearMatMul", &[Type::Input(7)], |call| matmul(call, 0, 3)),
    one("Gemm", ANY, gemm),
    one("Einsum", ANY, einsum),
    one("Det", SAME, |call| {
        let shape = call.shape(0)?;
        Some(shape[..shape.len().checked_sub(2)?].to_vec())
    }),
    all("Attention", ATTENTION, attention),
];

/// `NumPy` semantics: a vector is a row on the left and a column on the right.
pub(super) fn matmul(call: &Call<'_, '_>, left: usize, right: usize) -> Option<Shape> {
    product(call, call.shape(left)?, call.shape(right)?)
}

/// The shape of the matrix product of tensors of these shapes.
pub(super) fn product(call: &Call<'_, '_>, left: &[Dim], right: &[Dim]) -> Option<Shape> {
    let rows = left.len().checked_sub(2).map(|at| left[at]);
    let columns = right.len().checked_sub(2).map(|at| right[at + 1]);
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let batch = |shape: &[Dim]| shape[..shape.len().saturating_sub(2)].to_vec();
    let mut shape = call.broadcast(&batch(left), &batch(right))?;
    shape.extend(rows.into_iter().chain(columns));
    Some(shape)
}

fn gemm(call: &Call<'_, '_>) -> Option<Shape> {
    let length = |input: usize, transposed: &str, axis: usize| {
        let axis = if call.int(transposed, 0) == 0 { axis } else { 1 - axis };
        let shape = call.shape(input).filter(|shape| shape.len() == 2);
        shape.map_or_else(|| call.unknown(), |shape| shape[axis])
    };
    Some(vec![length(0, "transA", 0), length(1, "transB", 1)])
}

/// An ellipsis is supported only at the start of all terms that contain one.
fn einsum(call: &Call<'_, '_>) -> Option<Shape> {
    let equation: String = call.string("equation")?.chars().filter(|it| *it != ' ').collect();
    let (terms, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms, Some(result)),
        None => (equation.as_str(), None),
    };
    let mut lengths: Vec<(char, Dim)> = Vec::new();
    let mut rest = Shape::new();
    for (input, term) in terms.split(',').enumerate() {
        let shape = call.shape(input)?;
        let letters = term.strip_prefix("...");
        let own = shape.len().checked_sub(letters.unwrap_or(term).len())?;
        if letters.is_none() && own != 0 {
            return None;
        }
        rest = call.broadcast(&rest, &shape[..own])?;
        for (letter, length) in letters.unwrap_or(term).chars().zip(&shape[own..]) {
            if !letter.is_ascii_alphabetic() {
                return None;
            }
            match lengths.iter_mut().find(|(known, _)| *known == letter) {
                Some((_, known)) => *known = call.broadcast(&[*known], &[*length])?[0],
                None => lengths.push((letter, *length)),
            }
        }
    }
    let implicit = || {
        let once = |letter: &char| terms.chars().filter(|it| it == letter).count() == 1;
        let mut letters: Vec<char> = lengths.iter().map(|(it, _)| *it).filter(once).collect();
        letters.sort_unstable();
        format!("...{}", letters.into_iter().collect::<String>())
    };
    let result = result.map_or_else(implicit, str::to_owned);
    let (mut shape, letters) = match result.strip_prefix("...") {
        Some(letters) => (rest, letters),
        None => (Shape::new(), result.as_str()),
    };
    for letter in letters.chars() {
        shape.push(lengths.iter().find(|(known, _)| *known == letter)?.1);
    }
    Some(shape)
}

/// Heads are on an axis of their own, or concatenated on the last axis.
fn attention(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let heads = |input: usize, count: &str| {
        let shape = call.shape(input)?;
        match shape[..] {
            [batch, heads, length, width] => Some([batch, heads, length, width]),
            [batch, length, all] => {
                let heads = Dim::Fixed(call.attribute(count)?.i?);
                Some([batch, heads, length, call.over(all, heads)])
            }
            _ => None,
        }
    };
    let (Some(query), Some(key), Some(value)) =
        (heads(0, "q_num_heads"), heads(1, "kv_num_heads"), heads(2, "kv_num_heads"))
    else {
        return Vec::new();
    };
    let [batch, rows, length, _] = query;
    let result = match call.rank(0) {
        Some(3) => vec![batch, length, call.times(rows, value[3])],
        _ => vec![batch, rows, length, value[3]],
    };
    let kept = |past: usize, [batch, heads, length, width]: [Dim; 4]| {
        let before = match call.shape(past) {
            Some(shape) => *shape.get(2)?,
            None if call.has(past) => call.unknown(),
            None => Dim::Fixed(0),
        };
        Some(vec![batch, heads, call.plus(before, length), width])
    };
    let keys = kept(4, key);
    let products = keys.as_ref().map(|keys| vec![batch, rows, length, keys[2]]);
    vec![Some(result), keys, kept(5, value), products]
}
