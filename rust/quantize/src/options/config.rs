//! The options of quantization: [`Config`], declared once with their help and defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quantize_rs_math::{QType, WeightMethod};

use super::declare::options;
use super::row::{Condition, Flag, Group, Surface, Verb};
use super::target::Profile;
use super::value::{Bits, Passes, Width};
use super::{
    Format, HalfType, KvCacheType, MixedLayers, Override, Rounding, RoundingEffort, Target,
    WeightAlgorithm, WeightType,
};
use crate::{Below, QuantizeError};

const WEIGHTS_ALONE: &[Verb] = &[Verb::Quantize];

const WITH_ACTIVATIONS: &[Verb] = &[Verb::Calibrate];

/// What weights are rounded with: samples, or their moments in the ranges of shards.
pub(super) const ROUNDED_WITH: &[&str] = &["calibration_data", "ranges"];

const ROUNDING: Condition = Condition::Given(ROUNDED_WITH);

options! {
    /// What to quantize, and to what.
    ///
    /// ```
    /// use quantize_rs::{Config, QType};
    /// let config = Config { exclude: vec!["head/*".into()], ..Config::default() };
    /// assert_eq!(config.weights, QType::Int8);
    /// ```
    pub struct Config;

    /// Bits of a weight: 2, 4, 8 or 16; or 3, which are stored in 4 bits each, or 5 or 6, which are
    /// stored in 8. 3, 4 and 16 bits need opset 21, 2 bits need opset 25. A model of an older opset
    /// is converted.
    ///
    /// Convolutions that get fewer than 8 bits get 8, with a warning, if `check` measures that an
    /// output has less than 10 dB, and that 8 bits are more than 3 dB better. A number that
    /// `layer_bits` gives for `Conv` is kept.
    row bits: Bits = Bits(8), |config, bits| {
        if u32::from(bits.0) != config.weights.bits() {
            config.weights = signed("bits", bits.0)?;
        }
        Ok(())
    } => {
        since: Some("opset 21 for 3, 4 and 16, opset 25 for 2"),
        conflicts: &["weights"],
        example: "bits=4",
        flag: Flag { short: Some('b'), value_name: Some("N"), ..Flag::PLAIN },
    };

    /// The type of weights, or the layout of their blocks.
    field weights: WeightType = QType::Int8.into();

    /// The type of weights, instead of a number of bits, or a layout of blocks with 8-bit scales.
    ///
    /// Floats of 8 bits need opset 19. Those of 16 bits have no scale and are cast. `mxfp4` and
    /// `mxfp8` need opset 24 and the target generic; `nvfp4` needs opset 23 and the target tensorrt
    /// or generic.
    row weights: Option<WeightType> = None, |config, weights| {
        config.weights = weights.unwrap_or(config.weights);
        Ok(())
    } => {
        aliases: &["precision"],
        default_text: Some("the signed type of `bits`"),
        since: Some("opset 19 for float8, 21 for int4, uint4, int16 and uint16, 23 for nvfp4, \
                     24 for mxfp4 and mxfp8, 25 for int2 and uint2"),
        conflicts: &["bits"],
        example: "weights=\"float8e4m3fn\"",
        flag: Flag { value_name: Some("TYPE"), ..Flag::PLAIN },
    };

    /// The type of activations. By default uint8, or the type that the target prefers.
    option activations: Option<QType> = None => {
        group: Group::Activations,
        default_text: Some("uint8, or the type that the target prefers"),
        verbs: WITH_ACTIVATIONS,
        example: "activations=\"uint16\"",
        flag: Flag { value_name: Some("TYPE"), ..Flag::PLAIN },
    };

    /// How quantized values are written into the file.
    ///
    /// `qdq` is read by every runtime. `matmul_nbits` stores the weights of `MatMul`, `Gemm` and
    /// `Gather` in blocks of 2, 4 or 8 bits for operators of ONNX Runtime, and `matmul_bnb4` those
    /// of `MatMul` and `Gemm` as `nf4` or `fp4` codes. `dynamic` computes `MatMul`, `Gemm` and
    /// `Conv` in integers and quantizes activations at run time. `qoperator` needs calibration: it
    /// writes `QLinearConv`, `QLinearMatMul` and ONNX Runtime's operators of that kind, with the
    /// integers and scales of `qdq`; what has no such operator is written as with `qdq`.
    /// `fake_quant` keeps weights in float, for training.
    option output_format: Format = Format::default() => {
        group: Group::Output,
        since: Some("opset 7 for matmul_nbits, 10 for fake_quant and qoperator, 11 for dynamic"),
        example: "output_format=\"matmul_nbits\"",
        flag: Flag { value_name: Some("FORMAT"), ..Flag::PLAIN },
    };

    /// Write the result even if it is larger than the model. Otherwise a result that is more than
    /// 64 KiB larger is an error, and one that is larger by less gets a warning. Scales and new
    /// nodes take more than a small model has to save, and a weight that other operators need in
    /// float may be stored twice.
    option allow_larger: bool = false => {
        group: Group::Output,
        example: "allow_larger=True",
    };

    /// How precisely `MatMulNBits` computes, from 0 to 4: 1 in float32, 4 with activations
    /// quantized to 8 bits, which is faster. 0 leaves it to ONNX Runtime.
    option accuracy_level: Option<u8> = None => {
        group: Group::Output,
        default_text: Some("ONNX Runtime's choice"),
        verbs: WEIGHTS_ALONE,
        range: (Some(0.0), Some(4.0)),
        since: Some("output_format=matmul_nbits"),
        only_with: Some(Condition::Value("output_format", &["matmul_nbits"])),
        example: "accuracy_level=4",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// The type in which the model computes with floats that are not quantized: scales, biases,
    /// activations and all that stays float. Inputs and outputs of the model stay float32. Nodes
    /// that would overflow or lose what counts stay float32 too, and notes of the report give the
    /// reasons; with samples, that is measured. GPUs and NPUs compute faster in 16 bits; CPUs do
    /// not. `convert_float16` does the same for a model without quantized weights.
    option float_type: Option<HalfType> = None => {
        group: Group::Output,
        default_text: Some("float32, as in the model"),
        verbs: WEIGHTS_ALONE,
        only_with: Some(Condition::Value("output_format", &["matmul_nbits", "qdq"])),
        example: "float_type=\"float16\"",
        flag: Flag { value_name: Some("TYPE"), ..Flag::PLAIN },
    };

    /// The type of the cache of keys and values of a language model: with calibration data, the
    /// past and present of each `GroupQueryAttention` become integers with a scale for each
    /// channel. Inputs and outputs of the model change their type, and for int4 their last length.
    /// ONNX Runtime 1.32 runs this; earlier versions were not tried.
    option kv_cache: Option<KvCacheType> = None => {
        group: Group::Output,
        default_text: Some("floats, as in the model"),
        example: "kv_cache=\"int8\"",
        flag: Flag { value_name: Some("TYPE"), ..Flag::PLAIN },
    };

    /// Quantize LSTMs dynamically too, as ONNX Runtime's `DynamicQuantizeLSTM`. This is faster and
    /// less accurate than the 8-bit weights that they have otherwise.
    option dynamic_lstm: bool = false => {
        group: Group::Output,
        verbs: WEIGHTS_ALONE,
        since: Some("output_format=dynamic"),
        only_with: Some(Condition::Value("output_format", &["dynamic"])),
        example: "dynamic_lstm=True",
    };

    /// Other types for some activations: by the name of a value, by the name or type of the
    /// operator that produces or consumes it, or by pattern as in `exclude`.
    ///
    /// A value has one type: the one given for the value itself, otherwise for its producer,
    /// otherwise the widest given for its consumers. ONNX Runtime computes in integers where all
    /// inputs and outputs of an operator have the same 8-bit type, otherwise in float.
    option activation_types: BTreeMap<String, QType> = BTreeMap::new() => {
        group: Group::Activations,
        verbs: WITH_ACTIVATIONS,
        example: "activation_types={\"head/*\": \"uint16\"}",
        python_type: Some("Mapping[str, str] | None"),
        flag: Flag { value_name: Some("NAME=TYPE"), ..Flag::PLAIN },
    };

    /// Use one scale for each output channel of a weight; false uses one for the whole tensor. One
    /// for each channel is more accurate and larger only by the scales. It needs opset 13, to which
    /// an older model is converted; where a node cannot be converted, weights get one scale each,
    /// with a warning.
    option per_channel: Option<bool> = None => {
        since: Some("opset 13"),
        default_text: Some("true, as far as the target and the operator allow it"),
        example: "per_channel=False",
        flag: Flag { value_name: Some("BOOL"), equals: true, ..Flag::PLAIN },
    };

    /// Use weights with zero point 0: their range is `[-absmax, absmax]`. Integer kernels compute
    /// faster with them, and some targets need them. False uses the range from the smallest to the
    /// largest element.
    option symmetric: Option<bool> = None, |config, symmetric| {
        let needed = config.symmetric.filter(|needed| *needed);
        if let (Some(true), Some(false), Some(target)) = (needed, symmetric, config.target) {
            let what = format!("the target {} takes only weights with zero point 0", target.name());
            return Err(QuantizeError::option("symmetric", what));
        }
        config.symmetric = needed.or(symmetric);
        Ok(())
    } => {
        default_text: Some("true for signed types that are not in blocks, except, in the format \
                            qdq, for weights of 3 to 8 bits without quantized activations; true \
                            where the target needs it"),
        example: "symmetric=False",
        flag: Flag { value_name: Some("BOOL"), equals: true, ..Flag::PLAIN },
    };

    /// Use activations with zero point in the middle of their type. Runtimes then cannot fuse a
    /// Relu into the operator before it. Some targets need this and turn it on.
    option activation_symmetric: bool = false, |config, symmetric| {
        config.activation_symmetric |= symmetric;
        Ok(())
    } => {
        group: Group::Activations,
        verbs: WITH_ACTIVATIONS,
        default_text: Some("false, or what the target needs"),
        example: "activation_symmetric=True",
    };

    /// Widen narrower ranges of activations to this width, by raising their upper end: an
    /// activation that hardly varied in calibration then keeps a coarser scale that covers more.
    option min_range: Option<f64> = None => {
        group: Group::Activations,
        verbs: WITH_ACTIVATIONS,
        default_text: Some("ranges stay as observed"),
        range: (Some(0.0), None),
        example: "min_range=0.0001",
        flag: Flag { value_name: Some("X"), ..Flag::PLAIN },
    };

    /// Leave out the most negative value of the type, such as -128, in symmetric weights; false
    /// uses it. By default 8 and 16 bits leave it out, as integer kernels expect, and 4 and 2 bits
    /// use it.
    option narrow_range: Option<bool> = None => {
        default_text: Some("true for 8 and 16 bits, false for 4 and 2"),
        only_with: Some(Condition::Value("output_format", &["qdq"])),
        example: "narrow_range=False",
        flag: Flag { value_name: Some("BOOL"), ..Flag::PLAIN },
    };

    /// Use one scale for each block of N consecutive elements along the axis that is summed over.
    /// N is a power of two.
    option block_size: Option<usize> = None => {
        aliases: &["group_size"],
        range: (Some(16.0), Some(4096.0)),
        default_text: Some("no blocks; 32 with output_format=matmul_nbits"),
        verbs: WEIGHTS_ALONE,
        since: Some("opset 21 with output_format=qdq"),
        example: "block_size=32",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// How the scales of weights are chosen. By default blocks of up to 4 bits take the least
    /// squared error; all other weights, and those of convolutions, take their range. The zero
    /// points of `hqq` are floats in `matmul_nbits`, which is more accurate and slower in ONNX
    /// Runtime.
    option weight_method: Option<WeightMethod> = None => {
        default_text: Some("mse for blocks of up to 4 bits, otherwise minmax"),
        verbs: WEIGHTS_ALONE,
        example: "weight_method=\"mse\"",
        flag: Flag { value_name: Some("METHOD"), ..Flag::PLAIN },
    };

    /// How weights are rounded to integers. By default convolutions and the integer products of
    /// `dynamic` use `preserve_sums` where their inputs lie on one side of 0; everything else uses
    /// `nearest`.
    option rounding: Option<Rounding> = None => {
        default_text: Some("preserve_sums for convolutions and dynamic, otherwise nearest"),
        example: "rounding=\"nearest\"",
        flag: Flag { value_name: Some("METHOD"), ..Flag::PLAIN },
    };

    /// How the integers of weights are chosen where samples are given: `auto` and `descent` try all
    /// algorithms on each weight and keep the one whose output error is the smallest on samples
    /// that were held back; `auto` leaves 8-bit matrices beside quantized activations to `nearest`.
    /// The samples are run once; the time that rounding takes grows with the size of the largest
    /// layers. `nearest` ignores the samples.
    option weight_algorithm: WeightAlgorithm = WeightAlgorithm::Auto => {
        default_text: Some("auto"),
        only_with: Some(Condition::GivenUnless(ROUNDED_WITH, "nearest")),
        example: "weight_algorithm=\"nearest\"",
        flag: Flag { value_name: Some("ALGORITHM"), ..Flag::PLAIN },
    };

    /// How long rounding with the help of samples may take. `fast` costs little more than running
    /// the samples once. What `balanced` adds grows with the number of weights and with their input
    /// channels: for wide layers it takes several times as long as running the samples. `best`
    /// takes tens of times as long: each layer is rounded for the inputs that the quantized layers
    /// before it make, so that it makes good a part of what they lost, and up to 128 samples are
    /// run again for each.
    option rounding_effort: RoundingEffort = RoundingEffort::Balanced => {
        default_text: Some("balanced"),
        aliases: &["effort"],
        only_with: Some(ROUNDING),
        example: "rounding_effort=\"best\"",
        flag: Flag { value_name: Some("EFFORT"), ..Flag::PLAIN },
    };

    /// The most bytes that second moments may take together, which rounding with the help of
    /// samples collects of the inputs of layers. Above, the elements of long inputs are divided
    /// into spans that are rounded each for itself, down to 256 elements; if that is not enough,
    /// only the mean squares of inputs are collected, and scales are chosen by them. `plan` prints
    /// what a model takes.
    option memory_limit: u64 = 1 << 29 => {
        default_text: Some("536870912, which is half a gigabyte"),
        only_with: Some(ROUNDING),
        example: "memory_limit=4_000_000_000",
        flag: Flag { value_name: Some("BYTES"), ..Flag::PLAIN },
    };

    /// Save each weight that is rounded with samples to this file, and continue from it. If the run
    /// is interrupted, the next one with the same model, samples and options runs the samples again
    /// and rounds only the weights that are left. The file is not deleted at the end.
    #[serde(skip)]
    option resume_rounding: Option<PathBuf> = None => {
        default_text: Some("no file"),
        only_with: Some(ROUNDING),
        example: "resume_rounding=\"rounded.jsonl\"",
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// Pack 4-bit weights, two in a byte, which needs opset 21. False stores each in a byte, which
    /// saves no space.
    option native_int4: Option<bool> = None => {
        default_text: Some("true"),
        since: Some("opset 21"),
        example: "native_int4=False",
        flag: Flag { value_name: Some("BOOL"), ..Flag::PLAIN },
    };

    /// Leave these weights and nodes in float: names, patterns with `*`, `?` and `[…]`, regular
    /// expressions after `re:`, or operator types.
    option exclude: Vec<String> = Vec::new() => {
        aliases: &["excluded_layers", "exclude_layers"],
        group: Group::Layers,
        example: "exclude=[\"conv1.weight\", \"head/*\"]",
        python_type: Some("Iterable[str] | None"),
        flag: Flag { value_name: Some("NAME"), ..Flag::PLAIN },
    };

    /// Quantize only these weights and nodes, written as in `exclude`, which takes precedence.
    /// Operators that only move data, such as `Reshape`, still pass quantized values on.
    option include: Option<Vec<String>> = None => {
        aliases: &["included_layers"],
        group: Group::Layers,
        default_text: Some("all"),
        example: "include=[\"Conv\"]",
        flag: Flag { value_name: Some("NAME"), ..Flag::PLAIN },
    };

    /// Leave weights with fewer elements in float.
    option min_elements: usize = 0 => {
        group: Group::Layers,
        range: (Some(0.0), None),
        example: "min_elements=1024",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// Bits of some weights, by name.
    field layer_bits: BTreeMap<String, u8> = BTreeMap::new();

    /// Types of some weights, by name.
    field layer_types: BTreeMap<String, WeightType> = BTreeMap::new();

    /// Weights that stay float, by name, pattern or operator type as in `layer_bits` and with the
    /// same precedence.
    field layer_float: BTreeSet<String> = BTreeSet::new();

    /// Other bits or types for some weights: by the name of a weight or node, by pattern as in
    /// `exclude`, or by operator type. A name takes precedence over a pattern, a pattern over an
    /// operator type. `float32` leaves them in float.
    row layer_bits: BTreeMap<String, Width> = BTreeMap::new(), |config, widths| {
        config.add_widths("layer_bits", widths)
    } => {
        group: Group::Layers,
        example: "layer_bits={\"conv1.weight\": 16, \"Gemm\": \"uint4\"}",
        python_type: Some("Mapping[str, int | str] | None"),
        flag: Flag { value_name: Some("NAME=BITS"), ..Flag::PLAIN },
    };

    /// Other types for some weights, written as in `layer_bits`.
    row layer_types: BTreeMap<String, Width> = BTreeMap::new(), |config, widths| {
        config.add_widths("layer_types", widths)
    } => {
        aliases: &["layer_dtype"],
        group: Group::Layers,
        example: "layer_types={\"classifier\": \"float16\", \"MatMul\": \"mxfp4\"}",
        python_type: Some("Mapping[str, str] | None"),
        flag: Flag { value_name: Some("NAME=TYPE"), ..Flag::PLAIN },
    };

    /// The runtime that the model is made for. It decides which operators run in integers and
    /// of which types, and brings the zero points that the runtime needs. By default ONNX Runtime
    /// on a current x86.
    option target: Option<Target> = None => {
        group: Group::Output,
        default_text: Some("as x86"),
        example: "target=\"tensorrt\"",
        flag: Flag { value_name: Some("NAME"), ..Flag::PLAIN },
    };

    /// Quantize only operators of these types. Operators that only move data, such as `Reshape`,
    /// still pass quantized values on.
    option op_types: Option<Vec<String>> = None => {
        group: Group::Layers,
        default_text: Some("all that can be quantized"),
        example: "op_types=[\"Conv\", \"Gemm\"]",
        flag: Flag { value_name: Some("TYPES"), commas: true, ..Flag::PLAIN },
    };

    /// Which weights of small magnitude become 0 before anything else, and stay exactly 0; those
    /// that `exclude` and `include` leave alone do not. See [`prune`](crate::prune()).
    field prune: Option<Below> = None;

    /// Set weights with `abs(w) < prune` to 0 before anything else. They stay exactly 0 when they
    /// are quantized. Weights that `exclude` leaves in float are left alone.
    row prune: Option<f64> = None, |config, number| {
        config.prune = number.map(Below::Absolute).or(config.prune);
        Ok(())
    } => {
        group: Group::Transforms,
        conflicts: &["sparsity"],
        example: "prune=0.001",
        flag: Flag { value_name: Some("X"), ..Flag::PLAIN },
    };

    /// Set the smallest elements of each weight to 0, until this fraction of them is 0.
    row sparsity: Option<f64> = None, |config, number| {
        config.prune = number.map(Below::Sparsity).or(config.prune);
        Ok(())
    } => {
        group: Group::Transforms,
        conflicts: &["prune"],
        example: "sparsity=0.5",
        flag: Flag { value_name: Some("FRACTION"), ..Flag::PLAIN },
    };

    /// The passes that run before planning, by name: see [`ALL`](crate::transform::ALL). `None` for
    /// those that serve quantization.
    field passes: Option<Vec<String>> = None;

    /// The passes that fold and clean up the model before planning, by name; they change no result.
    /// True runs those that serve quantization, false leaves the model as it is.
    row passes: Passes = Passes::Usual, |config, passes| {
        config.passes = passes.names();
        Ok(())
    } => {
        aliases: &["optimize"],
        group: Group::Transforms,
        python_type: Some("bool | Iterable[str] | None"),
        example: "passes=[\"fold_constants\", \"fold_batch_norm\"]",
        flag: Flag {
            value_name: Some("NAMES"),
            commas: true,
            off: Some("no-optimize"),
            ..Flag::PLAIN
        },
    };

    /// The operator set of the result. A model of an older one is converted to it, and what needs a
    /// newer one is refused. By default the model is converted as far as the result needs.
    option opset: Option<i64> = None => {
        group: Group::Transforms,
        range: (Some(1.0), None),
        default_text: Some("as far as the result needs"),
        example: "opset=21",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// Scale large channels of activations down and the following weights up, where that lowers the
    /// error of both (`SmoothQuant`: Xiao et al., ICML 2023). With `output_format` `dynamic`, the
    /// factors of a normalization say which channels are large.
    option smooth: bool = true => {
        group: Group::Transforms,
        example: "smooth=False",
    };

    /// Scale channels between two weights by powers of two, where that lowers the expected error
    /// (cross-layer equalization: Nagel et al., ICCV 2019, section 4.1). The float model computes
    /// the same; the result without is kept where the check of outputs finds it more accurate.
    option equalize: bool = true => {
        group: Group::Transforms,
        example: "equalize=False",
    };

    /// Correct biases by the mean shift that quantized weights cause (Nagel et al., ICCV 2019,
    /// section 4.2).
    option bias_correction: bool = true => {
        group: Group::Transforms,
        verbs: WITH_ACTIVATIONS,
        example: "bias_correction=False",
    };

    /// Quantize the biases of operators that compute on integers, to int32 in the scale of the
    /// products. False leaves them in float, for runtimes that add biases to dequantized products.
    option quantize_bias: Option<bool> = None => {
        default_text: Some("as the target expects: true, but false for tensorrt and openvino"),
        verbs: WITH_ACTIVATIONS,
        group: Group::Activations,
        example: "quantize_bias=False",
        flag: Flag { value_name: Some("BOOL"), ..Flag::PLAIN },
    };

    /// Leave the outputs of operators of these types in float, unless an operator that computes on
    /// integers reads them.
    option float_outputs: Vec<String> = Vec::new() => {
        verbs: WITH_ACTIVATIONS,
        group: Group::Activations,
        python_type: Some("Iterable[str] | None"),
        example: "float_outputs=[\"Softmax\"]",
        flag: Flag { value_name: Some("OP_TYPE"), ..Flag::PLAIN },
    };

    /// Give every operator that reads a quantized activation its own `QuantizeLinear` and
    /// `DequantizeLinear`, for compilers that expect this. Otherwise all of them read one pair,
    /// which is smaller and computes the same.
    option dedicated_qdq_pairs: bool = false => {
        verbs: WITH_ACTIVATIONS,
        group: Group::Output,
        only_with: Some(Condition::Value("output_format", &["qdq"])),
        example: "dedicated_qdq_pairs=True",
    };

    /// Name scales, zero points, integers and the nodes around them as `onnxruntime.quantization`
    /// does (`X_scale`, `X_QuantizeLinear_Output`), for programs that look them up by name.
    /// Otherwise names are short, and equal zero points are one constant: both are a good part of
    /// a small file. All weights get the type that is asked for, also small tables and kernels, and
    /// the smallest weights.
    option onnxruntime_names: bool = false => {
        group: Group::Output,
        example: "onnxruntime_names=True",
    };

    /// Give some layers of a language model 8 bits where weights get fewer, by their place in it:
    /// for models that are too large to measure each layer. `layer_bits`, `layer_types` and
    /// `overrides` take precedence.
    option mixed_layers: Option<MixedLayers> = None => {
        group: Group::Layers,
        verbs: WEIGHTS_ALONE,
        default_text: Some("none; small tables and kernels get 8 bits anyway"),
        example: "mixed_layers=\"sensitive\"",
        flag: Flag { value_name: Some("LAYERS"), ..Flag::PLAIN },
    };

    /// Exceptions for some layers, as an ordered list: for each setting, the first entry that
    /// matches the layer and has the setting applies.
    ///
    /// Each entry has a `match` with a `name`, a `pattern` or an `op_type`, and settings: `exclude`
    /// (true leaves it in float), `weights` (bits, a type, or float32), `activations` (a type),
    /// `symmetric` (of weights), `per_channel`, `block_size`. Entries take precedence over
    /// `exclude`, `include`, `layer_bits`, `layer_types` and `activation_types`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    option overrides: Vec<Override> = Vec::new() => {
        group: Group::Layers,
        flag: Flag { value_name: Some("JSON"), ..Flag::PLAIN },
        python_type: Some("Iterable[Match | Mapping[str, Any]] | None"),
        example: "overrides=[{\"match\": {\"pattern\": \"head/*\"}, \"weights\": \"int16\"}]",
    };

    /// Leave weights and biases in float and quantize weights at run time, to train the model
    /// elsewhere: the same as `output_format=fake_quant`.
    row fake_quant: bool = false, |config, on| {
        if on {
            config.output_format = Format::FakeQuant;
        }
        Ok(())
    } => {
        group: Group::Output,
        verbs: WITH_ACTIVATIONS,
        surfaces: &[Surface::Cli, Surface::File],
        example: "",
    };
}

impl Config {
    /// Weights in this many bits: 2, 3, 4, 5, 6, 8 or 16.
    ///
    /// # Errors
    /// Any other number.
    pub fn with_bits(bits: u8) -> Result<Config, QuantizeError> {
        Ok(Config { weights: signed("bits", bits)?, ..Config::default() })
    }

    /// What a runtime likes best, with weights and activations quantized.
    pub fn for_target(target: Target) -> Config {
        let Profile { activations, weights, symmetric, .. } = target.profile();
        Config {
            target: Some(target),
            weights: weights[0].into(),
            activations: Some(activations[0]),
            symmetric: symmetric.1.then_some(true),
            activation_symmetric: symmetric.0,
            ..Config::default()
        }
    }
}

/// What leaves a layer float, where a type is expected.
pub const FLOAT32: &[&str] = &["float32", "fp32", "float"];

/// The way of choosing the scales of weights with this name.
///
/// # Errors
/// There is none.
pub fn weight_method(name: &str) -> Result<WeightMethod, QuantizeError> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = WeightMethod::ALL.iter().map(|method| method.name()).collect();
        let what = format!("is `{name}`, expected one of {}", names.join(", "));
        QuantizeError::option("weight_method", what)
    })
}

/// The signed type of this many bits.
pub(crate) fn signed(option: &'static str, bits: u8) -> Result<WeightType, QuantizeError> {
    // Biases alone have 32 bits.
    let found = WeightType::signed(bits).filter(|found| *found != QType::Int32);
    found.ok_or_else(|| {
        let what = format!("is {bits}, expected 2, 3, 4, 5, 6, 8 or 16");
        QuantizeError::option(option, what)
    })
}
