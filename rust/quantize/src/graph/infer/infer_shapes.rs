//! Writes inferred types and shapes into a model.

use std::collections::HashMap;
use std::fmt;

use quantize_rs_onnx::{
    DataType, Dimension, Edit, GraphProto, Model, NodeProto, Raw, TensorShapeProto, ValueInfoProto,
};
use serde::Serialize;

use super::dim::Dims;
use super::{Dim, Fact, Facts, Inferred};
use crate::QuantizeError;

/// A summary of the inferred types and shapes of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShapeInference {
    /// The number of values that nodes of the main graph produce.
    pub values: usize,
    /// How many of these values have a known type.
    pub typed: usize,
    /// How many of these values have a known rank.
    pub ranked: usize,
    /// How many of these values have a fully known shape, with each dimension a number or a name.
    pub shaped: usize,
    /// How many values the model declares more about than before, including values in subgraphs.
    pub written: usize,
    /// Contradictions between the declarations in the file and the operators. The declarations are
    /// unchanged.
    pub warnings: Vec<String>,
}

impl fmt::Display for ShapeInference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShapeInference { values, shaped, ranked, written, .. } = self;
        write!(f, "{shaped} of {values} shapes known, {ranked} ranks; {written} values written")?;
        self.warnings.iter().try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

/// Returns a copy of `model` that declares the type and shape of each value, as far as they can be
/// inferred from the inputs. The copy shares its weights with `model`.
///
/// Dynamic dimensions are written as expressions of the names that the file gives to input
/// dimensions, for example `batch` or `2*height + 1`. The outputs of unknown operators stay unknown
/// and do not prevent the inference of other values. Existing declarations are kept even if they
/// contradict the operators; each contradiction is reported as a warning.
///
/// ```
/// use quantize_rs::{Model, infer_shapes};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let (model, inference) = infer_shapes(&Model::open(path)?)?;
/// assert_eq!(inference.shaped, inference.values);
/// assert_eq!(model.graph().value_info.len() + model.graph().output.len(), inference.values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The model with the added declarations is not valid.
pub fn infer_shapes(model: &Model) -> Result<(Model, ShapeInference), QuantizeError> {
    let inferred = Inferred::of(model);
    let mut writer = Writer { inferred: &inferred, written: 0 };
    let mut edits = Vec::new();
    for (index, node) in model.graph().node.iter().enumerate() {
        if let Some(with) = writer.node(node) {
            edits.push(Edit::ReplaceNode { node: index, with });
        }
    }
    let graph = model.graph();
    edits.extend(writer.infos(graph, &inferred.main).map(Edit::SetValueInfo));
    let mut inference = counts(graph, &inferred);
    inference.written = writer.written;
    let mut with = model.clone();
    if !edits.is_empty() {
        with.apply(edits)?;
    }
    Ok((with, inference))
}

fn counts(graph: &GraphProto, inferred: &Inferred<'_>) -> ShapeInference {
    let mut counts =
        ShapeInference { warnings: inferred.warnings.clone(), ..ShapeInference::default() };
    let names = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    for fact in names.map(|name| inferred.main.get(name.as_str())) {
        counts.values += 1;
        let Some(fact) = fact else { continue };
        counts.typed += usize::from(fact.dtype.is_some());
        let Some(shape) = &fact.shape else { continue };
        counts.ranked += 1;
        let known = |dim: &Dim| dim.fixed().is_some() || inferred.dims.name(*dim).is_some();
        counts.shaped += usize::from(shape.iter().all(known));
    }
    counts
}

struct Writer<'i, 'm> {
    inferred: &'i Inferred<'m>,
    written: usize,
}

impl<'i, 'm> Writer<'i, 'm> {
    /// The declarations to write for the outputs of the nodes of a graph, where they add to the
    /// existing ones.
    fn infos<'g>(
        &mut self,
        graph: &'g GraphProto,
        facts: &Facts<'m>,
    ) -> impl Iterator<Item = ValueInfoProto> + use<'g, 'i, 'm> {
        let said = graph.output.iter().chain(&graph.value_info);
        let said: HashMap<&str, &ValueInfoProto> =
            said.map(|info| (info.name.as_str(), &**info)).collect();
        let names = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
        let dims = &self.inferred.dims;
        let infos: Vec<ValueInfoProto> = names
            .filter_map(|name| match said.get(name.as_str()) {
                Some(said) => with_more(said, facts.get(name.as_str())?, dims),
                None => new(name, facts.get(name.as_str())?, dims),
            })
            .collect();
        self.written += infos.len();
        infos.into_iter()
    }

    /// A copy of a node with declarations added to its subgraphs; `None` if there are none to add.
    fn node(&mut self, node: &NodeProto) -> Option<NodeProto> {
        let mut with: Option<NodeProto> = None;
        for (at, attribute) in node.attribute.iter().enumerate() {
            let body = attribute.g.as_ref().and_then(|body| self.body(body));
            let bodies: Vec<_> = attribute.graphs.iter().map(|body| self.body(body)).collect();
            if body.is_none() && bodies.iter().all(Option::is_none) {
                continue;
            }
            let attribute = with.get_or_insert_with(|| node.clone()).attribute[at].edit();
            attribute.g = body.map(Raw::new).or(attribute.g.take());
            for (old, new) in attribute.graphs.iter_mut().zip(bodies) {
                if let Some(new) = new {
                    *old = Raw::new(new);
                }
            }
        }
        with
    }

    fn body(&mut self, body: &GraphProto) -> Option<GraphProto> {
        let facts = self.inferred.body(body)?;
        let nodes: Vec<_> = body.node.iter().map(|node| self.node(node)).collect();
        let infos: Vec<_> = self.infos(body, facts).collect();
        if infos.is_empty() && nodes.iter().all(Option::is_none) {
            return None;
        }
        let mut body = body.clone();
        for (old, new) in body.node.iter_mut().zip(nodes) {
            if let Some(new) = new {
                *old = Raw::new(new);
            }
        }
        let mut infos: HashMap<String, ValueInfoProto> =
            infos.into_iter().map(|info| (info.name.clone(), info)).collect();
        for said in body.output.iter_mut().chain(&mut body.value_info) {
            if let Some(info) = infos.remove(&said.name) {
                *said = Raw::new(info);
            }
        }
        let made = body.node.iter().flat_map(|node| &node.output);
        let new = made.filter_map(|name| infos.remove(name.as_str()));
        body.value_info.extend(new.map(Raw::new).collect::<Vec<_>>());
        Some(body)
    }
}

fn length(dim: Dim, dims: &Dims) -> Dimension {
    match dim {
        Dim::Fixed(length) => Dimension::fixed(length),
        Dim::Varies(_) => dims.name(dim).map(Dimension::named).unwrap_or_default(),
    }
}

/// The declaration of a value that has none so far.
fn new(name: &str, fact: &Fact, dims: &Dims) -> Option<ValueInfoProto> {
    let shape = fact.shape.as_ref();
    let shape = shape.map(|shape| shape.iter().map(|dim| length(*dim, dims)).collect());
    Some(ValueInfoProto::new(name, fact.dtype?, shape))
}

/// The existing declaration of a value, extended by the inferred facts; `None` if they add nothing.
fn with_more(said: &ValueInfoProto, fact: &Fact, dims: &Dims) -> Option<ValueInfoProto> {
    let Some(kind) = &said.value_type else { return new(&said.name, fact, dims) };
    // Only tensors are supported.
    let tensor = kind.tensor.as_ref()?;
    let mut more = None;
    if DataType::from_number(tensor.elem_type).is_none() {
        more = fact.dtype.map(DataType::number);
    }
    let shape = match (&tensor.shape, &fact.shape) {
        (None, Some(known)) => Some(known.iter().map(|dim| Raw::new(length(*dim, dims))).collect()),
        (Some(said), Some(known)) if said.dim.len() == known.len() => {
            let better = |(said, known): (&Raw<Dimension>, &Dim)| {
                let known = length(*known, dims);
                let empty =
                    said.value.is_none() && said.param.as_ref().is_none_or(String::is_empty);
                let better = empty && (known.value.is_some() || known.param.is_some())
                    || said.value.is_none() && known.value.is_some();
                if better { (Raw::new(known), true) } else { (said.clone(), false) }
            };
            let (shape, better): (Vec<_>, Vec<_>) = said.dim.iter().zip(known).map(better).unzip();
            better.contains(&true).then_some(shape)
        }
        _ => None,
    };
    if more.is_none() && shape.is_none() {
        return None;
    }
    let mut with = said.clone();
    let tensor = with.value_type.as_mut()?.edit().tensor.as_mut()?.edit();
    tensor.elem_type = more.unwrap_or(tensor.elem_type);
    if let Some(dim) = shape {
        tensor.shape.get_or_insert_with(|| Raw::new(TensorShapeProto::default())).edit().dim = dim;
    }
    Some(with)
}
