//! The choices of a width for each layer that no other choice is better than: smaller without more
//! noise.
//!
//! They solve a multiple-choice knapsack problem for all sizes at once, by dynamic programming with
//! lists (Kellerer, Pferschy, Pisinger: *Knapsack Problems*, Springer 2004, section 11.5): layers
//! are added one by one, and dominated choices are left out after each.

use super::rungs::Layer;

/// A bit width that a layer may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WidthOption {
    /// `None` for float.
    pub(super) bits: Option<u8>,
    pub(super) bytes: u64,
    /// The SQNR with it; `None` for no error.
    pub(super) sqnr_db: Option<f64>,
}

impl WidthOption {
    /// Noise relative to the signal; the noise of several layers adds up.
    pub(super) fn noise(&self) -> f64 {
        match self.sqnr_db {
            None => 0.0,
            Some(db) if db.is_nan() => f64::INFINITY,
            Some(db) => 10_f64.powf(-db / 10.0),
        }
    }
}

/// A width for each layer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    /// The bytes of all layers.
    pub(super) bytes: u64,
    /// The position of the width of each layer among its widths.
    pub(super) widths: Vec<usize>,
}

/// The greatest number of choices that are kept after each layer: as many as there are different
/// sizes with a resolution of a four-thousandth.
const KEPT: usize = 4096;

/// A choice for the first layers.
#[derive(Clone, Copy)]
struct Partial {
    bytes: u64,
    noise: f64,
    /// The choice for the layers before, and the width of the last one.
    before: usize,
    width: usize,
}

/// The choices, the largest and most accurate first.
pub(super) fn frontier(layers: &[Layer]) -> Vec<Choice> {
    let none = Partial { bytes: 0, noise: 0.0, before: 0, width: 0 };
    let mut found: Vec<Vec<Partial>> = vec![vec![none]];
    for (at, layer) in layers.iter().enumerate() {
        let before = &found[at];
        let mut all: Vec<Partial> = Vec::with_capacity(before.len() * layer.rungs.len());
        for (width, rung) in layer.rungs.iter().enumerate() {
            let noise = rung.noise();
            all.extend(before.iter().enumerate().map(|(at, partial)| Partial {
                bytes: partial.bytes + rung.bytes,
                noise: partial.noise + noise,
                before: at,
                width,
            }));
        }
        let mut kept = undominated(all);
        thin(&mut kept, KEPT);
        found.push(kept);
    }
    let last = found.last().map_or(0, Vec::len);
    (0..last).map(|at| choice(&found, at)).collect()
}

/// The choices that are smaller than all that have no more noise, the largest first.
fn undominated(mut all: Vec<Partial>) -> Vec<Partial> {
    all.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.noise.total_cmp(&b.noise)));
    let mut least: Option<f64> = None;
    all.retain(|partial| {
        let better = least.is_none_or(|least| partial.noise < least);
        if better {
            least = Some(partial.noise);
        }
        better
    });
    all.reverse();
    all
}

/// Leaves out all but about `most` choices: of sizes that hardly differ, the most accurate.
fn thin(choices: &mut Vec<Partial>, most: usize) {
    let (Some(largest), Some(smallest)) = (choices.first(), choices.last()) else { return };
    if choices.len() <= most {
        return;
    }
    let (smallest, largest) = (smallest.bytes, largest.bytes);
    let step = (largest - smallest).div_ceil(most as u64).max(1);
    let mut last = None;
    choices.retain(|choice| {
        let part = (choice.bytes - smallest).div_ceil(step);
        let is_new = last.replace(part) != Some(part);
        is_new || choice.bytes == smallest
    });
}

/// The widths that make up a choice for all layers.
fn choice(found: &[Vec<Partial>], mut at: usize) -> Choice {
    let bytes = found.last().map_or(0, |last| last[at].bytes);
    let mut widths = vec![0; found.len() - 1];
    for (layer, width) in widths.iter_mut().enumerate().rev() {
        let partial = found[layer + 1][at];
        (*width, at) = (partial.width, partial.before);
    }
    Choice { bytes, widths }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn layer(rungs: &[(Option<u8>, u64, Option<f64>)]) -> Layer {
        let rung = |(bits, bytes, sqnr_db): &(Option<u8>, u64, Option<f64>)| WidthOption {
            bits: *bits,
            bytes: *bytes,
            sqnr_db: *sqnr_db,
        };
        let rungs = rungs.iter().map(rung).collect();
        Layer { name: String::new(), others: BTreeSet::new(), rungs }
    }

    fn found(layers: &[Layer]) -> Vec<(u64, Vec<usize>)> {
        frontier(layers).into_iter().map(|choice| (choice.bytes, choice.widths)).collect()
    }

    #[test]
    fn choices_are_those_that_no_smaller_one_beats() {
        let large =
            layer(&[(None, 400, None), (Some(8), 100, Some(40.0)), (Some(4), 50, Some(20.0))]);
        // 8 bits are as accurate as 4: they are no choice.
        let small = layer(&[(None, 40, None), (Some(8), 10, Some(39.0)), (Some(4), 5, Some(39.0))]);
        let expected = [
            (440, vec![0, 0]),
            (405, vec![0, 1 + 1]),
            (140, vec![1, 0]),
            (105, vec![1, 2]),
            (90, vec![2, 0]),
            (55, vec![2, 2]),
        ];
        // (405: noise of 39 dB) is larger than (140: noise of 40 dB), which has less.
        let expected: Vec<_> = expected.into_iter().filter(|(bytes, _)| *bytes != 405).collect();
        assert_eq!(found(&[large, small]), expected);
    }

    #[test]
    fn the_least_noise_for_a_size_is_found_where_steps_by_price_miss_it() {
        // 60 bytes are to be saved. The cheapest step for a byte saves 50, and needs another one.
        let one = layer(&[(None, 100, None), (Some(4), 50, Some(30.0))]);
        let other = layer(&[(None, 100, None), (Some(4), 40, Some(29.0))]);
        let choices = found(&[one, other]);
        let fits = choices.iter().find(|(bytes, _)| *bytes <= 140);
        assert_eq!(fits, Some(&(140, vec![0, 1])));
    }

    #[test]
    fn a_width_that_saves_nothing_is_no_choice() {
        let grown = layer(&[(None, 4, None), (Some(8), 5, Some(40.0))]);
        assert_eq!(found(&[grown]), [(4, vec![0])]);
    }

    #[test]
    fn without_layers_there_is_one_choice() {
        assert_eq!(found(&[]), [(0, Vec::new())]);
    }

    #[test]
    fn the_number_of_choices_is_bounded_and_the_smallest_stays() {
        let layers: Vec<Layer> = (0..200_u32)
            .map(|at| {
                let bytes = 100_000 + u64::from(at * at * 7919 % 1_000_007);
                let db = |bits: f64| Some(6.0 * bits + f64::from(at * at * 31 % 97) / 10.0);
                let (eight, four) = (db(8.0), db(4.0));
                layer(&[
                    (None, bytes * 4, None),
                    (Some(8), bytes, eight),
                    (Some(4), bytes / 2, four),
                ])
            })
            .collect();
        let choices = frontier(&layers);
        assert!(choices.len() <= KEPT + 1 && choices.len() > KEPT / 4, "{}", choices.len());
        assert!(choices.is_sorted_by(|a, b| a.bytes > b.bytes));
        let (first, last) = (&choices[0], &choices[choices.len() - 1]);
        assert!(first.widths.iter().all(|width| *width == 0));
        assert!(last.widths.iter().all(|width| *width == 2));
        for Choice { bytes, widths } in &choices {
            let stored = layers.iter().zip(widths).map(|(layer, width)| layer.rungs[*width].bytes);
            assert_eq!(stored.sum::<u64>(), *bytes);
        }
    }
}
