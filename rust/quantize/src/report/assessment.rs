//! The evaluation of a result in one sentence, and what to do next.

use serde::{Deserialize, Serialize};

use super::{IntegerOutputRow, OutputRow, QuantizedRow, Report, Speed, worst_sqnr};
use crate::plan::Role;
use crate::util::text::{shell_word, size};
use crate::{Candidate, Origin};

/// From this SQNR on an output is close to that of the float model, in decibels.
pub(crate) const CLOSE_DB: f64 = 30.0;

/// Below this SQNR an output is far from that of the float model, in decibels.
pub(crate) const FAR_DB: f64 = 10.0;

/// If fewer rows keep their highest score, the result is not good whatever its SQNR.
const SAME_CLASS: f64 = 0.95;

/// If fewer rows keep it, the result is poor.
const FEW_SAME: f64 = 0.5;

/// What warnings say of weights that ONNX Runtime dequantizes whenever the model runs.
const DEQUANTIZED: &str = "dequantized at every inference";

/// If more accuracy is lost, the result is not good whatever its SQNR.
pub(crate) const MUCH_ACCURACY: f64 = 0.01;

/// A smaller gain of speed is not more than that of another measurement.
const SAME_SPEED: f64 = 1.05;

/// How the sentence begins if ONNX Runtime does not load or run the result.
const REFUSED: &str = "Not usable: onnxruntime refuses it, as a warning says.";

/// How good a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// The criteria are met, or the outputs are close to those of the float model.
    Good,
    /// Check your own metric.
    Fair,
    /// The outputs are far from those of the float model, or a criterion is missed.
    Poor,
    /// Nothing was measured.
    Unknown,
}

impl Grade {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Good => "good",
            Grade::Fair => "fair",
            Grade::Poor => "poor",
            Grade::Unknown => "not measured",
        }
    }

    /// The grade of an SQNR.
    pub(crate) fn of(db: f64) -> Grade {
        match db {
            db if db >= CLOSE_DB => Grade::Good,
            db if db >= FAR_DB => Grade::Fair,
            // NaN, too.
            _ => Grade::Poor,
        }
    }

    /// The worse of two grades.
    pub(crate) fn worse(self, other: Grade) -> Grade {
        match (self, other) {
            (Grade::Poor, _) | (_, Grade::Poor) => Grade::Poor,
            (Grade::Fair, _) | (_, Grade::Fair) => Grade::Fair,
            (Grade::Unknown, other) => other,
            (this, _) => this,
        }
    }
}

/// A result in one sentence, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assessment {
    /// How good it is.
    pub grade: Grade,
    /// Its size, its output error and its speed, and what they are explained by.
    pub sentence: String,
    /// What to do next, the most promising first.
    pub next: Vec<String>,
}

/// What was measured on the outputs.
pub(crate) struct Measured<'a> {
    pub(crate) outputs: &'a [OutputRow],
    pub(crate) integer_outputs: &'a [IntegerOutputRow],
    /// What it was measured on: `16 calibration samples (onnxruntime)`.
    pub(crate) on: String,
    /// Whether the inputs are data, so that the classes of the outputs mean something.
    pub(crate) real: bool,
    /// Whether some weights have fewer than 8 bits. What these lose depends on the inputs: a vision
    /// transformer of 4 bits has 36 dB on inputs made from the graph, and 11 on images.
    pub(crate) few_bits: bool,
}

impl Report {
    /// The result in one sentence, and what to do next.
    pub fn assessment(&self) -> Assessment {
        let verified = self.verified.as_ref();
        let last = verified.and_then(|found| found.attempts.last());
        let measured = self.measured();
        let sizes = (self.bytes_before, self.bytes_after);
        let checked = self.output_check.as_ref().and_then(|check| check.speed.as_ref());
        let speed = verified.and_then(|found| found.speed.as_ref()).or(checked);
        let speed = Timed { speed, unmeasured: self.speed_unmeasured() };
        let wanted = verified.and_then(|found| Some((found.wanted()?, last?.holds)));
        let accuracy = last.and_then(Candidate::accuracy_text);
        let (mut grade, mut sentence) = sentence(sizes, measured.as_ref(), accuracy, speed, wanted);
        if verified.is_none() && self.output_check.as_ref().is_some_and(|check| check.refused) {
            grade = Grade::Poor;
            sentence = format!("{REFUSED} {sentence}");
        }
        let mut next: Vec<String> = self.suggestions();
        next.extend(self.next_steps(grade, measured.as_ref()));
        Assessment { grade, sentence, next }
    }

    /// What was measured of the outputs, if anything was.
    pub(super) fn measured(&self) -> Option<Measured<'_>> {
        let verified = self.verified.as_ref();
        let last = verified.and_then(|found| found.attempts.last());
        let is_few = |how: &QuantizedRow| how.qtype.is_scaled() && how.bits() < 8;
        let few_bits = self.quantized().any(|(row, how)| row.role == Role::Weight && is_few(how));
        match (verified, last, &self.output_check) {
            (Some(found), Some(Candidate { outputs, integer_outputs, .. }), _) => {
                Some(Measured { outputs, integer_outputs, on: found.on(), real: true, few_bits })
            }
            (None, _, Some(check)) if check.failure.is_none() => Some(Measured {
                outputs: &check.outputs,
                integer_outputs: &check.integer_outputs,
                on: format!("{} ({})", check.on(), check.engine),
                real: check.inputs.are_real(),
                few_bits,
            }),
            _ => None,
        }
    }

    /// What is known of the speed without a measurement.
    fn speed_unmeasured(&self) -> &'static str {
        let alone = self.config.only_dequantizes();
        if alone && self.warnings.iter().any(|warning| warning.contains(DEQUANTIZED)) {
            "usually not faster than the float model, because weights are dequantized at every \
             inference"
        } else {
            "speed not measured"
        }
    }

    fn next_steps(&self, grade: Grade, measured: Option<&Measured<'_>>) -> Vec<String> {
        let origin = &self.origin;
        let float = self.input.as_deref();
        let result = self.output.as_deref();
        let call = |function: &str| call(origin, function, float, result);
        let held_out = self.verified.as_ref().is_some_and(|found| found.held_out);
        let mut next = Vec::new();
        let criterion = self.verified.as_ref().and_then(crate::Evaluation::wanted);
        if grade == Grade::Poor && criterion.is_none() {
            next.push(origin.said(
                "leave the layers that cause the error in float: min_sqnr=20 with validation_data",
            ));
        }
        if grade == Grade::Poor {
            next.push(format!("find the layers that cause the error: {}", call("layer_errors")));
        }
        match measured {
            _ if held_out && grade == Grade::Good => {}
            None | Some(Measured { real: false, .. }) => next.push(format!(
                "measure outputs, accuracy and speed on real samples: {}",
                call("compare")
            )),
            Some(_) => next.push(format!(
                "measure accuracy and speed on samples that were not used to calibrate: {}",
                call("compare")
            )),
        }
        next
    }
}

/// `1 sample`, `16 samples`
pub(crate) fn samples(count: usize) -> String {
    format!("{count} sample{}", if count == 1 { "" } else { "s" })
}

/// Decibels in a sentence.
pub(crate) fn decibels(db: f64) -> String {
    match db {
        f64::INFINITY => "no error".to_owned(),
        db => format!("{db:.1} dB"),
    }
}

/// A call or a command that reads both models and samples.
pub(crate) fn call(
    origin: &Origin,
    function: &str,
    float: Option<&str>,
    result: Option<&str>,
) -> String {
    if origin.command_line {
        let words = [Some(float.unwrap_or("MODEL")), result].into_iter().flatten();
        let words: Vec<String> = words.map(shell_word).collect();
        let command = function.replace('_', "-");
        return format!("quantize-rs {command} {} --data SAMPLES", words.join(" "));
    }
    let path = |path: &str| serde_json::Value::from(path).to_string();
    let float = float.map_or("model".to_owned(), path);
    let both = function != "sensitivity";
    let result = result.map_or("report.model".to_owned(), path);
    let result = if both { format!("{result}, ") } else { String::new() };
    format!("quantize_rs.{function}({float}, {result}data)")
}

/// A call or a command that checks a file, which needs no samples.
pub(crate) fn validate(origin: &Origin, float: Option<&str>, result: Option<&str>) -> String {
    let call = call(origin, "validate", float, result);
    call.replace(" --data SAMPLES", "").replace(", data)", ")")
}

/// What is known of the speed.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    pub(crate) speed: Option<&'a Speed>,
    /// What to say where it was not measured.
    pub(crate) unmeasured: &'a str,
}

/// How good a result is, and the sentence that says so.
pub(crate) fn sentence(
    (before, after): (u64, u64),
    measured: Option<&Measured<'_>>,
    accuracy: Option<String>,
    Timed { speed, unmeasured }: Timed<'_>,
    wanted: Option<(String, bool)>,
) -> (Grade, String) {
    let (mut grade, error) = match measured {
        Some(measured) => measured.error(accuracy),
        None => (Grade::Unknown, "output error not measured".to_owned()),
    };
    let sizes = format!("{} ({} to {})", smaller(before, after), size(before), size(after));
    let mut parts = vec![format!("{sizes}, {error}")];
    let slower = speed.is_some_and(Speed::is_slower);
    parts.push(match speed.map(|speed| speed.speedup) {
        Some(times) if times < 1.0 && slower => {
            format!("{:.2} times slower than the float model", 1.0 / times)
        }
        Some(times) if times < SAME_SPEED => "about as fast as the float model".to_owned(),
        Some(times) => format!("{times:.2} times as fast as the float model"),
        None => unmeasured.to_owned(),
    });
    // A size alone is not a grade. What is hardly smaller has kept most of its weights in float.
    let hardly_smaller = after.saturating_mul(10) >= before.saturating_mul(9);
    if slower || hardly_smaller && grade != Grade::Unknown {
        grade = grade.worse(Grade::Fair);
    }
    if let Some((wanted, holds)) = wanted {
        let (met, word) = if holds { (Grade::Good, "met") } else { (Grade::Poor, "missed") };
        grade = met;
        parts.push(format!("required: {wanted}, which is {word}"));
    }
    (grade, format!("{}.", parts.join("; ")))
}

impl Measured<'_> {
    /// How good the outputs are, and the part of the sentence about them.
    fn error(&self, accuracy: Option<String>) -> (Grade, String) {
        let outputs = self.outputs;
        let (mut grade, mut parts) = (Grade::Unknown, Vec::new());
        if let Some(db) = worst_sqnr(outputs) {
            grade = Grade::of(db);
            let unsure = self.few_bits && !self.real && grade == Grade::Good;
            let meaning = if unsure {
                grade = Grade::Fair;
                "which may be much lower on real inputs, as some weights have fewer than 8 bits"
                    .to_owned()
            } else {
                explained(grade)
            };
            let name = outputs.iter().find(|row| outputs.len() > 1 && row.error.sqnr_db == db);
            let of =
                name.map_or(String::new(), |row| format!(" of {}, the worst output,", row.name));
            parts.push(match db {
                f64::INFINITY => "with outputs equal to those of the float model".to_owned(),
                db => format!(
                    "with a signal-to-quantization-noise ratio (SQNR){of} of {db:.1} dB, {meaning}"
                ),
            });
        }
        let same = outputs.iter().filter_map(|row| row.top1_agreement);
        if let Some(part) = same.reduce(f64::min).filter(|_| self.real) {
            if part < SAME_CLASS {
                grade = grade.worse(if part < FEW_SAME { Grade::Poor } else { Grade::Fair });
            }
            // 99.99 % is not 100.0 %.
            let most = if part < 1.0 { 99.9 } else { 100.0 };
            let shown = (part * 1e2).min(most);
            parts.push(format!("with the same class for {shown:.1} % of the rows"));
        }
        // The integers of noise mean nothing.
        for row in self.integer_outputs.iter().filter(|_| self.real) {
            grade = grade.worse(if row.differs() { Grade::Fair } else { Grade::Good });
            parts.push(format!("with {}", row.text()));
        }
        parts.extend(accuracy.map(|accuracy| format!("with {accuracy}")));
        if parts.is_empty() {
            parts.push("without a float output to compare".to_owned());
        }
        (grade, format!("{}, on {}", parts.join(", "), self.on))
    }
}

/// What an SQNR means.
fn explained(grade: Grade) -> String {
    match grade {
        Grade::Good => format!("close to the float model ({CLOSE_DB} dB or more)"),
        Grade::Fair => format!("check your own metric ({CLOSE_DB} dB or more is close)"),
        _ => format!("far from the float model (less than {FAR_DB} dB)"),
    }
}

/// `3.67 times smaller`, or that it is larger.
#[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
fn smaller(before: u64, after: u64) -> String {
    let (before, after) = (before.max(1) as f64, after.max(1) as f64);
    match before / after {
        1.0 => "As large as the float model".to_owned(),
        ratio if ratio > 1.0 => format!("{ratio:.2} times smaller"),
        ratio => format!("{:.2} times larger", 1.0 / ratio),
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::Metrics;

    use super::*;

    fn measured(part: f64) -> (Grade, String) {
        let error = Metrics { sqnr_db: 35.0, cosine: 1.0, max_abs: 0.1, mse: 1e-3 };
        let row = OutputRow {
            name: "scores".to_owned(),
            error,
            top1_agreement: Some(part),
            top1_rows: 10_000,
            lost_channels: None,
            original_not_finite: false,
            other_shapes: 0,
        };
        let (outputs, on) = (&[row][..], "8 samples".to_owned());
        Measured { outputs, integer_outputs: &[], on, real: true, few_bits: false }.error(None)
    }

    #[test]
    fn classes_that_change_decide_whatever_the_error() {
        for (part, grade, shown) in [
            (1.0, Grade::Good, "100.0 %"),
            (0.9999, Grade::Good, "99.9 %"),
            (0.96, Grade::Good, "96.0 %"),
            (0.9, Grade::Fair, "90.0 %"),
            (0.062, Grade::Poor, "6.2 %"),
        ] {
            let (found, text) = measured(part);
            assert_eq!(found, grade, "{part}");
            assert!(text.contains(&format!("the same class for {shown} of the rows")), "{text}");
        }
    }
}
