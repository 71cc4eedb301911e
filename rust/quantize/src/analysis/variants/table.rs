//! The sets of variants of a model that platforms look for, by file name.

use crate::options::HalfType;

/// Options by name; an empty value is none.
pub(super) type Options = [(&'static str, &'static str); 3];

/// How a variant is made of the model.
#[derive(Clone, Copy)]
pub(super) enum Recipe {
    /// The model as it is.
    Copy,
    /// The model in 16-bit floats.
    Half(HalfType),
    /// The quantized model.
    Quantized(Options),
    /// The same, with other options if there are convolutions.
    Convolutional {
        /// The options for a model with convolutions.
        with: Options,
        /// Those for any other.
        without: Options,
    },
    /// The model with quantized activations; made only where there are samples.
    Calibrated(Options),
}

/// A variant of a model.
#[derive(Clone, Copy)]
pub struct Variant {
    /// Its name, which `only` selects.
    pub name: &'static str,
    /// What follows the name of the model in the name of the file.
    pub suffix: &'static str,
    /// One line about it.
    pub about: &'static str,
    pub(super) recipe: Recipe,
}

/// The variants that a platform looks for.
#[derive(Clone, Copy)]
pub struct VariantSet {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its variants.
    pub variants: &'static [Variant],
}

const fn dynamic(weights: &'static str, target: &'static str) -> Options {
    [("output_format", "dynamic"), ("weights", weights), ("target", target)]
}

const fn four_bits(float_type: &'static str) -> Options {
    [("output_format", "matmul_nbits"), ("weights", "int4"), ("float_type", float_type)]
}

const ORIGINAL: Variant =
    Variant { name: "fp32", suffix: "", about: "the model as it is", recipe: Recipe::Copy };

/// All sets.
pub const SETS: &[VariantSet] = &[
    VariantSet {
        name: "transformers.js",
        about: "the names that Transformers.js loads by `dtype`",
        variants: &[
            ORIGINAL,
            Variant {
                name: "fp16",
                suffix: "_fp16",
                about: "float16",
                recipe: Recipe::Half(HalfType::Float16),
            },
            Variant {
                name: "q8",
                suffix: "_quantized",
                about: "8-bit weights, activations quantized while the model runs",
                // ONNX Runtime's ConvInteger is several times faster with uint8.
                recipe: Recipe::Convolutional {
                    with: dynamic("uint8", "x86"),
                    without: dynamic("int8", "x86"),
                },
            },
            Variant {
                name: "int8",
                suffix: "_int8",
                about: "the same with int8 weights",
                recipe: Recipe::Quantized(dynamic("int8", "x86")),
            },
            Variant {
                name: "uint8",
                suffix: "_uint8",
                about: "the same with uint8 weights",
                recipe: Recipe::Quantized(dynamic("uint8", "x86")),
            },
            Variant {
                name: "q4",
                suffix: "_q4",
                about: "4-bit weights in blocks of 32 (MatMulNBits)",
                recipe: Recipe::Quantized(four_bits("")),
            },
            Variant {
                name: "bnb4",
                suffix: "_bnb4",
                about: "4-bit codes in blocks of 64 (MatMulBnb4, fp4)",
                recipe: Recipe::Quantized([
                    ("output_format", "matmul_bnb4"),
                    ("weights", "fp4"),
                    ("", ""),
                ]),
            },
            Variant {
                name: "q4f16",
                suffix: "_q4f16",
                about: "the same in a float16 model",
                recipe: Recipe::Quantized(four_bits("float16")),
            },
        ],
    },
    VariantSet {
        name: "optimum",
        about: "the presets of Optimum and the names that Sentence Transformers loads",
        variants: &[
            ORIGINAL,
            Variant {
                name: "avx2",
                suffix: "_quint8_avx2",
                about: "dynamic, for x86 processors without VNNI",
                recipe: Recipe::Quantized(dynamic("int8", "x86-avx2")),
            },
            Variant {
                name: "avx512_vnni",
                suffix: "_qint8_avx512_vnni",
                about: "dynamic, for x86 processors with VNNI",
                recipe: Recipe::Quantized(dynamic("int8", "x86")),
            },
            Variant {
                name: "arm64",
                suffix: "_qint8_arm64",
                about: "dynamic, for ARM processors",
                recipe: Recipe::Quantized(dynamic("int8", "arm")),
            },
            Variant {
                name: "tensorrt",
                suffix: "_qint8_tensorrt",
                about: "int8 weights and activations for TensorRT; needs samples",
                recipe: Recipe::Calibrated([("target", "tensorrt"), ("", ""), ("", "")]),
            },
        ],
    },
];
