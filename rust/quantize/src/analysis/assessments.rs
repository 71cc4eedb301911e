//! The evaluation of a comparison, of sensitivities and of layer errors.

use crate::report::assessment::{
    Assessment, CLOSE_DB, FAR_DB, Grade, MUCH_ACCURACY, Measured, Timed, call, decibels, samples,
    sentence, validate,
};
use crate::report::{Accuracy, Speed};
use crate::{Comparison, Kernels, LayerErrors, Metric, Sensitivity};

/// The SQNR that is required of a result that misses it, in decibels.
const USABLE_DB: f64 = 20.0;

/// The SQNR to require of a result that is not close to the float model: one that it misses.
fn missed(db: f64) -> f64 {
    if db >= USABLE_DB { CLOSE_DB } else { USABLE_DB }
}

impl Comparison {
    /// The result in one sentence, and what to do next.
    pub fn assessment(&self) -> Assessment {
        let on = format!("{} ({})", samples(self.samples), self.engine);
        let (outputs, integer_outputs) = (&self.outputs[..], &self.integer_outputs[..]);
        let measured = Measured { outputs, integer_outputs, on, real: true, few_bits: false };
        let sizes = (self.bytes_original, self.bytes_quantized);
        let accuracy = self.accuracy.as_ref().map(Accuracy::instead);
        let speed = self.speed.as_ref();
        let timed = Timed { speed, unmeasured: "speed not measured" };
        let (mut grade, sentence) = sentence(sizes, Some(&measured), accuracy, timed, None);
        if self
            .accuracy
            .as_ref()
            .is_some_and(|found| found.metric.is_none() && found.drop > MUCH_ACCURACY)
        {
            grade = grade.worse(Grade::Fair);
        }
        let [float, result] = [0, 1].map(|index| self.origin.models.get(index).map(String::as_str));
        let mut next = Vec::new();
        if let Some(db) = self.sqnr_db().filter(|db| Grade::of(*db) != Grade::Good) {
            let what = call(&self.origin, "layer_errors", float, result);
            next.push(format!("find the layers that cause the error: {what}"));
            next.push(self.origin.said(&format!(
                "quantize again with min_sqnr={}: the most sensitive layers stay float until the \
                 SQNR is met",
                missed(db)
            )));
        }
        if speed.is_some_and(Speed::is_slower) {
            let floats =
                self.kernels.as_ref().and_then(Kernels::share).is_some_and(|part| part < 0.5);
            next.push(self.origin.said(if floats {
                "quantize_with_calibration makes activations integers too, which integer kernels \
                 need"
            } else {
                "measure the speed on the machine and with the threads of production"
            }));
        }
        match &self.accuracy {
            None => {
                next.push("measure the accuracy of a classifier too: give its labels".to_owned());
            }
            Some(_) if next.is_empty() => next.push(format!(
                "deploy it; to check the file itself: {}",
                validate(&self.origin, float, result)
            )),
            Some(_) => {}
        }
        Assessment { grade, sentence, next }
    }
}

impl Sensitivity {
    /// The most sensitive layer in one sentence, and what to do next.
    pub fn assessment(&self) -> Assessment {
        let origin = &self.origin;
        let Some(worst) = self.layers.first() else {
            let sentence = "No layer of the model is quantized.".to_owned();
            return Assessment { grade: Grade::Unknown, sentence, next: Vec::new() };
        };
        let in_decibels = matches!(self.metric, Metric::Sqnr | Metric::Weight);
        let grade = if in_decibels { Grade::of(worst.score) } else { Grade::Unknown };
        let score = self.metric.shown(worst.score);
        let how = match (self.metric, self.all_but_one) {
            (Metric::Weight, _) => "its weight itself has".to_owned(),
            (_, false) => "quantizing it alone leaves".to_owned(),
            (_, true) => "leaving it alone in float gives".to_owned(),
        };
        let below = self.layers.iter().filter(|layer| layer.score < CLOSE_DB).count();
        let others = if in_decibels && !self.all_but_one {
            format!(
                "; {below} of {} layers are below {CLOSE_DB} dB of signal-to-quantization-noise \
                 ratio (SQNR), from which on an output is close to that of the float model",
                self.layers.len()
            )
        } else {
            String::new()
        };
        let on = match &self.engine {
            Some(engine) => format!(", on {} ({engine})", samples(self.samples)),
            None => ", without samples".to_owned(),
        };
        let sentence = format!(
            "The most sensitive of {} layers is {}: {how} {score} of {}{on}{others}.",
            self.layers.len(),
            worst.name,
            self.ranked_by(),
        );
        let name = &worst.name;
        let mut next = Vec::new();
        if self.all_but_one && grade == Grade::Good {
            next.push(origin.said(&format!(
                "leave that layer in float, and quantize all others: exclude=[\"{name}\"]"
            )));
        } else if grade != Grade::Good {
            next.push(origin.said(&format!(
                "leave the most sensitive layers in float: exclude=[\"{name}\"]; or let \
                 min_sqnr={} choose them",
                if in_decibels { missed(worst.score) } else { USABLE_DB }
            )));
        }
        if !self.all_but_one && grade == Grade::Good {
            next.push("no layer has to stay float: quantize all of them".to_owned());
        }
        if self.metric == Metric::Weight {
            let what = call(origin, "sensitivity", origin.models.first().map(String::as_str), None);
            next.push(format!("measure the effect on the outputs, on real samples: {what}"));
        }
        Assessment { grade, sentence, next }
    }
}

impl LayerErrors {
    /// Where the error comes from in one sentence, and what to do next.
    pub fn assessment(&self) -> Assessment {
        let worst = self.worst();
        let (Some(first), Some(last)) = (worst.first(), self.values.last()) else {
            let sentence = "The models have no float value in common.".to_owned();
            return Assessment { grade: Grade::Unknown, sentence, next: Vec::new() };
        };
        let grade = Grade::of(last.accumulated.sqnr_db);
        let sentence = format!(
            "At {}, the last of {} values, {} of signal-to-quantization-noise ratio (SQNR) are \
             left; the largest error of one layer is at {}, which alone leaves {} ({} or more is \
             close to the float model, less than {} far from it), on {} ({}).",
            last.name,
            self.values.len(),
            decibels(last.accumulated.sqnr_db),
            first.name,
            decibels(first.own.sqnr_db),
            decibels(CLOSE_DB),
            decibels(FAR_DB),
            samples(self.samples),
            self.engine,
        );
        let mut next = Vec::new();
        if grade == Grade::Good {
            next.push("no layer has to stay float: measure the accuracy and the speed".to_owned());
        } else {
            // A node without a name cannot be excluded by name.
            let named = first.node.strip_prefix("node `").and_then(|rest| rest.split_once('`'));
            let how = named.map_or(String::new(), |(node, _)| format!(": exclude=[\"{node}\"]"));
            next.push(self.origin.said(&format!(
                "leave the node in float that computes {}{how}; or give it more bits",
                first.name,
            )));
        }
        Assessment { grade, sentence, next }
    }
}
