//! How what is quantized is written into the file: one row for each output format.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::{Codebook, QType};
use serde::{Deserialize, Serialize};

use crate::{Config, QuantizeError, Target, WeightType};

/// How what is quantized is written into the file.
///
/// ```
/// use quantize_rs::Format;
/// let format: Format = "matmul_nbits".parse()?;
/// assert_eq!(format, Format::MatMulNBits);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Format {
    /// Between `QuantizeLinear` and `DequantizeLinear`.
    #[default]
    Qdq,
    /// Operators on integers with all scales as inputs: `QLinearConv`, `QLinearMatMul` and others.
    /// What has none is written as in [`Format::Qdq`].
    #[serde(rename = "qoperator")]
    QOperator,
    /// Weights in blocks, in ONNX Runtime's `MatMulNBits` and `GatherBlockQuantized`.
    #[serde(rename = "matmul_nbits")]
    MatMulNBits,
    /// Weights as codes of 4 bits for 16 numbers in blocks, in ONNX Runtime's `MatMulBnb4`.
    #[serde(rename = "matmul_bnb4")]
    MatMulBnb4,
    /// What products multiply becomes integers when the model runs: `DynamicQuantizeLinear` with
    /// `MatMulInteger` and `ConvInteger`.
    Dynamic,
    /// As [`Format::Qdq`], but that weights stay float before a `QuantizeLinear` of their own, and
    /// biases float altogether: to be trained on, after which the pass `store_integers` stores
    /// them.
    FakeQuant,
}

/// What is known of an output format.
#[derive(Debug)]
pub struct FormatRow {
    /// The format.
    pub format: Format,
    /// Its name in options.
    pub name: &'static str,
    /// One line about it, for help texts.
    pub about: &'static str,
    /// Which weights it holds.
    pub weights: StoredWeights,
    /// Targets that read it; `None` for all.
    pub targets: Option<&'static [Target]>,
    /// Sizes of blocks that it can have; `None` where it has none.
    pub blocks: Option<(usize, usize)>,
    /// Whether it goes with activations whose ranges calibration finds.
    pub activations: FormatActivations,
    /// The operator set from which on it can be written.
    pub since: i64,
}

/// Which weights an output format holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredWeights {
    /// All that the operator set knows.
    Any,
    /// Those of these types that use all of their values.
    Whole(&'static [QType]),
    /// Those of these types, also where they use a part of the values.
    WholeOrPart(&'static [QType]),
    /// Codes of 4 bits for 16 numbers.
    Codes,
}

impl StoredWeights {
    /// The types; `None` for all.
    pub fn types(&self) -> Option<&'static [QType]> {
        match self {
            StoredWeights::Any => None,
            StoredWeights::Whole(types) | StoredWeights::WholeOrPart(types) => Some(types),
            StoredWeights::Codes => Some(&[QType::UInt4]),
        }
    }

    fn holds(&self, found: WeightType) -> bool {
        let is_one_of = |types: &[QType]| types.contains(&found.qtype());
        match (self, found) {
            (StoredWeights::Any, _) | (StoredWeights::Codes, WeightType::Codes(_)) => true,
            (StoredWeights::Whole(types), WeightType::Of(_))
            | (StoredWeights::WholeOrPart(types), WeightType::Of(_) | WeightType::Partial(_)) => {
                is_one_of(types)
            }
            _ => false,
        }
    }

    /// The names of the types, for messages.
    fn names(&self) -> String {
        let names: Vec<&str> = match self {
            StoredWeights::Codes => Codebook::ALL.iter().map(|codebook| codebook.name()).collect(),
            _ => self.types().unwrap_or_default().iter().map(|qtype| qtype.name()).collect(),
        };
        names.join(", ")
    }
}

/// Whether activations are quantized with ranges from calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatActivations {
    /// They are not.
    Never,
    /// They may be.
    Optional,
    /// They have to be, in one of these types.
    Required(&'static [QType]),
}

/// Targets that have ONNX Runtime's own operators.
pub(crate) const ONNX_RUNTIME: &[Target] =
    &[Target::X86, Target::X86Avx2, Target::Arm, Target::Web];

/// The types of operators on integers.
const EIGHT_BITS: &[QType] = &[QType::Int8, QType::UInt8];

const ROWS: &[FormatRow] = &[
    FormatRow {
        format: Format::Qdq,
        name: "qdq",
        about: "QuantizeLinear and DequantizeLinear, which every runtime reads",
        weights: StoredWeights::Any,
        targets: None,
        blocks: Some((16, 4096)),
        activations: FormatActivations::Optional,
        since: 1,
    },
    FormatRow {
        format: Format::QOperator,
        name: "qoperator",
        about: "QLinearConv and similar operators, for runtimes that do not fuse qdq",
        weights: StoredWeights::Whole(EIGHT_BITS),
        targets: Some(&[Target::X86, Target::X86Avx2, Target::Arm, Target::Web, Target::Generic]),
        blocks: None,
        activations: FormatActivations::Required(EIGHT_BITS),
        since: 10,
    },
    FormatRow {
        format: Format::MatMulNBits,
        name: "matmul_nbits",
        about: "weights of 2, 4 or 8 bits in blocks, for ONNX Runtime's MatMulNBits",
        weights: StoredWeights::WholeOrPart(&[
            QType::UInt2,
            QType::UInt4,
            QType::UInt8,
            QType::Int2,
            QType::Int4,
            QType::Int8,
        ]),
        targets: Some(ONNX_RUNTIME),
        blocks: Some((16, 256)),
        activations: FormatActivations::Never,
        since: 7,
    },
    FormatRow {
        format: Format::MatMulBnb4,
        name: "matmul_bnb4",
        about: "weights as nf4 or fp4 codes in blocks, for ONNX Runtime's MatMulBnb4",
        weights: StoredWeights::Codes,
        targets: Some(ONNX_RUNTIME),
        blocks: Some((16, 256)),
        activations: FormatActivations::Never,
        since: 7,
    },
    FormatRow {
        format: Format::Dynamic,
        name: "dynamic",
        about: "integer operators, with activations quantized at run time; needs no data",
        weights: StoredWeights::Whole(EIGHT_BITS),
        targets: Some(&[Target::X86, Target::X86Avx2, Target::Arm, Target::Web, Target::Generic]),
        blocks: None,
        activations: FormatActivations::Never,
        since: 11,
    },
    FormatRow {
        format: Format::FakeQuant,
        name: "fake_quant",
        about: "QuantizeLinear and DequantizeLinear after weights that stay float, to train on",
        weights: StoredWeights::WholeOrPart(&[
            QType::Int8,
            QType::UInt8,
            QType::Int4,
            QType::UInt4,
            QType::Int2,
            QType::UInt2,
            QType::Int16,
            QType::UInt16,
        ]),
        targets: None,
        blocks: Some((16, 4096)),
        activations: FormatActivations::Optional,
        since: 10,
    },
];

impl Format {
    /// Every format.
    pub const ALL: &'static [Format] = &[
        Format::Qdq,
        Format::QOperator,
        Format::MatMulNBits,
        Format::MatMulBnb4,
        Format::Dynamic,
        Format::FakeQuant,
    ];

    /// What is known of it.
    pub fn row(self) -> &'static FormatRow {
        ROWS.iter().find(|row| row.format == self).unwrap_or(&ROWS[0])
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Refuses options that the format does not support.
    pub(crate) fn check(self, config: &Config) -> Result<(), QuantizeError> {
        self.check_activations(config)?;
        self.check_codes(config)?;
        self.check_blocks(config)?;
        self.check_weights(config)?;
        self.check_target(config)
    }

    /// The error of an option that the format does not support.
    fn against(self, option: &str, what: impl fmt::Display) -> QuantizeError {
        QuantizeError::option(option, format!("{what}; output_format is {self}"))
    }

    fn check_activations(self, config: &Config) -> Result<(), QuantizeError> {
        let what = match (self.row().activations, config.activations) {
            (FormatActivations::Never, Some(_)) => {
                "cannot be quantized by calibration here; `quantize` writes this".to_owned()
            }
            (FormatActivations::Required(_), None) => {
                "are float, and operators on integers need quantized activations: calibrate, with \
                 samples"
                    .to_owned()
            }
            (FormatActivations::Required(types), Some(qtype)) if !types.contains(&qtype) => {
                let names: Vec<&str> = types.iter().map(|qtype| qtype.name()).collect();
                format!("are {qtype}, expected {}", names.join(" or "))
            }
            _ => return Ok(()),
        };
        Err(self.against("activations", what))
    }

    fn check_codes(self, config: &Config) -> Result<(), QuantizeError> {
        if self.row().weights != StoredWeights::Codes {
            return Ok(());
        }
        if config.symmetric == Some(false) {
            return Err(self.against("symmetric", "is false, and codes have no zero point"));
        }
        if config.per_channel == Some(true) {
            return Err(self.against("per_channel", "is true, and codes have blocks"));
        }
        Ok(())
    }

    fn check_blocks(self, config: &Config) -> Result<(), QuantizeError> {
        let Some(size) = config.block_size else { return Ok(()) };
        let Some((least, most)) = self.row().blocks else {
            return Err(self.against("block_size", "has no meaning here"));
        };
        if size.is_power_of_two() && (least..=most).contains(&size) {
            return Ok(());
        }
        let what = format!("is {size}, expected a power of two from {least} to {most}");
        Err(match self {
            Format::Qdq => QuantizeError::option("block_size", what),
            _ => self.against("block_size", what),
        })
    }

    fn check_weights(self, config: &Config) -> Result<(), QuantizeError> {
        let stored = self.row().weights;
        let expected = || format!("expected one of {}", stored.names());
        if !stored.holds(config.weights) {
            let what = format!("is {}, {}", config.weights, expected());
            return Err(self.against("weights", what));
        }
        if let Some((text, found)) = config.layer_types.iter().find(|it| !stored.holds(*it.1)) {
            // People write both in one place.
            let what = format!("gives `{text}` {found}, {}", expected());
            return Err(self.against("layer_bits", what));
        }
        let fits = |bits: u8| WeightType::signed(bits).is_some_and(|found| stored.holds(found));
        let any = stored == StoredWeights::Any;
        if let Some((text, bits)) = config.layer_bits.iter().find(|it| !any && !fits(*it.1)) {
            let what = format!("gives `{text}` {bits} bits, {}", expected());
            return Err(self.against("layer_bits", what));
        }
        if self != Format::Qdq && config.native_int4 == Some(false) {
            let what = "is false, which has no effect without output_format=qdq";
            return Err(self.against("native_int4", what));
        }
        Ok(())
    }

    fn check_target(self, config: &Config) -> Result<(), QuantizeError> {
        match (config.target, self.row().targets) {
            (Some(target), Some(targets)) if !targets.contains(&target) => {
                let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
                let what = format!("is {target}, expected {}", names.join(" or "));
                Err(self.against("target", what))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Format, QuantizeError> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.format).ok_or_else(|| {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("output_format", what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_row_and_a_name_that_is_read_back() {
        for format in Format::ALL {
            assert_eq!(format.row().format, *format);
            assert_eq!(format.name().parse::<Format>().ok(), Some(*format));
            let json = serde_json::to_string(format).unwrap();
            assert_eq!(json, format!("\"{format}\""));
        }
        assert!("nbits".parse::<Format>().is_err());
    }
}
