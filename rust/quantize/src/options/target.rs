//! Which runtime a model is made for: one row each, of what it takes and what it wants.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::QType;
use serde::{Deserialize, Serialize};

use super::weight_type::MicroLayout;
use crate::{QuantizeError, WeightType};

/// The runtime a model is made for.
///
/// ```
/// use quantize_rs::{Config, QType, Target};
/// let config = Config::for_target("tensorrt".parse()?);
/// assert_eq!(config.activations, Some(QType::Int8));
/// assert!(Target::ALL.contains(&Target::Arm));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// ONNX Runtime on x86 with VNNI; what is done when nothing is said.
    X86,
    /// ONNX Runtime on x86 without VNNI, whose sums of uint8 × int8 saturate.
    #[serde(rename = "x86-avx2")]
    X86Avx2,
    /// ONNX Runtime on arm64.
    Arm,
    /// ONNX Runtime Web, in a browser.
    Web,
    /// NVIDIA `TensorRT`, explicit quantization.
    #[serde(rename = "tensorrt")]
    TensorRt,
    /// Intel `OpenVINO`.
    #[serde(rename = "openvino")]
    OpenVino,
    /// Qualcomm's NPUs, through ONNX Runtime's QNN execution provider.
    Qnn,
    /// Any runtime: only what ONNX itself says is relied on.
    Generic,
}

/// What a runtime takes and what it wants.
#[allow(clippy::struct_excessive_bools)] // a runtime does each or does not
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The runtime.
    pub target: Target,
    /// Its name in options.
    pub name: &'static str,
    /// One line about it, for help texts.
    pub about: &'static str,
    /// Types of activations that it takes, the one to prefer first.
    pub activations: &'static [QType],
    /// Types of weights that it multiplies quantized activations by, the one to prefer first.
    pub weights: &'static [QType],
    /// Whether weights must be of the type of the activations that they meet.
    pub alike: bool,
    /// Whether zero points must be in the middle: of activations, and of weights.
    pub symmetric: (bool, bool),
    /// Whether the scale of a weight may be negative, which gives those of 4 and 2 bits half a step
    /// more: ONNX does not forbid it.
    pub negative_scales: bool,
    /// Weights that it reads and that few do: ONNX Runtime 1.31 has no kernel for them on a CPU.
    pub rare: &'static [WeightType],
    /// Operators whose weights may have a scale for each channel; `None` for all.
    pub per_channel: Option<&'static [&'static str]>,
    /// Whether weights of int8 beside uint8 activations use one bit less.
    pub reduced: bool,
    /// What becomes of the bias of a quantized operator.
    pub bias: Bias,
    /// Whether products of two activations, as in attention, run on integers.
    pub products: bool,
    /// Which operators run on integers.
    pub placement: Placement,
}

/// What becomes of the bias of a quantized operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// It becomes int32, in the scale of the products it is added to.
    Int32,
    /// It stays float.
    Float,
}

/// Which operators run on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Those with weights. Their outputs are quantized where the runtime has no kernel otherwise.
    WeightedOps,
    /// Those with weights, and what lies between them when the runtime has integer kernels for it.
    WeightedAndInterior,
    /// Inputs of compute ops and additions are quantized, and no outputs.
    OpInputs,
    /// Every operator with a rule: inputs and outputs.
    AllOps,
}

const ANY_8: &[QType] = &[QType::UInt8, QType::Int8];

const ANY_16: &[QType] = &[QType::UInt8, QType::Int8, QType::UInt16, QType::Int16];

/// ONNX Runtime on a CPU, whose rows differ in little.
const X86: Profile = Profile {
    target: Target::X86,
    name: "x86",
    about: "ONNX Runtime on x86 with VNNI (most of Intel since 2019, AMD since Zen 4)",
    activations: ANY_16,
    weights: &[QType::Int8, QType::UInt8],
    alike: false,
    symmetric: (false, false),
    // All kernels of 1.31 were tried, fused or not.
    negative_scales: true,
    rare: &[],
    per_channel: None,
    reduced: false,
    bias: Bias::Int32,
    products: true,
    placement: Placement::WeightedAndInterior,
};

/// The rows, in the order of the variants.
const TABLE: [Profile; 8] = [
    X86,
    Profile {
        target: Target::X86Avx2,
        name: "x86-avx2",
        about: "ONNX Runtime on x86 without VNNI: weights of 7 bits, whose sums cannot saturate",
        reduced: true,
        ..X86
    },
    Profile { target: Target::Arm, name: "arm", about: "ONNX Runtime on arm64", ..X86 },
    // WebAssembly has the operators of a CPU, and adds products in 32 bits. WebGPU lists none on
    // integers but blocks of weights and DequantizeLinear.
    Profile {
        target: Target::Web,
        name: "web",
        about: "ONNX Runtime Web: integers in WebAssembly, weights in blocks for WebGPU",
        activations: ANY_8,
        negative_scales: false,
        ..X86
    },
    Profile {
        target: Target::TensorRt,
        name: "tensorrt",
        about: "TensorRT: symmetric signed types, Q/DQ at the inputs of operators, float biases",
        activations: &[QType::Int8, QType::Float8E4M3FN],
        weights: &[QType::Int8, QType::Float8E4M3FN],
        alike: true,
        symmetric: (true, true),
        negative_scales: false,
        // It has floats of 4 bits in blocks of 16 with scales in two levels; of powers of two
        // nothing is documented.
        rare: &[WeightType::Of(QType::Float4E2M1), WeightType::In(MicroLayout::NvFp4)],
        bias: Bias::Float,
        placement: Placement::OpInputs,
        ..X86
    },
    Profile {
        target: Target::OpenVino,
        name: "openvino",
        about: "OpenVINO: symmetric weights, Q/DQ at the inputs of operators, float biases",
        activations: ANY_8,
        symmetric: (false, true),
        negative_scales: false,
        bias: Bias::Float,
        placement: Placement::OpInputs,
        ..X86
    },
    Profile {
        target: Target::Qnn,
        name: "qnn",
        about: "Qualcomm NPUs: every supported operator is quantized",
        activations: &[QType::UInt8, QType::UInt16],
        weights: &[QType::Int8, QType::UInt8, QType::Int4, QType::Int16],
        negative_scales: false,
        per_channel: Some(&["Conv", "ConvTranspose"]),
        placement: Placement::AllOps,
        ..X86
    },
    Profile {
        target: Target::Generic,
        name: "generic",
        about: "any runtime: operators with weights only, and only what ONNX specifies",
        activations: &[
            QType::UInt8,
            QType::Int8,
            QType::UInt16,
            QType::Int16,
            QType::Float8E4M3FN,
            QType::Float8E5M2,
        ],
        weights: &[QType::Int8, QType::UInt8, QType::Float8E4M3FN, QType::Float8E5M2],
        negative_scales: false,
        rare: &[
            WeightType::Of(QType::Float4E2M1),
            WeightType::In(MicroLayout::MxFp4),
            WeightType::In(MicroLayout::MxFp8),
            WeightType::In(MicroLayout::NvFp4),
        ],
        products: false,
        placement: Placement::WeightedOps,
        ..X86
    },
];

/// The rows with float biases, as `quantize_bias=False` asks for.
static WITH_FLOAT_BIASES: [Profile; TABLE.len()] = {
    let mut rows = TABLE;
    let mut i = 0;
    while i < rows.len() {
        rows[i].bias = Bias::Float;
        i += 1;
    }
    rows
};

const ALL: [Target; TABLE.len()] = {
    let mut all = [Target::X86; TABLE.len()];
    let mut i = 0;
    while i < TABLE.len() {
        all[i] = TABLE[i].target;
        i += 1;
    }
    all
};

impl Target {
    /// Every target.
    pub const ALL: &'static [Target] = &ALL;

    /// What the runtime takes and wants.
    pub const fn profile(self) -> &'static Profile {
        &TABLE[self as usize]
    }

    /// As [`Target::profile`], with biases that stay float.
    pub(crate) fn profile_with_float_biases(self) -> &'static Profile {
        &WITH_FLOAT_BIASES[self as usize]
    }

    /// Its name in options: `x86-avx2`.
    pub const fn name(self) -> &'static str {
        self.profile().name
    }
}

impl Profile {
    /// Types of weights that it multiplies activations of this type by, the one to prefer first.
    /// Floats of 8 bits only stand beside such: a product with integers would run on neither. Those
    /// of 16 bits stand beside activations of 16 bits.
    pub fn weights_beside(&self, activations: QType) -> impl Iterator<Item = QType> {
        let fits = move |weights: &QType| {
            if self.alike {
                *weights == activations
            } else {
                let narrow = weights.bits() <= activations.bits().max(8);
                narrow && (activations.is_float() || !weights.is_float())
            }
        };
        self.weights.iter().copied().filter(fits)
    }

    /// What becomes of the bias of an operator with activations of this type: int32 is not added to
    /// products of floats.
    pub fn bias_beside(&self, activations: QType) -> Bias {
        if activations.is_float() { Bias::Float } else { self.bias }
    }
}

impl FromStr for Target {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Target, QuantizeError> {
        Target::ALL.iter().copied().find(|target| target.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("target", what)
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (index, profile) in TABLE.iter().enumerate() {
            assert_eq!(profile.target as usize, index);
        }
        assert_eq!(Target::Generic as usize + 1, TABLE.len(), "the last variant is the last row");
    }

    #[test]
    fn names_parse_and_agree_with_serde() {
        for target in Target::ALL {
            assert_eq!(target.name().parse::<Target>().unwrap(), *target);
            assert_eq!(serde_json::to_value(target).unwrap(), target.name());
        }
        let error = "x68".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("x86-avx2, arm, web, tensorrt"), "{error}");
    }
}
