//! Ranks layers by their sensitivity to quantization.

mod changed;
mod layers;
mod lending;
mod measure;
mod merge;
mod pieces;
mod resume;
mod run;

use std::cmp::Ordering;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use quantize_rs_math::Metrics;
use quantize_rs_onnx::{Model, topological};
use serde::{Deserialize, Serialize};

use crate::Method;
use crate::analysis::output_metric::MetricHandle;
use crate::calibrate::engine::{Engine, Samples};
use crate::calibrate::pair::SliceSamples;
use crate::calibrate::{Control, calibrate, with_rounded_weights};
use crate::error::while_unchanged;
use crate::graph::Graph;
use crate::plan::{Planned, Role, Source, ValuePlan};
use crate::report::{Accuracy, Origin, OutputRow};
use crate::util::cpu;
use crate::{Plan, QuantizeError, Ranges, Shard, WeightAlgorithm, encode};
pub(crate) use layers::activations;
use layers::{Layer, layers};
pub(crate) use run::all_of;

/// What layers are ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The SQNR of the worst output of the model, in decibels.
    #[default]
    Sqnr,
    /// The cosine of the worst output.
    Cosine,
    /// The largest absolute error of any output.
    MaxAbs,
    /// The mean squared error of the worst output.
    Mse,
    /// The top-1 agreement of the worst output that looks like class scores.
    Top1,
    /// The SQNR of the weight itself, which needs no data.
    Weight,
    /// How much worse a metric of the caller's is, [`SensitivityOptions::custom`].
    Custom,
}

impl Metric {
    /// Every metric that a name stands for, and its name.
    pub const ALL: &[(&'static str, Metric)] = &[
        ("sqnr", Metric::Sqnr),
        ("cosine", Metric::Cosine),
        ("max_abs", Metric::MaxAbs),
        ("mse", Metric::Mse),
        ("top1", Metric::Top1),
        ("weight", Metric::Weight),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Metric::ALL.iter().find(|(_, metric)| *metric == self).map_or("custom", |(name, _)| name)
    }

    /// What it measures.
    pub fn about(self) -> &'static str {
        match self {
            Metric::Sqnr => "SQNR of the worst output",
            Metric::Cosine => "cosine of the worst output",
            Metric::MaxAbs => "largest error of any output",
            Metric::Mse => "mean squared error of the worst output",
            Metric::Top1 => "top-1 agreement of the worst output",
            Metric::Weight => "SQNR of the weight itself",
            Metric::Custom => "loss in the metric of the caller",
        }
    }

    /// Whether a score is in decibels.
    pub fn is_in_decibels(self) -> bool {
        matches!(self, Metric::Sqnr | Metric::Weight)
    }

    /// A score as text.
    pub fn shown(self, score: f64) -> String {
        match self {
            Metric::Sqnr | Metric::Weight => match score {
                f64::INFINITY => "exact".to_owned(),
                score => format!("{score:.1} dB"),
            },
            Metric::Cosine | Metric::Custom => format!("{score:.6}"),
            Metric::Top1 => format!("{:.2} %", 100.0 * score),
            Metric::MaxAbs | Metric::Mse => format!("{score:.3e}"),
        }
    }

    /// The score of a layer; NaN if there is none.
    fn of(self, layer: &LayerRow) -> f64 {
        let found = |row: &OutputRow| match self {
            Metric::Sqnr => Some(row.error.sqnr_db),
            Metric::Cosine => Some(row.error.cosine),
            Metric::MaxAbs => Some(row.error.max_abs),
            Metric::Mse => Some(row.error.mse),
            Metric::Top1 => row.top1_agreement,
            Metric::Weight | Metric::Custom => None,
        };
        match self {
            Metric::Weight => {
                return layer.weight_error.map_or(f64::NAN, |error| error.sqnr_db);
            }
            Metric::Custom => return layer.accuracy.as_ref().map_or(f64::NAN, |found| found.drop),
            _ => {}
        }
        let scores = layer.outputs.iter().filter_map(found);
        scores.max_by(|a, b| self.worse(*a, *b).reverse()).unwrap_or(f64::NAN)
    }

    /// `Less` if the first is worse; NaN is worse than any number.
    fn worse(self, a: f64, b: f64) -> Ordering {
        match (a.is_nan(), b.is_nan()) {
            (false, false) if matches!(self, Metric::MaxAbs | Metric::Mse | Metric::Custom) => {
                b.total_cmp(&a)
            }
            (false, false) => a.total_cmp(&b),
            (a, b) => b.cmp(&a),
        }
    }
}

impl FromStr for Metric {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Metric, QuantizeError> {
        let known = Metric::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, metric)| *metric).ok_or_else(|| {
            let names: Vec<&str> = Metric::ALL.iter().map(|(name, _)| *name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("metric", what)
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How sensitive layers are found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SensitivityOptions {
    /// What layers are ranked by; [`Metric::Custom`] needs `custom`.
    pub metric: Metric,
    /// A metric of the outputs on all samples, which is measured for each layer. The outputs of the
    /// layers that run at the same time are kept in memory.
    pub custom: Option<MetricHandle>,
    /// Whether all layers except one are quantized, instead of one alone.
    pub all_but_one: bool,
    /// A file that stores the result of each layer; an existing file is continued. A file beside it
    /// whose name ends with `.lock` keeps other processes away.
    pub resume: Option<PathBuf>,
    /// A part of the layers: every `count`-th, to measure them with several processes. By default
    /// all.
    pub part: Option<Shard>,
}

/// The sensitivity of each layer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// What layers are ranked by.
    pub metric: Metric,
    /// Whether all other layers were quantized, instead of the one alone.
    pub all_but_one: bool,
    /// One row for each quantized weight, and for each operator without weight that computes on
    /// integers; the most sensitive first.
    pub layers: Vec<LayerRow>,
    /// The number of samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: Option<String>,
    /// Notes of the engine.
    pub notes: Vec<String>,
    /// The model, the version, the date, and what is known of the call.
    #[serde(default)]
    pub origin: Origin,
    /// The fingerprint of the model; empty in a ranking of an earlier version.
    #[serde(default)]
    pub model: String,
}

/// The sensitivity of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerRow {
    /// The name of the weight; of an operator without weight, its name, or that of its output if
    /// it has none.
    pub name: String,
    /// The labels of the nodes that multiply by it, or of the operator.
    pub nodes: Vec<String>,
    /// Their operator.
    pub op_type: String,
    /// The quantized type of the weight, `int8 symmetric axis 0`, or of the output of the operator.
    pub kind: String,
    /// The number of elements of the weight; 0 for an operator without weight.
    pub elements: usize,
    /// The error of the weight, dequantized, against its float values.
    pub weight_error: Option<Metrics>,
    /// The error of each output of the model.
    pub outputs: Vec<OutputRow>,
    /// The scores in a metric of the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// The score that it is ranked by.
    #[serde(skip_deserializing)]
    pub score: f64,
}

/// Quantizes each layer of a model alone (or all layers except one), and ranks the layers by the
/// error of the outputs.
///
/// A layer is a weight with all values that the plan quantizes for the nodes that multiply by it,
/// or an operator without weight (a sum, a product, a pool) with the values that it computes on.
/// For each layer only the nodes that depend on it are run, on values of the float model. These are
/// recorded during calibration, if they fit in memory. `model` is the model that the plan was made
/// for. If the plan needs `ranges` and none are given, the samples are used for calibration.
/// Weights that are not finite stay float, and a note names them.
///
/// # Errors
/// No samples, samples that do not fit, ranges of another model, an engine that cannot run a part
/// of the model, or a file to resume that belongs to other inputs.
pub fn sensitivity(
    model: &Model,
    plan: &Plan,
    ranges: Option<&Ranges>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &SensitivityOptions,
    control: Control<'_>,
) -> Result<Sensitivity, QuantizeError> {
    while_unchanged(&[model], || {
        if options.custom.is_some() && options.resume.is_some() {
            let what = "cannot be used with a metric of your own: the file cannot tell whether it \
                        is the same";
            return Err(QuantizeError::option("resume", what));
        }
        if options.metric == Metric::Weight {
            return weight_sensitivity(model, plan);
        }
        let finite = plan.without_unheld(&Graph::of(model)?, ranges)?;
        let plan = finite.as_ref().map_or(plan, |(plan, _)| plan);
        let samples = run::all_of(samples)?;
        let Control { threads, progress } = control;
        let asking = Control { threads, progress: &mut *progress };
        let held = with_rounded_weights(model, plan, ranges, asking)?;
        let ranges = held.as_deref();
        let mut shown = None;
        let observed = match ranges {
            None if plan.needs_calibration() => {
                let control = Control { threads, progress: &mut *progress };
                let (given, method) = (&mut SliceSamples(samples.iter()), Method::default());
                let lending = run::lending(model, plan, engine, options)?;
                // Only ranges are needed.
                let mut plan = plan.clone();
                plan.config.weight_algorithm = WeightAlgorithm::Nearest;
                let ranges = calibrate(model, &plan, &lending, given, &method, control)?;
                shown = lending.shown(&samples, &ranges);
                Some(ranges)
            }
            _ => None,
        };
        let resolved = plan.resolve(model, ranges.or(observed.as_ref()), None)?;
        // A smoothed model has other values.
        let shown = shown.filter(|_| resolved.plan.model == plan.model);
        let ranges = resolved.ranges.as_ref();
        let subject = run::Subject { model: &resolved.model, plan: &resolved.plan, ranges };
        let control = Control { threads, progress };
        let mut found = run::run(&subject, engine, &samples, shown, options, control)?;
        found.notes.extend(plan.nothing_quantized());
        found.notes.extend(finite.as_ref().into_iter().flat_map(|(_, warnings)| warnings.clone()));
        found.notes.extend(saturating(&resolved.plan, found.engine.as_deref()));
        Ok(ranked(found, options.metric))
    })
}

/// What a ranking shows on a processor whose sums saturate.
fn saturating(plan: &Plan, engine: Option<&str>) -> Option<String> {
    let saturates = plan.may_saturate() && cpu::sums_saturate() && engine == Some("onnxruntime");
    saturates.then(|| {
        "this processor has no VNNI: sums of uint8 × int8 saturate on it, and count as the error \
         of a layer; target x86-avx2 ranks layers with weights of 7 bits, which do not saturate"
            .to_owned()
    })
}

/// Ranks layers by the SQNR of their weights, without data.
///
/// # Errors
/// The plan does not belong to the model, or a weight cannot be quantized.
pub fn weight_sensitivity(model: &Model, plan: &Plan) -> Result<Sensitivity, QuantizeError> {
    while_unchanged(&[model], || {
        let graph = Graph::of(model)?;
        let finite = plan.without_unheld(&graph, None)?;
        let plan = finite.as_ref().map_or(plan, |(plan, _)| plan);
        let order = topological(&model.graph().node)?;
        let mut weights = layers(&graph, plan, &order);
        weights.retain(|layer| layer.is_weight);
        for layer in &mut weights {
            layer.values = std::iter::once(layer.name.clone()).collect();
        }
        // All at once, since the error of a weight does not depend on others.
        let only = layers::with_only(plan, &weights.iter().collect::<Vec<_>>(), None);
        let encoded = encode(&graph, &only, None)?;
        let row = |layer: &Layer| {
            let error = encoded.weights.get(&layer.name).and_then(|tensor| tensor.metrics);
            LayerRow::of(&graph, plan, layer, error)
        };
        let rows = weights.iter().map(row).collect();
        let found = Sensitivity {
            metric: Metric::Weight,
            all_but_one: false,
            layers: rows,
            samples: 0,
            engine: None,
            notes: plan
                .nothing_quantized()
                .into_iter()
                .chain(finite.iter().flat_map(|(_, warnings)| warnings.clone()))
                .collect(),
            origin: Origin::of(&[model]),
            model: plan.origin.fingerprint.clone(),
        };
        Ok(ranked(found, Metric::Weight))
    })
}

/// Computes the scores, and sorts the most sensitive layer first.
fn ranked(mut found: Sensitivity, metric: Metric) -> Sensitivity {
    for row in &mut found.layers {
        row.score = metric.of(row);
    }
    let all_but_one = found.all_but_one;
    found.layers.sort_by(|a, b| {
        let order = metric.worse(a.score, b.score);
        // Without its most sensitive layer the model is most accurate.
        let order = if all_but_one { order.reverse() } else { order };
        order.then_with(|| a.name.cmp(&b.name))
    });
    found
}

impl LayerRow {
    fn of(graph: &Graph<'_>, plan: &Plan, layer: &Layer, error: Option<Metrics>) -> LayerRow {
        let nodes = layer.nodes.iter().map(|node| graph.nodes[*node]);
        let value = plan.quantized().find(|(value, _)| value.name == layer.typed);
        let is_own = |(value, how): &(&Planned, &ValuePlan)| {
            let is_weight = value.role == Role::Weight && how.source == Source::Weights;
            layer.is_weight && is_weight && layer.values.contains(&value.name)
        };
        let elements = plan
            .quantized()
            .filter(is_own)
            .filter_map(|(value, _)| value.shape.as_ref())
            .map(|lengths| lengths.iter().flatten().product::<usize>())
            .sum();
        LayerRow {
            name: layer.name.clone(),
            op_type: nodes.clone().next().map_or(String::new(), |node| node.op_type.clone()),
            nodes: nodes.map(quantize_rs_onnx::NodeProto::label).collect(),
            kind: value.map_or(String::new(), |(_, how)| {
                crate::plan::kind(&how.spec, how.stored, how.format)
            }),
            elements,
            weight_error: error,
            outputs: Vec::new(),
            accuracy: None,
            score: f64::NAN,
        }
    }
}

impl Sensitivity {
    /// The name of the metric; that of the caller's, if there is one.
    pub fn metric_name(&self) -> &str {
        let own = self.layers.iter().find_map(|layer| layer.accuracy.as_ref()?.metric.as_deref());
        own.filter(|_| self.metric == Metric::Custom).unwrap_or_else(|| self.metric.name())
    }

    /// What layers are ranked by, in words.
    pub(crate) fn ranked_by(&self) -> String {
        match self.metric {
            Metric::Custom => format!("loss in {}", self.metric_name()),
            metric => metric.about().to_owned(),
        }
    }

    /// The ranking as JSON; non-finite numbers are null.
    pub fn to_json(&self) -> String {
        // Names and numbers, no maps with odd keys: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a ranking from JSON.
    ///
    /// # Errors
    /// The text was not written by [`Sensitivity::to_json`].
    pub fn from_json(text: &str) -> Result<Sensitivity, QuantizeError> {
        let refused =
            |error| QuantizeError::option("sensitivity", format!("is not a ranking: {error}"));
        let found: Sensitivity = serde_json::from_str(text).map_err(refused)?;
        let metric = found.metric;
        // JSON has no non-finite numbers: the scores are computed again.
        Ok(ranked(found, metric))
    }
}

impl fmt::Display for Sensitivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.layers.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let width = width.max("layer".len());
        let metric = self.metric_name();
        writeln!(f, "{:<width$}  {metric:>10}  {:>10}  type, operator", "layer", "elements")?;
        for row in &self.layers {
            let LayerRow { name, score, elements, kind, op_type, .. } = row;
            writeln!(f, "{name:<width$}  {score:>10.4}  {elements:>10}  {kind}, {op_type}")?;
        }
        let how = if self.all_but_one { "all other layers" } else { "each layer alone" };
        match &self.engine {
            Some(engine) => {
                let plural = if self.samples == 1 { "" } else { "s" };
                writeln!(f, "{how} quantized; {} sample{plural} ({engine})", self.samples)
            }
            None => writeln!(f, "weights only, without samples"),
        }
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::Deviation;

    use super::*;

    #[test]
    fn nan_is_the_worst_and_infinity_the_best_of_decibels() {
        let mut scores = [3.0, f64::INFINITY, f64::NAN, -1.0];
        scores.sort_by(|a, b| Metric::Sqnr.worse(*a, *b));
        assert!(scores[0].is_nan());
        assert_eq!(scores[1..], [-1.0, 3.0, f64::INFINITY]);
        let mut errors = [0.5, f64::NAN, 2.0];
        errors.sort_by(|a, b| Metric::MaxAbs.worse(*a, *b));
        assert!(errors[0].is_nan());
        assert_eq!(errors[1..], [2.0, 0.5]);
    }

    #[test]
    fn non_finite_scores_survive_json() {
        let exact = Deviation::of(&[1.0], &[1.0]).metrics();
        let row = |name: &str, error: Metrics| LayerRow {
            name: name.to_owned(),
            nodes: Vec::new(),
            op_type: "Conv".to_owned(),
            kind: "int8".to_owned(),
            elements: 1,
            weight_error: Some(exact),
            outputs: vec![OutputRow {
                name: "y".to_owned(),
                error,
                top1_agreement: None,
                top1_rows: 0,
                lost_channels: None,
                original_not_finite: false,
                other_shapes: 0,
            }],
            accuracy: None,
            score: 0.0,
        };
        let found = Sensitivity {
            metric: Metric::Sqnr,
            all_but_one: false,
            layers: vec![
                row("exact", exact),
                row("off", Metrics { sqnr_db: 3.0, mse: 0.5, ..exact }),
            ],
            samples: 1,
            engine: Some("tract".to_owned()),
            notes: Vec::new(),
            origin: Origin::default(),
            model: String::new(),
        };
        let found = ranked(found, Metric::Sqnr);
        assert_eq!(found.layers[1].score, f64::INFINITY);
        assert_eq!(Sensitivity::from_json(&found.to_json()).unwrap(), found);
        assert!(Sensitivity::from_json("{}").is_err());
    }

    #[test]
    fn every_metric_is_found_by_its_name() {
        for (name, metric) in Metric::ALL {
            assert_eq!(name.parse::<Metric>().unwrap(), *metric);
            assert_eq!(metric.to_string(), *name);
            let json = serde_json::to_value(metric).unwrap();
            assert_eq!(json, *name);
        }
        assert!("accuracy".parse::<Metric>().is_err());
    }
}
