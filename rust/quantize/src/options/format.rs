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
    /// Types of weights that it holds; `None` for all that the operator set knows.
    pub weights: Option<&'static [QType]>,
    /// Targets that read it; `None` for all.
    pub targets: Option<&'static [Target]>,
    /// Sizes of blocks that it can have; `None` where it has none.
    pub blocks: Option<(usize, usize)>,
    /// Whether it goes with activations whose ranges calibration finds.
    pub calibrated: bool,
    /// The operator set from which on it can be written.
    pub since: i64,
}

/// Targets that have ONNX Runtime's own operators.
pub(crate) const ONNX_RUNTIME: &[Target] =
    &[Target::X86, Target::X86Avx2, Target::Arm, Target::Web];

const ROWS: &[FormatRow] = &[
    FormatRow {
        format: Format::Qdq,
        name: "qdq",
        about: "QuantizeLinear and DequantizeLinear, which every runtime reads",
        weights: None,
        targets: None,
        blocks: Some((16, 4096)),
        calibrated: true,
        since: 1,
    },
    FormatRow {
        format: Format::QOperator,
        name: "qoperator",
        about: "QLinearConv and similar operators, for runtimes that do not fuse qdq",
        weights: Some(&[QType::Int8, QType::UInt8]),
        targets: Some(&[Target::X86, Target::X86Avx2, Target::Arm, Target::Web, Target::Generic]),
        blocks: None,
        calibrated: true,
        since: 10,
    },
    FormatRow {
        format: Format::MatMulNBits,
        name: "matmul_nbits",
        about: "weights of 2, 4 or 8 bits in blocks, for ONNX Runtime's MatMulNBits",
        weights: Some(&[
            QType::UInt2,
            QType::UInt4,
            QType::UInt8,
            QType::Int2,
            QType::Int4,
            QType::Int8,
        ]),
        targets: Some(ONNX_RUNTIME),
        blocks: Some((16, 256)),
        calibrated: false,
        since: 7,
    },
    FormatRow {
        format: Format::MatMulBnb4,
        name: "matmul_bnb4",
        about: "weights as nf4 or fp4 codes in blocks, for ONNX Runtime's MatMulBnb4",
        weights: Some(&[QType::UInt4]),
        targets: Some(ONNX_RUNTIME),
        blocks: Some((16, 256)),
        calibrated: false,
        since: 7,
    },
    FormatRow {
        format: Format::Dynamic,
        name: "dynamic",
        about: "integer operators, with activations quantized at run time; needs no data",
        weights: Some(&[QType::Int8, QType::UInt8]),
        targets: Some(&[Target::X86, Target::X86Avx2, Target::Arm, Target::Web, Target::Generic]),
        blocks: None,
        calibrated: false,
        since: 11,
    },
    FormatRow {
        format: Format::FakeQuant,
        name: "fake_quant",
        about: "QuantizeLinear and DequantizeLinear after weights that stay float, to train on",
        weights: Some(&[
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
        calibrated: true,
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
        let row = self.row();
        let against = |option: &str, what: String| {
            let what = format!("{what}; output_format is {self}");
            Err(QuantizeError::option(option, what))
        };
        if !row.calibrated && config.activations.is_some() {
            return against(
                "activations",
                "cannot be quantized by calibration here; `quantize` writes this".to_owned(),
            );
        }
        if self == Format::MatMulBnb4 {
            if config.symmetric == Some(false) {
                return against("symmetric", "is false, and codes have no zero point".to_owned());
            }
            if config.per_channel == Some(true) {
                return against("per_channel", "is true, and codes have blocks".to_owned());
            }
        }
        if self == Format::QOperator {
            match config.activations {
                None => {
                    let what = "are float, and operators on integers need quantized activations: \
                                calibrate, with samples";
                    return against("activations", what.to_owned());
                }
                Some(qtype) if qtype.bits() != 8 || qtype.is_float() => {
                    return against("activations", format!("are {qtype}, expected int8 or uint8"));
                }
                Some(_) => {}
            }
        }
        if let (Some(size), Some((least, most))) = (config.block_size, row.blocks)
            && !(size.is_power_of_two() && (least..=most).contains(&size))
        {
            let what = format!("is {size}, expected a power of two from {least} to {most}");
            return match self {
                Format::Qdq => Err(QuantizeError::option("block_size", what)),
                _ => against("block_size", what),
            };
        }
        if config.block_size.is_some() && row.blocks.is_none() {
            return against("block_size", "has no meaning here".to_owned());
        }
        if let Some(allowed) = row.weights {
            let coded = self == Format::MatMulBnb4;
            let names = || {
                let codebooks = Codebook::ALL.iter().map(|codebook| codebook.name());
                let names = allowed.iter().map(|qtype| qtype.name());
                let names: Vec<&str> = if coded { codebooks.collect() } else { names.collect() };
                names.join(", ")
            };
            // Integer operators have 8 bits.
            let partial = !matches!(self, Format::Dynamic | Format::QOperator);
            let holds = |found: &WeightType| {
                let whole = matches!(found, WeightType::Of(_));
                (whole || partial && found.layout().is_none())
                    && allowed.contains(&found.qtype())
                    && found.codebook().is_some() == coded
            };
            if !holds(&config.weights) {
                let what = format!("is {}, expected one of {}", config.weights, names());
                return against("weights", what);
            }
            let asked = config.layer_types.iter();
            if let Some((text, found)) = asked.clone().find(|(_, found)| !holds(found)) {
                let what = format!("gives `{text}` {found}, expected one of {}", names());
                // People write both in one place.
                return against("layer_bits", what);
            }
            let fits = |bits: u8| WeightType::signed(bits).is_some_and(|found| holds(&found));
            if let Some((text, bits)) = config.layer_bits.iter().find(|(_, bits)| !fits(**bits)) {
                let what = format!("gives `{text}` {bits} bits, expected one of {}", names());
                return against("layer_bits", what);
            }
        }
        if self != Format::Qdq && config.native_int4 == Some(false) {
            return against("native_int4", "is false, but nothing is widened".to_owned());
        }
        if self != Format::Qdq && config.narrow_range.is_some() {
            return against("narrow_range", "has no meaning here".to_owned());
        }
        if let (Some(target), Some(targets)) = (config.target, row.targets)
            && !targets.contains(&target)
        {
            let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
            return against("target", format!("is {target}, expected {}", names.join(" or ")));
        }
        if self != Format::Dynamic && config.dynamic_lstm {
            return against("dynamic_lstm", "is true, but it is for dynamic alone".to_owned());
        }
        if self != Format::MatMulNBits && config.accuracy_level.is_some() {
            return against("accuracy_level", "is an attribute of MatMulNBits alone".to_owned());
        }
        Ok(())
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
