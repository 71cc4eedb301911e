//! Whether integers are as near to the weights of the original as their scale allows.

// Steps of scales, whose digits matter little.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::collections::{HashMap, HashSet};

use quantize_rs_math::{QType, metrics};
use quantize_rs_onnx::{DataType, TensorProto};

use super::reference::{scaled, smoothing, turned};
use super::stored::{Decoded, Form, Stored};
use super::{Check, StoredWeight, Validation};
use crate::graph::{Graph, ValueId};
use crate::{QuantizeError, encode};

/// How much more than half a step an element may be off: what is rounded once more in float32.
const SLACK: f64 = 1e-3;

/// What looking at the weights brought to light for others.
#[derive(Default)]
pub(super) struct Seen {
    /// For each node that multiplies by a weight, how far the elements of each output channel are
    /// from the original, all together.
    pub(super) shifts: HashMap<usize, Vec<f64>>,
    /// Constants of normalizations that smoothing changed.
    pub(super) smoothing: HashSet<String>,
}

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &[Stored],
    found: &mut Validation,
) -> Result<Seen, QuantizeError> {
    let mut seen = Seen::default();
    for stored in stored.iter().filter(|stored| !is_addend(after, stored)) {
        let integers = after.values[stored.integers].name;
        let original = stored.originals.iter().find_map(|name| {
            let id = before.value(name)?;
            Some((name, before.constant_behind(id)?))
        });
        let Some((name, proto)) = original else {
            let why = match stored.originals.last() {
                Some(name) => format!("the original has no constant `{name}`"),
                None => "its name does not tell of which weight it is".to_owned(),
            };
            found.skip(integers, why);
            continue;
        };
        let tensor = before.model.tensor(proto)?;
        let Some(floats) = encode::to_f32(&tensor) else {
            found.skip(integers, format!("`{name}` of the original is {}", tensor.dtype));
            continue;
        };
        let Some(decoded) = stored.decode(after, found)? else { continue };
        if floats.len() != decoded.floats.len() {
            let what = format!("shape {:?}, the original has {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            continue;
        }
        let factors = smoothing(before, after, stored, &tensor.shape, &mut seen.smoothing);
        let pair = Pair { after, name, stored, decoded: &decoded };
        let smoothed = factors.is_some();
        let scaled = scaled(floats, &tensor.shape, factors);
        let turned = turned(&scaled, &tensor.shape, &decoded, stored.form);
        // A square matrix does not tell whether it was turned.
        let looks = turned.iter().map(|reference| pair.look(reference));
        let Some((reference, look)) =
            turned.iter().zip(looks).min_by_key(|(_, look)| look.off.len() + look.many)
        else {
            continue;
        };
        pair.tell(reference, &look, found);
        pair.shifts(reference, &mut seen.shifts);
        let error = metrics(reference, &decoded.floats);
        let dtype = match stored.form {
            Form::Blocks { .. } => decoded.qtype.name().to_owned(),
            _ => after
                .constant(stored.integers)
                .and_then(quantize_rs_onnx::TensorProto::dtype)
                .map_or_else(|| decoded.qtype.name().to_owned(), |dtype| dtype.name().to_owned()),
        };
        found.weights.push(StoredWeight {
            name: name.clone(),
            integers: integers.to_owned(),
            dtype,
            shape: tensor.shape,
            scales: if stored.scale.is_some() { decoded.params.len() } else { 0 },
            smoothed,
            error,
            max_steps: look.steps,
        });
    }
    Ok(seen)
}

/// Whether it is what a sum adds, which calibration may have corrected.
fn is_addend(after: &Graph<'_>, stored: &Stored) -> bool {
    let mut readers = after.values[stored.read].readers.iter();
    let vector = after.constant(stored.integers).is_some_and(|tensor| tensor.dims.len() <= 1);
    vector && readers.any(|reader| after.nodes[reader.node].op_type == "Add")
}

/// A weight and what it is stored as.
struct Pair<'a> {
    after: &'a Graph<'a>,
    name: &'a str,
    stored: &'a Stored,
    decoded: &'a Decoded,
}

/// The numbers that a type can say.
struct Grid {
    qtype: QType,
    /// Whether scales are powers of two, of which the one that cuts off more may leave the least error.
    powers: bool,
}

impl Grid {
    /// How many steps lie between what an element should be and what is written, both in units of
    /// the scale, and whether nothing nearer could have been written.
    fn distance(&self, exact: f64, there: f64, zero_point: f64) -> (f64, bool) {
        let Grid { qtype, powers } = *self;
        if let Some(format) = qtype.format() {
            let nearest = f64::from(format.decode(format.encode(exact as f32)));
            let largest = f64::from(qtype.largest_step());
            let distance = (exact - there).abs();
            // Below the power of two after the largest float, the specification rounds a scale down.
            let max = f64::from(format.max());
            let end = if powers { max.log2().floor().exp2() * 2.0 } else { max + largest / 2.0 };
            let bound = (exact - nearest).abs() * (1.0 + SLACK) + exact.abs() * 1e-6;
            return (distance / largest, distance <= bound && exact.abs() <= end);
        }
        let (exact, code) = (exact + zero_point, (there + zero_point).round());
        let (lo, hi) = (f64::from(qtype.min()), f64::from(qtype.max()));
        let beyond = exact > hi && code >= hi || exact < lo && code <= lo;
        let allowed = if beyond { cut(qtype) } else { 0.5 };
        let slack = SLACK + exact.abs() * 4.0 * f64::from(f32::EPSILON);
        ((exact - code).abs(), (exact - code).abs() <= allowed + slack)
    }
}

/// Steps that an element beyond the end of the grid may be off.
///
/// Scales with the least error cut 1.2 steps off an end, of the wider grid that would reach it; in few bits
/// a symmetric grid misses one end by a step more. Half a step each is for the rounding of the element and of
/// the zero point. What lies inside is half a step off at most all the same, so that a wrong scale shows.
fn cut(qtype: QType) -> f64 {
    match qtype.bits() {
        ..=2 => 3.5,
        3..=4 => 3.0,
        5..=8 => 2.25,
        _ => 0.5,
    }
}

/// How far the elements are from the original.
struct Look {
    /// For each group with elements that are too far off: how many, the first, and by how many steps
    /// the one that is furthest.
    off: Vec<Off>,
    /// How many elements are too far off.
    many: usize,
    /// The largest distance, in steps.
    steps: f64,
}

struct Off {
    group: usize,
    count: usize,
    first: usize,
    steps: f64,
}

impl Pair<'_> {
    /// The numbers that may be written: four bits may be kept a byte each.
    fn grid(&self) -> Grid {
        let Decoded { qtype, floats, layout, params, .. } = self.decoded;
        let narrow = QType::Int4;
        let fits = |(at, float): (usize, &f32)| {
            let params = params[layout.group_of(at)];
            let code = f64::from(*float / params.scale).round() + f64::from(params.zero_point);
            code >= f64::from(narrow.min()) && code <= f64::from(narrow.max())
        };
        let widened = *qtype == QType::Int8 && floats.iter().enumerate().all(fits);
        let scale = self.stored.scale.and_then(|scale| self.after.constant(scale));
        let powers = scale.and_then(TensorProto::dtype) == Some(DataType::Float8E8M0);
        Grid { qtype: if widened { narrow } else { *qtype }, powers }
    }

    fn look(&self, reference: &[f32]) -> Look {
        let Decoded { floats, layout, params, between, .. } = self.decoded;
        let grid = self.grid();
        let mut off: HashMap<usize, Off> = HashMap::new();
        let (mut many, mut largest) = (0, 0.0_f64);
        for (at, (w, float)) in reference.iter().zip(floats).enumerate() {
            if w.is_nan() {
                continue;
            }
            let group = layout.group_of(at);
            let scale = f64::from(params[group].scale);
            let between = between.as_ref().map_or(0.0, |between| f64::from(between[group]));
            let point = f64::from(params[group].zero_point) + between;
            let (exact, there) = (f64::from(*w) / scale, f64::from(*float) / scale);
            let (steps, right) = grid.distance(exact, there, point);
            largest = largest.max(steps);
            if !right {
                many += 1;
                let off = off.entry(group).or_insert(Off { group, count: 0, first: at, steps });
                off.count += 1;
                off.steps = off.steps.max(steps);
            }
        }
        let mut off: Vec<Off> = off.into_values().collect();
        off.sort_by_key(|off| off.group);
        Look { off, many, steps: largest }
    }

    /// Names what is wrong: an integer where few elements of a scale are off, else the scale.
    fn tell(&self, reference: &[f32], look: &Look, found: &mut Validation) {
        const TOLD: usize = 5;
        let name = |id: ValueId| self.after.values[id].name;
        let (integers, floats) = (name(self.stored.integers), &self.decoded.floats);
        let group_len = floats.len() / self.decoded.params.len().max(1);
        for off in look.off.iter().take(TOLD) {
            let Off { group, count, first, steps } = off;
            let one = *count == 1 || *count * 8 < group_len;
            let scale = self.stored.scale.filter(|_| !one || group_len == 1);
            let at = format!(
                "element {first} stands for {}, `{}` of the original holds {}",
                floats[*first], self.name, reference[*first]
            );
            let Some(scale) = scale else {
                let more = match count {
                    1 => String::new(),
                    _ => format!(", and {} more beside it", count - 1),
                };
                let what = format!(
                    "{at}: {steps:.1} steps of its scale apart, expected half a step at most{more}"
                );
                found.problem(Check::Weights, integers, what);
                continue;
            };
            let zero = self.stored.zero_point.map(name);
            let zero =
                zero.map_or(String::new(), |zero| format!(", or its zero point in `{zero}`,"));
            let what = format!(
                "scale {group}, {}{zero} does not fit {count} of the {group_len} integers in \
                 `{integers}`, by up to {steps:.1} steps: {at}",
                self.decoded.params[*group].scale
            );
            found.problem(Check::Weights, name(scale), what);
        }
        if look.off.len() > TOLD {
            let what = format!("{} scales more have such integers", look.off.len() - TOLD);
            found.problem(Check::Weights, integers, what);
        }
        // Runtimes take denormal numbers for 0.
        let nothing = reference.iter().all(|x| !x.is_normal());
        let same = |floats: &[f32]| floats.iter().all(|x| *x == floats[0]);
        let (here, there) = (same(floats), same(reference));
        match floats.first() {
            Some(value) if here && !nothing && *value == 0.0 => {
                let what =
                    format!("all integers stand for 0, `{}` of the original is not 0", self.name);
                // A scale may have been raised so that a huge bias fits; of what it keeps, that is all.
                if look.off.is_empty() {
                    found.notes.push(format!("`{integers}`: {what}, but less than half a step"));
                } else {
                    found.problem(Check::Weights, integers, what);
                }
            }
            Some(value) if here && floats.len() > 1 => {
                let also =
                    if there { ", as in the original" } else { ", in the original they differ" };
                let note =
                    format!("`{}`: all {} elements are {value}{also}", self.name, floats.len());
                found.notes.push(note);
            }
            _ => {}
        }
    }

    /// How far each output channel is from the original, for the nodes that multiply by it.
    fn shifts(&self, reference: &[f32], shifts: &mut HashMap<usize, Vec<f64>>) {
        let shape = &self.decoded.shape;
        for reader in &self.after.values[self.stored.read].readers {
            let node = self.after.nodes[reader.node];
            let axis = match node.op_type.as_str() {
                "Conv" => 0,
                "Gemm" if node.int("transB", 0) != 0 => 0,
                "Gemm" | "MatMul" => shape.len().saturating_sub(1),
                _ => continue,
            };
            let Some(&channels) = shape.get(axis).filter(|_| reader.input == 1) else { continue };
            let inner: usize = shape[axis + 1..].iter().product();
            let mut sums = vec![0.0; channels];
            for (at, (w, float)) in reference.iter().zip(&self.decoded.floats).enumerate() {
                sums[at / inner.max(1) % channels.max(1)] +=
                    (f64::from(*w) - f64::from(*float)).abs();
            }
            shifts.insert(reader.node, sums);
        }
    }
}
