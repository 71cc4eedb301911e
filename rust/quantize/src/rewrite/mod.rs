//! The edits that apply a plan to a model: one `FormatWriter` for each output format.
//!
//! Input: a graph, its plan, and its encoded weights and parameters. Output: edits of the model.
//! Nothing is decided here. This module imports the modules up to `encode`.

mod bias_rows;
mod corrections;
mod dedicated_pairs;
mod dedup_constants;
mod dynamic;
mod experts;
mod fake_quant;
mod float_caches;
mod float_weights;
mod gather;
mod kv_cache;
mod lstm;
mod matmul_bnb4;
mod matmul_common;
mod matmul_nbits;
mod onnxruntime_names;
mod qdq;
mod qoperator;
mod subgraphs;
mod writer;

use std::collections::HashMap;

use quantize_rs_math::Params;
use quantize_rs_onnx::Edit;

use crate::encode::mark::{mark, with_bits};
use crate::encode::{Encoded, EncodedTensor};
use crate::graph::{Graph, ValueId};
use crate::options::Format;
use crate::plan::{Plan, Source, ValuePlan};
use writer::Writer;

pub(crate) use bias_rows::with_bias_rows;
pub(crate) use dedicated_pairs::with_dedicated_pairs;
pub use dedup_constants::share;
pub(crate) use float_caches::{with_float_caches, with_integer_caches};
pub use float_weights::with_float_weights;
pub(crate) use kv_cache::with_quantized_cache;
pub(crate) use onnxruntime_names::with_onnxruntime_names;
pub(crate) use qoperator::{QOperators, converted as as_qoperators};

/// How an output format writes quantized values. Each model gets its own instance, which can
/// remember what it wrote.
trait FormatWriter {
    /// Writes a weight, and the nodes that use it if the format replaces them.
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    );

    /// Writes an activation: a `QuantizeLinear` and a `DequantizeLinear`.
    fn activation(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        params: Params,
        encoded: &Encoded,
    ) {
        writer.activation(id, how, params, encoded);
    }

    /// Writes the bias of nodes that run on integers: for each node, int32 elements and a
    /// `DequantizeLinear`.
    fn bias(&mut self, writer: &mut Writer<'_, '_>, id: ValueId, encoded: &Encoded) {
        writer.bias(id, encoded);
    }
}

/// The writer of one output format.
struct WriterRow {
    format: Format,
    /// Creates the writer of one model.
    start: fn() -> Box<dyn FormatWriter>,
}

/// The writers of all output formats.
const WRITERS: &[WriterRow] = &[
    WriterRow { format: Format::Qdq, start: || Box::new(qdq::Qdq) },
    // Written as QDQ, and converted afterwards.
    WriterRow { format: Format::QOperator, start: || Box::new(qdq::Qdq) },
    WriterRow {
        format: Format::MatMulNBits,
        start: || Box::<matmul_nbits::MatMulNBits>::default(),
    },
    WriterRow { format: Format::MatMulBnb4, start: || Box::new(matmul_bnb4::MatMulBnb4) },
    WriterRow { format: Format::Dynamic, start: || Box::<dynamic::Dynamic>::default() },
    WriterRow { format: Format::FakeQuant, start: || Box::new(fake_quant::FakeQuant) },
];

/// The edits that apply `plan` to the model of `graph`, with the numbers of `encoded`.
pub fn rewrite(graph: &Graph<'_>, plan: &Plan, encoded: &Encoded) -> Vec<Edit> {
    let mut writer = Writer::new(graph, plan);
    let mut formats: Vec<(Format, Box<dyn FormatWriter>)> =
        WRITERS.iter().map(|row| (row.format, (row.start)())).collect();
    // Constants first: a quantized activation may rename the result of an integer `Gather`.
    let (constants, others): (Vec<_>, Vec<_>) =
        plan.quantized().partition(|(_, how)| how.source == Source::Weights);
    for (value, how) in constants.into_iter().chain(others) {
        let Some(id) = graph.value(&value.name) else { continue };
        let of_value = |(format, _): &&mut (Format, _)| *format == how.format;
        let Some((_, format)) = formats.iter_mut().find(of_value) else { continue };
        match &how.source {
            Source::Weights => {
                if let Some(tensor) = encoded.weights.get(&value.name) {
                    format.weight(&mut writer, id, how, tensor);
                }
            }
            Source::Observed | Source::Fixed(_) | Source::SameAs(_) => {
                if let Some(params) = encoded.activations.get(&value.name) {
                    format.activation(&mut writer, id, how, *params, encoded);
                }
            }
            Source::Product { .. } => format.bias(&mut writer, id, encoded),
        }
    }
    corrections::write(&mut writer, encoded);
    writer.write_gathers();
    writer.write_inside();
    comment(&mut writer.edits, &writer.weights, plan, encoded);
    writer.edits
}

/// Comments on the integers of weights that were rounded with the help of samples, or that use
/// fewer bits than their type has. `weights` has the weight of each constant of integers: what is
/// marked are the integers as the format stores them.
fn comment(edits: &mut [Edit], weights: &HashMap<String, String>, plan: &Plan, encoded: &Encoded) {
    let plans: HashMap<&str, &ValuePlan> =
        plan.quantized().map(|(value, how)| (value.name.as_str(), how)).collect();
    let comment = |name: &String, integers: &[u8]| {
        let (how, tensor) = plans.get(name.as_str()).zip(encoded.weights.get(name))?;
        let rounded = tensor.rounded.zip(tensor.scale.to_f32());
        let mark = rounded.map(|(algorithm, scales)| mark(algorithm, integers, &scales));
        match how.spec.used_bits {
            0 => mark,
            bits => Some(with_bits(bits, mark)),
        }
    };
    for edit in edits {
        let Edit::AddInitializer(tensor) = edit else { continue };
        let integers = weights.get(&tensor.name).zip(tensor.raw_data.as_ref());
        if let Some(text) = integers.and_then(|(name, integers)| comment(name, integers)) {
            tensor.doc_string = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_one_writer() {
        for format in Format::ALL {
            let count = WRITERS.iter().filter(|row| row.format == *format).count();
            assert_eq!(count, 1, "{format}");
        }
        assert_eq!(WRITERS.len(), Format::ALL.len());
    }
}
