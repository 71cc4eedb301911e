//! The bounds of a `Clip`, which are attributes before opset 11 and inputs since.

use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use super::constants::fixed;
use super::elements::to_f32;
use super::{Graph, Producer, ValueId};

/// A bound of a `Clip`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// It is omitted.
    Open,
    At(f32),
    /// It is known at run time only: it is computed, or the caller may replace it.
    Computed,
}

impl Bound {
    /// The bound, which is `open` if it is omitted; `None` if it is computed.
    pub(crate) fn or(self, open: f32) -> Option<f32> {
        match self {
            Bound::Open => Some(open),
            Bound::At(bound) => Some(bound),
            Bound::Computed => None,
        }
    }
}

/// The lower and the upper bound of a `Clip` or `Relu`; `None` for another operator.
pub(crate) fn bounds(graph: &Graph<'_>, node: usize) -> Option<[Bound; 2]> {
    bounds_of(graph.nodes[node], |input| number(graph, graph.input(node, input)?))
}

/// As [`bounds`]; `number` is the number of an input, if it is constant at run time.
pub(crate) fn bounds_of(
    node: &NodeProto,
    number: impl Fn(usize) -> Option<f32>,
) -> Option<[Bound; 2]> {
    let bound = |input: usize, attribute: &str| {
        if node.input.get(input).is_some_and(|name| !name.is_empty()) {
            return number(input).filter(|it| !it.is_nan()).map_or(Bound::Computed, Bound::At);
        }
        node.attribute(attribute).and_then(|it| it.f).map_or(Bound::Open, Bound::At)
    };
    match node.op_type.as_str() {
        _ if !node.is_onnx() => None,
        "Relu" => Some([Bound::At(0.0), Bound::Open]),
        "Clip" => Some([bound(1, "min"), bound(2, "max")]),
        _ => None,
    }
}

/// The number of a value that no caller can replace, or of the `Cast` of one.
fn number(graph: &Graph<'_>, value: ValueId) -> Option<f32> {
    let to_float = |node: usize| {
        let proto = graph.nodes[node];
        let dtype = i32::try_from(proto.int("to", 0)).ok().and_then(DataType::from_number);
        proto.is_onnx() && proto.op_type == "Cast" && dtype.is_some_and(DataType::is_float)
    };
    let cast = match graph.values[value].producer {
        Producer::Node { node, .. } if to_float(node) => graph.input(node, 0),
        _ => None,
    };
    single(&fixed(graph, cast.unwrap_or(value))?)
}

/// The element of a tensor with a single one.
pub(crate) fn single(tensor: &Tensor) -> Option<f32> {
    match to_f32(tensor)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::{AttributeProto, Raw};

    use super::*;

    fn node(op_type: &str, inputs: &[&str], attributes: &[(&str, f32)]) -> NodeProto {
        let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
        let attribute = |(name, value): &(&str, f32)| Raw::new(AttributeProto::float(name, *value));
        let attributes = attributes.iter().map(attribute).collect();
        NodeProto::new("", op_type, inputs, vec!["y".to_owned()], attributes)
    }

    #[test]
    fn bounds_are_attributes_or_inputs() {
        let none = |_: usize| None;
        let constants = |input: usize| Some(if input == 1 { -1.0 } else { 6.0 });
        let of = |node: NodeProto, number: fn(usize) -> Option<f32>| bounds_of(&node, number);
        let clip = |inputs: &[&str], attributes: &[(&str, f32)]| node("Clip", inputs, attributes);
        let (low, high) = (Bound::At(-1.0), Bound::At(6.0));
        assert_eq!(of(clip(&["x"], &[]), none), Some([Bound::Open; 2]));
        assert_eq!(of(clip(&["x"], &[("max", 6.0)]), none), Some([Bound::Open, high]));
        assert_eq!(of(clip(&["x"], &[("min", -1.0)]), none), Some([low, Bound::Open]));
        assert_eq!(of(clip(&["x", "a", "b"], &[]), constants), Some([low, high]));
        assert_eq!(of(clip(&["x", "", "b"], &[]), constants), Some([Bound::Open, high]));
        assert_eq!(of(clip(&["x", "a"], &[]), none), Some([Bound::Computed, Bound::Open]));
        assert_eq!(of(node("Relu", &["x"], &[]), none), Some([Bound::At(0.0), Bound::Open]));
        assert_eq!(of(node("Max", &["x", "a"], &[]), constants), None);
        let mut other = clip(&["x", "a"], &[]);
        other.domain = "com.acme".to_owned();
        assert_eq!(of(other, constants), None);
    }

    #[test]
    fn a_bound_that_is_no_number_is_not_known() {
        let nan = bounds_of(&node("Clip", &["x", "a"], &[]), |_| Some(f32::NAN));
        assert_eq!(nan, Some([Bound::Computed, Bound::Open]));
        assert_eq!(Bound::Computed.or(0.0), None);
        assert_eq!(Bound::Open.or(2.0), Some(2.0));
    }
}
