//! The magnitudes of the elements of a weight, by channel of its input and its output.

use bytes::Bytes;
use quantize_rs_onnx::DataType;

use crate::transform::floats::floats;
use crate::transform::fold_batch_norm::product::Product;

/// The largest magnitude and the energy for each pair of channels that a weight connects.
pub(super) struct Magnitudes {
    source: Source,
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
        Some(Magnitudes { source, place, each: each as f64 })
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
