//! What options mean together: the rules that follow from several of them.

use quantize_rs_math::{Algorithm, Granularity, QSpec, QType, WeightMethod};

use super::format::ONNX_RUNTIME;
use super::target::{Bias, Profile};
use super::{Config, Format, RoundedFor, Rounding, RoundingEffort, Target, WeightAlgorithm};

impl Config {
    /// Whether weights get one scale for each output channel where they can.
    pub fn scales_per_channel(&self) -> bool {
        self.per_channel.unwrap_or(true)
    }

    /// Whether weights of this type have zero point 0. By default those of 4 and 8 bits have other
    /// zero points where nothing computes on them as integers: they are more accurate and as fast.
    pub fn symmetric_weights(&self, qtype: QType, granularity: Granularity) -> bool {
        let blocked = matches!(granularity, Granularity::Blocked { .. });
        let several = (4..=8).contains(&qtype.bits()) && !qtype.is_float();
        let ranges = blocked || self.only_dequantizes() && several;
        self.symmetric.unwrap_or(qtype.signed() && !ranges)
    }

    /// Whether weights are dequantized before every product, and nothing else is quantized.
    pub(crate) fn only_dequantizes(&self) -> bool {
        self.activations.is_none() && self.output_format == Format::Qdq
    }

    /// What the runtime that the model is made for takes and wants.
    pub fn profile(&self) -> &'static Profile {
        let target = self.effective_target();
        match self.quantize_bias {
            Some(false) => target.profile_with_float_biases(),
            _ => target.profile(),
        }
    }

    /// The target, or the one that models are made for without any.
    pub(crate) fn effective_target(&self) -> Target {
        self.target.unwrap_or(Target::X86)
    }

    /// How the scales of a weight are chosen. Those of convolutions cover their range: with the
    /// least squared error, the outputs of some models came nearer to those in float, and the
    /// outputs of others moved away.
    pub(crate) fn weight_method(&self, spec: &QSpec, convolves: bool) -> WeightMethod {
        let usual = if convolves { WeightMethod::MinMax } else { WeightMethod::usual(spec) };
        self.weight_method.unwrap_or(usual)
    }

    /// Whether weights are rounded with the help of samples. By default not if an option says how
    /// they are rounded or scaled.
    pub(crate) fn rounds_with_samples(&self) -> bool {
        match self.weight_algorithm {
            WeightAlgorithm::Auto => self.weight_method.is_none() && self.rounding.is_none(),
            WeightAlgorithm::Nearest => false,
            _ => true,
        }
    }

    /// Whether the options ask for rounding with samples, in another way than the usual one.
    pub(crate) fn asks_for_rounding(&self) -> bool {
        let usual = Config::default();
        self.rounds_with_samples()
            && (self.weight_algorithm != usual.weight_algorithm
                || self.rounding_effort != usual.rounding_effort)
    }

    /// Whether weights that were rounded with samples for other options are what these ask for.
    pub(crate) fn takes(&self, rounded: Option<&RoundedFor>) -> bool {
        let usual = Config::default();
        let algorithm = self.weight_algorithm == usual.weight_algorithm
            || rounded.is_some_and(|other| other.algorithm.last() == self.weight_algorithm.last());
        let effort = self.rounding_effort == usual.rounding_effort
            || rounded.is_some_and(|other| other.effort == self.rounding_effort);
        self.rounds_with_samples() && algorithm && effort
    }

    /// The last algorithm that rounds weights with the help of samples.
    pub(crate) fn last_algorithm(&self) -> Algorithm {
        let last = self.weight_algorithm.last();
        if self.rounding_effort == RoundingEffort::Fast {
            last.min(Algorithm::Scales)
        } else {
            last
        }
    }

    /// Whether a weight of this type is rounded with the help of samples. Beside quantized
    /// activations, matrices of 8 bits are not by default: their own error is a small part of the
    /// whole, and samples describe inputs that have not been quantized and clipped.
    pub(crate) fn rounds_weight(&self, qtype: QType, is_matrix: bool) -> bool {
        let fine = self.activations.is_some() && qtype.bits() >= 8 && is_matrix;
        !(fine && self.weight_algorithm == WeightAlgorithm::Auto)
    }

    /// Which of the two integers around it a weight becomes. Sums are preserved for convolutions,
    /// and for the products of the format `dynamic`, whose biases no samples correct. Other
    /// matrices gain little, as their inputs are mostly normalized, and it would take them twice
    /// the time.
    pub(crate) fn rounding(&self, convolves: bool) -> Rounding {
        let sums = convolves || self.output_format == Format::Dynamic;
        let usual = if sums { Rounding::PreserveSums } else { Rounding::Nearest };
        self.rounding.unwrap_or(usual)
    }

    /// Whether products are to be computed on integers.
    pub(crate) fn computes_on_integers(&self) -> bool {
        self.activations.is_some() || self.output_format == Format::Dynamic
    }

    /// Whether `Attention` of ONNX Runtime becomes `QAttention`, which takes an input of uint8.
    pub(crate) fn writes_qattention(&self) -> bool {
        let takes_input = match self.output_format {
            Format::QOperator => self.activations == Some(QType::UInt8),
            Format::Dynamic => true,
            _ => false,
        };
        takes_input && self.target.is_none_or(|target| ONNX_RUNTIME.contains(&target))
    }

    /// What becomes of biases.
    pub(crate) fn bias(&self) -> Bias {
        let profile = self.profile();
        self.activations.map_or(profile.bias, |activations| profile.bias_beside(activations))
    }
}
