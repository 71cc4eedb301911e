//! Which of the two integers around a weight it becomes.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::{Granularity, Layout, QSpec, Summed};
use serde::{Deserialize, Serialize};

use crate::QuantizeError;
use crate::graph::non_negative::one_sided;
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, ValueId};

/// How a weight goes to an integer of its grid.
///
/// ```
/// use quantize_rs::Rounding;
/// assert_eq!("nearest".parse::<Rounding>()?, Rounding::Nearest);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest integer, except for a few that go to the next one so that the weights of a
    /// kernel and of an output channel keep their sum.
    #[serde(alias = "sums")]
    PreserveSums,
    /// To the nearest, as `QuantizeLinear` does.
    Nearest,
}

/// What is known of a way of rounding.
struct Row {
    rounding: Rounding,
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
}

const ROWS: &[Row] = &[
    Row {
        rounding: Rounding::PreserveSums,
        name: "preserve_sums",
        aliases: &["sums"],
        about: "to the nearest, except for a few that preserve the sum of a kernel and of a channel",
    },
    Row {
        rounding: Rounding::Nearest,
        name: "nearest",
        aliases: &[],
        about: "to the nearest, each by itself",
    },
];

impl Rounding {
    /// Every way there is.
    pub const ALL: &'static [Rounding] = &[Rounding::PreserveSums, Rounding::Nearest];

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.rounding == self).unwrap_or(&ROWS[0])
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Other names that are read.
    pub fn aliases(self) -> &'static [&'static str] {
        self.row().aliases
    }

    /// One line for those who choose.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    /// The elements of a weight whose sums are kept.
    pub(crate) fn summed(
        self,
        graph: &Graph<'_>,
        constant: &Constant<'_>,
        shape: &[usize],
        spec: &QSpec,
    ) -> Option<Summed> {
        match self {
            Rounding::PreserveSums => sums(graph, constant, shape, spec),
            Rounding::Nearest => None,
        }
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rounding {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Rounding, QuantizeError> {
        let called = |row: &&Row| row.name == name || row.aliases.contains(&name);
        ROWS.iter().find(called).map(|row| row.rounding).ok_or_else(|| {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("rounding", what)
        })
    }
}

/// What nodes sum over, as they multiply by a constant: all elements that make a channel of what flows out, and of a
/// convolution those of each kernel, which meet the same channel of what flows in. `shape` is that of which `spec` speaks.
///
/// Nothing where what it multiplies by has no side: numbers around 0 take the sum of the errors out of the result, and
/// leave their squares, which then had better be small.
fn sums(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    shape: &[usize],
    spec: &QSpec,
) -> Option<Summed> {
    let mut all = constant.uses.iter().filter_map(|usage| match *usage {
        Use::Weight { node, channels, batched } => Some(Some((node, channels, batched))),
        // What a body makes of it is not known.
        Use::Inside { .. } => Some(None),
        _ => None,
    });
    let (index, channels, batched) = all.next()??;
    let node = graph.nodes[index];
    // Who only takes rows of it adds up nothing, and those who share it must want the same.
    let agrees = |usage: Option<(usize, Option<Along>, bool)>| {
        usage.is_some_and(|(other, along, _)| {
            graph.nodes[other].op_type == node.op_type
                && along == channels
                && meets(graph, constant, other).is_some_and(|value| one_sided(graph, value))
        })
    };
    if node.op_type == "Gather" || !agrees(Some((index, channels, batched))) || !all.all(agrees) {
        return None;
    }
    let own = is_input(graph, constant, index, 1);
    let convolves = own && matches!(node.op_type.as_str(), "Conv" | "ConvTranspose");
    let whole = |groups: Layout| Summed { groups, part: None };
    if let Granularity::Blocked { .. } = spec.granularity {
        // Of matrices nothing is gained, where so few elements share a scale.
        return Layout::of(shape, spec.granularity).ok().filter(|_| convolves).map(whole);
    }
    let shape = &constant.shape[..];
    let scaled = |along: usize| match spec.granularity {
        Granularity::PerAxis { axis } => axis == along,
        _ => true,
    };
    let kernel: usize = shape.iter().skip(2).product();
    let groups = match (channels, shape) {
        // Channels are those of each of several groups: a kernel has but one of them.
        (_, [first, second, ..]) if convolves && uses::groups_outputs(node) => {
            let kernels = Layout::of(&[first * second, kernel], Granularity::PerAxis { axis: 0 });
            return kernels.ok().map(whole);
        }
        _ if uses::groups_outputs(node) => return None,
        // A matrix each of several.
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
    Some(Summed { groups, part: (convolves && several).then_some(kernel) })
}

/// What a node multiplies a constant by; `None` for what it feeds back to itself.
fn meets(graph: &Graph<'_>, constant: &Constant<'_>, node: usize) -> Option<ValueId> {
    let recurrent = matches!(&*graph.nodes[node].op_type, "LSTM" | "GRU" | "RNN");
    if recurrent && !is_input(graph, constant, node, 1) {
        return None;
    }
    graph.input(node, usize::from(is_input(graph, constant, node, 0)))
}

fn is_input(graph: &Graph<'_>, constant: &Constant<'_>, node: usize, input: usize) -> bool {
    graph.input(node, input) == Some(constant.anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_row_and_a_name_that_is_read_back() {
        assert_eq!(Rounding::ALL.len(), ROWS.len());
        for rounding in Rounding::ALL {
            assert_eq!(rounding.row().rounding, *rounding);
            for name in [rounding.name()].iter().chain(rounding.aliases()) {
                assert_eq!(name.parse::<Rounding>().unwrap(), *rounding);
                let json = format!("\"{name}\"");
                assert_eq!(serde_json::from_str::<Rounding>(&json).unwrap(), *rounding);
            }
            assert!(!rounding.about().is_empty());
            assert_eq!(serde_json::to_string(rounding).unwrap(), format!("\"{rounding}\""));
        }
        let error = "up".parse::<Rounding>().unwrap_err().to_string();
        assert!(error.contains("rounding") && error.contains("preserve_sums, nearest"), "{error}");
    }
}
