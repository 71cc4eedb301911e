//! The factors of channels, and how much less noise they let expect.
//!
//! A channel is divided by its factor where it is written and multiplied by it where it is read. As
//! in Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (ICCV
//! 2019), section 4.1, the factor makes the largest magnitude of the weights that write the channel
//! equal to that of the weights that read it, or their energies; groups are visited in turn until
//! no factor changes.

use super::groups::Groups;
use super::magnitudes::Magnitudes;
use crate::graph::{Graph, ValueId};

/// The greatest number of times that all groups are visited.
const SWEEPS: usize = 30;

/// Factors are powers of two, so that a smaller change of an exponent changes few of them.
const SETTLED: f64 = 0.1;

/// Factors of at most a power of two are what rounding leaves, and are not worth a change.
const LEAST_EXPONENT: i32 = 2;

/// Larger factors stand for channels that are hardly used.
const LARGEST_EXPONENT: f64 = 30.0;

/// The assumed ratio of the largest magnitude of a channel to its standard deviation.
const PEAK_IN_SIGMAS: f64 = 4.0;

/// The steps of 8 bits on each side of 0.
const STEPS: f64 = 127.0;

/// What is made equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Measure {
    /// The largest magnitudes.
    Largest,
    /// The sums of squares, which a single large element affects less.
    Energy,
}

/// The exponents of the factors, by group and channel.
pub(super) type Exponents = Vec<Vec<i32>>;

/// What factors are computed from.
pub(super) struct Network<'a, 'm> {
    graph: &'a Graph<'m>,
    groups: &'a Groups<'m>,
    weights: Vec<Magnitudes>,
    /// The products that write or read each group, in order.
    of_group: Vec<Vec<usize>>,
}

impl<'a, 'm> Network<'a, 'm> {
    /// `None` if a weight cannot be read.
    pub(super) fn of(graph: &'a Graph<'m>, groups: &'a Groups<'m>) -> Option<Network<'a, 'm>> {
        let weights = groups.products.iter().map(|linked| Magnitudes::of(&linked.product));
        let weights = weights.collect::<Option<_>>()?;
        let mut of_group = vec![Vec::new(); groups.channels.len()];
        for (at, linked) in groups.products.iter().enumerate() {
            let other = linked.to.filter(|to| linked.from != Some(*to));
            for group in linked.from.into_iter().chain(other) {
                of_group[group].push(at);
            }
        }
        Some(Network { graph, groups, weights, of_group })
    }

    /// The exponents that equalize all groups; `None` if none is worth a change.
    pub(super) fn exponents(&self, measure: Measure) -> Option<Exponents> {
        let mut logs: Vec<Vec<f64>> =
            self.groups.channels.iter().map(|channels| vec![0.0; *channels]).collect();
        // Two to these: only those of the group that changes are computed again.
        let mut factors: Vec<Vec<f64>> =
            self.groups.channels.iter().map(|channels| vec![1.0; *channels]).collect();
        for sweep in 0..SWEEPS {
            let mut change = 0.0_f64;
            for group in 0..logs.len() {
                let new = self.equalized(group, &factors, measure);
                let pairs = new.iter().zip(&logs[group]);
                change = pairs.fold(change, |most, (new, old)| most.max((new - old).abs()));
                factors[group] = new.iter().map(|log| log.exp2()).collect();
                logs[group] = new;
            }
            // The first visit shows whether channels differ at all.
            if change < SETTLED || sweep == 0 && rounded(&logs).is_none() {
                break;
            }
        }
        rounded(&logs)
    }

    /// The exponents of a group that fit the factors of the others.
    fn equalized(&self, group: usize, factors: &[Vec<f64>], measure: Measure) -> Vec<f64> {
        let channels = self.groups.channels[group];
        let (mut written, mut read) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
        for at in &self.of_group[group] {
            let (linked, weight) = (&self.groups.products[*at], &self.weights[*at]);
            let writes = linked.to == Some(group);
            let reads = linked.from == Some(group);
            let run = self.run_length(linked);
            // Mostly each column reads a channel of its own, and divisions take long.
            let channel = |input: usize| if run == 1 { input } else { input / run };
            let (inputs, outputs) =
                (linked.from.map(|from| &factors[from]), linked.to.map(|to| &factors[to]));
            let by = |input: usize| inputs.map_or(1.0, |factors| factors[channel(input)]);
            let divided = |output: usize| outputs.map_or(1.0, |factors| factors[output]);
            if writes {
                weight.each_pair(|input, output, largest, energy| match measure {
                    Measure::Largest => written[output] = written[output].max(largest * by(input)),
                    Measure::Energy => written[output] += energy * by(input).powi(2),
                });
            }
            if reads {
                weight.each_pair(|input, output, largest, energy| {
                    let (read, divided) = (&mut read[channel(input)], divided(output));
                    match measure {
                        Measure::Largest => *read = read.max(largest / divided),
                        Measure::Energy => *read += energy / (divided * divided),
                    }
                });
            }
        }
        let root = if measure == Measure::Largest { 0.5 } else { 0.25 };
        let mut new: Vec<f64> = written
            .iter()
            .zip(&read)
            .map(|(written, read)| {
                let used = *written > 0.0 && *read > 0.0;
                if used { root * (written / read).log2() } else { f64::NAN }
            })
            .collect();
        // A factor for all channels alike changes no error.
        let mut live: Vec<f64> = new.iter().copied().filter(|log| log.is_finite()).collect();
        live.sort_unstable_by(f64::total_cmp);
        let middle = live.get(live.len() / 2).copied().unwrap_or(0.0);
        for log in &mut new {
            let moved = (*log - middle).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT);
            *log = if moved.is_finite() { moved } else { 0.0 };
        }
        new
    }

    /// How many columns of the weight read one channel.
    fn run_length(&self, linked: &super::groups::Linked<'m>) -> usize {
        let reads = linked.product.input_channels().map_or(1, |channels| channels.count);
        let channels = linked.from.map_or(reads, |from| self.groups.channels[from]);
        (reads / channels.max(1)).max(1)
    }

    /// The expected ratio of noise to signal, added up over all products, if weights and
    /// activations are quantized to 8 bits.
    ///
    /// The noise of a number has the variance step² / 12. How large channels are follows from the
    /// weights, starting with inputs whose channels are alike.
    pub(super) fn noise(&self, exponents: Option<&Exponents>, per_tensor: bool) -> f64 {
        let mut powers: Vec<Option<Vec<f64>>> = vec![None; self.graph.values.len()];
        let mut linked_at: Vec<Option<usize>> = vec![None; self.graph.nodes.len()];
        for (at, linked) in self.groups.products.iter().enumerate() {
            linked_at[linked.product.node] = Some(at);
        }
        let mut noise = 0.0;
        for (node, at) in linked_at.into_iter().enumerate() {
            let Some(output) = self.graph.output(node, 0) else { continue };
            let Some(at) = at else {
                powers[output] = self.passed_on(node, output, &powers);
                continue;
            };
            let linked = &self.groups.products[at];
            let (made, ratio) =
                self.through(at, powers[linked.input].as_deref(), exponents, per_tensor);
            if linked.from.is_some() || linked.to.is_some() {
                noise += ratio;
            }
            powers[output] = Some(made);
        }
        noise
    }

    /// The mean squares of the channels of an output that no product writes.
    fn passed_on(
        &self,
        node: usize,
        output: ValueId,
        powers: &[Option<Vec<f64>>],
    ) -> Option<Vec<f64>> {
        let layout = self.groups.layouts[output]?;
        let mut sum: Option<Vec<f64>> = None;
        let inputs = (0..self.graph.nodes[node].input.len())
            .filter_map(|input| powers[self.graph.input(node, input)?].as_ref());
        for input in inputs.filter(|input| input.len() == layout.channels) {
            match &mut sum {
                None => sum = Some(input.clone()),
                Some(sum) => sum.iter_mut().zip(input).for_each(|(sum, more)| *sum += more),
            }
        }
        sum
    }

    /// The mean squares of the channels that a product writes before any scaling, and the noise
    /// that it adds to them.
    fn through(
        &self,
        at: usize,
        input: Option<&[f64]>,
        exponents: Option<&Exponents>,
        per_tensor: bool,
    ) -> (Vec<f64>, f64) {
        let (linked, weight) = (&self.groups.products[at], &self.weights[at]);
        let power = |group: Option<usize>, channel: usize| match (group, exponents) {
            (Some(group), Some(all)) => f64::from(all[group][channel]).exp2(),
            _ => 1.0,
        };
        let count = linked.product.channels.count;
        let run = self.run_length(linked);
        let of_input = |channel: usize| {
            input.map_or(1.0, |powers| powers.get(channel).copied().unwrap_or(1.0))
        };
        let widest = linked.product.weight.shape[..2].iter().copied().max().unwrap_or(1);
        let inputs = linked.product.input_channels().map_or(widest, |channels| channels.count);
        let (read, by): (Vec<f64>, Vec<f64>) = (0..inputs)
            .map(|input| (of_input(input / run), power(linked.from, input / run)))
            .unzip();
        let scaled = read.iter().zip(&by).map(|(read, by)| read / (by * by));
        let peak = scaled.fold(0.0_f64, f64::max);
        let mut sums = weight.by_output(&read, &by, count);
        for (output, sums) in sums.iter_mut().enumerate() {
            let divided = power(linked.to, output);
            sums.energy /= divided * divided;
            sums.largest /= divided;
        }
        let step_of_input = PEAK_IN_SIGMAS * peak.sqrt() / STEPS;
        let largest = sums.iter().fold(0.0_f64, |most, sums| most.max(sums.largest));
        let mut noise = 0.0;
        for (output, sums) in sums.iter().enumerate() {
            let step = if per_tensor { largest } else { sums.largest } / STEPS;
            let divided = power(linked.to, output);
            let signal = sums.signal / (divided * divided);
            if signal > 0.0 {
                let sum = step * step * sums.read + step_of_input * step_of_input * sums.energy;
                // A channel can only be lost once.
                noise += (sum / 12.0 / signal).min(1.0);
            }
        }
        let biases = linked.product.biases().unwrap_or_else(|| vec![0.0; count]);
        let made = sums.iter().zip(&biases).map(|(sums, bias)| sums.signal + bias * bias).collect();
        #[allow(clippy::cast_precision_loss)] // a number of channels
        (made, noise / count as f64)
    }
}

/// The factors as powers of two; `None` if all are what rounding leaves.
#[allow(clippy::cast_possible_truncation)] // clamped before
fn rounded(logs: &[Vec<f64>]) -> Option<Exponents> {
    let exponents: Exponents =
        logs.iter().map(|logs| logs.iter().map(|log| log.round() as i32).collect()).collect();
    let is_large = exponents.iter().flatten().any(|by| by.abs() >= LEAST_EXPONENT);
    is_large.then_some(exponents)
}
