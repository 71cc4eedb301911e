//! How the value of an option is read from JSON, by its type: [`OptionType`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use quantize_rs_math::{QType, WeightMethod};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::config::{self, FLOAT32};
use super::row::{Choice, Kind};
use super::{
    Format, HalfType, KvCacheType, Method, MixedLayers, Override, Rounding, RoundingEffort, Target,
    WeightAlgorithm, WeightType,
};
use crate::QuantizeError;

/// A type that an option can have.
pub trait OptionType: Sized {
    /// What values it takes.
    const KIND: Kind;

    /// Whether `None` is among its values.
    const OPTIONAL: bool = false;

    /// The value of `option`, from JSON.
    ///
    /// # Errors
    /// The option, what it is and what is expected.
    fn from_json(option: &'static str, value: &Value) -> Result<Self, QuantizeError>;

    /// The value as JSON.
    fn to_json(&self) -> Value;
}

/// The error of a value of another type.
fn wrong(option: &'static str, value: &Value, expected: &str) -> QuantizeError {
    let found = match value {
        Value::String(text) => format!("`{text}`"),
        other => other.to_string(),
    };
    QuantizeError::option(option, format!("is {found}, expected {expected}"))
}

/// The error of a name that is none of those that an option takes.
fn unknown(option: &'static str, value: &Value, choices: &[Choice]) -> QuantizeError {
    let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
    wrong(option, value, &format!("one of {}", names.join(", ")))
}

fn text<'v>(option: &'static str, value: &'v Value) -> Result<&'v str, QuantizeError> {
    value.as_str().ok_or_else(|| wrong(option, value, "a text"))
}

impl OptionType for bool {
    const KIND: Kind = Kind::Bool;

    fn from_json(option: &'static str, value: &Value) -> Result<bool, QuantizeError> {
        value.as_bool().ok_or_else(|| wrong(option, value, "true or false"))
    }

    fn to_json(&self) -> Value {
        Value::Bool(*self)
    }
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl OptionType for $ty {
            const KIND: Kind = Kind::Integer;

            fn from_json(option: &'static str, value: &Value) -> Result<$ty, QuantizeError> {
                let negative = value.as_i64().is_some_and(|number| number < 0);
                let expected = if negative { "0 or more" } else { "a whole number" };
                <$ty>::deserialize(value).map_err(|_| wrong(option, value, expected))
            }

            fn to_json(&self) -> Value {
                Value::from(*self)
            }
        }
    )*};
}

integers!(u8 i64 u64 usize);

impl OptionType for f64 {
    const KIND: Kind = Kind::Number;

    fn from_json(option: &'static str, value: &Value) -> Result<f64, QuantizeError> {
        value.as_f64().ok_or_else(|| wrong(option, value, "a number"))
    }

    fn to_json(&self) -> Value {
        Value::from(*self)
    }
}

impl OptionType for String {
    const KIND: Kind = Kind::Text;

    fn from_json(option: &'static str, value: &Value) -> Result<String, QuantizeError> {
        text(option, value).map(str::to_owned)
    }

    fn to_json(&self) -> Value {
        Value::from(self.as_str())
    }
}

impl OptionType for PathBuf {
    const KIND: Kind = Kind::Path;

    fn from_json(option: &'static str, value: &Value) -> Result<PathBuf, QuantizeError> {
        text(option, value).map(PathBuf::from)
    }

    fn to_json(&self) -> Value {
        Value::from(self.to_string_lossy())
    }
}

impl<T: OptionType> OptionType for Option<T> {
    const KIND: Kind = T::KIND;
    const OPTIONAL: bool = true;

    fn from_json(option: &'static str, value: &Value) -> Result<Option<T>, QuantizeError> {
        if value.is_null() { Ok(None) } else { T::from_json(option, value).map(Some) }
    }

    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, OptionType::to_json)
    }
}

impl<T: OptionType> OptionType for Vec<T> {
    const KIND: Kind = Kind::List(&T::KIND);

    fn from_json(option: &'static str, value: &Value) -> Result<Vec<T>, QuantizeError> {
        let items = value.as_array().ok_or_else(|| wrong(option, value, "a list"))?;
        items.iter().map(|item| T::from_json(option, item)).collect()
    }

    fn to_json(&self) -> Value {
        self.iter().map(OptionType::to_json).collect()
    }
}

impl<T: OptionType> OptionType for BTreeMap<String, T> {
    const KIND: Kind = Kind::ByName(&T::KIND);

    fn from_json(option: &'static str, value: &Value) -> Result<Self, QuantizeError> {
        let map = value.as_object().ok_or_else(|| wrong(option, value, "values by name"))?;
        map.iter().map(|(name, item)| Ok((name.clone(), T::from_json(option, item)?))).collect()
    }

    fn to_json(&self) -> Value {
        self.iter().map(|(name, item)| (name.clone(), item.to_json())).collect()
    }
}

/// The bits of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u8);

impl OptionType for Bits {
    const KIND: Kind = Kind::OneOf(&[2, 3, 4, 5, 6, 8, 16]);

    fn from_json(option: &'static str, value: &Value) -> Result<Bits, QuantizeError> {
        let bits = value.as_u64().and_then(|bits| u8::try_from(bits).ok());
        let bits = bits.ok_or_else(|| wrong(option, value, "2, 3, 4, 5, 6, 8 or 16"))?;
        config::signed(option, bits).map(|_| Bits(bits))
    }

    fn to_json(&self) -> Value {
        Value::from(self.0)
    }
}

/// What some weights are stored as: bits, a type or layout, or float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The signed type of this many bits.
    Bits(u8),
    /// A type or layout.
    Type(WeightType),
    /// They stay float.
    Float,
}

impl std::fmt::Display for Width {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Width::Bits(bits) => write!(f, "{bits} bits"),
            Width::Type(found) => write!(f, "{found}"),
            Width::Float => f.write_str("float32"),
        }
    }
}

impl OptionType for Width {
    const KIND: Kind = Kind::AnyOf(&[Kind::OneOf(&[2, 3, 4, 5, 6, 8, 16]), Kind::Choice(widths)]);

    fn from_json(option: &'static str, value: &Value) -> Result<Width, QuantizeError> {
        match value.as_str() {
            Some(name) if FLOAT32.contains(&name) => Ok(Width::Float),
            Some(name) => WeightType::parse(name)
                .map(Width::Type)
                .ok_or_else(|| unknown(option, value, &widths())),
            None => Bits::from_json(option, value).map(|Bits(bits)| Width::Bits(bits)),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Width::Bits(bits) => Value::from(*bits),
            Width::Type(found) => Value::from(found.name()),
            Width::Float => Value::from(FLOAT32[0]),
        }
    }
}

impl Serialize for Width {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Width {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Width, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Width::from_json("weights", &value).map_err(D::Error::custom)
    }
}

fn widths() -> Vec<Choice> {
    let mut choices = weight_types();
    choices.push(Choice {
        name: FLOAT32[0].to_owned(),
        aliases: FLOAT32[1..].to_vec(),
        about: "they stay float",
    });
    choices
}

impl OptionType for WeightType {
    const KIND: Kind = Kind::Choice(weight_types);

    fn from_json(option: &'static str, value: &Value) -> Result<WeightType, QuantizeError> {
        let name = text(option, value)?;
        WeightType::parse(name).ok_or_else(|| unknown(option, value, &weight_types()))
    }

    fn to_json(&self) -> Value {
        Value::from(self.name())
    }
}

fn weight_types() -> Vec<Choice> {
    let choice = |found: WeightType| Choice {
        name: found.name().to_owned(),
        aliases: found.aliases().to_vec(),
        about: found.about(),
    };
    // Only biases are int32.
    WeightType::all().filter(|found| *found != QType::Int32).map(choice).collect()
}

impl OptionType for QType {
    const KIND: Kind = Kind::Choice(activation_types);

    fn from_json(option: &'static str, value: &Value) -> Result<QType, QuantizeError> {
        let name = text(option, value)?;
        QType::parse(name).ok_or_else(|| unknown(option, value, &activation_types()))
    }

    fn to_json(&self) -> Value {
        Value::from(self.name())
    }
}

/// The types of activations that some target takes.
fn activation_types() -> Vec<Choice> {
    let taken = |qtype: &&QType| {
        Target::ALL.iter().any(|target| target.profile().activations.contains(qtype))
    };
    let choice = |qtype: &QType| Choice {
        name: qtype.name().to_owned(),
        aliases: qtype.aliases().to_vec(),
        about: "",
    };
    QType::ALL.iter().filter(taken).map(choice).collect()
}

/// An option type that is a table of names.
macro_rules! tables {
    ($($ty:ty: |$item:ident| $name:expr, $aliases:expr, $about:expr;)*) => {$(
        impl OptionType for $ty {
            const KIND: Kind = Kind::Choice(|| {
                let choice = |$item: &$ty| Choice {
                    name: $name.to_owned(),
                    aliases: $aliases.to_vec(),
                    about: $about,
                };
                <$ty>::ALL.iter().map(choice).collect()
            });

            fn from_json(option: &'static str, value: &Value) -> Result<$ty, QuantizeError> {
                text(option, value)?.parse().map_err(|_| {
                    let known: Vec<&str> = <$ty>::ALL.iter().map(|$item| $name).collect();
                    wrong(option, value, &format!("one of {}", known.join(", ")))
                })
            }

            fn to_json(&self) -> Value {
                Value::from(self.name())
            }
        }
    )*};
}

const NONE: &[&str] = &[];

tables! {
    Format: |format| format.name(), NONE, format.row().about;
    Target: |target| target.name(), NONE, target.profile().about;
    WeightMethod: |method| method.name(), NONE, method.about();
    MixedLayers: |mixed| mixed.name(), NONE, mixed.about();
    HalfType: |half| half.name(), NONE, half.about();
    KvCacheType: |kind| kind.name(), NONE, kind.about();
    RoundingEffort: |effort| effort.name(), NONE, effort.about();
    WeightAlgorithm: |algorithm| algorithm.name(), NONE, algorithm.about();
    Rounding: |rounding| rounding.name(), rounding.aliases(), rounding.about();
}

impl OptionType for Method {
    const KIND: Kind = Kind::Open(|| {
        let choice = |(name, about): (std::borrow::Cow<'static, str>, &'static str)| Choice {
            name: name.into_owned(),
            aliases: Vec::new(),
            about,
        };
        Method::all().map(choice).collect()
    });

    fn from_json(option: &'static str, value: &Value) -> Result<Method, QuantizeError> {
        text(option, value)?.parse()
    }

    fn to_json(&self) -> Value {
        Value::from(self.name())
    }
}

/// Which passes run before planning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passes {
    /// Those that serve quantization.
    Usual,
    /// None.
    Off,
    /// These, by name.
    Only(Vec<String>),
}

impl Passes {
    /// The names of the passes, as [`Config::passes`](super::Config::passes) has them.
    pub fn names(self) -> Option<Vec<String>> {
        match self {
            Passes::Usual => None,
            Passes::Off => Some(Vec::new()),
            Passes::Only(names) => Some(names),
        }
    }
}

impl OptionType for Passes {
    const KIND: Kind = Kind::AnyOf(&[Kind::Bool, Kind::List(&Kind::Text)]);

    fn from_json(option: &'static str, value: &Value) -> Result<Passes, QuantizeError> {
        match value {
            Value::Null | Value::Bool(true) => Ok(Passes::Usual),
            Value::Bool(false) => Ok(Passes::Off),
            _ => OptionType::from_json(option, value).map(Passes::Only),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Passes::Usual => Value::Bool(true),
            Passes::Off => Value::Bool(false),
            Passes::Only(names) => names.to_json(),
        }
    }
}

/// A part of 1: a number from 0 to below 1, or a percentage.
///
/// ```
/// use quantize_rs::options::{Fraction, OptionType};
/// let read = |value| Fraction::from_json("max_accuracy_drop", &value);
/// assert_eq!(read(serde_json::json!(0.01))?, read(serde_json::json!("1%"))?);
/// let refused = read(serde_json::json!(1)).unwrap_err().to_string();
/// assert!(refused.ends_with("expected a fraction below 1 or a percentage such as \"1%\""));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction(pub f64);

impl Fraction {
    /// What is expected of one.
    pub const EXPECTED: &str = "a fraction below 1 or a percentage such as \"1%\"";
}

impl OptionType for Fraction {
    const KIND: Kind = Kind::Fraction;

    fn from_json(option: &'static str, value: &Value) -> Result<Fraction, QuantizeError> {
        let number = match value.as_str().map(str::trim) {
            Some(text) => match text.strip_suffix('%') {
                Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| percent / 1e2),
                None => text.parse().ok(),
            },
            None => value.as_f64(),
        };
        let fits = |number: &f64| (0.0..1.0).contains(number);
        number
            .filter(fits)
            .map(Fraction)
            .ok_or_else(|| wrong_plain(option, value, Fraction::EXPECTED))
    }

    fn to_json(&self) -> Value {
        Value::from(self.0)
    }
}

/// As [`wrong`], with texts as they stand.
fn wrong_plain(option: &'static str, value: &Value, expected: &str) -> QuantizeError {
    let number = value.as_f64().map(|number| number.to_string());
    let found = value.as_str().map(str::to_owned).or(number).unwrap_or_else(|| value.to_string());
    QuantizeError::option(option, format!("is {found}, expected {expected}"))
}

/// Who runs the model on samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineName {
    /// tract for small models that it runs right, ONNX Runtime for others where it is installed.
    #[default]
    Auto,
    /// The engine that is built in.
    Tract,
    /// ONNX Runtime.
    OnnxRuntime,
}

impl EngineName {
    /// Every engine: itself, its name, and what to know when choosing.
    pub const ALL: &'static [(EngineName, &'static str, &'static str)] = &[
        (
            EngineName::Auto,
            "auto",
            "tract for small models that it runs correctly, otherwise onnxruntime where it is \
             installed",
        ),
        (EngineName::Tract, "tract", "the engine that is built in"),
        (EngineName::OnnxRuntime, "onnxruntime", "ONNX Runtime, where it is installed"),
    ];
}

/// Whether the outputs of the result are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckMode {
    /// On a few of the samples, or on inputs made from the graph.
    #[default]
    Auto,
    /// Not at all.
    None,
}

impl CheckMode {
    /// Every mode: itself, its name, and what to know when choosing.
    pub const ALL: &'static [(CheckMode, &'static str, &'static str)] = &[
        (CheckMode::Auto, "auto", "on some of the samples, or on inputs made from the graph"),
        (CheckMode::None, "none", "not at all"),
    ];
}

/// Implements [`OptionType`] for an enum with a table of its values, their names and texts.
macro_rules! named_values {
    ($($type:ty),*) => { $(
        impl OptionType for $type {
            const KIND: Kind = Kind::Choice(|| {
                let choice = |(_, name, about): &($type, &str, &'static str)| Choice {
                    name: (*name).to_owned(),
                    aliases: Vec::new(),
                    about,
                };
                <$type>::ALL.iter().map(choice).collect()
            });

            fn from_json(option: &'static str, value: &Value) -> Result<$type, QuantizeError> {
                let name = text(option, value)?;
                <$type>::ALL.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
                    let known: Vec<&str> = <$type>::ALL.iter().map(|row| row.1).collect();
                    wrong(option, value, &format!("one of {}", known.join(", ")))
                })
            }

            fn to_json(&self) -> Value {
                let row = <$type>::ALL.iter().find(|row| row.0 == *self);
                row.map_or(Value::Null, |row| Value::from(row.1))
            }
        }
    )* };
}

named_values!(EngineName, CheckMode);

/// Samples: on the command line and in files a path or `random`, in Python also an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplesPath(pub PathBuf);

impl OptionType for SamplesPath {
    const KIND: Kind = Kind::Object;

    fn from_json(option: &'static str, value: &Value) -> Result<SamplesPath, QuantizeError> {
        PathBuf::from_json(option, value).map(SamplesPath)
    }

    fn to_json(&self) -> Value {
        self.0.to_json()
    }
}

impl OptionType for Vec<Override> {
    const KIND: Kind = Kind::Overrides;

    fn from_json(option: &'static str, value: &Value) -> Result<Vec<Override>, QuantizeError> {
        let items = value.as_array().ok_or_else(|| wrong(option, value, "a list of overrides"))?;
        let read = |(index, item): (usize, &Value)| {
            serde_json::from_value(item.clone())
                .map_err(|error| QuantizeError::option(option, format!("[{index}]: {error}")))
        };
        items.iter().enumerate().map(read).collect()
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
