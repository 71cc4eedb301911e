//! What the scales of a weight allow: the numbers that may be written, and the smallest scale.

use quantize_rs_math::Params;
use quantize_rs_onnx::{DataType, TensorProto};

use super::super::grid::Grid;
use super::super::stored::Form;
use super::super::{Check, Validation};
use super::Comparison;
use crate::encode::dequantize::Decoded;
use crate::encode::mark;
use crate::options::HalfType;

impl Comparison<'_> {
    fn scale_type(&self) -> Option<DataType> {
        self.stored.scale.and_then(|scale| self.after.constant(scale)).and_then(TensorProto::dtype)
    }

    /// The numbers that may be written.
    pub(super) fn grid(&self) -> Grid {
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

    pub(super) fn zero_point(&self, group: usize) -> f64 {
        let Decoded { params, between, .. } = self.decoded;
        let between = between.as_ref().map_or(0.0, |between| f64::from(between[group]));
        f64::from(params[group].zero_point) + between
    }

    /// The smallest scale that its type can store and that no runtime flushes to 0.
    pub(super) fn smallest_scale(&self) -> f32 {
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
    pub(super) fn vanished(&self, reference: &[f32], found: &mut Validation) {
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
    pub(super) fn is_raised(&self, group: usize) -> bool {
        let consumers = self.stored.consumers(self.after);
        consumers.filter_map(|consumer| self.full.get(&consumer.node)).any(|full| {
            let fits = full.len() == self.decoded.params.len();
            if fits { full[group] } else { full.contains(&true) }
        })
    }
}
