//! What could be tried next: each suggestion is a function that looks at the report, and is silent
//! where it has nothing to say.

use quantize_rs_math::Granularity;

use super::{QuantizedRow, Report, Row};
use crate::Role;
use crate::util::text::size;

/// Says what to try, if that follows from a report.
pub(super) type Suggest = fn(&Report) -> Option<String>;

/// Every suggestion, those that gain the most first.
pub(super) const ALL: &[Suggest] =
    &[per_channel, blocks, worst, training, clipping, samples, stayed_float];

/// A weight that keeps less has something to gain from scales of its own.
const MODEST_DB: f64 = 30.0;

/// A weight that keeps less is likely to be heard in the output.
const POOR_DB: f64 = 15.0;

/// A weight this far below the others stands out.
const BEHIND_DB: f64 = 10.0;

/// Samples from which on more of them seldom change a range.
const ENOUGH_SAMPLES: usize = 100;

/// A larger part of the values outside the range is worth a look.
const MUCH_OUTSIDE: f64 = 0.01;

/// Weights whose error is known, and what they keep in decibels.
fn weights(report: &Report) -> impl Iterator<Item = (&Row, &QuantizedRow, f64)> {
    let weights = report.quantized().filter(|(row, _)| row.role == Role::Weight);
    weights.filter_map(|(row, how)| Some((row, how, how.error?.sqnr_db)))
}

fn worst_weight(report: &Report) -> Option<(&Row, &QuantizedRow, f64)> {
    weights(report).min_by(|one, other| one.2.total_cmp(&other.2))
}

fn per_channel(report: &Report) -> Option<String> {
    if report.config.per_channel || report.config.block_size.is_some() {
        return None;
    }
    let one_scale = |row: &Row, how: &QuantizedRow| {
        let matrix = row.shape.as_ref().is_some_and(|shape| shape.len() > 1);
        matrix && how.granularity == Granularity::PerTensor
    };
    let count = weights(report).filter(|(row, how, db)| one_scale(row, how) && *db < MODEST_DB);
    let weights = counted(count.count(), "weight has", "weights have")?;
    let what = "per_channel=True gives every output channel its own";
    Some(format!("{weights} one scale for all and less than {MODEST_DB} dB: {what}"))
}

fn blocks(report: &Report) -> Option<String> {
    let config = &report.config;
    let known = config.output_format.row().blocks.is_some();
    if config.block_size.is_some() || config.activations.is_some() || !known {
        return None;
    }
    let poor = weights(report).filter(|(_, how, db)| how.qtype.bits() <= 4 && *db < POOR_DB);
    let weights = counted(poor.count(), "weight", "weights")?;
    Some(format!(
        "{weights} of 4 bits or fewer with less than {POOR_DB} dB: block_size=32 gives every 32 \
         elements a scale"
    ))
}

fn worst(report: &Report) -> Option<String> {
    let (row, how, db) = worst_weight(report)?;
    let mut all: Vec<f64> = weights(report).map(|(_, _, db)| db).collect();
    all.sort_by(f64::total_cmp);
    let median = all[all.len() / 2];
    if db >= POOR_DB && (all.len() < 3 || db + BEHIND_DB > median) {
        return None;
    }
    let name = &row.name;
    let more = match how.qtype.bits() {
        ..8 => format!(", layer_bits={{\"{name}\": 8}} gives it more bits"),
        _ => String::new(),
    };
    Some(format!(
        "`{name}` is the weight that lost most ({db:.1} dB, half of them keep {median:.1}): \
         exclude=[\"{name}\"] leaves it float{more}"
    ))
}

fn training(report: &Report) -> Option<String> {
    let (_, how, db) = worst_weight(report)?;
    let bits = how.qtype.bits();
    (bits <= 4 && db < POOR_DB).then(|| {
        format!("weights of {bits} bits can be trained to them: insert_fake_quant makes the model")
    })
}

fn clipping(report: &Report) -> Option<String> {
    let cut =
        |how: &QuantizedRow| how.histogram.as_ref().is_some_and(|seen| seen.outside > MUCH_OUTSIDE);
    let count = report.quantized().filter(|(_, how)| cut(how)).count();
    let values = counted(count, "activation has", "activations have")?;
    Some(format!(
        "{values} more than 1 % of what was seen outside the range: method=\"minmax\" leaves \
         nothing out, compare_methods judges"
    ))
}

fn samples(report: &Report) -> Option<String> {
    // Of weights alone only means were looked at, which a few dozen tell.
    let ranges = report.quantized().any(|(row, _)| row.role != Role::Weight);
    let few = ranges && (1..ENOUGH_SAMPLES).contains(&report.samples);
    let plural = if report.samples == 1 { "" } else { "s" };
    few.then(|| {
        format!(
            "ranges rest on {} sample{plural}: {ENOUGH_SAMPLES} or more that differ as those in use \
             do are safer",
            report.samples
        )
    })
}

fn stayed_float(report: &Report) -> Option<String> {
    let kept = report.values.iter().filter(|row| row.stayed_float() && row.role == Role::Weight);
    let bytes: u64 = kept.filter_map(|row| row.bytes_before).sum();
    (bytes > report.bytes_after / 4).then(|| {
        let (bytes, all) = (size(bytes), size(report.bytes_after));
        format!("weights that stayed float take {bytes} of {all}: each has its reason")
    })
}

/// `1 weight`, `3 weights`; nothing for none.
fn counted(count: usize, one: &str, many: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
}
