//! QDQ: every quantized value stands between a `QuantizeLinear` and a `DequantizeLinear`.
//!
//! The `DequantizeLinear` takes the name of the value, so that nothing that reads it changes:
//! a weight `W` becomes `W_quantized`, `W_scale`, `W_zp` and a node that makes `W`; an activation
//! `y` is renamed `y_float` where it is made, and `y` is what comes back from 8 bits.

use std::collections::{BTreeMap, HashMap, HashSet};

use quantize_rs_math::{Granularity, Params};
use quantize_rs_onnx::{AttributeProto, Edit, Kept, NodeProto, Tensor, TensorProto};

use super::corrections;
use super::names::Names;
use crate::encode::{Encoded, EncodedTensor, integers};
use crate::graph::{Graph, Maker, Reader, ValueId};
use crate::ops::{self, Integer};
use crate::plan::{Plan, Source, ValuePlan};

/// The edits that turn the model of `graph` into what `plan` says, with the numbers of `encoded`.
pub fn rewrite(graph: &Graph<'_>, plan: &Plan, encoded: &Encoded) -> Vec<Edit> {
    let integer_nodes = plan.integer_nodes();
    let integer_nodes = integer_nodes.iter();
    let mut writer = Writer {
        graph,
        on_integers: integer_nodes.clone().map(|integer| integer.node).collect(),
        biased: integer_nodes.fold(HashMap::new(), |mut biased, integer| {
            if let Some(bias) = integer.bias {
                biased.entry(bias).or_insert_with(Vec::new).push(integer.node);
            }
            biased
        }),
        sources: plan.quantized().map(|(value, how)| (value.name.as_str(), &how.source)).collect(),
        names: Names::of(graph),
        edits: Vec::new(),
        parameters: BTreeMap::new(),
    };
    for (value, how) in plan.quantized() {
        let Some(id) = graph.value(&value.name) else { continue };
        match &how.source {
            Source::Weights => {
                if let Some(tensor) = encoded.weights.get(&value.name) {
                    writer.weight(id, how, tensor);
                }
            }
            Source::Observed | Source::Fixed(_) | Source::SameAs(_) => {
                if let Some(params) = encoded.activations.get(&value.name) {
                    writer.activation(id, how, *params, encoded);
                }
            }
            Source::Product { .. } => writer.bias(id, encoded),
        }
    }
    corrections::write(&mut writer, encoded);
    writer.edits
}

pub(super) struct Writer<'g, 'm> {
    pub(super) graph: &'g Graph<'m>,
    /// Nodes that run on integers.
    on_integers: HashSet<usize>,
    /// Those of them that add a bias, by bias.
    biased: HashMap<ValueId, Vec<usize>>,
    sources: HashMap<&'g str, &'g Source>,
    pub(super) names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// Names of the scale and zero point of activations, by the value whose range they hold.
    parameters: BTreeMap<String, [String; 2]>,
}

impl Writer<'_, '_> {
    fn weight(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        let name = self.graph.values[id].name;
        self.take_out(id);
        self.dequantize_constant(name, name.to_owned(), how.spec.granularity, tensor, true);
    }

    /// Integers, scale and zero point of a constant, and the node that makes `output` of them.
    pub(super) fn dequantize_constant(
        &mut self,
        base: &str,
        output: String,
        granularity: Granularity,
        tensor: &EncodedTensor,
        with_zero_point: bool,
    ) {
        let mut inputs = vec![
            self.constant(base, "quantized", &tensor.quantized),
            self.constant(base, "scale", &tensor.scale),
        ];
        if with_zero_point {
            inputs.push(self.constant(base, "zp", &tensor.zero_point));
        }
        self.edits.push(Edit::RequireIr(tensor.quantized.dtype.since_ir()));
        self.node("DequantizeLinear", base, inputs, output, granularity);
    }

    /// An activation between `QuantizeLinear` and `DequantizeLinear`.
    fn activation(&mut self, id: ValueId, how: &ValuePlan, params: Params, encoded: &Encoded) {
        let value = &self.graph.values[id];
        let [scale, zero_point] = self.parameters(id, how, params, encoded);
        let quantized = self.names.fresh(value.name, "quantized");
        let (float, restored) = if let Maker::Node { node, output } = value.maker {
            let float = self.names.fresh(value.name, "float");
            self.edits.push(Edit::RenameOutput { node, output, value: float.clone() });
            (float, value.name.to_owned())
        } else {
            // An input of the model keeps its name; those who compute with integers read another.
            let restored = self.names.fresh(value.name, "dequantized");
            for Reader { node, input } in value.readers.iter().copied() {
                if self.computes_on_integers(node) {
                    self.edits.push(Edit::SetInput { node, input, value: restored.clone() });
                }
            }
            (value.name.to_owned(), restored)
        };
        let parameters = |first: String| vec![first, scale.clone(), zero_point.clone()];
        let per_tensor = Granularity::PerTensor;
        let inputs = parameters(float);
        self.node("QuantizeLinear", value.name, inputs, quantized.clone(), per_tensor);
        let inputs = parameters(quantized);
        self.node("DequantizeLinear", value.name, inputs, restored, per_tensor);
    }

    /// Names of scale and zero point; values that follow another share its.
    fn parameters(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        params: Params,
        encoded: &Encoded,
    ) -> [String; 2] {
        let mut root = self.graph.values[id].name;
        while let Some(Source::SameAs(source)) = self.sources.get(root)
            && encoded.activations.contains_key(source)
        {
            root = source;
        }
        if let Some(names) = self.parameters.get(root) {
            return names.clone();
        }
        let root = root.to_owned();
        let scale = Tensor::from_f32(vec![], &[params.scale]);
        let zero_point = integers(how.stored, vec![], &[params.zero_point]);
        let names =
            [self.constant(&root, "scale", &scale), self.constant(&root, "zp", &zero_point)];
        self.parameters.insert(root, names.clone());
        names
    }

    /// A bias: one int32 copy for each node, since each has a scale of its own.
    fn bias(&mut self, id: ValueId, encoded: &Encoded) {
        let value = &self.graph.values[id];
        let nodes = self.biased.remove(&id).unwrap_or_default();
        let alone =
            nodes.len() == 1 && value.readers.len() == 1 && !value.captured && !value.is_output;
        for node in &nodes {
            let Some(tensor) = encoded.biases.get(node) else { continue };
            let output = if alone {
                value.name.to_owned()
            } else {
                self.names.fresh(value.name, "dequantized")
            };
            if !alone {
                let value = output.clone();
                self.edits.push(Edit::SetInput { node: *node, input: 2, value });
            }
            // Two nodes may share a bias and not the granularity of their weights.
            let granularity = match tensor.scale.shape[..] {
                [] => Granularity::PerTensor,
                _ => Granularity::PerAxis { axis: 0 },
            };
            // The zero point of int32 is 0 and may be left out.
            self.dequantize_constant(value.name, output, granularity, tensor, false);
        }
        if alone || nodes.len() == value.readers.len() && !value.captured && !value.is_output {
            self.take_out(id);
        }
    }

    fn computes_on_integers(&self, node: usize) -> bool {
        let passes_on = || {
            let rule = ops::rule(self.graph.nodes[node])?;
            let output = self.graph.nodes[node].output.first()?;
            let moves = matches!(rule.integer, Integer::SameAsInput { .. });
            Some(moves && self.sources.contains_key(output.as_str()))
        };
        self.on_integers.contains(&node) || passes_on().unwrap_or(false)
    }

    /// Takes a constant out of the model, with what nobody reads any more once it is gone.
    pub(super) fn take_out(&mut self, id: ValueId) {
        let value = &self.graph.values[id];
        match value.maker {
            Maker::Node { node, .. } => {
                self.edits.push(Edit::RemoveNode(node));
                for source in
                    self.graph.nodes[node].input.iter().filter_map(|name| self.graph.value(name))
                {
                    let source_value = &self.graph.values[source];
                    if source_value.readers.len() == 1
                        && !source_value.captured
                        && !source_value.is_output
                    {
                        self.take_out(source);
                    }
                }
            }
            _ => self.edits.push(Edit::RemoveInitializer(value.name.to_owned())),
        }
    }

    /// Adds a constant and returns its name.
    pub(super) fn constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    fn node(
        &mut self,
        op_type: &str,
        base: &str,
        input: Vec<String>,
        output: String,
        granularity: Granularity,
    ) {
        let integer = |name: &str, value: usize| {
            Kept::new(AttributeProto::int(name, i64::try_from(value).unwrap_or(i64::MAX)))
        };
        let attribute = match granularity {
            Granularity::PerTensor => vec![],
            Granularity::PerAxis { axis } => vec![integer("axis", axis)],
            Granularity::Blocked { axis, block_size } => {
                vec![integer("axis", axis), integer("block_size", block_size)]
            }
        };
        let name = self.names.fresh(base, op_type);
        let node = NodeProto::new(name, op_type, input, vec![output], attribute);
        self.edits.push(Edit::AddNode(node));
    }
}
