//! The floats that a stored weight stands for.

use quantize_rs_math::{Granularity, Layout};
use quantize_rs_onnx::Tensor;

use super::super::{Check, Validation, experts, products};
use super::{Form, Stored, lengths, qtype_of};
use crate::QuantizeError;
use crate::encode::dequantize::{Cut, Decoded, coded, plain, scale_floats};
use crate::graph::clip::single;
use crate::graph::{Graph, ValueId};
use crate::options::HalfType;

impl Stored {
    /// The dequantized values; `None` if there is a problem, which is added to `found`.
    pub(in crate::check::validate) fn decode(
        &self,
        after: &Graph<'_>,
        half: Option<HalfType>,
        found: &mut Validation,
    ) -> Result<Option<Decoded>, QuantizeError> {
        let Some(integers) = tensor(after, self.integers)? else { return Ok(None) };
        let Some(scales) = self.scales(after, half, found)? else { return Ok(None) };
        let zero_points = self.zero_point.map(|id| tensor(after, id)).transpose()?.flatten();
        let decoded = self.dequantize(after, &integers, &scales, zero_points.as_ref());
        if decoded.is_none() {
            let what = format!(
                "{} scales of shape {:?} do not fit integers of shape {:?}",
                scales.len(),
                self.scale_shape(after),
                integers.shape,
            );
            let name = after.values[self.scale.unwrap_or(self.integers)].name;
            found.problem(Check::Scale, name, what);
        }
        Ok(decoded)
    }

    /// The scales; `None` if there is a problem, which is added to `found`. A scale of 0 is none if
    /// it has 16 bits, which hold no scale of very small elements.
    fn scales(
        &self,
        after: &Graph<'_>,
        half: Option<HalfType>,
        found: &mut Validation,
    ) -> Result<Option<Vec<f32>>, QuantizeError> {
        let Some(scale) = self.scale else { return Ok(Some(vec![1.0])) };
        let whole = match self.whole {
            None => Some(1.0),
            Some(whole) => tensor(after, whole)?.as_ref().and_then(single),
        };
        let scales = tensor(after, scale)?.as_ref().and_then(scale_floats);
        let Some((mut scales, whole)) = scales.zip(whole) else {
            let name = after.values[self.integers].name;
            found.skip_weight(name, "its scale is not a float constant");
            return Ok(None);
        };
        for scale in &mut scales {
            *scale *= whole;
        }
        let narrow = self.scale_half(after, half).is_some();
        let bad = |scale: &f32| !scale.is_finite() || *scale == 0.0 && !narrow;
        if let Some(at) = scales.iter().position(bad) {
            let bad = scales[at];
            let what = format!("scale {at} is {bad}, expected a finite number that is not 0");
            found.problem(Check::Scale, after.values[scale].name, what);
            return Ok(None);
        }
        Ok(Some(scales))
    }

    /// What the integers stand for; `None` if the shapes do not fit.
    fn dequantize(
        &self,
        after: &Graph<'_>,
        integers: &Tensor,
        scales: &[f32],
        zero_points: Option<&Tensor>,
    ) -> Option<Decoded> {
        let qtype = || after.constant(self.integers).and_then(qtype_of);
        match self.form {
            Form::Blocks { bits, block_size, depth, signed } => {
                let cut = Cut { bits, block_size, depth, signed };
                let blocks = depth.div_ceil(block_size.max(1));
                let fits = [vec![scales.len()], vec![scales.len() / blocks.max(1), blocks]];
                let fits = fits.contains(&self.scale_shape(after));
                fits.then(|| cut.decode(integers, scales, zero_points)).flatten()
            }
            Form::Experts { bits, block_size, depth } => {
                let cut = Cut { bits, block_size, depth, signed: false };
                cut.decode(&experts::rows_of(integers)?, scales, zero_points)
            }
            Form::Codes(spec) => coded(spec, integers, scales),
            Form::Directions => {
                let rows = products::rows_of(integers, scales.len())?;
                plain(qtype()?, &rows, Granularity::PerAxis { axis: 0 }, scales, zero_points)
            }
            Form::Cast => plain(qtype()?, integers, Granularity::PerTensor, scales, None),
            Form::Plain(granularity) => {
                let fits = self.fits_blocks(after, &integers.shape, granularity);
                plain(qtype().filter(|_| fits)?, integers, granularity, scales, zero_points)
            }
        }
    }

    /// The 16-bit type of the scales. Those of a model that computes in 16 bits have been cast to
    /// float32.
    pub(in crate::check::validate) fn scale_half(
        &self,
        after: &Graph<'_>,
        half: Option<HalfType>,
    ) -> Option<HalfType> {
        let dtype = self.scale.and_then(|scale| after.constant(scale)?.dtype());
        let own = HalfType::ALL.iter().find(|own| dtype == Some(own.data_type()));
        half.or(own.copied())
    }

    fn scale_shape(&self, after: &Graph<'_>) -> Vec<usize> {
        self.scale.and_then(|id| after.constant(id)).map(lengths).unwrap_or_default()
    }

    /// Whether scales of blocks have this shape.
    fn fits_blocks(&self, after: &Graph<'_>, shape: &[usize], granularity: Granularity) -> bool {
        let blocks = matches!(granularity, Granularity::Blocked { .. });
        let layout = Layout::of(shape, granularity).ok();
        !blocks || layout.is_some_and(|layout| layout.scale_shape() == self.scale_shape(after))
    }
}

/// The elements of a constant.
fn tensor(after: &Graph<'_>, id: ValueId) -> Result<Option<Tensor>, QuantizeError> {
    Ok(after.constant(id).map(|proto| after.model.tensor(proto)).transpose()?)
}
