//! What the table knows of an option: one [`OptionRow`] each.

use std::borrow::Cow;

use serde_json::Value;

use super::Config;
use crate::QuantizeError;

/// An option, as every surface shows it: command line, configuration file, Python and
/// documentation.
///
/// ```
/// use quantize_rs::options;
/// let row = options::find("excluded_layers").expect("an alias");
/// assert_eq!(row.name, "exclude");
/// assert!(row.summary().starts_with("Leave these weights and nodes in float"));
/// ```
#[derive(Debug)]
pub struct OptionRow {
    /// The name that errors and documentation use: `per_channel`.
    pub name: &'static str,
    /// Other names: those of version 0.10, of the command line and of configuration files.
    pub aliases: &'static [&'static str],
    /// The verb that it belongs to.
    pub group: Group,
    /// The Python dataclass that has it.
    pub class: Class,
    /// What values it takes.
    pub kind: Kind,
    /// The smallest and the largest number, where there are such limits.
    pub range: (Option<f64>, Option<f64>),
    /// Its default, as JSON.
    pub default: fn() -> Value,
    /// What the default is, where it follows from something else: `"that of the target"`.
    pub default_text: Option<&'static str>,
    /// The verbs that take it.
    pub verbs: &'static [Verb],
    /// Where users can write it.
    pub surfaces: &'static [Surface],
    /// The operator set or output format from which on it means something: `"opset 13"`.
    pub since: Option<&'static str>,
    /// It is unused unless this holds.
    pub only_with: Option<Condition>,
    /// Options that cannot be given together with it.
    pub conflicts: &'static [&'static str],
    /// The help: a first sentence, then what else there is to know.
    pub help: &'static str,
    /// How it is written in Python.
    pub example: &'static str,
    /// Its Python type, where that does not follow from `kind`.
    pub python_type: Option<&'static str>,
    /// How it is written on the command line.
    pub flag: Flag,
    /// How a value reaches [`Config`]; `None` where the value belongs to another stage.
    pub set: Option<Setter>,
}

/// Writes a value, given as JSON, into a configuration.
pub type Setter = fn(&mut Config, &Value) -> Result<(), QuantizeError>;

/// How an option is written on the command line.
#[derive(Debug)]
pub struct Flag {
    /// The letter after one dash.
    pub short: Option<char>,
    /// What stands for the value in the help.
    pub value_name: Option<&'static str>,
    /// Whether several values are separated by commas; otherwise the flag is repeated.
    pub commas: bool,
    /// Whether a value follows an equals sign only, so that the flag alone means true and the next
    /// word is another argument.
    pub equals: bool,
    /// The flag that turns the option off, without its dashes; options whose default is true have
    /// one anyway.
    pub off: Option<&'static str>,
}

impl Flag {
    /// A flag like its option.
    pub const PLAIN: Flag =
        Flag { short: None, value_name: None, commas: false, equals: false, off: None };
}

impl OptionRow {
    /// A row without a name, from which the others start.
    pub(crate) const EMPTY: OptionRow = OptionRow {
        name: "",
        aliases: &[],
        group: Group::Weights,
        class: Class::QuantizeOptions,
        kind: Kind::Bool,
        range: (None, None),
        default: || Value::Null,
        default_text: None,
        verbs: &[Verb::Quantize, Verb::Calibrate],
        surfaces: &[Surface::Cli, Surface::File, Surface::Python],
        since: None,
        only_with: None,
        conflicts: &[],
        help: "",
        example: "",
        python_type: None,
        flag: Flag::PLAIN,
        set: None,
    };

    /// The first sentence of its help.
    pub fn summary(&self) -> Cow<'static, str> {
        let text = self.paragraphs().into_iter().next().unwrap_or_default();
        match text.split_once(". ") {
            Some((first, _)) => Cow::Owned(format!("{first}.")),
            None => Cow::Owned(text),
        }
    }

    /// Its help as paragraphs, each on one line.
    pub fn paragraphs(&self) -> Vec<String> {
        let joined = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
        self.help.split("\n\n").map(joined).filter(|text| !text.is_empty()).collect()
    }

    /// Whether it is known by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Whether users can write it there.
    pub fn is_on(&self, surface: Surface) -> bool {
        self.surfaces.contains(&surface)
    }

    /// Refuses a number outside of its range.
    ///
    /// # Errors
    /// The option, the number and what is expected.
    pub fn check_range(&self, value: &Value) -> Result<(), QuantizeError> {
        let Some(number) = value.as_f64() else { return Ok(()) };
        let (least, most) = self.range;
        let expected = match (least, most) {
            (Some(least), Some(most)) if !(least..=most).contains(&number) => {
                format!("{least} to {most}")
            }
            (Some(least), None) if number < least => format!("{least} or more"),
            (None, Some(most)) if number > most => format!("{most} or less"),
            _ => return Ok(()),
        };
        Err(QuantizeError::option(self.name, format!("is {value}, expected {expected}")))
    }
}

/// The part of quantization that an option belongs to, in the order of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// What weights are stored as, and how their scales are chosen.
    Weights,
    /// What activations are stored as.
    Activations,
    /// Which weights and nodes are quantized, and what differs for some of them.
    Layers,
    /// What is done to the model before and beside quantization.
    Transforms,
    /// How the result is written.
    Output,
    /// The samples that the model runs on, and how ranges follow from them.
    Calibration,
    /// How images become samples.
    Images,
    /// What the result has to reach.
    AccuracyControl,
    /// How samples are run.
    Run,
}

impl Group {
    /// Every group, in the order of the documentation.
    pub const ALL: &'static [Group] = &[
        Group::Weights,
        Group::Activations,
        Group::Layers,
        Group::Transforms,
        Group::Output,
        Group::Calibration,
        Group::Images,
        Group::AccuracyControl,
        Group::Run,
    ];

    /// Its name in data: `accuracy_control`.
    pub fn name(self) -> &'static str {
        match self {
            Group::Weights => "weights",
            Group::Activations => "activations",
            Group::Layers => "layers",
            Group::Transforms => "transforms",
            Group::Output => "output",
            Group::Calibration => "calibration",
            Group::Images => "images",
            Group::AccuracyControl => "accuracy_control",
            Group::Run => "run",
        }
    }

    /// Its heading in documentation and help.
    pub const fn title(self) -> &'static str {
        match self {
            Group::Weights => "Weights",
            Group::Activations => "Activations",
            Group::Layers => "Layers",
            Group::Transforms => "Transforms",
            Group::Output => "Output model",
            Group::Calibration => "Calibration",
            Group::Images => "Images, where samples are a folder, an image or a pattern",
            Group::AccuracyControl => "Accuracy control",
            Group::Run => "Running samples",
        }
    }
}

/// The Python dataclass that holds an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What to quantize, and to what.
    QuantizeOptions,
    /// Where ranges come from.
    CalibrationOptions,
    /// What the result has to reach.
    AccuracyControl,
    /// How samples are run.
    RunOptions,
    /// How images become samples.
    ImageFolder,
}

impl Class {
    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Class::QuantizeOptions => "QuantizeOptions",
            Class::CalibrationOptions => "CalibrationOptions",
            Class::AccuracyControl => "AccuracyControl",
            Class::RunOptions => "RunOptions",
            Class::ImageFolder => "ImageFolder",
        }
    }
}

/// What takes an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `quantize`: weights; activations stay float.
    Quantize,
    /// `calibrate`, in Python `quantize_with_calibration`: weights and activations.
    Calibrate,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Verb; 2] = [Verb::Quantize, Verb::Calibrate];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Quantize => "quantize",
            Verb::Calibrate => "calibrate",
        }
    }
}

/// Where an option is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// A flag of the command line.
    Cli,
    /// A key of a configuration file.
    File,
    /// A keyword of the Python functions and a field of their options classes.
    Python,
}

impl Surface {
    /// Its name in data.
    pub fn name(self) -> &'static str {
        match self {
            Surface::Cli => "cli",
            Surface::File => "file",
            Surface::Python => "python",
        }
    }
}

/// What has to hold for an option to have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// At least one of these options is given.
    Given(&'static [&'static str]),
    /// An option has one of these values.
    Value(&'static str, &'static [&'static str]),
    /// At least one of these options is given, or the option has this value.
    GivenUnless(&'static [&'static str], &'static str),
}

impl Condition {
    /// The condition in words, after "only": `with output_format=matmul_nbits`.
    pub fn text(&self) -> String {
        match self {
            Condition::Given(names) => format!("with {}", names.join(" or ")),
            Condition::Value(name, values) => {
                let values: Vec<String> =
                    values.iter().map(|value| format!("{name}={value}")).collect();
                format!("with {}", values.join(" or "))
            }
            Condition::GivenUnless(names, value) => {
                format!("with {}, unless it is {value}", names.join(" or "))
            }
        }
    }

    /// The options of which one must be given.
    pub fn given(&self) -> Option<&'static [&'static str]> {
        match self {
            Condition::Given(names) | Condition::GivenUnless(names, _) => Some(names),
            Condition::Value(..) => None,
        }
    }
}

/// What values an option takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// One of these whole numbers.
    OneOf(&'static [i64]),
    /// A number.
    Number,
    /// A number from 0 to below 1, or a percentage such as `"1%"`.
    Fraction,
    /// A text.
    Text,
    /// A path.
    Path,
    /// One of a table of values.
    Choice(fn() -> Vec<Choice>),
    /// A text that begins with one of a table of values: `percentile:99.9`.
    Open(fn() -> Vec<Choice>),
    /// Several values.
    List(&'static Kind),
    /// Values by the name or pattern of a layer.
    ByName(&'static Kind),
    /// A value of any of these kinds.
    AnyOf(&'static [Kind]),
    /// The list of [overrides](super::Override).
    Overrides,
    /// A Python object, or on the command line and in files a path.
    Object,
}

/// A value that an option may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// Other names that are read.
    pub aliases: Vec<&'static str>,
    /// What it means, where there is something to say.
    pub about: &'static str,
}

impl Kind {
    /// The table of values behind it, if there is one.
    pub fn choices(&self) -> Option<Vec<Choice>> {
        match self {
            Kind::Choice(choices) | Kind::Open(choices) => Some(choices()),
            Kind::List(inner) | Kind::ByName(inner) => inner.choices(),
            _ => None,
        }
    }

    /// Its name in data.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Integer | Kind::OneOf(_) => "integer",
            Kind::Number => "number",
            Kind::Fraction => "fraction",
            Kind::Text => "text",
            Kind::Path => "path",
            Kind::Choice(_) => "choice",
            Kind::Open(_) => "open_choice",
            Kind::List(_) => "list",
            Kind::ByName(_) => "by_name",
            Kind::AnyOf(_) => "any_of",
            Kind::Overrides => "overrides",
            Kind::Object => "object",
        }
    }

    /// The type that Python annotates it with.
    pub fn python_type(&self) -> String {
        match self {
            Kind::Bool => "bool".to_owned(),
            Kind::Integer | Kind::OneOf(_) => "int".to_owned(),
            Kind::Number => "float".to_owned(),
            Kind::Fraction => "float | str".to_owned(),
            Kind::Text | Kind::Choice(_) | Kind::Open(_) => "str".to_owned(),
            Kind::Path => "str | os.PathLike[str]".to_owned(),
            Kind::List(inner) => format!("Iterable[{}]", inner.python_type()),
            Kind::ByName(inner) => format!("Mapping[str, {}]", inner.python_type()),
            Kind::AnyOf(kinds) => {
                let mut names: Vec<String> = kinds.iter().map(Kind::python_type).collect();
                names.dedup();
                names.join(" | ")
            }
            Kind::Overrides => "Iterable[Override | Mapping[str, Any]]".to_owned(),
            Kind::Object => "Any".to_owned(),
        }
    }
}
