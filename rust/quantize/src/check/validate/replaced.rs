//! Operators that an output format replaces by others: the replacement has to read the same values,
//! and to compute the same.

use std::collections::{BTreeSet, HashSet};

use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use super::Check;
use super::wiring::{Step, Walk, constants_behind, is_unknown, same_attributes};
use crate::graph::qlinear::number;
use crate::graph::quantized_ops::quantized_op;
use crate::graph::uses::rearranged_from;
use crate::graph::{Graph, Producer, ValueId};
use crate::util::axes::axis_of;

/// Operators that output formats replace.
pub(super) const REPLACED: [&str; 5] = ["MatMul", "Gemm", "Conv", "Gather", "LSTM"];

/// Whether a node replaces an operator on floats. A `Gather` may stay, of integers that are
/// dequantized after it.
fn replaces(node: &NodeProto) -> bool {
    quantized_op(node).is_some_and(|row| !row.replaces.is_empty())
        || node.is_onnx() && node.op_type == "Gather"
}

/// The tolerance of factors, in float32.
const SLACK: f32 = 1e-6;

/// The inputs of the result of an operator in the quantized model.
#[derive(Default)]
struct Made<'m> {
    /// The values of the original that it reads.
    names: BTreeSet<&'m str>,
    constants: Vec<ValueId>,
    /// The nodes that replace the operator.
    products: Vec<usize>,
}

/// The operations between a multiplication and the result.
#[derive(Default)]
struct Beside {
    /// The factor constants, and the factor as a number.
    factor: f32,
    outer: f32,
    /// The addend, and its factor.
    addend: Option<(ValueId, f32)>,
}

impl<'m> Walk<'_, 'm> {
    /// Checks that the replacement of an operator, whose result is `here`, reads the same values.
    /// `reader` reads it.
    pub(super) fn replaced(&mut self, there: usize, here: ValueId, reader: &str) {
        let was = self.before.nodes[there];
        let computed = |id: &ValueId| !constants_behind(self.before, *id, &mut Vec::new());
        let expected: BTreeSet<&str> = (0..was.input.len())
            .filter_map(|input| self.before.input(there, input))
            .filter(computed)
            .map(|id| self.before.values[id].name)
            .collect();
        let made = self.made_of(here);
        for product in &made.products {
            self.note_weights(there, *product);
        }
        if made.products.is_empty() || made.names != expected {
            let names =
                |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join("`, `");
            let what = format!(
                "the replacement of {} of the original reads `{}`, expected `{}`",
                was.label(),
                names(&made.names),
                names(&expected),
            );
            self.found.problem(Check::Connectivity, reader, what);
            return;
        }
        let wrong = self.wrong_constants(there, &made).or_else(|| match made.products[..] {
            [product] => self.wrong_product(there, product, here),
            _ => None,
        });
        if let Some(what) = wrong {
            let what = format!("the replacement of {} of the original {what}", was.label());
            self.found.problem(Check::Connectivity, reader, what);
        }
        for name in expected {
            if let (Some(there), Some(here)) = (self.before.value(name), self.after.value(name)) {
                let (name, from) = (was.named().to_owned(), was.label());
                self.waiting.push(Step { there, here, name, from, consumer: None });
            }
        }
    }

    /// Notes the weights of a node that replaces an operator, which both read at the same inputs.
    fn note_weights(&mut self, there: usize, product: usize) {
        for input in 0..self.before.nodes[there].input.len() {
            let read = self.after.input(product, input);
            let integers = read.and_then(|read| rearranged_from(self.after, read));
            if let Some((there, here)) = self.before.input(there, input).zip(integers) {
                self.read_as(there, here);
            }
        }
    }

    /// The inputs of a value, up to those that correspond to other values of the original.
    fn made_of(&self, here: ValueId) -> Made<'m> {
        let result = self.counterpart(here);
        let mut made = Made::default();
        let (mut waiting, mut seen) = (vec![here], HashSet::new());
        while let Some(id) = waiting.pop() {
            let value = &self.after.values[id];
            if !seen.insert(id) {
                continue;
            }
            if self.after.constant(id).is_some() {
                made.constants.push(id);
                continue;
            }
            let counterpart = self.counterpart(id);
            let known = id != here && counterpart.is_some() && counterpart != result;
            match value.producer {
                Producer::Node { node, .. } if !known => {
                    let proto = self.after.nodes[node];
                    if replaces(proto) {
                        made.products.push(node);
                    }
                    let inputs = 0..proto.input.len();
                    waiting.extend(inputs.filter_map(|input| self.after.input(node, input)));
                }
                _ if constants_behind(self.after, id, &mut made.constants) => {}
                _ => {
                    made.names.insert(counterpart.unwrap_or(value.name));
                }
            }
        }
        made
    }

    /// A problem with the constants of a result: it has to read every constant that the original
    /// reads, and no other weight.
    fn wrong_constants(&self, there: usize, made: &Made<'_>) -> Option<String> {
        let was = self.before.nodes[there];
        let mut read = Vec::new();
        for input in (0..was.input.len()).filter_map(|input| self.before.input(there, input)) {
            constants_behind(self.before, input, &mut read);
        }
        let floats = |id: &ValueId| {
            let dtype = self.before.constant(*id).and_then(TensorProto::dtype);
            dtype.is_some_and(DataType::is_float)
        };
        read.retain(floats);
        let stands_for = |there: &ValueId, here: &ValueId| self.stands_for(*there, *here);
        // Constants with other names are listed as not compared.
        let lost =
            |here: &ValueId| self.kept.get(here).is_some_and(|it| is_unknown(self.before, it));
        let name = |id: &ValueId| self.after.values[*id].name;
        let foreign = made.constants.iter().find(|here| {
            self.kept.contains_key(here)
                && !lost(here)
                && !read.iter().any(|there| stands_for(there, here))
        });
        if let Some(here) = foreign {
            return Some(format!(
                "reads `{}`, which corresponds to none of its inputs",
                name(here)
            ));
        }
        let unread = was.op_type == "Gemm" && was.float("beta", 1.0) == 0.0;
        let bias = self.before.input(there, 2).filter(|_| unread);
        let missing = read
            .iter()
            .filter(|there| Some(**there) != bias)
            .find(|there| !made.constants.iter().any(|here| stands_for(there, here) || lost(here)));
        if let Some(there) = missing {
            return Some(format!("does not read `{}`", self.before.values[*there].name));
        }
        let is_weight = |here: &ValueId| self.kept.contains_key(here);
        let none = !made.constants.iter().any(is_weight);
        none.then(|| "reads no integers with a known dequantization".to_owned())
    }

    /// A problem with the node that multiplies, or with the operations after it.
    fn wrong_product(&self, there: usize, product: usize, here: ValueId) -> Option<String> {
        let (was, is) = (self.before.nodes[there], self.after.nodes[product]);
        let (wrong, chained) = match is.op_type.as_str() {
            "ConvInteger" if !same_attributes(was, is) => {
                (Some("has other attributes".to_owned()), true)
            }
            "MatMulInteger" | "ConvInteger" => (self.wrong_scales(product), true),
            "MatMulNBits" => (self.wrong_width(product), true),
            "MatMulBnb4" => (None, true),
            "GatherBlockQuantized" => {
                let wrong = axis(self.before, there, "axis", 0) != Some(0)
                    || axis(self.after, product, "gather_axis", 0) != Some(0)
                    || axis(self.after, product, "quantize_axis", 1) != Some(1);
                (wrong.then(|| "gathers rows along another axis".to_owned()), false)
            }
            "DynamicQuantizeLSTM" => (self.wrong_lstm(there, product), false),
            _ => (None, false),
        };
        wrong.or_else(|| chained.then(|| self.wrong_beside(there, product, here)).flatten())
    }

    /// A problem with the scales and zero points of an integer multiplication, whose input is
    /// quantized at run time.
    fn wrong_scales(&self, product: usize) -> Option<String> {
        let after = self.after;
        let Producer::Node { node: quantizes, .. } =
            after.values[after.input(product, 0)?].producer
        else {
            return Some("multiplies an input of the model".to_owned());
        };
        if after.nodes[quantizes].op_type != "DynamicQuantizeLinear" {
            return None;
        }
        if after.input(product, 2) != after.output(quantizes, 2) {
            return Some(
                "does not read the zero point of what it multiplies at input 2".to_owned(),
            );
        }
        let weight = super::products::scales_of(after, product);
        let Some((weight, _)) = weight.filter(|(_, it)| *it == after.output(quantizes, 1)) else {
            return Some(
                "is not multiplied by the scale of what it reads and that of its weight".to_owned(),
            );
        };
        let dims = &after.constant(weight)?.dims;
        let count: i64 = dims.iter().product();
        // The axis of the channels, and not another one with the same length.
        let rank = after.constant(after.input(product, 1)?)?.dims.len();
        let fits = match after.nodes[product].op_type.as_str() {
            "ConvInteger" => dims.len() + 1 == rank && dims.first() == Some(&count),
            _ => dims.last() == Some(&count),
        };
        (count != 1 && !fits).then(|| {
            let name = after.values[weight].name;
            format!(
                "is multiplied by `{name}` of shape {dims:?}, which does not match its channels"
            )
        })
    }

    fn wrong_width(&self, product: usize) -> Option<String> {
        let integers = self.after.constant(self.after.input(product, 1)?)?;
        let (width, said) = (*integers.dims.first()?, self.after.nodes[product].int("N", 0));
        (width != said).then(|| format!("has N = {said}, but its integers have {width} rows"))
    }

    fn wrong_lstm(&self, there: usize, here: usize) -> Option<String> {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let mut plain = was.clone();
        plain.attribute.retain(|attribute| attribute.name != "layout");
        if !same_attributes(&plain, is) || was.int("layout", 0) != 0 {
            return Some("has other attributes".to_owned());
        }
        for input in 0..8 {
            let same = match (self.before.input(there, input), self.after.input(here, input)) {
                (Some(a), Some(b)) => {
                    self.before.values[a].name == self.after.values[b].name || self.stands_for(a, b)
                }
                (None, None) => true,
                _ => false,
            };
            if !same {
                return Some(format!("reads another value at input {input}"));
            }
        }
        None
    }

    /// A problem with the operations after a multiplication: the factors of a `Gemm`, and the
    /// addend.
    fn wrong_beside(&self, there: usize, product: usize, here: ValueId) -> Option<String> {
        let was = self.before.nodes[there];
        let found = match self.beside(product, here) {
            Ok(found) => found,
            Err(op_type) => return Some(format!("has a {op_type} after the multiplication")),
        };
        let gemm = was.op_type == "Gemm";
        let factor = |name: &str| if gemm { was.float(name, 1.0) } else { 1.0 };
        let (alpha, beta) = (factor("alpha"), factor("beta"));
        let adds = was.op_type == "Conv" || gemm && beta != 0.0;
        let differ = |one: f32, other: f32| (one - other).abs() > SLACK * other.abs();
        let by = found.factor * found.outer;
        if differ(by, alpha) {
            return Some(format!("scales the result by {by}, the original by {alpha}"));
        }
        let name = |id: ValueId| self.after.values[id].name;
        let (original, (here, by)) =
            match (self.before.input(there, 2).filter(|_| adds), found.addend) {
                (None, None) => return None,
                (Some(original), Some(here)) => (original, here),
                (Some(original), None) => {
                    return Some(format!("does not add `{}`", self.before.values[original].name));
                }
                (None, Some((here, _))) => return Some(format!("adds `{}`", name(here))),
            };
        let there = self.before.values[original].name;
        if there != name(here) && !self.stands_for(original, here) {
            return Some(format!("adds `{}`, not `{there}`", name(here)));
        }
        let by = by * found.outer;
        differ(by, beta).then(|| format!("adds `{there}` times {by}, the original times {beta}"))
    }

    /// The operations between a multiplication and its result, or the operator that does not belong
    /// there.
    fn beside(&self, product: usize, mut value: ValueId) -> Result<Beside, String> {
        let after = self.after;
        let mut found = Beside { factor: 1.0, outer: 1.0, addend: None };
        loop {
            let Producer::Node { node, .. } = after.values[value].producer else {
                return Err("value of another operator".to_owned());
            };
            let proto = after.nodes[node];
            if node == product {
                break;
            }
            let inputs = [after.input(node, 0), after.input(node, 1)];
            let through = |id: &Option<ValueId>| {
                id.is_some_and(|id| self.made_of(id).products.contains(&product))
            };
            let at = inputs.iter().position(through).ok_or_else(|| proto.op_type.clone())?;
            let (Some(next), other) = (inputs[at], inputs[1 - at]) else {
                return Err(proto.op_type.clone());
            };
            match (proto.op_type.as_str(), other) {
                ("Cast", _) => {}
                ("Mul", Some(other)) => {
                    // Factors that are not single numbers are scales.
                    let by = number(after, other).unwrap_or(1.0);
                    match found.addend {
                        None => found.outer *= by,
                        Some(_) => found.factor *= by,
                    }
                }
                ("Add", Some(other)) if found.addend.is_none() => {
                    found.addend = Some(self.addend(other));
                }
                _ => return Err(proto.op_type.clone()),
            }
            value = next;
        }
        let nbits = after.nodes[product].op_type == "MatMulNBits";
        if let Some(bias) = after.input(product, 5).filter(|_| nbits) {
            if found.addend.is_some() {
                return Err("second Add".to_owned());
            }
            found.addend = Some((bias, 1.0));
        } else if found.addend.is_none() {
            (found.factor, found.outer) = (found.outer, 1.0);
        }
        Ok(found)
    }

    /// The addend before it is reshaped or multiplied by a number, and that number.
    fn addend(&self, mut value: ValueId) -> (ValueId, f32) {
        let (after, mut by) = (self.after, 1.0);
        loop {
            let known = self.before.value(after.values[value].name).is_some();
            let Producer::Node { node, .. } = after.values[value].producer else {
                return (value, by);
            };
            let next = match after.nodes[node].op_type.as_str() {
                "Reshape" | "Cast" | "Unsqueeze" => after.input(node, 0),
                "Mul" => after.input(node, 1).and_then(|other| {
                    by *= number(after, other)?;
                    after.input(node, 0)
                }),
                _ => None,
            };
            match next.filter(|_| !known) {
                Some(next) => value = next,
                None => return (value, by),
            }
        }
    }
}

/// The axis that an attribute of a node says, counted from the first axis of its input 0.
fn axis(graph: &Graph<'_>, node: usize, name: &str, default: i64) -> Option<usize> {
    let axis = graph.nodes[node].int(name, default);
    match graph.shape(graph.input(node, 0)?) {
        Some(shape) => axis_of(axis, shape.len()),
        None => usize::try_from(axis).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::quantized_ops;

    #[test]
    fn the_replaced_operators_are_those_of_the_table() {
        let of_the_table: BTreeSet<&str> =
            quantized_ops::all().flat_map(|row| row.replaces).copied().collect();
        assert_eq!(of_the_table, BTreeSet::from(REPLACED));
    }
}
