//! Suggestions for what to try next. Each is a function of the report that returns a suggestion or
//! nothing.

use quantize_rs_math::Granularity;

use super::{QuantizedRow, Report, ReportRow};
use crate::Role;
use crate::ranges::ENOUGH_SAMPLES;
use crate::util::text::size;

/// Returns a suggestion if the report gives a reason for it.
pub(super) type Suggest = fn(&Report) -> Option<String>;

/// All suggestions, those with the largest gain first.
pub(super) const ALL: &[Suggest] =
    &[per_channel, blocks, worst, training, clipping, samples, stayed_float];

/// Below this SQNR, a weight gains from scales of its own for each channel.
const MODEST_DB: f64 = 30.0;

/// Below this SQNR, a weight is likely to affect the output.
const POOR_DB: f64 = 15.0;

/// A weight this far below the median stands out.
const BEHIND_DB: f64 = 10.0;

/// A larger fraction of clipped values gets a suggestion.
const MUCH_OUTSIDE: f64 = 0.01;

/// The weights whose error is known, with their SQNR in decibels.
fn weights(report: &Report) -> impl Iterator<Item = (&ReportRow, &QuantizedRow, f64)> {
    let weights = report.quantized().filter(|(row, _)| row.role == Role::Weight);
    weights.filter_map(|(row, how)| Some((row, how, how.error?.sqnr_db)))
}

fn worst_weight(report: &Report) -> Option<(&ReportRow, &QuantizedRow, f64)> {
    weights(report).min_by(|one, other| one.2.total_cmp(&other.2))
}

fn per_channel(report: &Report) -> Option<String> {
    if report.config.scales_per_channel() || report.config.block_size.is_some() {
        return None;
    }
    let one_scale = |row: &ReportRow, how: &QuantizedRow| {
        let matrix = row.shape.as_ref().is_some_and(|shape| shape.len() > 1);
        matrix && how.granularity == Granularity::PerTensor
    };
    let count = weights(report).filter(|(row, how, db)| one_scale(row, how) && *db < MODEST_DB);
    let weights = counted(count.count(), "weight has", "weights have")?;
    let what = "per_channel=True gives each output channel its own scale";
    Some(format!("{weights} one scale and an SQNR below {MODEST_DB} dB: {what}"))
}

fn blocks(report: &Report) -> Option<String> {
    let config = &report.config;
    let known = config.output_format.row().blocks.is_some();
    if config.block_size.is_some() || config.activations.is_some() || !known {
        return None;
    }
    let whole = |how: &QuantizedRow| !matches!(how.granularity, Granularity::Blocked { .. });
    let poor =
        weights(report).filter(|(_, how, db)| how.bits() <= 4 && *db < POOR_DB && whole(how));
    let weights = counted(poor.count(), "weight", "weights")?;
    Some(format!(
        "{weights} of at most 4 bits with an SQNR below {POOR_DB} dB: block_size=32 of `quantize` \
         gives every 32 elements a scale"
    ))
}

fn worst(report: &Report) -> Option<String> {
    // What the outputs lose is measured: the error of a weight alone says less.
    if report.measured().is_some_and(|measured| measured.real) {
        return None;
    }
    let (row, how, db) = worst_weight(report)?;
    // Those in 16-bit floats say nothing about what is usual.
    let scaled = weights(report).filter(|(_, how, _)| how.qtype.is_scaled());
    let mut all: Vec<f64> = scaled.map(|(_, _, db)| db).collect();
    all.sort_by(f64::total_cmp);
    let median = all.get(all.len() / 2).copied()?;
    if db >= POOR_DB && (all.len() < 3 || db + BEHIND_DB > median) {
        return None;
    }
    let name = &row.name;
    let more = match how.bits() {
        ..8 => format!(", layer_bits={{\"{name}\": 8}} gives it more bits"),
        _ => String::new(),
    };
    Some(format!(
        "`{name}` has the lowest SQNR of all weights ({db:.1} dB, the median is {median:.1} dB): \
         exclude=[\"{name}\"] keeps it float{more}"
    ))
}

fn training(report: &Report) -> Option<String> {
    let (_, how, db) = worst_weight(report)?;
    let bits = how.bits();
    (bits <= 4 && db < POOR_DB).then(|| {
        format!("{bits}-bit weights gain from quantization-aware training: use insert_fake_quant")
    })
}

fn clipping(report: &Report) -> Option<String> {
    // `auto` has compared the methods.
    let cut = |how: &QuantizedRow| {
        how.method.is_none()
            && how.histogram.as_ref().is_some_and(|seen| seen.outside > MUCH_OUTSIDE)
    };
    let count = report.quantized().filter(|(_, how)| cut(how)).count();
    let values = counted(count, "activation has", "activations have")?;
    Some(format!(
        "{values} more than 1 % of the values outside the range: method=\"minmax\" clips \
         nothing, and compare_methods compares the methods"
    ))
}

fn samples(report: &Report) -> Option<String> {
    // Weight-only quantization uses channel means only, for which a few dozen samples suffice.
    let ranges = report.quantized().any(|(row, _)| row.role != Role::Weight);
    let few = ranges && (1..ENOUGH_SAMPLES).contains(&report.samples);
    // Of very few there is a warning.
    let said = report.warnings.iter().any(|warning| warning.starts_with("only "));
    (few && !said).then(|| {
        format!(
            "only {} samples: give at least {ENOUGH_SAMPLES}, as varied as production inputs",
            report.samples
        )
    })
}

fn stayed_float(report: &Report) -> Option<String> {
    let kept = report.values.iter().filter(|row| row.stayed_float() && row.role == Role::Weight);
    let bytes: u64 = kept.filter_map(|row| row.bytes_before).sum();
    (bytes > report.bytes_after / 4).then(|| {
        let (bytes, all) = (size(bytes), size(report.bytes_after));
        format!("float weights take {bytes} of {all}: the report gives the reason for each")
    })
}

/// `1 weight`, `3 weights`; `None` for 0.
fn counted(count: usize, one: &str, many: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
}
