//! Refuses options that are out of range, contradict each other or cannot be met.

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::{QType, WeightMethod};

use super::config::signed;
use super::format::ONNX_RUNTIME;
use super::table::{Given, unused_in_config};
use super::target::{Bias, Placement};
use super::{Config, Format, OptionRow, Override, Target, WeightType, Width};
use crate::QuantizeError;

impl Config {
    /// Refuses what the rows of the options do not allow: numbers outside of their range, and
    /// options that have no effect beside the others.
    fn check_rows(&self) -> Result<(), QuantizeError> {
        let mut values = serde_json::to_value(self)
            .map_err(|error| QuantizeError::option("config", error.to_string()))?;
        let own = |row: &OptionRow| Some((row.name, values.get_mut(row.name)?.take()));
        let given: Given = Self::ROWS.iter().filter_map(own).collect();
        Self::ROWS.iter().try_for_each(|row| {
            given.get(row.name).map_or(Ok(()), |value| row.check_range(value))
        })?;
        match unused_in_config(&given) {
            Some(unused) => Err(unused.into()),
            None => Ok(()),
        }
    }

    /// Refuses options that contradict each other or cannot be met.
    ///
    /// # Errors
    /// The option, what it was, and what it may be.
    pub fn check(&self) -> Result<(), QuantizeError> {
        self.check_rows()?;
        self.output_format.check(self)?;
        self.check_overrides()?;
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
        self.check_activation_options()?;
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
            Some(activations) => {
                self.check_zero_points(activations)?;
                self.check_types(activations)
            }
        }
    }

    /// Refuses options that the target or the output format does not allow.
    fn check_activation_options(&self) -> Result<(), QuantizeError> {
        let target = self.effective_target();
        if self.quantize_bias == Some(true) && target.profile().bias == Bias::Float {
            let what = format!("is true, but {target} adds biases in float");
            return Err(QuantizeError::option("quantize_bias", what));
        }
        if let (Some(target), Some(_)) = (self.target, self.kv_cache)
            && !ONNX_RUNTIME.contains(&target)
        {
            let what =
                format!("is for GroupQueryAttention of ONNX Runtime, and target is {target}");
            return Err(QuantizeError::option("kv_cache", what));
        }
        Ok(())
    }

    /// Refuses entries that answer nothing, and answers that could not be options of the whole.
    fn check_overrides(&self) -> Result<(), QuantizeError> {
        for (index, entry) in self.overrides.iter().enumerate() {
            let refused =
                |what: &str| Err(QuantizeError::option("overrides", format!("[{index}] {what}")));
            let Override { matches: _, exclude, weights, activations, .. } = entry;
            let Override { symmetric, per_channel, block_size, .. } = entry;
            if exclude.is_none()
                && weights.is_none()
                && activations.is_none()
                && symmetric.is_none()
                && per_channel.is_none()
                && block_size.is_none()
            {
                return refused(
                    "answers nothing: give exclude, weights, activations, symmetric, per_channel \
                     or block_size",
                );
            }
            if activations.is_some() && self.activations.is_none() {
                return refused("has a type of activations, but no activations are quantized");
            }
            let mut alone = Config {
                overrides: Vec::new(),
                layer_bits: BTreeMap::new(),
                layer_types: BTreeMap::new(),
                layer_float: BTreeSet::new(),
                block_size: block_size.or(self.block_size),
                activation_types: BTreeMap::new(),
                ..self.clone()
            };
            match weights {
                Some(Width::Bits(bits)) => alone.weights = signed("weights", *bits)?,
                Some(Width::Type(found)) => alone.weights = *found,
                Some(Width::Float) | None => {}
            }
            if let Some(qtype) = activations {
                alone.activation_types.insert("it".to_owned(), *qtype);
            }
            alone.check().or_else(|error| refused(&format!("cannot be met: {error}")))?;
        }
        Ok(())
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

    /// Refuses unsigned weights that use a part of their bits where zero points must be at the
    /// midpoint of the type: theirs is at the midpoint of what they use.
    fn check_zero_points(&self, activations: QType) -> Result<(), QuantizeError> {
        let profile = self.profile();
        self.wrong_type(|found| {
            let qtype = found.qtype();
            let is_off_middle = profile.symmetric.1
                && !qtype.signed()
                && found.bits() < qtype.bits()
                && profile.weights_beside(activations).any(|taken| taken == qtype);
            is_off_middle.then(|| {
                let (bits, name) = (found.bits(), profile.name);
                format!(
                    "whose zero point is {}, and target {name} expects {} for {qtype}: int{bits} \
                     is as small",
                    1 << (bits - 1),
                    1 << (qtype.bits() - 1)
                )
            })
        })
    }

    /// Refuses pruning whose zeros would not stay 0.
    fn check_zeros(&self) -> Result<(), QuantizeError> {
        let Some(below) = self.prune else { return Ok(()) };
        below.check("prune")?;
        let float_zero_points = self.weight_method == Some(WeightMethod::Hqq)
            && self.output_format == Format::MatMulNBits;
        if float_zero_points {
            let what = "is hqq, whose zero points in matmul_nbits are floats: weights that \
                        prune sets to 0 would not stay 0";
            return Err(QuantizeError::option("weight_method", what));
        }
        Ok(())
    }

    /// Refuses what contradicts a layout of blocks.
    fn check_layout(&self) -> Result<(), QuantizeError> {
        self.wrong_type(|found| {
            let alone = found.codebook().is_some() && self.output_format != Format::MatMulBnb4;
            alone.then(|| "which needs output_format=matmul_bnb4".to_owned())
        })?;
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
        // Weights of other widths are multiplied in float, which every runtime can do but those
        // that compute everything in integers.
        let allowed: Vec<QType> = profile.weights_beside(activations).collect();
        let beside = format!(" beside {activations} activations");
        let whole = profile.placement == Placement::AllOps;
        let check = |option: &str, qtype: QType| match qtype.bits() {
            bits if bits == 8 || whole => check(option, qtype, &allowed, &beside),
            _ => Ok(()),
        };
        for bits in self.layer_bits.values() {
            check("layer_bits", signed("layer_bits", *bits)?.qtype())?;
        }
        check("weights", self.weights.qtype())?;
        self.layer_types.values().try_for_each(|found| check("layer_types", found.qtype()))
    }
}

/// Which targets take activations of this type, where no target is given.
fn takers(activations: QType) -> String {
    let takes = |target: &&Target| target.profile().activations.contains(&activations);
    let names: Vec<&str> = Target::ALL.iter().filter(takes).map(|target| target.name()).collect();
    if names.is_empty() || takes(&&Target::X86) {
        return String::new();
    }
    format!("; {activations} is for target {}", names.join(" or "))
}
