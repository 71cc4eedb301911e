//! Every wish a caller can have, and its default.

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::{QSpec, QType, WeightMethod};
use serde::{Deserialize, Serialize};

use super::target::{Bias, Placement, Profile};
use crate::{Below, Format, QuantizeError, Rounding, Target, WeightType};

/// What to quantize, and to what.
///
/// ```
/// use quantize_rs::{Config, QType};
/// let config = Config { per_channel: true, symmetric: true, ..Config::default() };
/// assert_eq!(config.weights, QType::Int8);
/// ```
#[allow(clippy::struct_excessive_bools)] // each is a wish of its own
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The type of weights, or the layout of their blocks.
    pub weights: WeightType,
    /// The type of activations; `None` quantizes weights alone.
    pub activations: Option<QType>,
    /// How what is quantized is written into the file.
    pub output_format: Format,
    /// How exactly `MatMulNBits` computes: 1 in float32, 4 with activations of 8 bits; what ONNX
    /// Runtime likes when nothing is said.
    pub accuracy_level: Option<u8>,
    /// With [`Format::Dynamic`], LSTMs multiply integers too, as ONNX Runtime's `DynamicQuantizeLSTM`.
    pub dynamic_lstm: bool,
    /// Other types for some activations, by the name of a value, by the name or type of the
    /// operator that makes or reads it, or by pattern as in `exclude`; precedence as in
    /// `layer_bits`. A value has one type: that asked for itself, else for what makes it, else the
    /// widest asked for those who read it.
    pub activation_types: BTreeMap<String, QType>,
    /// One scale for each output channel of a weight, instead of one for the whole tensor.
    pub per_channel: bool,
    /// Weights have zero point 0, their range is `[-absmax, absmax]`.
    pub symmetric: bool,
    /// The same for activations. Runtimes then cannot fold a `Relu` into the operator before it.
    pub activation_symmetric: bool,
    /// Symmetric weights leave out the most negative value of their type (`Some(true)`) or use it
    /// (`Some(false)`); `None` leaves it out of 8 and 16 bits, as integer kernels want.
    pub narrow_range: Option<bool>,
    /// One scale for each so many consecutive elements along the axis that is summed over.
    pub block_size: Option<usize>,
    /// How the scales of weights are chosen; `None` for [what serves](WeightMethod::usual) their type
    /// and granularity, and for the range of weights of `Conv` and `ConvTranspose`.
    pub weight_method: Option<WeightMethod>,
    /// Which of the two integers around it a weight becomes; `None` for [`Rounding::Sums`] in convolutions and in
    /// [`Format::Dynamic`], [`Rounding::Nearest`] in all else.
    pub rounding: Option<Rounding>,
    /// 4-bit weights are packed two a byte (`None`, `Some(true)`), which needs opset 21, or
    /// widened to a byte each (`Some(false)`), which saves nothing.
    pub native_int4: Option<bool>,
    /// Weights and nodes to leave alone: names, patterns with `*`, `?`, `[…]`, regular expressions
    /// behind `re:`, or types of operators.
    pub exclude: Vec<String>,
    /// Only these weights and nodes are quantized: names, patterns and types of operators as in `exclude`, which
    /// goes before; `None` for all. What only moves data passes on what is quantized all the same.
    pub include: Option<Vec<String>>,
    /// Weights with fewer elements stay float.
    pub min_elements: usize,
    /// Bits for some weights, by the name of a weight or node, by pattern as in `exclude`, or by
    /// type of operator; a name goes before a pattern, that before a type.
    pub layer_bits: BTreeMap<String, u8>,
    /// The same with types, for those that bits do not name: `uint4`.
    pub layer_types: BTreeMap<String, WeightType>,
    /// Weights that stay float, by name, pattern or type as in `layer_bits` and with its precedence.
    pub layer_float: BTreeSet<String>,
    /// The runtime that the model is made for; `None` as for [`Target::X86`].
    pub target: Option<Target>,
    /// Only operators of these types are quantized; `None` for all that can be. What only moves
    /// data passes on what is quantized all the same.
    pub op_types: Option<Vec<String>>,
    /// Before anything else, weights of small magnitude become 0, and stay exactly that when they are
    /// quantized; those that `exclude` and `include` leave alone do not. See [`prune`](crate::prune()).
    pub prune: Option<Below>,
    /// The passes that run before planning, by name: see [`prepare::ALL`](crate::transform::ALL).
    /// `None` for those that serve quantization.
    pub passes: Option<Vec<String>>,
    /// The operator set of the result: a model of an older one is converted to it, and what would need
    /// a newer one is refused. `None` converts as far as the result needs, and no further.
    pub opset: Option<i64>,
    /// With calibration data: what goes into matrix products after a normalization is divided by a
    /// number a channel, and the weights are multiplied by it, where that makes the errors of both
    /// smaller.
    pub smooth: bool,
    /// With calibration data: biases take back what quantized weights shift in the mean.
    pub bias_correction: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            weights: QType::Int8.into(),
            activations: None,
            output_format: Format::default(),
            accuracy_level: None,
            dynamic_lstm: false,
            activation_types: BTreeMap::new(),
            per_channel: false,
            symmetric: false,
            activation_symmetric: false,
            narrow_range: None,
            block_size: None,
            weight_method: None,
            rounding: None,
            native_int4: None,
            exclude: Vec::new(),
            include: None,
            min_elements: 0,
            layer_bits: BTreeMap::new(),
            layer_types: BTreeMap::new(),
            layer_float: BTreeSet::new(),
            target: None,
            op_types: None,
            prune: None,
            passes: None,
            opset: None,
            smooth: true,
            bias_correction: true,
        }
    }
}

impl Config {
    /// Weights in this many bits: 2, 4, 8 or 16.
    ///
    /// # Errors
    /// Any other number.
    pub fn with_bits(bits: u8) -> Result<Config, QuantizeError> {
        Ok(Config { weights: signed("bits", bits)?.into(), ..Config::default() })
    }

    /// What a runtime likes best, with weights and activations quantized.
    pub fn for_target(target: Target) -> Config {
        let Profile { activations, weights, symmetric, .. } = target.profile();
        Config {
            target: Some(target),
            weights: weights[0].into(),
            activations: Some(activations[0]),
            symmetric: symmetric.1,
            activation_symmetric: symmetric.0,
            ..Config::default()
        }
    }

    /// What the runtime that the model is made for takes and wants.
    pub fn profile(&self) -> &'static Profile {
        self.target.unwrap_or(Target::X86).profile()
    }

    /// How the scales of a weight are chosen. Those of convolutions keep their range: the least error brings them nearer,
    /// and what the model makes of them further away.
    pub(crate) fn weight_method(&self, spec: &QSpec, convolves: bool) -> WeightMethod {
        let usual = if convolves { WeightMethod::MinMax } else { WeightMethod::usual(spec) };
        self.weight_method.unwrap_or(usual)
    }

    /// Which of the two integers around it a weight becomes. Matrices gain little, much of what they meet being normalized.
    /// Those of dynamic products have no samples to correct biases by, and take it; where weights alone become integers it
    /// is not worth twice the time.
    pub(crate) fn rounding(&self, convolves: bool, format: Format) -> Rounding {
        let sums = convolves || format == Format::Dynamic;
        let usual = if sums { Rounding::Sums } else { Rounding::Nearest };
        self.rounding.unwrap_or(usual)
    }

    /// Whether products are to be computed on integers.
    pub(crate) fn computes_on_integers(&self) -> bool {
        self.activations.is_some() || self.output_format == Format::Dynamic
    }

    /// What becomes of biases.
    pub(crate) fn bias(&self) -> Bias {
        let profile = self.profile();
        self.activations.map_or(profile.bias, |activations| profile.bias_beside(activations))
    }

    /// Refuses wishes that contradict each other or cannot be met.
    ///
    /// # Errors
    /// The option, what it was, and what it may be.
    pub fn check(&self) -> Result<(), QuantizeError> {
        self.output_format.check(self)?;
        if self.block_size.is_some() && self.activations.is_some() {
            let what =
                "cannot be used with activations: no runtime computes in integers with blocks";
            return Err(QuantizeError::option("block_size", what));
        }
        if self.weights == QType::Int32 {
            let what = "is int32, expected a type of 2 to 16 bits";
            return Err(QuantizeError::option("weights", what));
        }
        for bits in self.layer_bits.values() {
            signed("layer_bits", *bits)?;
        }
        if let Some((text, _)) = self.layer_types.iter().find(|(_, found)| **found == QType::Int32)
        {
            let what = format!("gives `{text}` int32, expected a type of 2 to 16 bits");
            return Err(QuantizeError::option("layer_types", what));
        }
        self.check_layout()?;
        self.check_readers()?;
        self.check_zeros()?;
        if let Some(text) = self.layer_types.keys().find(|text| self.layer_bits.contains_key(*text))
        {
            let what = format!("names `{text}`, for which layer_bits has a number too");
            return Err(QuantizeError::option("layer_types", what));
        }
        let twice = |text: &&String| {
            self.layer_bits.contains_key(*text) || self.layer_types.contains_key(*text)
        };
        if let Some(text) = self.layer_float.iter().find(twice) {
            let what = format!("leaves `{text}` float and gives it a type too");
            return Err(QuantizeError::option("layer_bits", what));
        }
        match self.activations {
            None => match self.activation_types.keys().next() {
                None => Ok(()),
                Some(text) => {
                    let what = format!("names `{text}`, but no activations are quantized");
                    Err(QuantizeError::option("activation_types", what))
                }
            },
            Some(activations) => self.check_types(activations),
        }
    }

    /// The first weights for which `why` finds something wrong with their type, and that.
    fn wrong_type(&self, why: impl Fn(WeightType) -> Option<String>) -> Result<(), QuantizeError> {
        if let Some(why) = why(self.weights) {
            return Err(QuantizeError::option("weights", format!("is {}, {why}", self.weights)));
        }
        let wrong =
            |(text, found): (&String, &WeightType)| Some((text.clone(), *found, why(*found)?));
        match self.layer_types.iter().find_map(wrong) {
            Some((text, found, why)) => {
                let what = format!("gives `{text}` {found}, {why}");
                Err(QuantizeError::option("layer_types", what))
            }
            None => Ok(()),
        }
    }

    /// Refuses types of weights that the runtime does not read, so that the file would not load.
    fn check_readers(&self) -> Result<(), QuantizeError> {
        self.wrong_type(|found| {
            let rare = Target::ALL.iter().any(|target| target.profile().rare.contains(&found));
            if !rare || self.profile().rare.contains(&found) {
                return None;
            }
            let reads = |target: &&Target| target.profile().rare.contains(&found);
            let readers: Vec<&str> = Target::ALL.iter().filter(reads).map(|t| t.name()).collect();
            let runtime = match self.target {
                Some(target) => target.name(),
                None => "ONNX Runtime",
            };
            Some(format!("which {runtime} cannot run; it is for target {}", readers.join(" or ")))
        })
    }

    /// Refuses pruning whose zeros would not stay 0.
    fn check_zeros(&self) -> Result<(), QuantizeError> {
        let Some(below) = self.prune else { return Ok(()) };
        below.check("prune")?;
        let between = self.weight_method == Some(WeightMethod::Hqq)
            && self.output_format == Format::MatMulNBits;
        if between {
            let what = "is hqq, whose zero points in matmul_nbits are floats: weights that prune sets to \
                        0 would not stay 0";
            return Err(QuantizeError::option("weight_method", what));
        }
        Ok(())
    }

    /// Refuses what contradicts a layout of blocks.
    fn check_layout(&self) -> Result<(), QuantizeError> {
        if let (Some(size), Some(row)) = (self.block_size, self.weights.layout())
            && size != row.block_size
        {
            let what = format!("is {size}, but {} has blocks of {}", row.name, row.block_size);
            return Err(QuantizeError::option("block_size", what));
        }
        let beside =
            "which cannot be used with activations: no runtime computes in integers with blocks";
        self.wrong_type(|found| {
            (self.activations.is_some() && found.layout().is_some()).then(|| beside.to_owned())
        })
    }

    /// Refuses types that the runtime does not take.
    fn check_types(&self, activations: QType) -> Result<(), QuantizeError> {
        let profile = self.profile();
        let expected = |allowed: &[QType], beside: &str, found: QType| {
            let names: Vec<&str> = allowed.iter().map(|qtype| qtype.name()).collect();
            let target = match self.target {
                Some(target) => format!(" for target {target}"),
                None if beside.is_empty() => takers(found),
                None => String::new(),
            };
            format!("expected {}{beside}{target}", names.join(" or "))
        };
        let check = |option: &str, found: QType, allowed: &[QType], beside: &str| {
            if allowed.contains(&found) {
                return Ok(());
            }
            let what = format!("is {found}, {}", expected(allowed, beside, found));
            Err(QuantizeError::option(option, what))
        };
        check("activations", activations, profile.activations, "")?;
        let taken = |qtype: &QType| profile.activations.contains(qtype);
        if let Some((text, found)) = self.activation_types.iter().find(|(_, found)| !taken(found)) {
            let what =
                format!("gives `{text}` {found}, {}", expected(profile.activations, "", *found));
            return Err(QuantizeError::option("activation_types", what));
        }
        // Weights of other widths are multiplied in float, which every runtime can do but those that
        // compute everything in integers.
        let allowed: Vec<QType> = profile.weights_beside(activations).collect();
        let beside = format!(" beside {activations} activations");
        let whole = profile.placement == Placement::AllOps;
        let check = |option: &str, qtype: QType| match qtype.bits() {
            bits if bits == 8 || whole => check(option, qtype, &allowed, &beside),
            _ => Ok(()),
        };
        for bits in self.layer_bits.values() {
            check("layer_bits", signed("layer_bits", *bits)?)?;
        }
        check("weights", self.weights.qtype())?;
        self.layer_types.values().try_for_each(|found| check("layer_types", found.qtype()))
    }
}

/// Which targets take activations of this type, for those who asked for no target.
fn takers(activations: QType) -> String {
    let takes = |target: &&Target| target.profile().activations.contains(&activations);
    let names: Vec<&str> = Target::ALL.iter().filter(takes).map(|target| target.name()).collect();
    if names.is_empty() || takes(&&Target::X86) {
        return String::new();
    }
    format!("; {activations} is for target {}", names.join(" or "))
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
pub(crate) fn signed(option: &'static str, bits: u8) -> Result<QType, QuantizeError> {
    let types = [QType::Int2, QType::Int4, QType::Int8, QType::Int16];
    types
        .into_iter()
        .find(|qtype| qtype.bits() == u32::from(bits))
        .ok_or_else(|| QuantizeError::option(option, format!("is {bits}, expected 2, 4, 8 or 16")))
}
