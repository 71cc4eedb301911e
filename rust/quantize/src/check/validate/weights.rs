//! Compares integers with the weights of the original, as exactly as their scale allows.

// Steps of scales, whose digits matter little.
#![allow(clippy::cast_precision_loss)]

pub(super) mod pruned;
mod shifts;

use std::collections::{BTreeMap, HashMap, HashSet};

use quantize_rs_math::{Params, SumGroups, metrics};
use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use super::grid::Grid;
use super::reference::{Reference, scaled, smoothing, turned, turns};
use super::rounding::{Sum, Sums};
use super::stored::{Form, Stored};
use super::wiring::bias_input;
use super::{Check, StoredWeight, Validation, biases, rounding};
use crate::QuantizeError;
use crate::encode::dequantize::Decoded;
use crate::encode::mark;
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::options::HalfType;
use crate::transform::half_precision::is_clipped;

/// What the comparison of weights found that other checks need.
#[derive(Default)]
pub(super) struct WeightComparison {
    /// For each node that multiplies by a weight: the accumulated error of the elements of each
    /// output channel.
    pub(super) shifts: HashMap<usize, Vec<f64>>,
    /// Constants of normalizations that smoothing changed.
    pub(super) smoothing: HashSet<String>,
    /// The number of weights without an original.
    pub(super) without_original: usize,
}

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &[Stored],
    half: Option<HalfType>,
    found: &mut Validation,
) -> Result<WeightComparison, QuantizeError> {
    let mut compared = WeightComparison::default();
    let full = biases::full(after, found)?;
    let uses: HashMap<ValueId, Constant<'_>> =
        uses::constants(before).into_iter().map(|constant| (constant.anchor, constant)).collect();
    for stored in stored.iter().filter(|stored| !is_addend(after, stored)) {
        let integers = after.values[stored.integers].name;
        let original = stored.originals.iter().find_map(|name| {
            let id = before.value(name)?;
            Some((name, before.constant_behind(id)?))
        });
        let Some((name, proto)) = original else {
            let why = match stored.originals.last() {
                Some(name) => format!("the original has no constant `{name}`"),
                None => "its name does not say which weight it is".to_owned(),
            };
            found.skip_weight(integers, why);
            compared.without_original += 1;
            continue;
        };
        let tensor = before.model.tensor(proto)?;
        let Some(floats) = to_f32(&tensor) else {
            found.skip_weight(integers, format!("`{name}` of the original is {}", tensor.dtype));
            continue;
        };
        let Some(decoded) = stored.decode(after, half, found)? else { continue };
        if floats.len() != decoded.floats.len() {
            let what = format!("shape {:?}, the original has {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            continue;
        }
        let of = (name.as_str(), &tensor.shape[..]);
        let factors = smoothing(before, after, stored, of, half, &mut compared.smoothing);
        let constant = before.value(name).and_then(|id| uses.get(&id));
        let summed = constant.and_then(|constant| rounding::summed(before, constant, &decoded));
        let sampled = rounded_with_samples(after, stored, &decoded)?;
        if sampled == Some(false) {
            let what = "these are not the integers and scales that were rounded with samples, as \
                        the checksum in its comment shows";
            found.problem(Check::Weights, integers, what.to_owned());
        }
        let sampled = sampled == Some(true);
        let floats = match half.filter(|_| stored.form == Form::Cast) {
            Some(half) => clipped(floats, &decoded.floats, half),
            None => floats,
        };
        let (decoded, full) = (&decoded, &full);
        let smoothed = factors.is_some();
        let pair = Pair { after, name, stored, decoded, summed, sampled, smoothed, half, full };
        let scaled = scaled(floats, &tensor.shape, factors);
        let turns = turns(stored, constant);
        let turned = turned(&scaled, &tensor.shape, decoded, turns);
        let looks = turned.iter().map(|reference| pair.look(reference));
        let Some((reference, look)) =
            turned.iter().zip(looks).min_by_key(|(_, look)| look.off.len() + look.many)
        else {
            let what = format!("shape {:?}, expected that of {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            continue;
        };
        pair.vanished(&reference.floats, found);
        match pair.pruned(reference, &look) {
            Some(what) => found.problem(Check::Weights, integers, what),
            None => pair.report(&reference.floats, &look, found),
        }
        pair.shifts(&reference.floats, &mut compared.shifts);
        let error = metrics(&reference.floats, &decoded.floats);
        let dtype = match stored.form {
            Form::Codes(spec) => spec.codebook.name().to_owned(),
            Form::Blocks { .. } | Form::Experts { .. } => decoded.qtype.name().to_owned(),
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
    Ok(compared)
}

/// The elements of the original, with those of masks clipped as in the file.
fn clipped(was: Vec<f32>, is: &[f32], half: HalfType) -> Vec<f32> {
    let pairs = was.into_iter().zip(is);
    pairs.map(|(was, is)| if is_clipped(was, *is, half) { *is } else { was }).collect()
}

/// Whether it is what an Add or a Sub adds, which bias correction may have changed.
fn is_addend(after: &Graph<'_>, stored: &Stored) -> bool {
    let mut consumers = stored.consumers(after);
    let vector = after.constant(stored.integers).is_some_and(|tensor| tensor.dims.len() <= 1);
    let sums = |node: &NodeProto| matches!(&*node.op_type, "Add" | "Sub");
    vector
        && consumers.any(|consumer| {
            let node = after.nodes[consumer.node];
            sums(node) && bias_input(node, consumer.input)
        })
}

/// Whether a comment says that the weight was rounded with the help of samples, and if so, whether
/// its checksum is right.
fn rounded_with_samples(
    after: &Graph<'_>,
    stored: &Stored,
    decoded: &Decoded,
) -> Result<Option<bool>, QuantizeError> {
    let Some(proto) = after.constant(stored.integers).filter(|it| !it.doc_string.is_empty()) else {
        return Ok(None);
    };
    let scales: Vec<f32> = decoded.params.iter().map(|params| params.scale).collect();
    Ok(mark::verify(&proto.doc_string, &after.model.tensor(proto)?.data, &scales))
}

/// A weight and its stored form.
struct Pair<'a> {
    after: &'a Graph<'a>,
    name: &'a str,
    stored: &'a Stored,
    decoded: &'a Decoded,
    /// The elements of the original whose sums may have been preserved.
    summed: Option<SumGroups>,
    /// Whether it was rounded with the help of samples: an integer then makes good the errors of
    /// others, and is not the nearest.
    sampled: bool,
    /// Whether the original was multiplied by the factors of smoothing.
    smoothed: bool,
    /// The 16-bit type that the model computes in.
    half: Option<HalfType>,
    /// For each node that multiplies, the elements of its bias that are at the limit of int32.
    full: &'a HashMap<usize, Vec<bool>>,
}

/// The errors of the elements.
struct Look {
    /// For each group with elements that are too far off: their number, the first one, and the
    /// largest error in steps.
    off: Vec<Off>,
    /// The number of elements that are too far off.
    many: usize,
    /// The largest error in steps.
    steps: f64,
    /// Groups whose scale is larger than their elements need.
    coarse: Vec<usize>,
}

/// Sums over the elements of a group, in steps of its scale.
#[derive(Clone, Copy, Default)]
struct GroupSums {
    first: Option<usize>,
    count: f64,
    squares: f64,
    products: f64,
    errors: f64,
}

struct Off {
    group: usize,
    count: usize,
    first: usize,
    steps: f64,
}

impl Pair<'_> {
    fn scale_type(&self) -> Option<DataType> {
        self.stored.scale.and_then(|scale| self.after.constant(scale)).and_then(TensorProto::dtype)
    }

    /// The numbers that may be written.
    fn grid(&self) -> Grid {
        let Decoded { qtype, floats, layout, params, .. } = self.decoded;
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let written = floats.iter().enumerate().fold(ends, |(least, most), (at, float)| {
            let params = params[layout.group_of(at)];
            let code = f64::from(*float / params.scale).round() + f64::from(params.zero_point);
            (least.min(code), most.max(code))
        });
        let integers = self.after.constant(self.stored.integers);
        let used = integers.and_then(|proto| mark::used_bits(&proto.doc_string)).unwrap_or(0);
        let holds = |half: &HalfType| {
            params.iter().all(|Params { scale, .. }| half.rounded(*scale) == *scale)
        };
        // Whatever a model computes in, its scales may be float16.
        let rounded = self.half.into_iter().chain([HalfType::Float16]).find(holds);
        let codebook = match self.stored.form {
            Form::Codes(spec) => Some(spec.codebook),
            _ => None,
        };
        let grid = Grid::of(*qtype, used, written, self.scale_type());
        // The factors of smoothing are known as exactly as the type holds them.
        let factors = self.half.filter(|_| self.smoothed);
        let grid = grid.with_rounded_scales(rounded).with_rounded_factors(factors);
        grid.with_codebook(codebook)
    }

    fn look(&self, reference: &Reference) -> Look {
        let Decoded { floats, layout, params, .. } = self.decoded;
        let grid = self.grid();
        let mut ends = vec![(f64::INFINITY, f64::NEG_INFINITY); params.len()];
        // Runtimes flush subnormal numbers to 0, and the scale of zeros is arbitrary.
        let mut nothing = vec![true; params.len()];
        let mut largest = 0.0_f64;
        let mut wrong: Vec<(usize, f64)> = Vec::new();
        let mut moved: Vec<(usize, f64)> = Vec::new();
        let mut sums = self.summed.as_ref().map(Sums::new);
        // Each element in units of its scale: the exact and the written value.
        let elements = || {
            let known = reference.floats.iter().zip(floats).enumerate();
            let known = known.map(|(at, pair)| (at, params[layout.group_of(at)].scale, pair));
            let known = known.filter(|(_, scale, (w, _))| *scale != 0.0 && !w.is_nan());
            known.map(|(at, scale, (w, float))| {
                (at, f64::from(*w) / f64::from(scale), f64::from(*float) / f64::from(scale))
            })
        };
        let relative_errors: Vec<f64> =
            params.iter().map(|params| grid.relative_error(params.scale)).collect();
        let sum = |at: usize, exact: f64, there: f64| Sum {
            error: there - exact,
            scale_error: relative_errors[layout.group_of(at)] * exact,
        };
        for (at, exact, there) in elements() {
            let group = layout.group_of(at);
            let (steps, right) =
                grid.distance(exact, there, self.zero_point(group), relative_errors[group]);
            largest = largest.max(steps);
            ends[group] = (ends[group].0.min(exact), ends[group].1.max(exact));
            nothing[group] &= !reference.floats[at].is_normal();
            if let Some(sums) = &mut sums {
                sums.add(reference.source(at), sum(at, exact, there));
            }
            if right || self.sampled {
                continue;
            }
            match &sums {
                Some(_) if Sums::may_have_moved(sum(at, exact, there)) => moved.push((at, steps)),
                _ => wrong.push((at, steps)),
            }
        }
        // The groups in which a move would gain, and the element with the largest gain.
        let mut gains: BTreeMap<usize, (f64, usize, f64)> = BTreeMap::new();
        for (at, exact, there) in elements().filter(|_| !moved.is_empty()) {
            let free = grid.may_move(exact, there, self.zero_point(layout.group_of(at)));
            let element = sum(at, exact, there);
            let gain = |sums: &Sums<'_>| sums.gain(reference.source(at), element);
            if let Some((group, gain)) = sums.as_ref().filter(|_| free).and_then(gain) {
                let most = gains.entry(group).or_insert((gain, at, 0.0));
                if gain >= most.0 {
                    *most = (gain, at, (there - exact).abs());
                }
            }
        }
        // Sum-preserving rounding leaves nothing to gain. With other rounding, each element is the
        // nearest.
        let group_of = |at: usize| {
            self.summed.as_ref().map(|summed| summed.groups.group_of(reference.source(at)))
        };
        let groups = self.summed.as_ref().map_or(0, |summed| summed.groups.groups());
        let kept = gains.len() * 2 <= groups;
        for (at, steps) in moved {
            let group = group_of(at);
            if !kept || group.is_some_and(|group| gains.contains_key(&group)) {
                wrong.push((at, steps));
            }
        }
        let reported: HashSet<_> = wrong.iter().filter_map(|(at, _)| group_of(*at)).collect();
        let others = gains.into_iter().filter(|(group, _)| kept && !reported.contains(group));
        wrong.extend(others.map(|(_, (_, at, steps))| (at, steps)));
        wrong.sort_by_key(|(at, _)| *at);
        if self.sampled {
            wrong = self.beyond_any_rounding(&reference.floats);
        }
        let many = wrong.len();
        let mut off: HashMap<usize, Off> = HashMap::new();
        for (at, steps) in wrong {
            let group = layout.group_of(at);
            let off = off.entry(group).or_insert(Off { group, count: 0, first: at, steps });
            off.count += 1;
            off.steps = off.steps.max(steps);
        }
        let mut off: Vec<Off> = off.into_values().collect();
        off.sort_by_key(|off| off.group);
        let smallest = self.smallest_scale();
        let is_coarse = |group: &usize| {
            params[*group].scale.abs() > smallest
                && !nothing[*group]
                && !grid.is_used(ends[*group], self.zero_point(*group))
                && !self.is_raised(*group)
        };
        // The scale that suits few integers best may be larger than their elements.
        let scaled = self.stored.scale.is_some() && !self.sampled;
        let coarse = (0..params.len()).filter(|_| scaled).filter(is_coarse).collect();
        Look { off, many, steps: largest, coarse }
    }

    /// The first element of each group that was not rounded to this, however samples were weighed:
    /// its errors are twice as large as its elements, and as two steps, on average; or, of many
    /// elements, what they stand for is another multiple of what they were. Elements whose inputs
    /// were always 0 may be anything.
    fn beyond_any_rounding(&self, reference: &[f32]) -> Vec<(usize, f64)> {
        /// Elements from which on a factor is no chance, and how much it may differ from 1.
        const MANY: f64 = 16.0;
        const FACTOR: f64 = 0.5;
        let Decoded { floats, layout, params, qtype, .. } = self.decoded;
        let mut sums = vec![GroupSums::default(); params.len()];
        for (at, (w, float)) in reference.iter().zip(floats).enumerate() {
            let group = layout.group_of(at);
            let scale = f64::from(params[group].scale);
            if scale == 0.0 {
                continue;
            }
            let (exact, there) = (f64::from(*w) / scale, f64::from(*float) / scale);
            let sums = &mut sums[group];
            sums.first = sums.first.or(Some(at));
            sums.count += 1.0;
            sums.squares += exact * exact;
            sums.products += exact * there;
            sums.errors += (there - exact) * (there - exact);
        }
        let is_beyond = |sums: &&GroupSums| {
            let fine = qtype.bits() >= 8 && sums.count >= MANY && sums.squares > sums.count;
            let scaled = (sums.products / sums.squares - 1.0).abs() > FACTOR;
            sums.errors > 4.0 * sums.squares.max(sums.count) || fine && scaled
        };
        let beyond = sums.iter().filter(is_beyond);
        beyond.filter_map(|sums| Some((sums.first?, (sums.errors / sums.count).sqrt()))).collect()
    }

    fn zero_point(&self, group: usize) -> f64 {
        let Decoded { params, between, .. } = self.decoded;
        let between = between.as_ref().map_or(0.0, |between| f64::from(between[group]));
        f64::from(params[group].zero_point) + between
    }

    /// The smallest scale that its type can store and that no runtime flushes to 0.
    fn smallest_scale(&self) -> f32 {
        let whole = self.stored.whole.and_then(|whole| self.after.constant(whole));
        let whole = whole.and_then(|whole| self.after.model.tensor(whole).ok()?.to_f32());
        let whole = whole.and_then(|whole| whole.first().copied()).unwrap_or(1.0);
        let half = self.stored.scale_half(self.after, self.half);
        whole
            * match (half, self.scale_type()) {
                (Some(half), _) => half.smallest().max(f32::MIN_POSITIVE),
                (_, Some(DataType::Float8E4M3FN)) => 2.0_f32.powi(-9),
                _ => f32::MIN_POSITIVE,
            }
    }

    /// Reports a scale of 0 whose elements are not as small.
    fn vanished(&self, reference: &[f32], found: &mut Validation) {
        let Decoded { layout, params, .. } = self.decoded;
        let half = self.stored.scale_half(self.after, self.half);
        let (Some(half), Some(scale)) = (half, self.stored.scale) else { return };
        let mut ends = vec![(0.0_f64, 0.0_f64); params.len()];
        for (at, x) in reference.iter().enumerate() {
            let (least, most) = &mut ends[layout.group_of(at)];
            (*least, *most) = (least.min(f64::from(*x)), most.max(f64::from(*x)));
        }
        let grid = self.grid();
        let wrong =
            |group: &usize| params[*group].scale == 0.0 && !grid.may_vanish(ends[*group], half);
        if let Some(group) = (0..params.len()).find(wrong) {
            let what = format!("scale {group} is 0, expected a finite number that is not 0");
            found.problem(Check::Scale, self.after.values[scale].name, what);
        }
    }

    /// Whether a scale was raised for a bias that int32 would not hold with the product of a
    /// smaller scale and that of the input.
    fn is_raised(&self, group: usize) -> bool {
        let consumers = self.stored.consumers(self.after);
        consumers.filter_map(|consumer| self.full.get(&consumer.node)).any(|full| {
            let fits = full.len() == self.decoded.params.len();
            if fits { full[group] } else { full.contains(&true) }
        })
    }

    /// Reports the problem: a wrong integer if few elements of a scale are off, else a wrong scale.
    fn report(&self, reference: &[f32], look: &Look, found: &mut Validation) {
        const MAX_REPORTED: usize = 5;
        let name = |id: ValueId| self.after.values[id].name;
        let (integers, floats) = (name(self.stored.integers), &self.decoded.floats);
        let group_len = floats.len() / self.decoded.params.len().max(1);
        for off in look.off.iter().take(MAX_REPORTED) {
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
                    _ => format!(", and {} more of this scale", count - 1),
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
                "scale {group}, {}{zero} does not match {count} of the {group_len} integers in \
                 `{integers}`, by up to {steps:.1} steps: {at}",
                self.decoded.params[*group].scale
            );
            found.problem(Check::Weights, name(scale), what);
        }
        if look.off.len() > MAX_REPORTED {
            let what = format!("{} more scales have such integers", look.off.len() - MAX_REPORTED);
            found.problem(Check::Weights, integers, what);
        }
        if let (Some(group), Some(scale)) = (look.coarse.first(), self.stored.scale) {
            let more = match look.coarse.len() {
                1 => String::new(),
                count => format!(", and so are {} more", count - 1),
            };
            let what = format!(
                "scale {group}, {}, is larger than the elements of `{}` need, at least twice{more}",
                self.decoded.params[*group].scale, self.name
            );
            found.problem(Check::Scale, name(scale), what);
        }
        // Runtimes flush subnormal numbers to 0.
        let nothing = reference.iter().all(|x| !x.is_normal());
        let same = |floats: &[f32]| floats.iter().all(|x| *x == floats[0]);
        let (here, there) = (same(floats), same(reference));
        match floats.first() {
            Some(value) if here && !nothing && *value == 0.0 => {
                let what =
                    format!("all integers stand for 0, `{}` of the original is not 0", self.name);
                // A scale may have been raised so that a very large bias fits; then this is all
                // that remains.
                if look.off.is_empty() && look.coarse.is_empty() {
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
}
