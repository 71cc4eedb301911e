//! The search for the kinds of operators that have to stay float32, by the outputs on samples.

use std::collections::HashSet;

use quantize_rs_onnx::Model;

use super::{BFLOAT16_LESS, HalfOptions, HalfReport, converted};
use crate::QuantizeError;
use crate::analysis::SliceSamples;
use crate::analysis::compare::{CompareOptions, compare_outputs};
use crate::calibrate::engine::Engine;
use crate::calibrate::magnitudes::Magnitudes;
use crate::calibrate::{Control, Progress};
use crate::options::HalfType;
use crate::report::{OutputRow, worst_sqnr};

/// The kinds of operators that stay float32 because the outputs are nearer then.
#[derive(Clone, Default)]
pub(super) struct MeasuredKinds {
    pub(super) kinds: Vec<&'static [&'static str]>,
    pub(super) gain_db: f64,
}

const NORMALIZATIONS: &[&str] = &[
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

const MEANS: &[&str] =
    &["AveragePool", "GlobalAveragePool", "LogSoftmax", "ReduceMean", "ReduceSum", "Softmax"];

const FUNCTIONS: &[&str] =
    &["Div", "Erf", "Exp", "Gelu", "Log", "Pow", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"];

const SUMS: &[&str] = &["Add", "Mul", "Sub"];

/// The kinds of operators that are tried in float32, in this order, where the outputs are too far
/// from those of the model. Products are not among them: they are what 16 bits make faster.
const TRIED: [&[&[&str]]; 7] = [
    &[NORMALIZATIONS],
    &[MEANS],
    &[FUNCTIONS],
    &[SUMS],
    &[NORMALIZATIONS, SUMS],
    &[NORMALIZATIONS, SUMS, FUNCTIONS],
    &[NORMALIZATIONS, SUMS, FUNCTIONS, MEANS],
];

/// The least gain for which kinds of operators stay float32 if none makes the outputs as good as
/// asked for, in decibels.
const LEAST_GAIN: f64 = 3.0;

/// The most samples that results are compared on while kinds of operators are tried.
const SAMPLES_TO_TRY: usize = 32;

/// The search for the kinds of operators that have to stay float32.
pub(super) struct Search<'a> {
    pub(super) model: &'a Model,
    pub(super) float: &'a Model,
    pub(super) options: &'a HalfOptions,
    pub(super) found: &'a Magnitudes,
    pub(super) engine: &'a dyn Engine,
}

impl Search<'_> {
    /// The SQNR that is good enough for the type.
    fn enough(&self) -> f64 {
        match self.options.half {
            HalfType::Float16 => self.options.enough_sqnr,
            HalfType::BFloat16 => self.options.enough_sqnr - BFLOAT16_LESS,
        }
    }

    /// The model in 16 bits, with the error of its outputs, if an engine runs it.
    pub(super) fn run(
        &self,
        clipped: Vec<String>,
        control: &mut Control<'_>,
    ) -> Result<(Model, HalfReport), QuantizeError> {
        let mut kinds = MeasuredKinds::default();
        let mut failure = None;
        match self.outputs(&kinds, SAMPLES_TO_TRY, control) {
            Err(error) if !error.is_of_engine() => return Err(error),
            Err(error) => failure = Some(error.to_string()),
            Ok(outputs) => {
                let sqnr = worst_sqnr(&outputs);
                if let Some(sqnr) = sqnr.filter(|sqnr| *sqnr < self.enough()) {
                    kinds = self.better(sqnr, control)?;
                }
            }
        }
        let (options, found) = (self.options, Some(self.found));
        let (half, mut report) =
            converted(self.model, self.float, clipped, options, found, &kinds, false)?;
        if let Some(error) = failure {
            report.notes.push(format!("the result was not run: {error}"));
        } else {
            report.outputs = self.outputs(&kinds, usize::MAX, control)?;
            report.sqnr_db = worst_sqnr(&report.outputs);
            report.warnings.extend(self.failure(&kinds)?);
        }
        Ok((half, report))
    }

    /// That the engine to which models are deployed cannot run the result as it is, on the first
    /// sample. The model whose outputs are measured rounds in float32, and an engine makes another
    /// model of it. Nothing is said about bfloat16, for which engines on a CPU have no kernels.
    fn failure(&self, kinds: &MeasuredKinds) -> Result<Option<String>, QuantizeError> {
        let sample = self.found.kept.first().filter(|_| self.options.half == HalfType::Float16);
        let Some(sample) = sample else { return Ok(None) };
        // Samples are float32: casts at both ends are all that differs from the result.
        let options = HalfOptions { keep_io: true, ..self.options.clone() };
        let found = Some(self.found);
        let (half, _) =
            converted(self.model, self.float, Vec::new(), &options, found, kinds, false)?;
        let (mut name, mut outcome) = (self.engine.name(), Ok(()));
        match self.engine.timed(&half, sample, 1) {
            Ok(Some(mut session)) => {
                name = session.engine().unwrap_or(name);
                outcome = session.run();
            }
            Ok(None) => {}
            Err(error) => outcome = Err(error),
        }
        Ok(outcome.err().map(|error| format!("{name} cannot run the result: {error}")))
    }

    /// The first kinds of operators that make the outputs as good as asked for, or else those that
    /// gain most.
    fn better(&self, sqnr: f64, control: &mut Control<'_>) -> Result<MeasuredKinds, QuantizeError> {
        let types: HashSet<&str> =
            self.float.graph().node.iter().map(|node| node.op_type.as_str()).collect();
        let occurs = |kind: &&'static [&'static str]| kind.iter().any(|own| types.contains(own));
        let mut best = MeasuredKinds { kinds: Vec::new(), gain_db: LEAST_GAIN };
        let mut tried: HashSet<Vec<&'static [&'static str]>> = HashSet::from([Vec::new()]);
        for kinds in TRIED {
            let kinds: Vec<_> = kinds.iter().copied().filter(occurs).collect();
            if !tried.insert(kinds.clone()) {
                continue;
            }
            let kinds = MeasuredKinds { kinds, gain_db: 0.0 };
            let found = worst_sqnr(&self.outputs(&kinds, SAMPLES_TO_TRY, control)?);
            let Some(found) = found else { continue };
            let kinds = MeasuredKinds { gain_db: found - sqnr, ..kinds };
            if found >= self.enough() {
                return Ok(kinds);
            }
            if kinds.gain_db > best.gain_db {
                best = kinds;
            }
        }
        Ok(best)
    }

    /// The errors of the outputs on samples, with each value rounded to 16 bits.
    fn outputs(
        &self,
        kinds: &MeasuredKinds,
        limit: usize,
        control: &mut Control<'_>,
    ) -> Result<Vec<OutputRow>, QuantizeError> {
        // Engines read float32.
        let options = HalfOptions { keep_io: true, ..self.options.clone() };
        let found = Some(self.found);
        let (half, _) =
            converted(self.model, self.float, Vec::new(), &options, found, kinds, true)?;
        let count = limit.min(self.found.kept.len());
        let samples = &mut SliceSamples(self.found.kept[..count].iter());
        let Control { threads, progress } = control;
        let mut go_on = |_| progress(Progress::of(self.found.samples, None));
        let control = Control { threads: *threads, progress: &mut go_on };
        let options = CompareOptions::default();
        // Runtimes refuse a model without opsets.
        let old = self.model.proto().opset_import.is_empty();
        let model = if old { self.float } else { self.model };
        Ok(compare_outputs(model, &half, self.engine, samples, &options, control)?.outputs)
    }
}
