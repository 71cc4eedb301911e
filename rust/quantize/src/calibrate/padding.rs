//! Which positions of a sample are padding.

use crate::calibrate::engine::Sample;

/// The padding of a sample, as its attention mask says.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaddingMask {
    shape: Vec<usize>,
    /// For each position: whether it is no padding.
    counts: Vec<bool>,
}

impl PaddingMask {
    /// The mask of a sample, if it has one: an input called `attention_mask` with two axes.
    pub(crate) fn of(sample: &Sample) -> Option<PaddingMask> {
        let masks = |name: &str| name.to_lowercase().ends_with("attention_mask");
        let (_, tensor) = sample.inputs.iter().find(|(name, _)| masks(name))?;
        if tensor.shape.len() != 2 || tensor.elements() == 0 {
            return None;
        }
        let bytes = tensor.data.len() / tensor.elements();
        let counts: Vec<bool> = tensor
            .data
            .chunks(bytes.max(1))
            .map(|element| element.iter().any(|byte| *byte != 0))
            .collect();
        // Where nothing counts, the mask means something else.
        let any = counts.contains(&true);
        any.then(|| PaddingMask { shape: tensor.shape.clone(), counts })
    }

    /// The elements of a value that belong to no padding, with the first two axes as one; `None` if
    /// there is no padding, or the value has other axes than the mask before its last ones.
    pub(crate) fn without_padding(
        &self,
        shape: &[usize],
        values: &[f32],
    ) -> Option<(Vec<usize>, Vec<f32>)> {
        let (axes, rest) = shape.split_at_checked(2)?;
        if rest.is_empty() || *axes != self.shape[..] || !self.counts.contains(&false) {
            return None;
        }
        let length = values.len() / self.counts.len();
        let rows = values.chunks_exact(length.max(1)).zip(&self.counts);
        let kept: Vec<f32> =
            rows.filter(|(_, counts)| **counts).flat_map(|(row, _)| row.iter().copied()).collect();
        let count = self.counts.iter().filter(|counts| **counts).count();
        Some(([&[count], rest].concat(), kept))
    }

    /// Its shape, and for each position whether it is no padding.
    pub(crate) fn parts(&self) -> (&[usize], &[bool]) {
        (&self.shape, &self.counts)
    }
}
