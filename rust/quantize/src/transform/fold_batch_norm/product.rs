//! Operators that multiply by a constant weight and add a constant bias. The bias is an input of
//! the node, or is added after a `MatMul`.

use quantize_rs_onnx::{DataType, Edit, NodeProto, Tensor};

use super::affine::{Affine, Channels};
use crate::graph::constants::fixed;
use crate::graph::{Graph, Producer, ValueId};
use crate::transform::floats::{floats, rounded};
use crate::transform::pass_edits::PassEdits;

/// A multiplication by a constant weight, and its bias.
pub(in crate::transform) struct Product<'m> {
    /// The node that multiplies.
    pub(in crate::transform) node: usize,
    /// The node that adds the bias, if it is a separate node, and the input that holds the bias.
    added: Option<(usize, usize)>,
    kind: Kind<'m>,
    weight_value: ValueId,
    pub(in crate::transform) weight: Tensor,
    bias_value: Option<ValueId>,
    bias: Option<Tensor>,
    /// The channels of the output.
    pub(in crate::transform) channels: Channels,
}

/// The differences between operators.
#[derive(Clone, Copy)]
enum Kind<'m> {
    /// Holds the number of groups.
    Conv(usize),
    /// Holds the number of groups.
    ConvTranspose(usize),
    Gemm(&'m NodeProto),
    MatMul,
}

/// A weight and a bias with a scale and shift folded in.
pub(in crate::transform) struct Folded {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// The largest relative rounding error.
    pub(in crate::transform) change: f64,
}

impl<'m> Product<'m> {
    /// The multiplication that a node performs.
    pub(in crate::transform) fn of(graph: &Graph<'m>, index: usize) -> Option<Product<'m>> {
        let node = graph.nodes[index];
        if !node.is_onnx() {
            return None;
        }
        if node.op_type == "Add" {
            return Product::before_add(graph, index);
        }
        let weight_value = graph.input(index, 1)?;
        let weight = fixed(graph, weight_value)?;
        let rank = weight.shape.len();
        // A weight whose channels are not the same number in each group is no valid convolution.
        let groups = usize::try_from(node.int("group", 1)).ok();
        let groups = groups.filter(|groups| {
            *groups > 0 && weight.shape.first().is_some_and(|first| first.is_multiple_of(*groups))
        });
        let kind = match node.op_type.as_str() {
            "Conv" if rank >= 3 => Kind::Conv(groups?),
            "ConvTranspose" if rank >= 3 => Kind::ConvTranspose(groups?),
            "Gemm" if rank == 2 => Kind::Gemm(node),
            "MatMul" if rank == 2 => Kind::MatMul,
            _ => return None,
        };
        let count = match kind {
            Kind::Conv(_) => weight.shape[0],
            Kind::ConvTranspose(groups) => weight.shape[1].checked_mul(groups)?,
            Kind::Gemm(node) => weight.shape[usize::from(node.int("transB", 0) == 0)],
            Kind::MatMul => weight.shape[1],
        };
        let bias_value = match kind {
            Kind::MatMul => None,
            _ => graph.input(index, 2),
        };
        let bias = match bias_value {
            Some(value) => Some(fixed(graph, value)?),
            None => None,
        };
        let left = graph.input(index, 0).and_then(|value| graph.shape(value));
        let (least_rank, from_last, second) = match kind {
            Kind::Conv(_) | Kind::ConvTranspose(_) => (rank, rank - 1, true),
            Kind::Gemm(_) => (2, 1, true),
            Kind::MatMul => {
                let rank = left.map(|shape| shape.len());
                (rank.unwrap_or(1), 1, rank == Some(2))
            }
        };
        // A weight without elements may have any number of channels.
        if count > weight.elements() {
            return None;
        }
        let channels = Channels { count, least_rank, from_last, second, dtype: weight.dtype };
        (count > 0 && weight.dtype.is_float()).then_some(Product {
            node: index,
            added: None,
            kind,
            weight_value,
            weight,
            bias_value,
            bias,
            channels,
        })
    }

    /// A `MatMul` followed by the addition of a constant vector.
    fn before_add(graph: &Graph<'m>, index: usize) -> Option<Product<'m>> {
        let find = |input: usize| -> Option<Product<'m>> {
            let value = graph.input(index, input)?;
            let Producer::Node { node, output: 0 } = graph.values[value].producer else {
                return None;
            };
            let found = graph.nodes[node];
            if found.op_type != "MatMul" || !graph.is_only_consumer(index, value) {
                return None;
            }
            let bias_value = graph.input(index, 1 - input)?;
            let product = Product::of(graph, node)?;
            let bias = fixed(graph, bias_value)?;
            (bias.shape == [product.channels.count]).then(|| Product {
                added: Some((index, 1 - input)),
                bias_value: Some(bias_value),
                bias: Some(bias),
                ..product
            })
        };
        (graph.nodes[index].input.len() == 2).then(|| find(0).or_else(|| find(1))).flatten()
    }

    /// Whether it is a `Gemm` without a bias.
    pub(in crate::transform) fn is_bare_gemm(&self) -> bool {
        matches!(self.kind, Kind::Gemm(_)) && self.bias_value.is_none()
    }

    /// The nodes of the multiplication.
    pub(in crate::transform) fn nodes(&self) -> impl Iterator<Item = usize> {
        [Some(self.node), self.added.map(|(node, _)| node)].into_iter().flatten()
    }

    /// The node that produces the output.
    fn last(&self) -> usize {
        self.added.map_or(self.node, |(node, _)| node)
    }

    /// Folds a scale and shift of the output into the weight and bias.
    pub(in crate::transform) fn fold(&self, graph: &Graph<'_>, affine: &Affine) -> Option<Folded> {
        let bare = matches!(self.kind, Kind::MatMul) && self.added.is_none();
        // Runtimes fuse a MatMul and a following Add into a Gemm.
        if bare && affine.shifts() && (!affine.scales() || !self.may_be_gemm(graph)) {
            return None;
        }
        let mut change = 0f64;
        let mut weight = None;
        if affine.scales() {
            let mut values = floats(&self.weight)?;
            self.scale(&mut values, &affine.factor);
            let (scaled, by) = rounded(self.weight.dtype, self.weight.shape.clone(), &values)?;
            change = change.max(by);
            weight = Some(scaled);
        }
        let bias = match (&self.bias, affine.shifts()) {
            (None, false) => None,
            (Some(_), false) if !affine.scales() => None,
            (bias, _) => {
                let (old, divisor) = match bias {
                    Some(bias) => (self.spread(bias)?, self.beta()),
                    None => (vec![0.0; self.channels.count], self.beta()),
                };
                let values: Vec<f64> = old
                    .iter()
                    .zip(&affine.factor)
                    .zip(&affine.shift)
                    .map(|((old, by), shift)| old * by + shift / divisor)
                    .collect();
                let (bias, by) = rounded(self.weight.dtype, vec![self.channels.count], &values)?;
                change = change.max(by);
                Some(bias)
            }
        };
        Some(Folded { weight, bias, change })
    }

    /// How much larger the noise of the output is if the weight has one scale, and the factors are
    /// folded into it instead of applied after it.
    ///
    /// The noise of a channel is proportional to the square of the scale, which is proportional to
    /// the largest magnitude, and to that of the factor if it is applied afterwards.
    pub(in crate::transform) fn noise_ratio(&self, affine: &Affine) -> f64 {
        let largest = |values: &[f64]| values.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        let Some(mut values) = floats(&self.weight).filter(|_| affine.scales()) else { return 1.0 };
        let before = largest(&values).powi(2) * affine.factor.iter().map(|x| x * x).sum::<f64>();
        self.scale(&mut values, &affine.factor);
        #[allow(clippy::cast_precision_loss)] // a number of channels
        let after = largest(&values).powi(2) * affine.factor.len() as f64;
        if before > 0.0 { after / before } else { 1.0 }
    }

    /// Multiplies the weight by a factor for each input channel and one for each output channel,
    /// and the bias by the latter. `None` if a number leaves the type, or the bias has another
    /// shape.
    pub(in crate::transform) fn rescaled(&self, inputs: &[f64], outputs: &[f64]) -> Option<Folded> {
        let mut values = floats(&self.weight)?;
        for (at, value) in values.iter_mut().enumerate() {
            let (input, output) = self.place(at);
            *value *= inputs.get(input)? * outputs.get(output)?;
        }
        let (weight, mut change) = rounded(self.weight.dtype, self.weight.shape.clone(), &values)?;
        let mut bias = None;
        if let Some(old) = &self.bias {
            let values: Vec<f64> =
                self.spread(old)?.iter().zip(outputs).map(|(old, by)| old * by).collect();
            let (tensor, by) = rounded(self.weight.dtype, vec![self.channels.count], &values)?;
            change = change.max(by);
            bias = Some(tensor);
        }
        Some(Folded { weight: Some(weight), bias, change })
    }

    /// The bias with one element per channel; `None` if it has another shape.
    pub(in crate::transform) fn biases(&self) -> Option<Vec<f64>> {
        match &self.bias {
            Some(bias) => {
                Some(self.spread(bias)?.into_iter().map(|bias| bias * self.beta()).collect())
            }
            None => Some(vec![0.0; self.channels.count]),
        }
    }

    /// Whether no other node reads the weight.
    pub(in crate::transform) fn owns_weight(&self, graph: &Graph<'_>) -> bool {
        graph.is_only_consumer(self.node, self.weight_value)
    }

    /// Whether the input is padded with zeros.
    fn pads(&self, graph: &Graph<'_>) -> bool {
        let node = graph.nodes[self.node];
        let auto = node.attribute("auto_pad").and_then(|attribute| attribute.s.as_deref());
        let pads = node.attribute("pads").is_some_and(|pads| pads.ints.iter().any(|pad| *pad != 0));
        pads || !matches!(auto, None | Some(b"" | b"NOTSET" | b"VALID"))
    }

    /// The channels of the input; `None` unless each has its own weights.
    pub(in crate::transform) fn input_channels(&self) -> Option<Channels> {
        let shape = &self.weight.shape;
        let count = match self.kind {
            Kind::Conv(groups) => shape[1].checked_mul(groups)?,
            Kind::Gemm(gemm) if gemm.int("transA", 0) != 0 => return None,
            Kind::Gemm(gemm) => shape[usize::from(gemm.int("transB", 0) != 0)],
            Kind::MatMul | Kind::ConvTranspose(_) => shape[0],
        };
        // A wrong number of groups would be far more channels than there are weights.
        (count <= self.weight.elements()).then_some(Channels { count, ..self.channels })
    }

    /// Folds a scale and shift of the input channels into the weight and bias.
    pub(in crate::transform) fn fold_input(
        &self,
        graph: &Graph<'_>,
        affine: &Affine,
    ) -> Option<Folded> {
        let shifted = affine.shifts();
        let exact = match self.kind {
            Kind::Conv(_) => !shifted || !self.pads(graph),
            Kind::ConvTranspose(_) => !shifted,
            Kind::Gemm(_) => true,
            Kind::MatMul => !shifted || self.added.is_some(),
        };
        if !exact {
            return None;
        }
        let mut values = floats(&self.weight)?;
        let mut sums = vec![0f64; self.channels.count];
        for (at, value) in values.iter_mut().enumerate() {
            let (input, output) = self.place(at);
            if let Some(sum) = sums.get_mut(output) {
                *sum += *value * affine.shift.get(input)?;
            }
            *value *= affine.factor.get(input)?;
        }
        let (weight, mut change) = rounded(self.weight.dtype, self.weight.shape.clone(), &values)?;
        let weight = affine.scales().then_some(weight);
        let mut bias = None;
        if shifted {
            let old = match &self.bias {
                Some(bias) => self.spread(bias)?,
                None => vec![0.0; self.channels.count],
            };
            let by = self.alpha() / self.beta();
            let values: Vec<f64> = old.iter().zip(&sums).map(|(old, sum)| old + sum * by).collect();
            let (tensor, by) = rounded(self.weight.dtype, vec![self.channels.count], &values)?;
            change = change.max(by);
            bias = Some(tensor);
        }
        Some(Folded { weight, bias, change })
    }

    /// The input channel and the output channel of an element of the weight.
    fn place(&self, at: usize) -> (usize, usize) {
        let rest = self.weight.shape[2..].iter().product::<usize>().max(1);
        self.places()(at / rest)
    }

    /// A function from the position of an element in the first two axes of the weight to its input
    /// channel and output channel.
    pub(in crate::transform) fn places(&self) -> Box<dyn Fn(usize) -> (usize, usize)> {
        let shape = &self.weight.shape;
        let second = shape[1].max(1);
        match self.kind {
            Kind::Conv(groups) => {
                let of_group = (shape[0] / groups.max(1)).max(1);
                Box::new(move |at| (at / second / of_group * second + at % second, at / second))
            }
            Kind::ConvTranspose(groups) => {
                let of_group = (shape[0] / groups.max(1)).max(1);
                Box::new(move |at| (at / second, at / second / of_group * second + at % second))
            }
            Kind::Gemm(node) if node.int("transB", 0) != 0 => {
                Box::new(move |at| (at % second, at / second))
            }
            Kind::Gemm(_) | Kind::MatMul => Box::new(move |at| (at / second, at % second)),
        }
    }

    /// The factor of the product.
    fn alpha(&self) -> f64 {
        match self.kind {
            Kind::Gemm(node) => f64::from(node.float("alpha", 1.0)),
            _ => 1.0,
        }
    }

    /// The factor of the bias.
    fn beta(&self) -> f64 {
        match self.kind {
            Kind::Gemm(node) => f64::from(node.float("beta", 1.0)),
            _ => 1.0,
        }
    }

    /// Multiplies the weights of each channel by its factor.
    fn scale(&self, values: &mut [f64], factor: &[f64]) {
        let shape = &self.weight.shape;
        let rest = |from: usize| shape[from..].iter().product::<usize>().max(1);
        match self.kind {
            Kind::Conv(_) => by_rows(values, rest(1), |row| factor[row]),
            Kind::Gemm(node) if node.int("transB", 0) != 0 => {
                by_rows(values, rest(1), |row| factor[row]);
            }
            Kind::Gemm(_) | Kind::MatMul => {
                by_rows(values, 1, |at| factor[at % self.channels.count]);
            }
            Kind::ConvTranspose(groups) => {
                let (inputs, outputs) = (shape[0], shape[1]);
                let of_group = (inputs / groups.max(1)).max(1);
                by_rows(values, rest(2), |row| {
                    let (input, output) = (row / outputs, row % outputs);
                    factor.get(input / of_group * outputs + output).copied().unwrap_or(1.0)
                });
            }
        }
    }

    /// A bias with one element per channel.
    fn spread(&self, bias: &Tensor) -> Option<Vec<f64>> {
        let values = floats(bias).filter(|_| bias.dtype == self.weight.dtype)?;
        match (&values[..], &bias.shape[..]) {
            ([number], _) if matches!(self.kind, Kind::Gemm(_)) => {
                Some(vec![*number; self.channels.count])
            }
            (_, [length]) if *length == self.channels.count => Some(values),
            (_, [1, length])
                if *length == self.channels.count && matches!(self.kind, Kind::Gemm(_)) =>
            {
                Some(values)
            }
            _ => None,
        }
    }

    /// Whether a `MatMul` multiplies two matrices, so that runtimes may turn it into a `Gemm`.
    fn may_be_gemm(&self, graph: &Graph<'_>) -> bool {
        let known = graph.model.opset("").is_some_and(|opset| opset >= 7);
        self.channels.second && known && self.weight.dtype == DataType::Float
    }
}

/// Multiplies each run of `length` elements by the factor at its position.
fn by_rows(values: &mut [f64], length: usize, factor: impl Fn(usize) -> f64) {
    for (row, values) in values.chunks_mut(length).enumerate() {
        let by = factor(row);
        for value in values {
            *value *= by;
        }
    }
}

impl Folded {
    /// Stores the weight and the bias, and makes the multiplication produce the output of node
    /// `after`.
    pub(in crate::transform) fn write(
        self,
        pass: &mut PassEdits<'_, '_>,
        graph: &Graph<'_>,
        product: &Product<'_>,
        after: usize,
    ) {
        if let (Some(bias), None, Kind::MatMul) = (&self.bias, product.bias_value, product.kind) {
            // Runtimes fuse the two into a Gemm. The node keeps its name, which options may refer
            // to.
            let base = graph.values[product.weight_value].name;
            let name = pass.add_constant(base, "bias", bias);
            add(pass, graph, product, after, name);
            return Folded { bias: None, ..self }.put(pass, graph, product);
        }
        self.put(pass, graph, product);
        if let Some(made) = graph.output(after, 0) {
            let value = graph.values[made].name.to_owned();
            pass.edit(Edit::RenameOutput { node: product.last(), output: 0, value });
        }
        pass.remove(after);
    }

    /// Stores the weight and the bias.
    pub(in crate::transform) fn put(
        &self,
        pass: &mut PassEdits<'_, '_>,
        graph: &Graph<'_>,
        product: &Product<'_>,
    ) {
        let node = product.node;
        if let Some(weight) = &self.weight {
            pass.replace_constant((node, 1), product.weight_value, "folded", weight);
        }
        match (&self.bias, product.bias_value) {
            (None, _) => {}
            (Some(bias), Some(value)) => {
                pass.replace_constant(product.added.unwrap_or((node, 2)), value, "folded", bias);
            }
            (Some(bias), None) => {
                let base = graph.values[product.weight_value].name;
                let name = pass.add_constant(base, "bias", bias);
                pass.set_input(node, 2, name);
            }
        }
    }
}

/// Makes node `after` add a constant to the product.
fn add(
    pass: &mut PassEdits<'_, '_>,
    graph: &Graph<'_>,
    product: &Product<'_>,
    after: usize,
    constant: String,
) {
    let before = &graph.nodes[after];
    let reads = vec![graph.nodes[product.node].output[0].clone(), constant];
    let output = before.output[..1].to_vec();
    pass.add_node(NodeProto::new(before.name.clone(), "Add", reads, output, Vec::new()));
    pass.remove(after);
}
