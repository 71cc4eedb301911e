//! `SmoothQuant`: some channels of a normalized activation are much larger than the others, so a
//! scale that covers them is too coarse for the rest. Dividing each channel by a factor and
//! multiplying the matching row of the weights by it does not change the result, and makes both
//! easier to quantize.
//!
//! With `a_c` the largest magnitude of channel `c` and `w_c` that of its row in the weights, the
//! factors are `a_c^α / w_c^(1-α)`. Source: Xiao et al., `SmoothQuant`, ICML 2023, section 4. The
//! exponent α of each value minimizes the expected error, where quantization with a step size has
//! an error with the variance step² / 12.

// Step sizes and magnitudes do not need full precision.
#![allow(clippy::cast_possible_truncation)]

mod gain;
mod weight;

use std::collections::BTreeMap;

use quantize_rs_math::{Granularity, QSpec, QType, Range, params};
use quantize_rs_onnx::{DataType, Edit, Model, NodeProto, Tensor, TensorProto};

use crate::graph::fingerprint::fingerprint;
use crate::graph::names::Names;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::target::Placement;
use crate::plan::{Decision, IntegerNode, Source};
use crate::ranges::ObservedRange;
use crate::{Format, Plan, QuantizeError, Ranges};
pub(crate) use gain::KnownGains;
use gain::{Gain, Noise, SmoothingCase};
use weight::Weight;

/// The exponents that are tried.
const ALPHAS: [f64; 5] = [0.35, 0.45, 0.55, 0.65, 0.75];

/// The assumed ratio of the largest magnitude of a channel to its standard deviation.
const PEAK_IN_SIGMAS: f64 = 4.0;

/// Without samples, weights are read only if the largest channel is this many times as large as
/// the root of the mean square of all.
const MIN_SPREAD: f64 = 2.0;

/// An equivalent float model, with its plan and, if it is calibrated, its ranges.
pub(crate) struct Smoothed {
    pub(crate) model: Model,
    pub(crate) plan: Plan,
    pub(crate) ranges: Option<Ranges>,
    /// The number of smoothed values.
    pub(crate) count: usize,
}

/// A node that multiplies a value by a weight on integers.
#[derive(Clone, Copy)]
struct Product {
    node: usize,
    input: ValueId,
    weight: ValueId,
}

/// Smooths all values that benefit from it; `None` if none does.
///
/// Without ranges, the values are those that are quantized at run time: the factors of a
/// normalization say how large its channels become.
///
/// What smoothing gains for a value is found in `known`, if it is given, and kept there.
pub(crate) fn smoothed(
    graph: &Graph<'_>,
    plan: &Plan,
    ranges: Option<&Ranges>,
    mut known: Option<&mut KnownGains>,
) -> Result<Option<Smoothed>, QuantizeError> {
    let config = &plan.config;
    if !config.smooth {
        return Ok(None);
    }
    let products = match ranges {
        Some(_) => calibrated(plan),
        None if config.output_format == Format::Dynamic => at_run_time(graph, plan),
        None => return Ok(None),
    };
    // Where every operator is quantized, an additional node costs another rounding.
    let may_add_nodes = matches!(
        config.profile().placement,
        Placement::WeightedAndInterior | Placement::WeightedOps
    );
    let mut consumers: BTreeMap<ValueId, Vec<Product>> = BTreeMap::new();
    for product in products {
        consumers.entry(product.input).or_default().push(product);
    }
    let mut smoothing = Smoothing { graph, names: Names::of(graph), edits: Vec::new() };
    let mut ranges = ranges.cloned();
    let mut count = 0;
    for (value, nodes) in consumers {
        let channels = match &ranges {
            Some(ranges) => Channels::observed(graph, plan, ranges, value),
            None => Channels::expected(graph, value),
        };
        let Some(Channels { peaks, range, spec }) = channels else { continue };
        let step = f64::from(params(range, &spec).scale);
        let case = SmoothingCase::of(plan, &nodes, peaks, spec);
        let gain = known.as_ref().and_then(|known| known.find(value, &case));
        if gain.is_some_and(|gain| gain.worthwhile(step).is_none()) {
            continue;
        }
        let gain = gain.cloned();
        let Some(candidate) = SmoothingCandidate::of(graph, plan, nodes, case) else { continue };
        if !may_add_nodes && candidate.normalization(graph, value).is_none() {
            continue;
        }
        let gain = gain.or_else(|| candidate.gain());
        let found = gain.as_ref().and_then(|gain| gain.worthwhile(step));
        let found = found.map(|(factors, reach)| (factors.to_vec(), reach));
        if let (Some(known), Some(gain)) = (&mut known, gain) {
            known.learn(value, &candidate.case, gain);
        }
        let Some((factors, reach)) = found else { continue };
        let inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
        let smooth = smoothing.divide(value, &factors, &inverse, candidate);
        if let Some(ranges) = &mut ranges {
            let statistics = std::sync::Arc::make_mut(&mut ranges.statistics);
            if let Some(seen) = statistics.get(graph.values[value].name).cloned() {
                let channels = seen.channels.as_ref().and_then(|all| all.scaled(&inverse).ok());
                let seen = ObservedRange { sketch: None, channels, ..seen };
                statistics.insert(smooth.clone(), seen);
            }
            ranges.values.insert(smooth, Range { min: -reach, max: reach });
        }
        count += 1;
    }
    if count == 0 {
        return Ok(None);
    }
    let edits = smoothing.edits;
    let mut model = graph.model.clone();
    model.apply(edits)?;
    let plan = Plan::of(&Graph::of(&model)?, config.clone())?;
    if let Some(ranges) = &mut ranges {
        ranges.model = fingerprint(&model);
        // A value that the new plan observes and that the original plan did not.
        if plan.observed().iter().any(|name| !ranges.values.contains_key(name)) {
            return Ok(None);
        }
    }
    Ok(Some(Smoothed { model, plan, ranges, count }))
}

/// The products whose input is quantized with a scale that calibration finds.
fn calibrated(plan: &Plan) -> Vec<Product> {
    let nodes = plan.integer_nodes().into_iter();
    nodes.map(|IntegerNode { node, input, weight, .. }| Product { node, input, weight }).collect()
}

/// The products whose input is quantized when the model runs.
fn at_run_time(graph: &Graph<'_>, plan: &Plan) -> Vec<Product> {
    let is_dynamic = |weight: &ValueId| {
        let decision = plan.values.get(*weight).map(|value| &value.decision);
        matches!(decision, Some(Decision::Quantize(how)) if how.format == Format::Dynamic)
    };
    let product = |node: usize| {
        let (input, weight) = (graph.input(node, 0)?, graph.input(node, 1).filter(is_dynamic)?);
        Some(Product { node, input, weight })
    };
    (0..graph.nodes.len()).filter_map(product).collect()
}

/// What is known of the channels of a normalized value.
struct Channels {
    /// The largest magnitude of each.
    peaks: Vec<f64>,
    /// The range of all.
    range: Range,
    /// How the value is quantized.
    spec: QSpec,
}

impl Channels {
    /// Those that calibration observed.
    fn observed(
        graph: &Graph<'_>,
        plan: &Plan,
        ranges: &Ranges,
        value: ValueId,
    ) -> Option<Channels> {
        let name = graph.values[value].name;
        let seen = ranges.statistics.get(name)?;
        let range = *ranges.values.get(name)?;
        let Decision::Quantize(how) = &plan.values.get(value)?.decision else { return None };
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        let channels = seen.channels.as_ref().filter(|_| seen.axis == Some(-1))?;
        let fits = how.source == Source::Observed && normalizes(graph, node);
        let peaks = channels.absmax().iter().copied().map(f64::from).collect();
        // The type that an option gives a value is that of the value as it is.
        let usual = plan.config.activations == Some(how.spec.qtype);
        (fits && usual && !how.spec.qtype.is_float()).then_some(Channels {
            peaks,
            range,
            spec: how.spec,
        })
    }

    /// Those that the factors of a normalization let expect: it divides by the standard deviation.
    fn expected(graph: &Graph<'_>, value: ValueId) -> Option<Channels> {
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        let proto = graph.nodes[node];
        let layer = proto.is_onnx()
            && matches!(proto.op_type.as_str(), "LayerNormalization" | "RMSNormalization");
        let constant = |input: usize| {
            let tensor = graph.constant(graph.input(node, input)?)?;
            graph.model.tensor(tensor).ok()?.to_f32()
        };
        let scale = constant(1).filter(|_| layer)?;
        let bias = constant(2).unwrap_or_else(|| vec![0.0; scale.len()]);
        let peaks: Vec<f64> = scale
            .iter()
            .zip(&bias)
            .map(|(scale, bias)| PEAK_IN_SIGMAS * f64::from(scale.abs()) + f64::from(bias.abs()))
            .collect();
        let largest = peaks.iter().copied().fold(0.0, f64::max);
        #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
        let mean = (peaks.iter().map(|peak| peak * peak).sum::<f64>() / peaks.len() as f64).sqrt();
        let range = Range { min: -largest as f32, max: largest as f32 };
        let spec = QSpec::new(QType::UInt8, false, Granularity::PerTensor);
        let is_uneven = scale.len() == bias.len() && largest > MIN_SPREAD * mean;
        is_uneven.then_some(Channels { peaks, range, spec })
    }
}

/// A value that may be smoothed, and its consumers.
struct SmoothingCandidate {
    case: SmoothingCase,
    weights: Vec<Weight>,
}

impl SmoothingCandidate {
    fn of(
        graph: &Graph<'_>,
        plan: &Plan,
        products: Vec<Product>,
        case: SmoothingCase,
    ) -> Option<SmoothingCandidate> {
        let weights: Option<Vec<Weight>> = products
            .into_iter()
            .map(|product| Weight::of(graph, plan, product.node, product.weight))
            .collect();
        let (weights, peaks) = (weights?, &case.peaks);
        let fits = weights.iter().all(|weight| weight.shape[weight.summed] == peaks.len());
        (fits && peaks.iter().all(|peak| peak.is_finite()))
            .then_some(SmoothingCandidate { case, weights })
    }

    /// The noise without factors, and the channel factors with the least expected error.
    fn gain(&self) -> Option<Gain> {
        let SmoothingCase { peaks, spec, .. } = &self.case;
        let rows = self.rows();
        let tried = ALPHAS.iter().map(|alpha| {
            let factors = self.factors(&rows, *alpha);
            let peaks = peaks.iter().zip(&factors);
            let reach = peaks.map(|(peak, by)| peak / f64::from(*by)).fold(0.0, f64::max) as f32;
            let step = params(Range { min: -reach, max: reach }, spec).scale;
            (self.noise(&factors).of_step(f64::from(step)), factors, reach)
        });
        let (error, factors, reach) = tried.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Gain { without: self.noise(&vec![1.0; peaks.len()]), error, factors, reach })
    }

    /// The largest magnitude of each row over all weights.
    fn rows(&self) -> Vec<f64> {
        let mut rows = vec![0.0_f64; self.case.peaks.len()];
        for weight in &self.weights {
            for (row, found) in
                rows.iter_mut().zip(weight.of_rows(0.0_f32, |max, x| max.max(x.abs())))
            {
                *row = row.max(f64::from(found));
            }
        }
        rows
    }

    /// A factor for each channel, with a geometric mean of 1. Channels that are always 0 have
    /// factor 1.
    fn factors(&self, rows: &[f64], alpha: f64) -> Vec<f32> {
        let factor = |(peak, row): (&f64, &f64)| {
            let used = *peak > 0.0 && *row > 0.0;
            if used { alpha * peak.ln() - (1.0 - alpha) * row.ln() } else { f64::NAN }
        };
        let logs: Vec<f64> = self.case.peaks.iter().zip(rows).map(factor).collect();
        let (sum, count) = logs
            .iter()
            .filter(|log| log.is_finite())
            .fold((0.0, 0.0), |(sum, count), log| (sum + log, count + 1.0));
        let mean = sum / f64::max(count, 1.0);
        let one = |log: &f64| if log.is_finite() { (log - mean).exp() as f32 } else { 1.0 };
        logs.iter().map(one).collect()
    }

    /// The expected noise of all products if the channels are divided by `factors`.
    fn noise(&self, factors: &[f32]) -> Noise {
        let power =
            |channel: usize| (self.case.peaks[channel] / f64::from(factors[channel])).powi(2);
        let inputs: f64 =
            (0..factors.len()).map(power).sum::<f64>() / (PEAK_IN_SIGMAS * PEAK_IN_SIGMAS);
        let of = |weight: &Weight| {
            let energies = weight.energies.iter().zip(factors);
            let energy: f64 = energies.map(|(energy, by)| energy * f64::from(*by).powi(2)).sum();
            let mut columns = weight.columns(factors);
            if weight.spec.granularity == Granularity::PerTensor {
                let largest = columns.iter().copied().fold(0.0, f32::max);
                columns.fill(largest);
            }
            let steps = columns.into_iter().map(|absmax| {
                let range = Range { min: -absmax, max: absmax };
                f64::from(params(range, &weight.spec).scale).powi(2)
            });
            (energy, steps.sum())
        };
        Noise { inputs, weights: self.weights.iter().map(of).collect() }
    }

    /// The scale and the bias of the normalization that produces a value, if dividing them affects
    /// only the consumers that expect the divided value.
    fn normalization(&self, graph: &Graph<'_>, value: ValueId) -> Option<Vec<(String, Vec<f32>)>> {
        let found = &graph.values[value];
        let Producer::Node { node, .. } = found.producer else { return None };
        let multiplies = |node: usize| self.weights.iter().any(|weight| weight.node == node);
        let alone = !found.is_read_outside()
            && found
                .consumers
                .iter()
                .all(|consumer| consumer.input == 0 && multiplies(consumer.node));
        let proto = graph.nodes[node];
        if !alone || !matches!(proto.op_type.as_str(), "LayerNormalization" | "RMSNormalization") {
            return None;
        }
        let inputs = (1..proto.input.len()).filter(|input| !proto.input[*input].is_empty());
        let constant = |input: usize| {
            let id = graph.input(node, input)?;
            let value = &graph.values[id];
            let own = matches!(value.producer, Producer::Initializer { overridable: false, .. })
                && graph.only_consumer(id).is_some();
            let tensor = graph.model.tensor(graph.constant(id)?).ok()?;
            let fits =
                own && tensor.dtype == DataType::Float && tensor.shape == [self.case.peaks.len()];
            Some((value.name.to_owned(), tensor.to_f32().filter(|_| fits)?))
        };
        inputs.map(constant).collect()
    }
}

/// Whether a node outputs a normalized value, before or after adding a bias.
fn normalizes(graph: &Graph<'_>, node: usize) -> bool {
    let proto = graph.nodes[node];
    let vector = |input: usize| {
        let constant = graph.input(node, input).and_then(|value| graph.constant(value));
        constant.is_some_and(|tensor| tensor.dims.len() == 1)
    };
    proto.is_onnx()
        && match proto.op_type.as_str() {
            "LayerNormalization" | "RMSNormalization" => true,
            // A decomposed normalization ends with its bias, or with its scale if it has none.
            "Add" | "Mul" => vector(0) || vector(1),
            _ => false,
        }
}

struct Smoothing<'g, 'm> {
    graph: &'g Graph<'m>,
    names: Names<'g>,
    edits: Vec<Edit>,
}

impl Smoothing<'_, '_> {
    /// Divides a value for the consumers that multiply it by weights, and multiplies these weights.
    /// Returns the name of the divided value.
    fn divide(
        &mut self,
        value: ValueId,
        factors: &[f32],
        inverse: &[f32],
        candidate: SmoothingCandidate,
    ) -> String {
        let constants = candidate.normalization(self.graph, value);
        let nodes: Vec<usize> = candidate.weights.iter().map(|weight| weight.node).collect();
        for mut weight in candidate.weights {
            let (name, cast) = (std::mem::take(&mut weight.name), weight.cast.take());
            let tensor = TensorProto::new(&name, &weight.scaled(factors));
            if let Some((cast, stored)) = cast {
                self.edits.push(Edit::RemoveNode(cast));
                self.edits.push(Edit::RemoveInitializer(stored));
                self.edits.push(Edit::AddInitializer(tensor));
            } else {
                self.edits.push(Edit::ReplaceInitializer(tensor));
            }
        }
        let name = self.graph.values[value].name;
        if let Some(constants) = constants {
            for (constant, values) in constants {
                let scaled: Vec<f32> = values.iter().zip(inverse).map(|(x, by)| x * by).collect();
                let tensor = Tensor::from_f32(vec![scaled.len()], &scaled);
                self.edits.push(Edit::ReplaceInitializer(TensorProto::new(&constant, &tensor)));
            }
            return name.to_owned();
        }
        let smooth = self.names.fresh(name, "smooth");
        let by = self.names.fresh(name, "smoothing");
        let tensor = TensorProto::new(&by, &Tensor::from_f32(vec![inverse.len()], inverse));
        self.edits.push(Edit::AddInitializer(tensor));
        let inputs = vec![name.to_owned(), by];
        let node = NodeProto::new(String::new(), "Mul", inputs, vec![smooth.clone()], vec![]);
        self.edits.push(Edit::AddNode(node));
        for node in nodes {
            let value = smooth.clone();
            self.edits.push(Edit::SetInput { node, input: 0, value });
        }
        smooth
    }
}
