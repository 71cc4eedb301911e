//! The magnitudes of the elements of a weight, by channel of its input and its output.

use bytes::Bytes;
use quantize_rs_onnx::DataType;

use crate::transform::floats::floats;
use crate::transform::fold_batch_norm::product::Product;

/// The number of sums of a row that are kept apart, so that they are computed at once.
const LANES: usize = 8;

/// The largest magnitude and the energy for each pair of channels that a weight connects.
pub(super) struct Magnitudes {
    source: Source,
    /// The number of pairs that lie in a row of the weight.
    row: usize,
    /// The channels of each pair.
    place: Box<dyn Fn(usize) -> (usize, usize)>,
    /// The number of elements that a pair has.
    pub(super) each: f64,
}

enum Source {
    /// The elements themselves: each pair has one.
    Elements(Bytes),
    Pairs(Vec<[f32; 2]>),
}

impl Magnitudes {
    /// `None` if the elements are not floating-point numbers.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // magnitudes
    pub(super) fn of(product: &Product<'_>) -> Option<Magnitudes> {
        let weight = &product.weight;
        let each = weight.shape[2..].iter().product::<usize>().max(1);
        let place = product.places();
        let source = if each == 1 && weight.dtype == DataType::Float {
            Source::Elements(weight.data.clone())
        } else {
            let pair = |values: &[f64]| {
                let largest = values.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
                [largest as f32, values.iter().map(|value| value * value).sum::<f64>() as f32]
            };
            Source::Pairs(floats(weight)?.chunks(each).map(pair).collect())
        };
        Some(Magnitudes { source, row: weight.shape[1].max(1), place, each: each as f64 })
    }

    /// The largest magnitude and the energy by input channel and by output channel.
    pub(super) fn sides(&self, inputs: usize, outputs: usize) -> Sides {
        let zeros = |count: usize| Side { largest: vec![0.0; count], energy: vec![0.0; count] };
        let mut sides = Sides { inputs: zeros(inputs), outputs: zeros(outputs) };
        let Source::Elements(data) = &self.source else {
            self.each_pair(|input, output, largest, energy| {
                sides.inputs.add(input, largest, energy);
                sides.outputs.add(output, largest, energy);
            });
            return sides;
        };
        for (at, row) in data.as_chunks::<4>().0.chunks(self.row).enumerate() {
            let first = (self.place)(at * self.row);
            let last = (self.place)(at * self.row + row.len() - 1);
            // A row has the elements of one channel on one side, and of adjacent ones on the other.
            if first.1 == last.1 {
                let (largest, energy) = sides.inputs.add_row(first.0, row);
                sides.outputs.add(first.1, largest, energy);
            } else {
                let (largest, energy) = sides.outputs.add_row(first.1, row);
                sides.inputs.add(first.0, largest, energy);
            }
        }
        sides
    }

    /// Calls a function with the input channel, the output channel, the largest magnitude and the
    /// energy of each pair.
    pub(super) fn each_pair(&self, mut visit: impl FnMut(usize, usize, f64, f64)) {
        let mut one = |at: usize, largest: f32, energy: f64| {
            let (input, output) = (self.place)(at);
            visit(input, output, f64::from(largest), energy);
        };
        match &self.source {
            Source::Elements(data) => {
                for (at, bytes) in data.as_chunks::<4>().0.iter().enumerate() {
                    let value = f32::from_le_bytes(*bytes).abs();
                    one(at, value, f64::from(value).powi(2));
                }
            }
            Source::Pairs(pairs) => {
                for (at, [largest, energy]) in pairs.iter().enumerate() {
                    one(at, *largest, f64::from(*energy));
                }
            }
        }
    }
}

/// The magnitudes of a weight by the channels on both sides.
pub(super) struct Sides {
    pub(super) inputs: Side,
    pub(super) outputs: Side,
}

/// The magnitudes of a weight by channel.
pub(super) struct Side {
    pub(super) largest: Vec<f32>,
    pub(super) energy: Vec<f32>,
}

impl Side {
    #[allow(clippy::cast_possible_truncation)] // magnitudes
    fn add(&mut self, channel: usize, largest: f64, energy: f64) {
        self.largest[channel] = self.largest[channel].max(largest as f32);
        self.energy[channel] += energy as f32;
    }

    /// Adds one element to each of the channels from `first` on; returns the largest magnitude and
    /// the energy of all elements.
    fn add_row(&mut self, first: usize, row: &[[u8; 4]]) -> (f64, f64) {
        let (mut most, mut sums) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let channels = first..first + row.len();
        let largest = self.largest[channels.clone()].chunks_mut(LANES);
        let energy = self.energy[channels].chunks_mut(LANES);
        for ((row, largest), energy) in row.chunks(LANES).zip(largest).zip(energy) {
            let lanes = most.iter_mut().zip(&mut sums);
            let channels = largest.iter_mut().zip(energy);
            for ((bytes, (largest, energy)), (most, sum)) in row.iter().zip(channels).zip(lanes) {
                let value = f32::from_le_bytes(*bytes).abs();
                let square = value * value;
                *largest = largest.max(value);
                *energy += square;
                *most = most.max(value);
                *sum += square;
            }
        }
        let largest = most.iter().fold(0.0_f32, |largest, one| largest.max(*one));
        (f64::from(largest), sums.iter().map(|sum| f64::from(*sum)).sum())
    }
}
