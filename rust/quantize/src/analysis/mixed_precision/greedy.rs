//! The order in which layers get fewer bits: always the step with the least noise for the bytes
//! that it saves. And the order in which they get more again, where bytes are left.

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

/// A step: a layer gets one of its widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) layer: usize,
    pub(super) rung: usize,
}

impl WidthOption {
    /// Noise relative to the signal; the noise of several layers adds up.
    fn noise(&self) -> f64 {
        match self.sqnr_db {
            None => 0.0,
            Some(db) if db.is_nan() => f64::INFINITY,
            Some(db) => 10_f64.powf(-db / 10.0),
        }
    }
}

/// All steps from float to the fewest bits.
pub(super) fn greedy_steps(layers: &[Layer]) -> Vec<Step> {
    let mut at = vec![0; layers.len()];
    let mut steps = Vec::new();
    loop {
        let mut best: Option<(f64, Step)> = None;
        for (index, layer) in layers.iter().enumerate() {
            let now = &layer.rungs[at[index]];
            for (rung, next) in layer.rungs.iter().enumerate().skip(at[index] + 1) {
                let Some(saved) = now.bytes.checked_sub(next.bytes).filter(|saved| *saved > 0)
                else {
                    continue;
                };
                let cost = price(next.noise() - now.noise(), saved);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, Step { layer: index, rung }));
                }
            }
        }
        let Some((_, step)) = best else { return steps };
        at[step.layer] = step.rung;
        steps.push(step);
    }
}

/// The steps to more bits that fit into `room` bytes, after others: always the one that takes away
/// the most noise for the bytes that it adds.
pub(super) fn raising_steps(layers: &[Layer], steps: &[Step], mut room: u64) -> Vec<Step> {
    let mut at = places(layers, steps);
    let mut raised = Vec::new();
    loop {
        let mut best: Option<(f64, u64, Step)> = None;
        for (index, layer) in layers.iter().enumerate() {
            let now = &layer.rungs[at[index]];
            for (rung, next) in layer.rungs.iter().enumerate() {
                let (added, less) =
                    (next.bytes.saturating_sub(now.bytes), now.noise() - next.noise());
                if added > room || less.is_nan() || less <= 0.0 {
                    continue;
                }
                let gain = price(less, added.max(1));
                if best.as_ref().is_none_or(|(most, ..)| gain > *most) {
                    best = Some((gain, added, Step { layer: index, rung }));
                }
            }
        }
        let Some((_, added, step)) = best else { return raised };
        at[step.layer] = step.rung;
        room -= added;
        raised.push(step);
    }
}

/// The width of each layer after some steps, by its position.
pub(super) fn places(layers: &[Layer], steps: &[Step]) -> Vec<usize> {
    let mut at = vec![0; layers.len()];
    for step in steps {
        at[step.layer] = step.rung;
    }
    at
}

/// Noise for each byte that is saved; NaN counts as infinite.
#[allow(clippy::cast_precision_loss)] // a ranking
fn price(noise: f64, saved: u64) -> f64 {
    let price = noise / saved as f64;
    if price.is_nan() { f64::INFINITY } else { price }
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

    #[test]
    fn large_layers_with_little_noise_come_first_and_all_end_at_the_fewest_bits() {
        let large =
            layer(&[(None, 400, None), (Some(8), 100, Some(40.0)), (Some(4), 50, Some(20.0))]);
        let small = layer(&[(None, 40, None), (Some(8), 10, Some(39.0)), (Some(4), 5, Some(39.0))]);
        let steps = greedy_steps(&[large, small]);
        assert_eq!(steps[0], Step { layer: 0, rung: 1 });
        // 8 bits are as accurate as 4: they are skipped.
        assert_eq!(steps[1], Step { layer: 1, rung: 2 });
        assert_eq!(steps[2], Step { layer: 0, rung: 2 });
        assert_eq!(steps.len(), 3);
    }

    #[test]
    fn bytes_that_are_left_go_to_the_layer_that_gains_most_for_them() {
        let large =
            layer(&[(None, 400, None), (Some(8), 100, Some(40.0)), (Some(4), 50, Some(20.0))]);
        let small =
            layer(&[(None, 80, None), (Some(8), 20, Some(40.0)), (Some(4), 10, Some(15.0))]);
        let layers = [large, small];
        let fewest = [Step { layer: 0, rung: 2 }, Step { layer: 1, rung: 2 }];
        let raised = |room| raising_steps(&layers, &fewest, room);
        let (first, second) = (Step { layer: 1, rung: 1 }, Step { layer: 0, rung: 1 });
        assert_eq!(raised(9), []);
        assert_eq!(raised(59), [first]);
        assert_eq!(raised(60), [first, second]);
        // The small layer stays float only after both have 8 bits.
        assert_eq!(raised(120), [first, second, Step { layer: 1, rung: 0 }]);
    }

    #[test]
    fn a_width_that_saves_nothing_is_not_a_step() {
        let grown = layer(&[(None, 4, None), (Some(8), 5, Some(40.0))]);
        assert!(greedy_steps(&[grown]).is_empty());
    }
}
