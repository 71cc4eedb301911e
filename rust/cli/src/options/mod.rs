//! The options of quantization as flags: what the table of the library has is what there is.

mod flags;

use std::fmt;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use quantize_rs::Config;
use quantize_rs::options::{self, Given, OptionRow, Surface, Verb};

use crate::failure::Failure;

pub(crate) use flags::{choice, choice_with, help, long_help, parsed, whole};
pub(crate) use quantize_rs::options::Group;

/// Which options a command takes.
pub(crate) trait Scope {
    /// The verbs whose options it takes.
    const VERBS: &'static [Verb];
}

/// Weights alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Weights {
    #[default]
    Only,
}

/// Weights and activations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Calibrated {
    #[default]
    Too,
}

/// Whatever can be planned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Planned {
    #[default]
    All,
}

impl Scope for Weights {
    const VERBS: &'static [Verb] = &[Verb::Quantize];
}

impl Scope for Calibrated {
    const VERBS: &'static [Verb] = &[Verb::Calibrate];
}

impl Scope for Planned {
    const VERBS: &'static [Verb] = &[Verb::Quantize, Verb::Calibrate];
}

/// What to quantize, and to what, where weights are quantized alone.
pub(crate) type WeightOptions = Options<Weights>;

/// What to quantize, and to what, where activations are quantized too.
pub(crate) type ActivationOptions = Options<Calibrated>;

/// What to quantize, and to what, whatever it is for.
pub(crate) type QuantizeOptions = Options<Planned>;

/// The options that were typed, by name.
pub(crate) struct Options<S> {
    given: Given,
    scope: PhantomData<S>,
}

impl<S> Clone for Options<S> {
    fn clone(&self) -> Options<S> {
        Options { given: self.given.clone(), scope: PhantomData }
    }
}

impl<S> Default for Options<S> {
    fn default() -> Options<S> {
        Options { given: Given::new(), scope: PhantomData }
    }
}

impl<S> fmt::Debug for Options<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

impl<S: Scope> Options<S> {
    /// The options that reach [`Config`], group by group.
    fn rows() -> impl Iterator<Item = &'static OptionRow> {
        options::rows().into_iter().filter(|row| {
            row.set.is_some()
                && row.is_on(Surface::Cli)
                && S::VERBS.iter().any(|verb| row.verbs.contains(verb))
        })
    }

    /// Whether an option was typed.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Rejects options about rounding with samples, where there are none.
    pub(crate) fn without_samples(&self) -> Result<(), Failure> {
        options::unused_without_samples(&self.given).map_or(Ok(()), |name| {
            let flag = name.replace('_', "-");
            let what = format!("--{flag} has no effect without samples (--calibration-data)");
            Err(Failure::Misuse(what))
        })
    }

    /// The configuration: of weights alone for [`Verb::Quantize`], with activations for
    /// [`Verb::Calibrate`].
    pub(crate) fn config(&self, verb: Verb) -> Result<Config, Failure> {
        Ok(Config::from_options(&self.given, verb)?)
    }
}

impl<S: Scope> Args for Options<S> {
    fn augment_args(command: Command) -> Command {
        Self::rows().flat_map(flags::of).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Scope> FromArgMatches for Options<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Options<S>, clap::Error> {
        let mut given = Given::new();
        for row in Self::rows() {
            let value = flags::value(row, matches)
                .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, said(row, &error)))?;
            if let Some(value) = value {
                given.insert(row.name, value);
            }
        }
        Ok(Options { given, scope: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An error about an option, which is typed as a flag.
fn said(row: &OptionRow, error: &quantize_rs::QuantizeError) -> String {
    format!("{}\n", error.to_string().replacen(row.name, &row.flag_name(), 1))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::Parser;
    use quantize_rs::options::Override;
    use quantize_rs::{Below, Format, QType, Rounding, Target, WeightMethod};

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        options: QuantizeOptions,
    }

    fn parsed(flags: &[&str]) -> Result<Only, clap::Error> {
        Only::try_parse_from(std::iter::once(&"quantize-rs").chain(flags))
    }

    fn config(flags: &[&str]) -> Result<Config, Failure> {
        parsed(flags).expect("flags that parse").options.config(Verb::Quantize)
    }

    #[test]
    fn no_flags_are_the_defaults_of_the_library() {
        assert_eq!(config(&[]).expect("a configuration"), Config::default());
    }

    #[test]
    fn flags_reach_the_configuration() {
        let flags = [
            "-b4",
            "--per-channel",
            "--symmetric",
            "--activation-symmetric",
            "--native-int4=false",
            "--exclude=a",
            "--exclude=b*",
            "--include=i",
            "--min-elements=7",
            "--layer-bits=c=d=2",
            "--layer-dtype=e=uint4",
            "--layer-bits=h=float32",
            "--activations=int16",
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
            "--no-bias-correction",
            "--no-smooth",
            "--no-equalize",
            "--rounding=nearest",
            "--overrides=[{\"match\": {\"name\": \"h\"}, \"exclude\": true}]",
        ];
        let mut entry = Override { exclude: Some(true), ..Override::default() };
        entry.matches.name = Some("h".to_owned());
        let expected = Config {
            weights: QType::Int4.into(),
            activations: Some(QType::Int16),
            per_channel: Some(true),
            symmetric: Some(true),
            activation_symmetric: true,
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
            smooth: false,
            equalize: false,
            bias_correction: false,
            overrides: vec![entry],
            ..Config::default()
        };
        assert_eq!(config(&flags).expect("a configuration"), expected);
        let narrow = config(&["--narrow-range"]).expect("a configuration").narrow_range;
        assert_eq!(narrow, Some(true));
        let dynamic = ["--output-format=dynamic", "--dynamic-lstm"];
        assert!(config(&dynamic).expect("a configuration").dynamic_lstm);
    }

    #[test]
    fn every_option_has_a_flag_and_every_alias_is_one() {
        for row in QuantizeOptions::rows() {
            let flags = flags::of(row);
            assert!(!flags.is_empty(), "{}", row.name);
            assert!(flags.iter().all(|flag| flag.get_help().is_some()), "{}", row.name);
        }
        for flags in [
            &["--excluded-layers=a"][..],
            &["--exclude-layers=a"],
            &["--included-layers=a"],
            &["--optimize=fold_constants"],
            &["--rounding=sums"],
            &["--precision=uint8"],
        ] {
            assert!(parsed(flags).is_ok(), "{flags:?}");
        }
    }

    #[test]
    fn a_target_brings_its_types_unless_others_are_asked_for() {
        let of = |flags: &[&str], verb| {
            parsed(flags).expect("flags that parse").options.config(verb).expect("a configuration")
        };
        let target = "--target=tensorrt";
        assert_eq!(of(&[target], Verb::Calibrate), Config::for_target(Target::TensorRt));
        let asked = of(&[target, "--activations=uint8"], Verb::Calibrate);
        assert_eq!(asked.activations, Some(QType::UInt8));
        assert_eq!(of(&[target], Verb::Quantize).activations, None);
        let asked = of(&[target, "--weights=float8"], Verb::Quantize);
        assert_eq!(asked.weights, QType::Float8E4M3FN);
        assert_eq!(of(&[], Verb::Calibrate).activations, Some(QType::UInt8));
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
        assert!(parsed(&["-b4", "--weights", "int8"]).is_err());
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
    fn a_scale_per_channel_is_a_flag_or_takes_true_or_false() {
        let found = |flags: &[&str]| config(flags).expect("a configuration");
        for (flag, expected) in [("--per-channel", true), ("--per-channel=false", false)] {
            assert_eq!(found(&[flag]).per_channel, Some(expected), "{flag}");
        }
        for (flag, expected) in [("--symmetric", true), ("--symmetric=false", false)] {
            assert_eq!(found(&[flag]).symmetric, Some(expected), "{flag}");
        }
        // What follows is an argument, such as the model.
        assert!(parsed(&["--per-channel", "false"]).is_err());
    }

    #[test]
    fn options_that_contradict_each_other_are_misuse() {
        assert!(matches!(config(&["-b7"]), Err(Failure::Misuse(_))));
        for (flags, expected) in [
            (
                &["--layer-bits", "w=4", "--layer-bits", "w=8"],
                "--layer-bits gives `w` both 4 and 8",
            ),
            (
                &["--activation-types", "x=int8", "--activation-types", "x=uint8"],
                "--activation-types gives `x` both int8 and uint8",
            ),
        ] {
            let error = parsed(flags).expect_err("misuse").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
