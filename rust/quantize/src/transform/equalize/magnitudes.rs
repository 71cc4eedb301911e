//! The magnitudes of the elements of a weight, by channel of its input and its output.

use std::borrow::Cow;

use half::{bf16, f16};
use quantize_rs_onnx::{DataType, Tensor};

use crate::graph::elements::is_single_or_half;
use crate::transform::floats::floats;
use crate::transform::fold_batch_norm::product::Product;

/// The number of sums of a row that are computed at once.
const LANES: usize = 8;

/// The number of rows that are added to columns at once.
const TOGETHER: usize = 4;

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
    /// The elements themselves, of float32 or 16 bits: each pair has one.
    Elements(Tensor),
    Pairs(Vec<[f32; 2]>),
}

/// The elements of a weight as float32. Those of 16 bits are converted for each use: the weights of
/// a model together may be larger than the memory.
fn singles(weight: &Tensor) -> Cow<'_, [[u8; 4]]> {
    let halves = weight.data.as_chunks::<2>().0.iter();
    match weight.dtype {
        DataType::Float16 => {
            halves.map(|half| f16::from_le_bytes(*half).to_f32().to_le_bytes()).collect()
        }
        DataType::BFloat16 => {
            halves.map(|half| bf16::from_le_bytes(*half).to_f32().to_le_bytes()).collect()
        }
        _ => weight.data.as_chunks::<4>().0.into(),
    }
}

impl Magnitudes {
    /// `None` if the elements are not floating-point numbers.
    #[allow(clippy::cast_precision_loss)] // a number of elements
    pub(super) fn of(product: &Product<'_>) -> Option<Magnitudes> {
        let weight = &product.weight;
        let each = weight.shape[2..].iter().product::<usize>().max(1);
        let place = product.places();
        let source = match weight.dtype {
            dtype if each == 1 && is_single_or_half(dtype) => Source::Elements(weight.clone()),
            DataType::Float => {
                let elements = weight.data.as_chunks::<4>().0.chunks(each);
                let values = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
                Source::Pairs(elements.map(|all| pair(all.iter().map(values))).collect())
            }
            _ => {
                let values = floats(weight)?;
                Source::Pairs(values.chunks(each).map(|all| pair(all.iter().copied())).collect())
            }
        };
        Some(Magnitudes { source, row: weight.shape[1].max(1), place, each: each as f64 })
    }

    /// What each output channel reads, if the weights of each input channel are multiplied by `by`.
    /// `read` has the mean square of each input channel before.
    #[allow(clippy::cast_possible_truncation)] // magnitudes
    pub(super) fn by_output(&self, read: &[f64], by: &[f64], outputs: usize) -> Vec<OfOutput> {
        let scaled: Vec<f64> =
            read.iter().zip(by).map(|(read, by)| self.each * read / (by * by)).collect();
        let mut sums = vec![OfOutput::default(); outputs];
        let Source::Elements(weight) = &self.source else {
            self.each_pair(|input, output, largest, energy| {
                sums[output].add(OfOutput {
                    signal: energy * read[input],
                    read: scaled[input],
                    energy: energy * by[input].powi(2),
                    largest: largest * by[input],
                });
            });
            return sums;
        };
        let [reads, by] = [read, by].map(|all| all.iter().map(|x| *x as f32).collect::<Vec<_>>());
        let mut columns = [vec![0.0_f32; outputs], vec![0.0; outputs], vec![0.0; outputs]];
        let mut read_by_columns = vec![0.0_f64; outputs];
        let elements = singles(weight);
        let rows: Vec<&[[u8; 4]]> = elements.chunks(self.row).collect();
        let mut at = 0;
        while let Some(row) = rows.get(at) {
            let (input, output) = (self.place)(at * self.row);
            let last = (self.place)(at * self.row + row.len() - 1);
            // A row has the elements of one channel on one side, and of adjacent ones on the other.
            if output == last.1 {
                let inputs = input..input + row.len();
                let [signal, energy, largest] =
                    of_row(row, &reads[inputs.clone()], &by[inputs.clone()]);
                let read = scaled[inputs].iter().sum::<f64>();
                sums[output].add(OfOutput { signal, read, energy, largest });
                at += 1;
                continue;
            }
            let written = output..output + row.len();
            let into = columns.each_mut().map(|column| &mut column[written.clone()]);
            // Rows that write the same channels are added together.
            let together = rows[at..].first_chunk::<TOGETHER>().and_then(|rows| {
                let places: [_; TOGETHER] =
                    std::array::from_fn(|row| (self.place)((at + row) * self.row));
                let alike = places.iter().all(|place| place.1 == output);
                alike.then(|| (*rows, places.map(|place| place.0)))
            });
            let mut read = scaled[input];
            if let Some((rows, inputs)) = together {
                to_columns(rows, inputs.map(|input| [reads[input], by[input]]), into);
                read = inputs.iter().map(|input| scaled[*input]).sum();
                at += TOGETHER;
            } else {
                to_columns([row], [[reads[input], by[input]]], into);
                at += 1;
            }
            read_by_columns[written].iter_mut().for_each(|sum| *sum += read);
        }
        let [signal, energy, largest] = columns;
        for (at, sum) in sums.iter_mut().enumerate() {
            let [signal, energy, largest] =
                [&signal, &energy, &largest].map(|column| f64::from(column[at]));
            sum.add(OfOutput { signal, read: read_by_columns[at], energy, largest });
        }
        sums
    }

    /// Calls a function with the input channel, the output channel, the largest magnitude and the
    /// energy of each pair.
    pub(super) fn each_pair(&self, visit: impl FnMut(usize, usize, f64, f64)) {
        match &self.source {
            Source::Elements(weight) => self.visit(
                &singles(weight),
                |bytes| {
                    let value = f64::from(f32::from_le_bytes(*bytes).abs());
                    (value, value * value)
                },
                visit,
            ),
            Source::Pairs(pairs) => {
                let pair = |[largest, energy]: &[f32; 2]| (f64::from(*largest), f64::from(*energy));
                self.visit(pairs, pair, visit);
            }
        }
    }

    fn visit<T>(
        &self,
        all: &[T],
        pair: impl Fn(&T) -> (f64, f64),
        mut visit: impl FnMut(usize, usize, f64, f64),
    ) {
        for (at, row) in all.chunks(self.row).enumerate() {
            let first = at * self.row;
            let ((input, output), last) =
                ((self.place)(first), (self.place)(first + row.len() - 1));
            // A row has the pairs of one channel on one side, and of adjacent ones on the other.
            let (to_input, to_output) = (usize::from(last.0 > input), usize::from(last.1 > output));
            for (at, one) in row.iter().enumerate() {
                let (largest, energy) = pair(one);
                visit(input + at * to_input, output + at * to_output, largest, energy);
            }
        }
    }
}

/// The largest magnitude and the energy of some elements.
#[allow(clippy::cast_possible_truncation)] // magnitudes
fn pair(values: impl Iterator<Item = f64>) -> [f32; 2] {
    let (mut largest, mut energy) = (0.0_f64, 0.0);
    for value in values {
        largest = largest.max(value.abs());
        energy += value * value;
    }
    [largest as f32, energy as f32]
}

/// What an output channel reads.
#[derive(Clone, Copy, Default)]
pub(super) struct OfOutput {
    /// The energy of its weights times the mean squares that they read, before any scaling.
    pub(super) signal: f64,
    /// The sum of the mean squares that its weights read, scaled.
    pub(super) read: f64,
    /// The energy of its scaled weights.
    pub(super) energy: f64,
    /// The largest magnitude of its scaled weights.
    pub(super) largest: f64,
}

impl OfOutput {
    fn add(&mut self, other: OfOutput) {
        self.signal += other.signal;
        self.read += other.read;
        self.energy += other.energy;
        self.largest = self.largest.max(other.largest);
    }
}

/// The signal, the energy and the largest magnitude of a row, whose elements read `reads` and are
/// multiplied by `by`.
fn of_row(row: &[[u8; 4]], reads: &[f32], by: &[f32]) -> [f64; 3] {
    let [mut signal, mut energy, mut largest] = [[0.0_f32; LANES]; 3];
    let mut add = |row: &[[u8; 4]; LANES], reads: &[f32; LANES], by: &[f32; LANES]| {
        for lane in 0..LANES {
            let value = f32::from_le_bytes(row[lane]).abs();
            let scaled = value * by[lane];
            signal[lane] += value * value * reads[lane];
            energy[lane] += scaled * scaled;
            largest[lane] = greater(largest[lane], scaled);
        }
    };
    let (rows, row) = row.as_chunks::<LANES>();
    let (all_reads, reads) = reads.as_chunks::<LANES>();
    let (all_by, by) = by.as_chunks::<LANES>();
    for ((row, reads), by) in rows.iter().zip(all_reads).zip(all_by) {
        add(row, reads, by);
    }
    let (mut last, mut last_reads, mut last_by) = ([[0; 4]; LANES], [0.0; LANES], [0.0; LANES]);
    last[..row.len()].copy_from_slice(row);
    last_reads[..row.len()].copy_from_slice(reads);
    last_by[..row.len()].copy_from_slice(by);
    add(&last, &last_reads, &last_by);
    let sum = |lanes: [f32; LANES]| lanes.iter().map(|lane| f64::from(*lane)).sum();
    [sum(signal), sum(energy), f64::from(largest.into_iter().fold(0.0, greater))]
}

/// Adds rows to the signal, the energy and the largest magnitude of each column. The elements of a
/// row all read the same, and are multiplied by the same.
fn to_columns<const N: usize>(
    rows: [&[[u8; 4]]; N],
    factors: [[f32; 2]; N],
    [signal, energy, largest]: [&mut [f32]; 3],
) {
    let length = signal.len();
    let rows = rows.map(|row| &row[..length]);
    let (energy, largest) = (&mut energy[..length], &mut largest[..length]);
    for column in 0..length {
        let mut sums = [signal[column], energy[column], largest[column]];
        for (row, [read, by]) in rows.iter().zip(factors) {
            let value = f32::from_le_bytes(row[column]).abs();
            let scaled = value * by;
            sums[0] += value * value * read;
            sums[1] += scaled * scaled;
            sums[2] = greater(sums[2], scaled);
        }
        [signal[column], energy[column], largest[column]] = sums;
    }
}

/// The greater number, as one instruction.
fn greater(one: f32, other: f32) -> f32 {
    if other > one { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements are added up by rows, and pairs one by one.
    #[test]
    fn elements_add_up_to_what_pairs_do() {
        type Place = fn(usize) -> (usize, usize);
        // By output, by input, and by output in two groups, of 6 rows of 13.
        let places: [(Place, usize, usize); 3] = [
            (|at| (at % 13, at / 13), 13, 6),
            (|at| (at / 13, at % 13), 6, 13),
            (|at| (at / 39 * 13 + at % 13, at / 13), 26, 6),
        ];
        let values: Vec<f32> = (0_u16..78).map(|at| f32::from(at * 37 % 79) / 16.0 - 2.0).collect();
        let each = || values.iter().copied();
        let tensor = |dtype, data: Vec<u8>| {
            Source::Elements(Tensor { dtype, shape: vec![6, 13], data: data.into() })
        };
        let sources = [
            Source::Pairs(each().map(|x| [x.abs(), x * x]).collect()),
            tensor(DataType::Float, each().flat_map(f32::to_le_bytes).collect()),
            // 16 bits have room for these numbers.
            tensor(
                DataType::Float16,
                each().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            ),
            tensor(
                DataType::BFloat16,
                each().flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            ),
        ];
        let [pairs, elements @ ..] = sources.map(|source| {
            let found = places.iter().map(|(place, inputs, outputs)| {
                let numbers =
                    |step: f64| (0_u32..).take(*inputs).map(move |at| f64::from(at) * step);
                let read: Vec<f64> = numbers(0.5).map(|read| read + 1.0).collect();
                let by: Vec<f64> = numbers(0.25).map(f64::exp2).collect();
                let place = Box::new(*place);
                let source = match &source {
                    Source::Elements(data) => Source::Elements(data.clone()),
                    Source::Pairs(pairs) => Source::Pairs(pairs.clone()),
                };
                Magnitudes { source, row: 13, place, each: 1.0 }.by_output(&read, &by, *outputs)
            });
            found.flatten().collect::<Vec<_>>()
        });
        assert_eq!(pairs.len(), 6 + 13 + 6);
        for (one, other) in elements.iter().flat_map(|elements| elements.iter().zip(&pairs)) {
            let numbers = |it: &OfOutput| [it.signal, it.read, it.energy, it.largest];
            for (one, other) in numbers(one).into_iter().zip(numbers(other)) {
                assert!(other > 0.0 && (one - other).abs() < 1e-5 * other, "{one} {other}");
            }
        }
    }
}
