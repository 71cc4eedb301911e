//! Why nothing is quantized.

use quantize_rs_onnx::DataType;

use super::{Decision, KeepReason, Plan, Planned, Role};
use crate::QuantizeError;
use crate::error::QuantizeErrorKind;
use crate::transform::STORE_INTEGERS;

/// The number of names that are shown for a reason, and of reasons.
const SHOWN: usize = 3;

impl Plan {
    /// What to say if nothing is quantized: the reasons, each with the values that it applies to.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, PreprocessedModel};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let config = Config { min_elements: 1_000_000, ..Config::default() };
    /// let plan = PreprocessedModel::of(&Model::open(path)?, config)?.plan();
    /// let why = plan.nothing_quantized().unwrap_or_default();
    /// assert!(why.contains("`conv1.weight`: has 144 elements, fewer than 1000000"), "{why}");
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    pub fn nothing_quantized(&self) -> Option<String> {
        let stored = self.steps.iter().any(|step| step.pass == STORE_INTEGERS);
        let cached = self.config.kv_cache.is_some();
        (self.quantized().next().is_none() && !stored && !cached)
            .then(|| format!("nothing was quantized: {}", self.reasons()))
    }

    /// An error with the reasons if nothing is quantized.
    pub(crate) fn refuse_nothing(&self) -> Result<(), QuantizeError> {
        let Some(what) = self.nothing_quantized() else { return Ok(()) };
        let feature = "a weight to quantize".to_owned();
        Err(QuantizeError::new(QuantizeErrorKind::Unsupported { feature, what }))
    }

    fn reasons(&self) -> String {
        let of = |role: Role| kept(self.values.iter().filter(move |value| value.role == role));
        let is_float = |(_, why): &(&str, &KeepReason)| !matches!(why, KeepReason::In16Bits);
        let weights = grouped(of(Role::Weight).filter(is_float));
        if !weights.is_empty() {
            return listed(&weights);
        }
        let constants = self.values.iter().filter(|value| value.role == Role::Constant);
        // Zero points are vectors or single numbers.
        let matrices = constants.filter(|value| value.shape.as_ref().is_none_or(|it| it.len() > 1));
        let integers = kept(matrices).filter(|(_, why)| is_integer(why));
        let integers: Vec<(&str, &KeepReason)> = integers.collect();
        if let [(name, why), ..] = integers[..] {
            let constants = match integers.len() {
                1 => "one constant".to_owned(),
                several => format!("{several} constants such as"),
            };
            return format!("the model holds integers already: {constants} `{name}`, which {why}");
        }
        let activations = grouped(of(Role::Activation).filter(|_| self.needs_activations()));
        let none = "no operator multiplies by a float constant";
        if activations.is_empty() {
            return none.to_owned();
        }
        format!("{none}; {}", listed(&activations))
    }

    fn needs_activations(&self) -> bool {
        self.config.activations.is_some()
    }
}

/// Values that keep their type, with the reason.
fn kept<'a>(
    values: impl Iterator<Item = &'a Planned>,
) -> impl Iterator<Item = (&'a str, &'a KeepReason)> {
    values.filter_map(|value| match &value.decision {
        Decision::KeepFloat(why) => Some((value.name.as_str(), why)),
        Decision::Quantize(_) => None,
    })
}

/// Whether a constant is stored as integers of up to 8 bits.
fn is_integer(why: &KeepReason) -> bool {
    match why {
        KeepReason::NotFloat32 { dtype: Some(dtype) } => {
            dtype.bits() <= 8 && !dtype.is_float() && *dtype != DataType::Bool
        }
        KeepReason::Already { .. } => true,
        _ => false,
    }
}

/// Each reason with the names of its values, in the order of the model.
fn grouped<'a>(
    kept: impl Iterator<Item = (&'a str, &'a KeepReason)>,
) -> Vec<(String, Vec<&'a str>)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, why) in kept {
        let why = why.to_string();
        match groups.iter_mut().find(|(other, _)| *other == why) {
            Some((_, names)) => names.push(name),
            None => groups.push((why, vec![name])),
        }
    }
    groups
}

/// `` `a`, `b`: excluded by `*`; `c`: has no elements ``
fn listed(groups: &[(String, Vec<&str>)]) -> String {
    let group = |(why, names): &(String, Vec<&str>)| {
        let mut shown: Vec<String> =
            names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
        if let more @ 1.. = names.len().saturating_sub(SHOWN) {
            shown.push(format!("{more} more"));
        }
        format!("{}: {why}", shown.join(", "))
    };
    let mut parts: Vec<String> = groups.iter().take(SHOWN).map(group).collect();
    let rest: usize = groups.iter().skip(SHOWN).map(|(_, names)| names.len()).sum();
    if rest > 0 {
        parts.push(format!("{rest} values for other reasons"));
    }
    parts.join("; ")
}
