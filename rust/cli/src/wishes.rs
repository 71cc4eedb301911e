//! The one place where flags become a [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quantize_rs::{
    Below, Config, Format, QType, Rounding, Target, WeightMethod, WeightType, config,
};

use crate::failure::Failure;

/// What to quantize, and to what: what all commands that plan take.
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What to quantize")]
pub(crate) struct Wishes {
    /// Bits of a weight: 2, 4, 8 or 16
    #[arg(short, long, value_name = "N", default_value_t = 8)]
    bits: u8,
    /// Type of weights, such as uint8 or float8, or layout of blocks, such as mxfp4, instead of a
    /// number of bits
    #[arg(long, value_name = "TYPE", value_parser = weight_types(), conflicts_with = "bits")]
    weights: Option<WeightType>,
    /// One scale for each output channel of a weight
    #[arg(long)]
    per_channel: bool,
    /// Weights have zero point 0
    #[arg(long)]
    symmetric: bool,
    /// Symmetric weights leave out the most negative value of their type, such as -128; false uses
    /// it. Without this flag types of 8 and 16 bits leave it out, narrower ones use it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    narrow_range: Option<bool>,
    /// Pack 4-bit weights two a byte, which needs opset 21 (the default); false widens them to a
    /// byte each
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    native_int4: Option<bool>,
    /// Which of the two integers around it a weight becomes, instead of the one that keeps sums in
    /// convolutions and in the integer products of dynamic, and the nearest elsewhere
    #[arg(long, value_name = "HOW", value_parser = roundings())]
    rounding: Option<Rounding>,
    /// Leave this weight or node alone: a name, a pattern with *, ?, […], a regular expression
    /// behind re:, or a type of operator; may be repeated
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Quantize nothing but this weight or node: written as in --exclude, which goes before; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    include: Option<Vec<String>>,
    /// Leave weights with fewer elements alone
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_elements: usize,
    /// Other bits, a type such as uint4, or float32 to leave them alone, for some weights: by the name of a weight or node, a
    /// pattern, or a type of operator; may be repeated
    #[arg(long, visible_alias = "layer-dtype", value_name = "NAME=BITS", value_parser = layer_bits)]
    layer_bits: Vec<(String, Width)>,
    /// The runtime the model is made for, which decides what runs on integers, and of what types
    #[arg(long, value_name = "NAME", value_parser = targets())]
    pub(crate) target: Option<Target>,
    /// Quantize operators of these types only, such as Conv,Gemm
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    op_types: Option<Vec<String>>,
    /// Before anything else, weights of a smaller magnitude become 0, but for those of --exclude
    #[arg(long, value_name = "X", conflicts_with = "sparsity")]
    prune: Option<f64>,
    /// The same for the smallest of each weight, until this part of it is 0: 0 to 1
    #[arg(long, value_name = "PART")]
    sparsity: Option<f64>,
    /// The operator set of the result, which may be newer than it needs; what needs a newer one is
    /// refused
    #[arg(long, value_name = "N")]
    opset: Option<i64>,
    /// Plan for the model as it is, instead of folding and cleaning it up before
    #[arg(long)]
    no_optimize: bool,
    /// The passes that run before planning, by name, instead of those that serve quantization
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "no_optimize")]
    passes: Option<Vec<String>>,
}

/// What is asked of weights that are quantized alone.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to quantize")]
pub(crate) struct WeightWishes {
    /// One scale for each N consecutive elements along the axis that is summed over
    #[arg(long, value_name = "N")]
    block_size: Option<usize>,
    /// How the scales of weights are chosen, instead of by what serves their type: blocks of up to 4
    /// bits by the least error, all others and those of convolutions by their range
    #[arg(long, value_name = "METHOD", value_parser = weight_methods())]
    weight_method: Option<WeightMethod>,
    /// How what is quantized is written into the file
    #[arg(long, value_name = "FORMAT", value_parser = formats(), default_value = Format::Qdq.name())]
    output_format: Format,
    /// How exactly blocks of `matmul_nbits` are multiplied by, from 0 to 4: 1 in float32, 4 with
    /// activations of 8 bits
    #[arg(long, value_name = "N")]
    accuracy_level: Option<u8>,
    /// With `dynamic`, let LSTMs multiply integers too, as ONNX Runtime's `DynamicQuantizeLSTM`:
    /// faster, and less exact than weights of 8 bits alone
    #[arg(long)]
    dynamic_lstm: bool,
}

/// What is asked of activations, and of what calibration learns.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What to quantize")]
pub(crate) struct ActivationWishes {
    /// Another type for some activations: by the name of a value, by the name or type of an operator
    /// that makes or reads it, or by pattern; may be repeated
    #[arg(long, value_name = "NAME=TYPE", value_parser = activation_type)]
    activation_types: Vec<(String, QType)>,
    /// Leave biases as they are, instead of taking back what quantized weights shift in the mean
    #[arg(long)]
    no_bias_correction: bool,
    /// Leave what normalizations put out as it is, instead of dividing large channels before a product
    #[arg(long)]
    no_smooth: bool,
    /// Leave weights and biases float, and quantize weights when the model runs: to train on elsewhere
    #[arg(long)]
    fake_quant: bool,
}

/// What is quantized beside weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// Nothing.
    Float,
    /// Activations, to the type that the target likes best.
    OfTarget,
    /// Activations, to this type.
    Of(QType),
}

impl Wishes {
    /// These wishes. What a target brings gives way to what is asked for, except where it takes
    /// nothing else.
    pub(crate) fn config(
        &self,
        activations: Activations,
        alone: &WeightWishes,
        calibrated: &ActivationWishes,
    ) -> Result<Config, Failure> {
        let base = self.target.map_or_else(Config::default, Config::for_target);
        let asked = Config::with_bits(self.bits)?.weights;
        let of_bits = if asked.bits() == base.weights.bits() { base.weights } else { asked };
        let activations = match activations {
            Activations::Float => None,
            Activations::OfTarget => base.profile().activations.first().copied(),
            Activations::Of(qtype) => Some(qtype),
        };
        let (layer_bits, layer_types, layer_float) = by_name(&self.layer_bits)?;
        Ok(Config {
            weights: self.weights.unwrap_or(of_bits),
            activations,
            activation_types: types_by_name(&calibrated.activation_types)?,
            per_channel: self.per_channel,
            symmetric: self.symmetric || base.symmetric,
            activation_symmetric: base.activation_symmetric,
            narrow_range: self.narrow_range,
            block_size: alone.block_size,
            weight_method: alone.weight_method,
            rounding: self.rounding,
            native_int4: self.native_int4,
            exclude: self.exclude.clone(),
            include: self.include.clone(),
            min_elements: self.min_elements,
            layer_bits,
            layer_types,
            layer_float,
            target: self.target,
            op_types: self.op_types.clone(),
            prune: self.prune.map(Below::Absolute).or(self.sparsity.map(Below::Sparsity)),
            passes: if self.no_optimize { Some(Vec::new()) } else { self.passes.clone() },
            opset: self.opset,
            output_format: if calibrated.fake_quant {
                Format::FakeQuant
            } else {
                alone.output_format
            },
            accuracy_level: alone.accuracy_level,
            dynamic_lstm: alone.dynamic_lstm,
            smooth: !calibrated.no_smooth,
            bias_correction: !calibrated.no_bias_correction,
        })
    }
}

/// The types of activations that some target takes.
pub(crate) fn activations() -> impl TypedValueParser<Value = QType> {
    let taken = |qtype: &&QType| {
        Target::ALL.iter().any(|target| target.profile().activations.contains(qtype))
    };
    types(QType::ALL.iter().filter(taken))
}

/// These types, by any of their names.
fn types<'a>(known: impl IntoIterator<Item = &'a QType>) -> impl TypedValueParser<Value = QType> {
    let names = known.into_iter();
    let names = names
        .map(|qtype| PossibleValue::new(qtype.name()).aliases(qtype.aliases().iter().copied()));
    PossibleValuesParser::new(names)
        .try_map(|name| QType::parse(&name).ok_or_else(|| format!("`{name}` is no type")))
}

/// The types of weights and layouts of their blocks, by any of their names.
fn weight_types() -> impl TypedValueParser<Value = WeightType> {
    let names = WeightType::all().map(|found| {
        let value = PossibleValue::new(found.name()).aliases(found.aliases().iter().copied());
        match found.layout() {
            Some(row) => value.help(row.about),
            None => value,
        }
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<WeightType>())
}

/// The targets there are.
pub(crate) fn targets() -> impl TypedValueParser<Value = Target> {
    let names = Target::ALL.iter().map(|target| target.profile());
    PossibleValuesParser::new(names.map(|row| PossibleValue::new(row.name).help(row.about)))
        .try_map(|name| name.parse::<Target>())
}

/// The output formats there are.
pub(crate) fn formats() -> impl TypedValueParser<Value = Format> {
    let rows = Format::ALL.iter().map(|format| format.row());
    PossibleValuesParser::new(rows.map(|row| PossibleValue::new(row.name).help(row.about)))
        .try_map(|name| name.parse::<Format>())
}

/// The ways of choosing the scales of weights.
fn weight_methods() -> impl TypedValueParser<Value = WeightMethod> {
    let names = WeightMethod::ALL.iter();
    let names = names.map(|method| PossibleValue::new(method.name()).help(method.about()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<WeightMethod>())
}

/// The ways of rounding weights.
fn roundings() -> impl TypedValueParser<Value = Rounding> {
    let rows = Rounding::ALL.iter();
    let rows = rows.map(|row| PossibleValue::new(row.name()).help(row.about()));
    PossibleValuesParser::new(rows).try_map(|name| name.parse::<Rounding>())
}

/// How wide some weights are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Bits(u8),
    Type(WeightType),
    Float,
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Width::Bits(bits) => write!(f, "{bits} bits"),
            Width::Type(found) => write!(f, "{found}"),
            Width::Float => f.write_str("float32"),
        }
    }
}

/// `NAME=BITS` or `NAME=TYPE`, where the name may hold `=` itself.
fn layer_bits(text: &str) -> Result<(String, Width), String> {
    let (name, width) = text.rsplit_once('=').ok_or("expected NAME=BITS")?;
    let bits = width.parse().ok().map(Width::Bits);
    let float = config::FLOAT32.contains(&width).then_some(Width::Float);
    let width = bits.or(float).or_else(|| WeightType::parse(width).map(Width::Type));
    let width = width.ok_or_else(|| format!("`{text}` ends in no number of bits and no type"))?;
    Ok((name.to_owned(), width))
}

/// `NAME=TYPE`, where the name may hold `=` itself.
fn activation_type(text: &str) -> Result<(String, QType), String> {
    let (name, qtype) = text.rsplit_once('=').ok_or("expected NAME=TYPE")?;
    let qtype = QType::parse(qtype).ok_or_else(|| format!("`{text}` ends in no type"))?;
    Ok((name.to_owned(), qtype))
}

fn types_by_name(asked: &[(String, QType)]) -> Result<BTreeMap<String, QType>, Failure> {
    let mut types = BTreeMap::new();
    for (name, qtype) in asked {
        if let Some(other) = types.insert(name.clone(), *qtype).filter(|other| other != qtype) {
            let message = format!("--activation-types gives `{name}` both {other} and {qtype}");
            return Err(Failure::Misuse(message));
        }
    }
    Ok(types)
}

type ByName = (BTreeMap<String, u8>, BTreeMap<String, WeightType>, BTreeSet<String>);

fn by_name(layers: &[(String, Width)]) -> Result<ByName, Failure> {
    let (mut bits, mut types, mut float) = ByName::default();
    let mut all: BTreeMap<&str, Width> = BTreeMap::new();
    for (name, width) in layers {
        if let Some(other) = all.insert(name, *width)
            && other != *width
        {
            let message = format!("--layer-bits gives `{name}` both {other} and {width}");
            return Err(Failure::Misuse(message));
        }
        match *width {
            Width::Bits(width) => drop(bits.insert(name.clone(), width)),
            Width::Type(found) => drop(types.insert(name.clone(), found)),
            Width::Float => drop(float.insert(name.clone())),
        }
    }
    Ok((bits, types, float))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        wishes: Wishes,
        #[command(flatten)]
        alone: WeightWishes,
        #[command(flatten)]
        calibrated: ActivationWishes,
    }

    impl Only {
        fn config(&self, activations: Activations) -> Result<Config, Failure> {
            self.wishes.config(activations, &self.alone, &self.calibrated)
        }
    }

    fn config(flags: &[&str]) -> Result<Config, Failure> {
        let args = std::iter::once(&"quantize-rs").chain(flags);
        let wishes = Only::try_parse_from(args).expect("flags that parse");
        wishes.config(Activations::Float)
    }

    #[test]
    fn no_flags_are_the_defaults_of_the_library() {
        assert_eq!(config(&[]).expect("a configuration"), Config::default());
    }

    #[test]
    fn every_flag_reaches_the_configuration() {
        let flags = [
            "-b4",
            "--per-channel",
            "--symmetric",
            "--narrow-range",
            "--native-int4=false",
            "--exclude=a",
            "--exclude=b*",
            "--include=i",
            "--min-elements=7",
            "--layer-bits=c=d=2",
            "--layer-dtype=e=uint4",
            "--layer-bits=h=float32",
            "--activation-types=f=g=uint16",
            "--block-size=32",
            "--weight-method=minmax",
            "--target=x86-avx2",
            "--op-types=Conv,Gemm",
            "--sparsity=0.5",
            "--no-optimize",
            "--opset=21",
            "--output-format=matmul_nbits",
            "--accuracy-level=4",
            "--dynamic-lstm",
            "--no-bias-correction",
            "--no-smooth",
            "--rounding=nearest",
        ];
        let expected = Config {
            weights: QType::Int4.into(),
            activations: None,
            per_channel: true,
            symmetric: true,
            activation_symmetric: false,
            narrow_range: Some(true),
            block_size: Some(32),
            weight_method: Some(WeightMethod::MinMax),
            rounding: Some(Rounding::Nearest),
            native_int4: Some(false),
            exclude: vec!["a".to_owned(), "b*".to_owned()],
            include: Some(vec!["i".to_owned()]),
            min_elements: 7,
            layer_bits: BTreeMap::from([("c=d".to_owned(), 2)]),
            layer_types: BTreeMap::from([("e".to_owned(), QType::UInt4.into())]),
            layer_float: BTreeSet::from(["h".to_owned()]),
            activation_types: BTreeMap::from([("f=g".to_owned(), QType::UInt16)]),
            target: Some(Target::X86Avx2),
            op_types: Some(vec!["Conv".to_owned(), "Gemm".to_owned()]),
            prune: Some(Below::Sparsity(0.5)),
            passes: Some(Vec::new()),
            opset: Some(21),
            output_format: Format::MatMulNBits,
            accuracy_level: Some(4),
            dynamic_lstm: true,
            smooth: false,
            bias_correction: false,
        };
        assert_eq!(config(&flags).expect("a configuration"), expected);
    }

    #[test]
    fn a_target_brings_its_types_unless_others_are_asked_for() {
        let args = ["quantize-rs", "--target=tensorrt"];
        let wishes = Only::try_parse_from(args).expect("flags that parse");
        let config = |activations| wishes.config(activations).expect("a configuration");
        assert_eq!(config(Activations::OfTarget), Config::for_target(Target::TensorRt));
        let asked = config(Activations::Of(QType::UInt8));
        assert_eq!(asked.activations, Some(QType::UInt8));
        assert_eq!(config(Activations::Float).activations, None);
        let args = ["quantize-rs", "--target=tensorrt", "--weights=float8"];
        let wishes = Only::try_parse_from(args).expect("flags that parse");
        let config = wishes.config(Activations::Float).expect("a configuration");
        assert_eq!(config.weights, QType::Float8E4M3FN);
        let plain = Only::try_parse_from(["quantize-rs"]).expect("flags that parse");
        let config = plain.config(Activations::OfTarget).expect("a configuration");
        assert_eq!(config.activations, Some(QType::UInt8));
    }

    #[test]
    fn weights_to_train_on_stay_float_beside_activations_too() {
        let found = config(&["--fake-quant"]).expect("a configuration").output_format;
        assert_eq!(found, Format::FakeQuant);
    }

    #[test]
    fn weights_have_bits_or_a_type() {
        for (flags, qtype) in [
            (&["--weights", "float8"][..], QType::Float8E4M3FN),
            (&["--weights", "float8e5m2"], QType::Float8E5M2),
            (&["--weights", "uint4"], QType::UInt4),
            (&["-b16"], QType::Int16),
            (&["--weights", "nvfp4"], QType::Float4E2M1),
        ] {
            assert_eq!(config(flags).expect("a configuration").weights.qtype(), qtype);
        }
        let both = ["quantize-rs", "-b4", "--weights", "int8"];
        assert!(Only::try_parse_from(both).is_err());
        let types = config(&["--layer-bits=e=float8"]).expect("a configuration").layer_types;
        assert_eq!(types["e"], QType::Float8E4M3FN);
    }

    #[test]
    fn native_int4_is_a_flag_or_takes_true_or_false() {
        let native = |flags: &[&str]| config(flags).expect("a configuration").native_int4;
        assert_eq!(native(&["--native-int4"]), Some(true));
        assert_eq!(native(&["--native-int4", "--symmetric"]), Some(true));
        assert_eq!(native(&["--native-int4", "true"]), Some(true));
        assert_eq!(native(&["--native-int4", "false"]), Some(false));
    }

    #[test]
    fn wishes_that_contradict_each_other_are_misuse() {
        for flags in [
            &["-b5"][..],
            &["--layer-bits", "w=4", "--layer-bits", "w=8"],
            &["--activation-types", "x=int8", "--activation-types", "x=uint8"],
        ] {
            assert!(matches!(config(flags), Err(Failure::Misuse(_))), "{flags:?}");
        }
    }
}
