//! The groups of elements of a weight whose sums rounding preserves.

use quantize_rs_math::{Granularity, Layout, QSpec, SumGroups};

use crate::graph::Graph;
use crate::graph::non_negative::{Named, Values};
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Multiplier, Subgraphs, Use};
use crate::options::Rounding;

impl Rounding {
    /// The groups of elements of a weight whose sums are preserved; `None` for rounding to nearest.
    pub(crate) fn summed(
        self,
        graph: &Graph<'_>,
        constant: &Constant<'_>,
        shape: &[usize],
        spec: &QSpec,
    ) -> Option<SumGroups> {
        match self {
            Rounding::PreserveSums => sums(graph, constant, shape, spec),
            Rounding::Nearest => None,
        }
    }
}

/// The groups of elements that nodes sum over when they multiply by a constant: all elements of an
/// output channel, and for a convolution also the elements of each kernel, which all multiply the
/// same input channel. `spec` refers to `shape`.
///
/// `None` unless the activation is one-sided. If its values are spread around 0, the sum of the
/// errors cancels out of the result. Only their squares matter, and rounding to nearest minimizes
/// these.
fn sums(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    shape: &[usize],
    spec: &QSpec,
) -> Option<SumGroups> {
    let mut all = constant.uses.iter().filter_map(|usage| usage.multiplier(graph)).peekable();
    let first = *all.peek()?;
    let Multiplier { node, channels, batched, .. } = first;
    let inside = constant.uses.iter().any(|usage| matches!(usage, Use::Inside { .. }));
    let bodies = if inside { Subgraphs::of(graph) } else { Subgraphs::default() };
    let values = Values { graph, bodies: &bodies };
    let name = graph.values[constant.anchor].name;
    // A `Gather` sums nothing, and all nodes that share the constant must sum over the same groups.
    let agrees = |other: Multiplier<'_>| {
        other.node.op_type == node.op_type
            && other.channels == channels
            && factor_of(name, &other).is_some_and(|value| values.one_sided(value))
    };
    if node.op_type == "Gather" || !all.all(agrees) {
        return None;
    }
    let own = is_input(name, &first, 1);
    let convolves = own && ops::is_convolution(node);
    let whole = |groups: Layout| SumGroups { groups, part: None };
    if let Granularity::Blocked { .. } = spec.granularity {
        // For matrices nothing is gained: too few elements share a scale.
        return Layout::of(shape, spec.granularity).ok().filter(|_| convolves).map(whole);
    }
    let shape = &constant.shape[..];
    let scaled = |along: usize| match spec.granularity {
        Granularity::PerAxis { axis } => axis == along,
        _ => true,
    };
    let kernel: usize = shape.iter().skip(2).product();
    let groups = match (channels, shape) {
        // Output channels are counted within each group: each kernel belongs to one channel.
        (_, [first, second, ..]) if convolves && uses::groups_outputs(node) => {
            let kernels = Layout::of(&[first * second, kernel], Granularity::PerAxis { axis: 0 });
            return kernels.ok().map(whole);
        }
        _ if uses::groups_outputs(node) => return None,
        // A batch of matrices.
        (Some(Along::Axis(axis)), [.., depth, _])
            if batched && own && axis + 1 == shape.len() && scaled(axis) =>
        {
            let depth = Granularity::Blocked { axis: axis - 1, block_size: *depth };
            Layout::of(shape, depth)
        }
        (Some(Along::Axis(axis)), _)
            if !batched && scaled(axis) && (convolves || shape.len() <= 2) =>
        {
            Layout::of(shape, Granularity::PerAxis { axis })
        }
        (Some(Along::Rows(rows)), _) if scaled(0) => {
            let columns = shape.iter().product::<usize>() / rows.max(1);
            Layout::of(&[rows, columns], Granularity::PerAxis { axis: 0 })
        }
        _ => return None,
    };
    let groups = groups.ok()?;
    let several = kernel > 1 && groups.elements() / groups.groups().max(1) > kernel;
    Some(SumGroups { groups, part: (convolves && several).then_some(kernel) })
}

/// The value that a node multiplies by a constant; `None` for the state of a recurrent node.
fn factor_of<'m>(constant: &str, reader: &Multiplier<'m>) -> Option<Named<'m>> {
    if ops::is_recurrent(reader.node) && !is_input(constant, reader, 1) {
        return None;
    }
    let name = reader.node.input.get(usize::from(is_input(constant, reader, 0)))?;
    Some(Named { body: reader.body, name })
}

fn is_input(constant: &str, reader: &Multiplier<'_>, input: usize) -> bool {
    reader.node.input.get(input).is_some_and(|name| name == constant)
}
