//! The deviation of outputs, sample by sample, and the rows of a comparison that follow from it.

use std::mem;
use std::sync::Arc;

use quantize_rs_math::Deviation;

use super::compare::CompareOptions;
use super::integer_outputs::Equality;
use super::lost_channels::ChannelErrors;
use super::output_metric::SampleOutputs;
use super::recorded::Value;
use super::scores::highest;
use crate::calibrate::ValueObserver;
use crate::calibrate::engine::{Sample, ValueSink};
use crate::calibrate::padding::{PaddingMask, counted};
use crate::report::accuracy::part;
use crate::report::{Accuracy, OutputRow};
use crate::{CalibrationError, QuantizeError};

/// The number of samples for which the errors of single channels are kept.
const CHANNEL_SAMPLES: usize = 64;

/// The deviation of one output for one sample. Positions that an attention mask hides are left out,
/// except from the highest scores, as each row has a label.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputDeviation {
    deviation: Deviation,
    /// The mask, if it hides a part of the output.
    mask: Option<Arc<PaddingMask>>,
    /// Whether the float model has infinity or NaN where the quantized one has numbers.
    original_not_finite: bool,
    /// Whether the quantized model has another shape.
    other_shape: bool,
    /// The errors of its channels, for the first samples of a comparison.
    channels: Vec<ChannelErrors>,
    /// The length of a row.
    classes: usize,
    /// The positions of the highest scores of each row, in the float model and in the quantized
    /// one.
    highest: Option<(Highest, Highest)>,
}

/// The positions of the highest scores of each row.
type Highest = Arc<Vec<usize>>;

impl OutputDeviation {
    /// The deviation between the outputs of two models for a sample; with `scored`, also the rows
    /// in which they agree.
    pub(super) fn of(
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
        scored: bool,
        mask: Option<&Arc<PaddingMask>>,
    ) -> OutputDeviation {
        let ours = scored.then(|| highest(shape, wanted)).flatten();
        let mask = mask.filter(|mask| mask.covers(shape)).cloned();
        OutputDeviation::beside(ours.map(Arc::new), mask, shape, wanted, values)
    }

    /// As [`OutputDeviation::of`], for another model whose output has the same shape.
    pub(super) fn of_another(
        &self,
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
    ) -> OutputDeviation {
        let ours = self.highest.as_ref().map(|(ours, _)| ours.clone());
        OutputDeviation::beside(ours, self.mask.clone(), shape, wanted, values)
    }

    /// The deviation of an output that has another shape in the quantized model.
    ///
    /// # Errors
    /// An output with another number of axes, which no values explain.
    pub(super) fn of_another_shape(
        name: &str,
        wanted: &Value,
        shape: &[usize],
    ) -> Result<OutputDeviation, CalibrationError> {
        let deviation = of_another_shape(name, wanted, shape)?;
        Ok(OutputDeviation { deviation, other_shape: true, ..OutputDeviation::default() })
    }

    fn beside(
        ours: Option<Highest>,
        mask: Option<Arc<PaddingMask>>,
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
    ) -> OutputDeviation {
        let both = ours.and_then(|ours| Some((ours, Arc::new(highest(shape, values)?))));
        let classes = shape.last().copied().unwrap_or(0);
        let [wanted, values] = [wanted, values].map(|all| counted(mask.as_deref(), shape, all));
        let deviation = Deviation::of(&wanted, &values);
        let mut pairs = wanted.iter().zip(&*values);
        let original_not_finite = deviation.metrics().max_abs.is_infinite()
            && pairs.any(|(wanted, value)| !wanted.is_finite() && value.is_finite());
        OutputDeviation {
            deviation,
            original_not_finite,
            other_shape: false,
            mask,
            channels: Vec::new(),
            classes,
            highest: both,
        }
    }

    /// For each row with scores that counts: whether the highest ones are at the same position.
    fn agreement(&self) -> impl Iterator<Item = bool> + Clone {
        let pair = self.highest.as_ref();
        let rows = pair.map_or(0, |(ours, _)| ours.len());
        let counts =
            move |row: &usize| self.mask.as_ref().is_none_or(|mask| mask.counts(*row, rows));
        let same = move |row: usize| pair.is_some_and(|(ours, theirs)| ours[row] == theirs[row]);
        (0..rows).filter(counts).map(same)
    }
}

/// Observes both models while they run a sample, and records the deviations.
pub(super) struct OutputComparer<'a> {
    /// The float outputs, then those that are cast to float.
    observed: &'a [String],
    /// For each float output: whether its highest scores are compared.
    scored: &'a [bool],
    number: usize,
    mask: Option<Arc<PaddingMask>>,
    /// Of each output that is cast.
    equal: Vec<Equality>,
    /// The outputs of the float model.
    wanted: Vec<Value>,
    now: Vec<OutputDeviation>,
    misfit: Option<CalibrationError>,
    /// The deviations of each sample, by its number.
    done: Vec<(usize, Vec<OutputDeviation>)>,
    /// Whether a metric needs the outputs themselves.
    keeps: bool,
    /// The outputs of the quantized model.
    found: Vec<Value>,
    /// Both outputs of each sample, by its number.
    kept: Vec<(usize, SampleOutputs)>,
}

impl<'a> OutputComparer<'a> {
    pub(super) fn new(
        observed: &'a [String],
        scored: &'a [bool],
        keeps: bool,
    ) -> OutputComparer<'a> {
        OutputComparer {
            observed,
            scored,
            number: 0,
            mask: None,
            equal: vec![Equality::default(); observed.len() - scored.len()],
            wanted: Vec::new(),
            now: Vec::new(),
            misfit: None,
            done: Vec::new(),
            keeps,
            found: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// What the observers of all threads found, of which `integers` outputs are cast to float.
    pub(super) fn joined(observers: Vec<OutputComparer<'_>>, integers: usize) -> Compared {
        let (mut deviations, mut kept) = (Vec::new(), Vec::new());
        let mut equal = vec![Equality::default(); integers];
        for observer in observers {
            equal = equal.iter().zip(observer.equal).map(|(all, one)| all.and(one)).collect();
            deviations.extend(observer.done);
            kept.extend(observer.kept);
        }
        deviations.sort_by_key(|(number, _)| *number);
        kept.sort_by_key(|(number, _)| *number);
        let kept = kept.into_iter().map(|(_, outputs)| outputs).collect();
        Compared { deviations, kept, equal }
    }
}

/// What was found on all samples, in their order.
pub(super) struct Compared {
    /// The deviations of each sample, by its number.
    pub(super) deviations: Vec<(usize, Vec<OutputDeviation>)>,
    /// Both outputs of each sample, if a metric needs them.
    pub(super) kept: Vec<SampleOutputs>,
    /// Of each output that is cast to float.
    pub(super) equal: Vec<Equality>,
}

impl ValueSink for OutputComparer<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        let Some(output) = index.checked_sub(self.observed.len()) else {
            self.wanted[index] = (shape.to_vec(), values.to_vec());
            return;
        };
        let (wanted_shape, wanted) = &self.wanted[output];
        if self.keeps {
            self.found[output] = (shape.to_vec(), values.to_vec());
        }
        if let Some(cast) = output.checked_sub(self.scored.len()) {
            self.equal[cast].add(wanted, values);
            return;
        }
        if wanted_shape != shape {
            let name = &self.observed[output];
            match OutputDeviation::of_another_shape(name, &self.wanted[output], shape) {
                Ok(found) => self.now[output] = found,
                Err(error) => {
                    self.misfit.get_or_insert(error);
                }
            }
            return;
        }
        let scored = self.scored[output];
        let mut found = OutputDeviation::of(shape, wanted, values, scored, self.mask.as_ref());
        if self.number < CHANNEL_SAMPLES {
            let of = |all| counted(found.mask.as_deref(), shape, all);
            found.channels =
                ChannelErrors::of(shape, &of(wanted), &of(values), found.mask.is_some());
        }
        self.now[output] = found;
    }
}

/// The outputs that a metric gets, of float outputs and of those that are cast to float: the float
/// ones, and all others of a model without any.
pub(super) fn of_metrics(names: &[String], floats: usize) -> &[String] {
    if floats == 0 { names } else { &names[..floats] }
}

/// The deviation of a value that has another shape in the quantized model, since its lengths follow
/// from values: that of zeros.
///
/// # Errors
/// The shapes have different numbers of axes, which no values explain.
pub(super) fn of_another_shape(
    name: &str,
    (wanted_shape, wanted): &Value,
    shape: &[usize],
) -> Result<Deviation, CalibrationError> {
    if wanted_shape.len() != shape.len() {
        let what = format!(
            "`{name}` is {wanted_shape:?} in the original and {shape:?} in the quantized model"
        );
        return Err(CalibrationError::engine(None, what).at_value(name));
    }
    Ok(Deviation::of(wanted, &vec![0.0; wanted.len()]))
}

/// A warning about outputs that have another shape in some samples.
pub(super) fn other_shapes(outputs: &[OutputRow], samples: usize) -> Option<String> {
    let some = outputs.iter().filter(|row| row.other_shapes > 0);
    let each = some.map(|row| format!("`{}` in {}", row.name, row.other_shapes));
    let each = each.collect::<Vec<_>>().join(", ");
    (!each.is_empty()).then(|| {
        format!(
            "of {samples} samples, outputs have another shape than in the original, such as \
             another number of detections: {each}; these count as if they were 0"
        )
    })
}

impl ValueObserver for OutputComparer<'_> {
    fn begin(&mut self, number: usize, sample: &Sample) {
        self.number = number;
        self.mask = PaddingMask::of(sample).map(Arc::new);
        self.wanted = vec![Value::default(); self.observed.len()];
        self.now = vec![OutputDeviation::default(); self.scored.len()];
        self.found = vec![Value::default(); self.observed.len()];
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        if self.keeps {
            let (mut original, mut quantized) =
                (mem::take(&mut self.wanted), mem::take(&mut self.found));
            let count = of_metrics(self.observed, self.scored.len()).len();
            original.truncate(count);
            quantized.truncate(count);
            let outputs = SampleOutputs { sample: sample.clone(), original, quantized };
            self.kept.push((self.number, outputs));
        }
        self.done.push((self.number, mem::take(&mut self.now)));
        self.misfit.take().map_or(Ok(()), Err)
    }
}

/// The row of an output of the comparison, over all samples.
pub(super) fn row(name: &str, index: usize, seen: &[(usize, Vec<OutputDeviation>)]) -> OutputRow {
    let of_output = || seen.iter().map(|(_, outputs)| &outputs[index]);
    let deviation = of_output().fold(Deviation::default(), |all, one| all.and(one.deviation));
    let same = of_output().flat_map(OutputDeviation::agreement);
    let mut channels: Option<Vec<ChannelErrors>> = None;
    for output in of_output().take(CHANNEL_SAMPLES) {
        match &mut channels {
            Some(all) => ChannelErrors::add(all, &output.channels),
            None => channels = Some(output.channels.clone()),
        }
    }
    OutputRow {
        name: name.to_owned(),
        error: deviation.metrics(),
        top1_rows: same.clone().count(),
        top1_agreement: part(same),
        lost_channels: ChannelErrors::lost(&channels.unwrap_or_default()),
        original_not_finite: of_output().any(|one| one.original_not_finite),
        other_shapes: of_output().filter(|one| one.other_shape).count(),
    }
}

/// The accuracy, if there are labels.
pub(super) fn accuracy(
    observed: &[String],
    scored: &[bool],
    seen: &[(usize, Vec<OutputDeviation>)],
    options: &CompareOptions,
) -> Result<Option<Accuracy>, QuantizeError> {
    let Some(labels) = &options.labels else { return Ok(None) };
    let named =
        options.scores.as_ref().and_then(|name| observed.iter().position(|own| own == name));
    let Some(index) = named.or_else(|| scored.iter().position(|scored| *scored)) else {
        return Ok(None);
    };
    let pairs = seen.iter().filter_map(|(_, outputs)| outputs[index].highest.as_ref());
    let (ours, theirs): (Vec<_>, Vec<_>) =
        pairs.flat_map(|(ours, theirs)| ours.iter().copied().zip(theirs.iter().copied())).unzip();
    let classes = seen.iter().map(|(_, outputs)| outputs[index].classes).min().unwrap_or(0);
    Accuracy::of(&observed[index], classes, [&ours, &theirs], labels).map(Some)
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::{DataType, Tensor};

    use super::*;

    #[test]
    fn positions_behind_removed_padding_are_no_channels() {
        // Two rows of tokens, the first of which has one token of padding in front.
        let counts = [0_i64, 1, 1, 1, 1, 1];
        let data: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let mask = Tensor { dtype: DataType::Int64, shape: vec![2, 3], data: data.into() };
        let sample = Sample { inputs: vec![("attention_mask".to_owned(), mask)] };
        // The last token of each row is wrong.
        let wanted = [1.0; 12];
        let values = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        let observed = ["y".to_owned()];
        let mut comparer = OutputComparer::new(&observed, &[false], false);
        comparer.begin(0, &sample);
        comparer.observe(0, &[2, 3, 2], &wanted);
        comparer.observe(1, &[2, 3, 2], &values);
        comparer.finish(&sample).unwrap();
        let row = row("y", 0, &comparer.done);
        let lost = row.lost_channels.map(|lost| lost.axis);
        assert_eq!(lost, None, "{:?}", comparer.done);
    }
}
