//! Weights that were pruned before they were quantized. The file does not say so.

use quantize_rs_onnx::Tensor;

use super::super::Problem;
use super::super::reference::Reference;
use super::Comparison;
use super::nearest::ElementErrors;
use crate::graph::elements::to_f32;

/// What to do if weights were pruned.
pub(in super::super) const HINT: &str = "if the weights were pruned (prune, sparsity), compare \
    with the pruned model, which `prune` writes, instead of the original";

impl Comparison<'_> {
    /// What differs, if elements are 0 in the file alone, and all others are right.
    pub(super) fn pruned(&self, reference: &Reference, errors: &ElementErrors) -> Option<String> {
        let (was, is) = (&reference.floats, &self.decoded.floats);
        if errors.is_right() || is.iter().all(|x| *x == 0.0) {
            return None;
        }
        let floats = without(was, is);
        let changed = || was.iter().zip(&floats).enumerate().filter(|(_, (was, is))| was != is);
        let (first, (original, _)) = changed().next()?;
        let right = self.errors(&reference.with(floats.clone()));
        right.is_right().then(|| {
            let more = changed().count() - 1;
            format!(
                "element {first} and {more} more stand for 0, `{}` of the original holds \
                 {original} there, and all other elements are right: {HINT}",
                self.name
            )
        })
    }
}

/// Whether a problem is that weights were pruned, or may be.
pub(in super::super) fn is_pruned(problem: &Problem) -> bool {
    problem.what.ends_with(HINT)
}

/// The constant of the original, with zeros where the file has them; `None` if it has no others.
pub(in super::super) fn zeroed(there: &Tensor, here: &Tensor) -> Option<Tensor> {
    let floats = to_f32(here).filter(|floats| floats.iter().any(|x| *x != 0.0))?;
    let width = there.data.len() / there.elements().max(1);
    let mut data = there.data.to_vec();
    for (bytes, _) in data.chunks_mut(width.max(1)).zip(floats).filter(|(_, x)| *x == 0.0) {
        bytes.fill(0);
    }
    Some(Tensor { data: data.into(), ..there.clone() })
}

/// The elements of the original, with zeros where the file has them.
fn without(was: &[f32], is: &[f32]) -> Vec<f32> {
    was.iter().zip(is).map(|(was, is)| if *is == 0.0 { 0.0 } else { *was }).collect()
}
