//! Which positions of a sample are padding.

use std::borrow::Cow;

use quantize_rs_onnx::Tensor;

use crate::calibrate::engine::Sample;

/// The padding of a sample, as its attention mask says.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaddingMask {
    shape: Vec<usize>,
    /// For each position: whether it is no padding.
    counts: Vec<bool>,
}

impl PaddingMask {
    /// The mask of a sample, if it has one: an input with two axes whose name ends with
    /// `attention_mask`. Where several have the same axes and differ, a value may belong to either,
    /// so that none of them is taken.
    pub(crate) fn of(sample: &Sample) -> Option<PaddingMask> {
        let is_mask = |name: &str| name.to_lowercase().ends_with("attention_mask");
        let named = sample.inputs.iter().filter(|(name, _)| is_mask(name));
        let masks: Vec<PaddingMask> =
            named.filter_map(|(_, tensor)| PaddingMask::read(tensor)).collect();
        let is_alone = |mask: &&PaddingMask| {
            masks.iter().all(|other| other.shape != mask.shape || other.counts == mask.counts)
        };
        masks.iter().find(is_alone).cloned()
    }

    /// A tensor as a mask. One with negative numbers is added to scores: what has 0 counts, and
    /// padding has a number that a Softmax makes 0. In any other, padding has 0.
    fn read(tensor: &Tensor) -> Option<PaddingMask> {
        if tensor.shape.len() != 2 || tensor.elements() == 0 {
            return None;
        }
        let bytes = (tensor.data.len() / tensor.elements()).max(1);
        let sign = if tensor.dtype.is_float() { 0x80 } else { 0 };
        let is_zero = |element: &[u8]| {
            let (last, rest) = element.split_last().unwrap_or((&0, &[]));
            *last & !sign == 0 && rest.iter().all(|byte| *byte == 0)
        };
        let is_negative = |element: &[u8]| {
            let signed = tensor.dtype.is_float() || tensor.dtype.name().starts_with("int");
            signed && element.last().is_some_and(|last| last & 0x80 != 0) && !is_zero(element)
        };
        let added = tensor.data.chunks(bytes).any(is_negative);
        let counts: Vec<bool> =
            tensor.data.chunks(bytes).map(|element| is_zero(element) == added).collect();
        // Where nothing counts, the mask means something else.
        let any = counts.contains(&true);
        any.then(|| PaddingMask { shape: tensor.shape.clone(), counts })
    }

    /// Whether a value has the axes of the mask before its last ones, and some of it is padding.
    pub(crate) fn covers(&self, shape: &[usize]) -> bool {
        shape.len() > 2 && shape[..2] == self.shape[..] && self.counts.contains(&false)
    }

    /// Whether a row counts, of the `rows` rows of a value that the mask covers.
    pub(crate) fn counts(&self, row: usize, rows: usize) -> bool {
        self.counts[row * self.counts.len() / rows]
    }

    /// The elements of a value that belong to no padding, with the first two axes as one; `None` if
    /// there is no padding, or the value has other axes than the mask before its last ones.
    pub(crate) fn without_padding(
        &self,
        shape: &[usize],
        values: &[f32],
    ) -> Option<(Vec<usize>, Vec<f32>)> {
        if !self.covers(shape) {
            return None;
        }
        let length = values.len() / self.counts.len();
        let rows = values.chunks_exact(length.max(1)).zip(&self.counts);
        let kept: Vec<f32> =
            rows.filter(|(_, counts)| **counts).flat_map(|(row, _)| row.iter().copied()).collect();
        let count = self.counts.iter().filter(|counts| **counts).count();
        Some(([&[count], &shape[2..]].concat(), kept))
    }

    /// Its shape, and for each position whether it is no padding.
    pub(crate) fn parts(&self) -> (&[usize], &[bool]) {
        (&self.shape, &self.counts)
    }
}

/// The elements of a value that count: those that belong to no padding, if there is any.
pub(crate) fn counted<'v>(
    mask: Option<&PaddingMask>,
    shape: &[usize],
    values: &'v [f32],
) -> Cow<'v, [f32]> {
    let real = mask.and_then(|mask| mask.without_padding(shape, values));
    real.map_or(Cow::Borrowed(values), |(_, real)| Cow::Owned(real))
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::DataType;

    use super::*;

    fn mask(shape: Vec<usize>, counts: &[i64]) -> Option<PaddingMask> {
        let bytes = counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>();
        let tensor = Tensor { dtype: DataType::Int64, shape, data: bytes.into() };
        PaddingMask::of(&Sample { inputs: vec![("attention_mask".to_owned(), tensor)] })
    }

    #[test]
    fn rows_of_padding_are_left_out() {
        let mask = mask(vec![2, 2], &[1, 1, 1, 0]).unwrap();
        let values: Vec<f32> = (0..8_u8).map(f32::from).collect();
        assert_eq!(*counted(Some(&mask), &[2, 2, 2], &values), values[..6]);
        assert_eq!(mask.without_padding(&[2, 2, 2], &values).unwrap().0, [3, 2]);
        // Values with other axes count as a whole.
        assert_eq!(*counted(Some(&mask), &[2, 4], &values), values[..]);
        assert_eq!(*counted(Some(&mask), &[1, 2, 4], &values), values[..]);
        assert_eq!(*counted(None, &[2, 2, 2], &values), values[..]);
        let rows: Vec<bool> = (0..8).map(|row| mask.counts(row, 8)).collect();
        assert_eq!(rows, [true, true, true, true, true, true, false, false]);
    }

    fn of(inputs: Vec<(&str, Tensor)>) -> Option<Vec<bool>> {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        PaddingMask::of(&Sample { inputs }).map(|mask| mask.counts)
    }

    #[test]
    fn masks_that_are_added_to_scores_hide_what_is_negative() {
        let float = |values: &[f32]| Tensor::from_f32(vec![1, values.len()], values);
        for values in [
            [0.0, -1e4, 0.0],
            [0.0, f32::MIN, 0.0],
            [0.0, f32::NEG_INFINITY, 0.0],
            [-0.0, -1.0, 0.0],
        ] {
            let found = of(vec![("attention_mask", float(&values))]);
            assert_eq!(found, Some(vec![true, false, true]), "{values:?}");
        }
        let ones = of(vec![("attention_mask", float(&[1.0, 0.0, 1.0]))]);
        assert_eq!(ones, Some(vec![true, false, true]));
        // No padding in this sample.
        assert_eq!(of(vec![("attention_mask", float(&[0.0, -0.0]))]), None);
        let integers = |dtype, data: &'static [u8]| Tensor {
            dtype,
            shape: vec![1, data.len()],
            data: data.into(),
        };
        let signed = integers(DataType::Int8, &[0, 0x80, 0]);
        assert_eq!(of(vec![("attention_mask", signed)]), Some(vec![true, false, true]));
        let unsigned = integers(DataType::UInt8, &[0, 0x80, 0]);
        assert_eq!(of(vec![("attention_mask", unsigned)]), Some(vec![false, true, false]));
    }

    #[test]
    fn of_masks_with_the_same_axes_that_differ_none_is_taken() {
        let mask = |values: &[f32]| Tensor::from_f32(vec![1, values.len()], values);
        let encoder = || ("attention_mask", mask(&[1.0, 1.0, 0.0]));
        let decoder = |values: &[f32]| ("decoder_attention_mask", mask(values));
        let counts = Some(vec![true, true, false]);
        assert_eq!(of(vec![encoder(), decoder(&[1.0, 0.0, 0.0])]), None);
        assert_eq!(of(vec![encoder(), decoder(&[1.0, 1.0, 0.0])]), counts);
        assert_eq!(of(vec![encoder(), decoder(&[1.0, 0.0])]), counts);
    }

    #[test]
    fn a_mask_that_hides_everything_or_has_other_axes_is_none() {
        assert!(mask(vec![1, 2], &[0, 0]).is_none());
        assert!(mask(vec![2], &[1, 0]).is_none());
        assert!(mask(vec![0, 2], &[]).is_none());
    }
}
