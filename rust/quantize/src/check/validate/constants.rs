//! Compares constants that were not quantized.

use std::collections::HashSet;

use quantize_rs_onnx::Tensor;

use super::stored::{Stored, base_of};
use super::weights::pruned;
use super::{Check, Validation};
use crate::QuantizeError;
use crate::graph::elements::to_f32;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;
use crate::transform::half_precision;

/// Compares constants that both models have under one name, except those that are `stored` weights
/// and those in `changed`. A model that computes in 16 bits may read `c` as `c_float16`, too.
pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &[Stored],
    changed: &HashSet<String>,
    half: Option<HalfType>,
    found: &mut Validation,
) -> Result<(), QuantizeError> {
    let weights: HashSet<ValueId> = stored.iter().map(|stored| stored.integers).collect();
    for (id, value) in after.values.iter().enumerate() {
        let own = matches!(value.producer, Producer::Initializer { .. } | Producer::Node { .. });
        let Some(proto) = after.constant(id).filter(|_| own && !weights.contains(&id)) else {
            continue;
        };
        let same = || before.value(value.name);
        let base = || half.and_then(|half| before.value(&base_of(value.name, half.name())?));
        let there = same().or_else(base).and_then(|id| before.constant(id));
        let Some(there) = there.filter(|_| !changed.contains(value.name)) else { continue };
        if proto.dtype() == Some(quantize_rs_onnx::DataType::String) {
            continue;
        }
        let (here, there) = (after.model.tensor(proto)?, before.model.tensor(there)?);
        let is_same = |there: &Tensor| {
            here == *there
                || half.is_some_and(|half| {
                    half_precision::rounds_to(there, &here, half)
                        || there.dtype == half.data_type()
                            && (&here.shape, to_f32(&here)) == (&there.shape, to_f32(there))
                })
        };
        if is_same(&there) {
            continue;
        }
        let pruned = pruned::zeroed(&there, &here).filter(is_same);
        let hint = pruned.map_or(String::new(), |_| format!("; {}", pruned::HINT));
        if (here.dtype, &here.shape) != (there.dtype, &there.shape) {
            let what = format!("{here:?}, the original has {there:?}");
            found.problem(Check::Weights, value.name, what);
            continue;
        }
        let width = (here.data.len() / here.elements().max(1)).max(1);
        let pairs = here.data.chunks(width).zip(there.data.chunks(width));
        let at = pairs.clone().position(|(here, there)| here != there).unwrap_or(0);
        let count = pairs.filter(|(here, there)| here != there).count();
        let floats = to_f32(&here).zip(to_f32(&there));
        let values = floats.map_or(String::new(), |(here, there)| {
            format!(": it is {}, the original {}", here[at], there[at])
        });
        let what =
            format!("{count} elements differ from the original, the first is {at}{values}{hint}");
        found.problem(Check::Weights, value.name, what);
    }
    Ok(())
}
