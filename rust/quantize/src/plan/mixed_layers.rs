//! The layers of a language model that get 8 bits where the others get fewer, by their place in it:
//! for models too large to measure each layer.
//!
//! Of the blocks, those in the first and the last eighth and each third one between are chosen, as
//! in llama.cpp's mixtures of k-quants (`use_more_bits`). There, the projections that make the
//! values of the attention and those back to the width of the model get more bits. The weights of
//! experts of a `MoE` get none: `QMoE` has one number of bits for both of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::formats::output_layers;
use super::wider_weights::eight_bits;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::options::MixedLayers;
use crate::{Config, QuantizeError};

/// What the names of projections that make values, or queries, keys and values, contain.
const VALUES: [&str; 7] =
    ["v_proj", "qkv", "c_attn", "query_key_value", "attention/self/value", "wv", "to_v"];

/// What the names of projections back to the width of the model contain.
const BACK: [&str; 6] = ["down_proj", "fc2", "w2", "dense_4h_to_h", "mlp/c_proj", "output/dense"];

/// The weights that get 8 bits.
///
/// # Errors
/// The weights have 8 bits or more, or the model has no such layers.
pub(super) fn find(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
) -> Result<BTreeSet<ValueId>, QuantizeError> {
    let Some(mixed) = config.mixed_layers else { return Ok(BTreeSet::new()) };
    let refused = |what: &str| Err(QuantizeError::option("mixed_layers", what));
    if eight_bits(config.weights).is_none() {
        return refused("has no effect: it is for weights of fewer than 8 bits");
    }
    let (mut found, _) = output_layers::all(graph, constants);
    if mixed == MixedLayers::Sensitive {
        let blocks: Vec<Option<usize>> =
            constants.iter().map(|constant| block(graph, constant)).collect();
        let width = width(graph, constants, &blocks);
        let count = blocks.iter().flatten().max().map_or(0, |last| last + 1);
        for (constant, block) in constants.iter().zip(&blocks) {
            if block.is_some_and(|block| is_chosen(block, count))
                && is_sensitive(graph, constant, width)
            {
                found.insert(constant.anchor);
            }
        }
        if count == 0 {
            return refused(
                "is sensitive, and no name of a layer has the number of a block, as in \
                 `layers.0/mlp/down_proj`: name the layers in layer_bits",
            );
        }
    }
    if found.is_empty() {
        return refused("finds no layer after which no other multiplies: name them in layer_bits");
    }
    Ok(found)
}

/// Whether a block gets more bits: one of the first or the last eighth, or each third one between.
fn is_chosen(block: usize, count: usize) -> bool {
    let eighth = count / 8;
    block < eighth.max(1) || block + eighth.max(1) >= count || (block - eighth.min(block)) % 3 == 2
}

/// The names of the nodes that multiply by a constant, and its own.
fn names<'m>(graph: &Graph<'m>, constant: &Constant<'m>) -> Vec<&'m str> {
    let nodes = constant.multipliers(graph).map(|node| node.name.as_str());
    constant.names(graph).into_iter().chain(nodes).collect()
}

/// The number of the block that a weight is in: the first number between separators in a name.
fn block(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<usize> {
    let number = |name: &str| {
        // An exporter's number of a value, such as `onnx::MatMul_595`, is none of a block.
        let mut parts = name.split(['.', '/']).filter(|_| !name.starts_with("onnx::"));
        parts.find_map(|part| part.parse::<usize>().ok())
    };
    if constant.shape.len() != 2 {
        return None;
    }
    names(graph, constant).into_iter().find_map(number)
}

fn is_sensitive(graph: &Graph<'_>, constant: &Constant<'_>, width: usize) -> bool {
    let names = names(graph, constant);
    let any =
        |known: &[&str]| known.iter().any(|known| names.iter().any(|name| has_part(name, known)));
    any(&VALUES) || any(&BACK) || projects_back(graph, constant, width)
}

/// Whether a name has this part, between separators unless it has some itself.
fn has_part(name: &str, part: &str) -> bool {
    let name = name.replace('.', "/");
    // A name of one part is a number of the exporter, such as `w2`.
    if !name.contains('/') {
        return false;
    }
    if part.contains('/') || part == "qkv" {
        return name.contains(part);
    }
    name.split('/').any(|own| own == part)
}

/// Whether a matrix projects from at least twice the width of the model back to it. Others that
/// are deeper than wide make the keys of grouped queries, or choose experts.
fn projects_back(graph: &Graph<'_>, constant: &Constant<'_>, width: usize) -> bool {
    extent(graph, constant).is_some_and(|[depth, own]| own == width && depth >= 2 * width)
}

/// The width of the model: most matrices of its blocks read vectors of this length. If others are
/// as many, they read what a projection has made longer.
fn width(graph: &Graph<'_>, constants: &[Constant<'_>], blocks: &[Option<usize>]) -> usize {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let of_blocks = constants.iter().zip(blocks).filter(|(_, block)| block.is_some());
    for [depth, _] in of_blocks.filter_map(|(constant, _)| extent(graph, constant)) {
        *counts.entry(depth).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(depth, count)| (**count, Reverse(**depth)));
    most.map_or(0, |(depth, _)| *depth)
}

/// The lengths of the vectors that a matrix reads and makes; `None` if its nodes differ in them.
fn extent(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<[usize; 2]> {
    let &[rows, columns] = &constant.shape[..] else { return None };
    let mut found = constant.multipliers(graph).map(|node| match node.op_type.as_str() {
        "Gemm" if node.int("transB", 0) == 1 => Some([columns, rows]),
        "Gemm" | "MatMul" => Some([rows, columns]),
        _ => None,
    });
    let first = found.next()??;
    found.all(|other| other == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_and_each_third_block_are_chosen() {
        let chosen =
            |count| (0..count).filter(|block| is_chosen(*block, count)).collect::<Vec<_>>();
        assert_eq!(chosen(1), [0]);
        assert_eq!(chosen(4), [0, 2, 3]);
        assert_eq!(chosen(16), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(chosen(24), [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]);
    }

    #[test]
    fn parts_of_names_are_whole() {
        assert!(has_part("/model/layers.3/mlp/down_proj/MatMul", "down_proj"));
        assert!(has_part("/h.0/mlp/c_proj/MatMul", "mlp/c_proj"));
        assert!(!has_part("/h.0/attn/c_proj/MatMul", "mlp/c_proj"));
        assert!(!has_part("/layers.0/no_w2x/MatMul", "w2"));
        assert!(has_part("b.0.qkv.weight", "qkv"));
        assert!(!has_part("w2", "w2"));
    }
}
