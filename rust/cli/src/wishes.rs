//! The one place where flags become a [`Config`].

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use quantize_rs::{Config, QType};

use crate::failure::Failure;

/// What to quantize, and to what: shared by all commands that plan.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to quantize")]
pub(crate) struct Wishes {
    /// Bits of a weight: 2, 4, 8 or 16
    #[arg(short, long, value_name = "N", default_value_t = 8)]
    bits: u8,
    /// One scale for each output channel of a weight
    #[arg(long)]
    per_channel: bool,
    /// Weights have zero point 0
    #[arg(long)]
    symmetric: bool,
    /// Pack 4-bit weights two a byte, which needs opset 21 (the default); false widens them to a
    /// byte each
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    native_int4: Option<bool>,
    /// Leave this weight or node alone: a name or a pattern with *, ?, […]; may be repeated
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Leave weights with fewer elements alone
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_elements: usize,
    /// Other bits for one weight, by name or pattern; may be repeated
    #[arg(long, value_name = "NAME=BITS", value_parser = layer_bits)]
    layer_bits: Vec<(String, u8)>,
    /// One scale for each N consecutive elements along the axis that is summed over
    #[arg(long, value_name = "N")]
    block_size: Option<usize>,
}

/// Types that activations can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Activations {
    #[default]
    Uint8,
    Int8,
}

impl From<Activations> for QType {
    fn from(activations: Activations) -> QType {
        match activations {
            Activations::Uint8 => QType::UInt8,
            Activations::Int8 => QType::Int8,
        }
    }
}

impl Wishes {
    /// These wishes, for weights alone or for `activations` too.
    pub(crate) fn config(&self, activations: Option<Activations>) -> Result<Config, Failure> {
        Ok(Config {
            activations: activations.map(QType::from),
            per_channel: self.per_channel,
            symmetric: self.symmetric,
            block_size: self.block_size,
            native_int4: self.native_int4,
            exclude: self.exclude.clone(),
            min_elements: self.min_elements,
            layer_bits: by_name(&self.layer_bits)?,
            ..Config::with_bits(self.bits)?
        })
    }
}

/// `NAME=BITS`, where the name may hold `=` itself.
fn layer_bits(text: &str) -> Result<(String, u8), String> {
    let (name, bits) = text.rsplit_once('=').ok_or("expected NAME=BITS")?;
    let bits = bits.parse().map_err(|_| format!("`{bits}` is no number of bits"))?;
    Ok((name.to_owned(), bits))
}

fn by_name(layers: &[(String, u8)]) -> Result<BTreeMap<String, u8>, Failure> {
    let mut all = BTreeMap::new();
    for (name, bits) in layers {
        if let Some(other) = all.insert(name.clone(), *bits)
            && other != *bits
        {
            let message = format!("--layer-bits gives `{name}` both {other} and {bits} bits");
            return Err(Failure::Misuse(message));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        wishes: Wishes,
    }

    fn config(flags: &[&str]) -> Result<Config, Failure> {
        let args = std::iter::once(&"quantize-rs").chain(flags);
        Only::try_parse_from(args).expect("flags that parse").wishes.config(None)
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
            "--native-int4=false",
            "--exclude=a",
            "--exclude=b*",
            "--min-elements=7",
            "--layer-bits=c=d=2",
            "--block-size=32",
        ];
        let expected = Config {
            weights: QType::Int4,
            activations: None,
            per_channel: true,
            symmetric: true,
            activation_symmetric: false,
            block_size: Some(32),
            native_int4: Some(false),
            exclude: vec!["a".to_owned(), "b*".to_owned()],
            min_elements: 7,
            layer_bits: BTreeMap::from([("c=d".to_owned(), 2)]),
            ..Config::default()
        };
        assert_eq!(config(&flags).expect("a configuration"), expected);
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
        for flags in [&["-b5"][..], &["--layer-bits", "w=4", "--layer-bits", "w=8"]] {
            assert!(matches!(config(flags), Err(Failure::Misuse(_))), "{flags:?}");
        }
    }
}
