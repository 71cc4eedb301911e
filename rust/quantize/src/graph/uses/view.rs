//! How the axes of a rearranged constant relate to the axes of the constant itself.

use quantize_rs_onnx::NodeProto;

use crate::util::axes::axis_of;

/// The axes of a rearranged constant and of the constant itself: dimension and stride of each axis,
/// in elements of the constant.
#[derive(Clone, Debug)]
pub(super) struct View {
    axes: Vec<(usize, usize)>,
    source: Vec<(usize, usize)>,
}

impl View {
    /// Creates the view of an unchanged constant; `None` if the number of elements overflows.
    pub(super) fn of(shape: &[usize]) -> Option<View> {
        let axes = strided(shape)?;
        Some(View { source: axes.clone(), axes })
    }

    /// The number of axes.
    pub(super) fn rank(&self) -> usize {
        self.axes.len()
    }

    /// The dimension of an axis.
    pub(super) fn length(&self, axis: usize) -> Option<usize> {
        self.axes.get(axis).map(|(length, _)| *length)
    }

    /// The axis of the constant that is identical to `axis` of the view.
    pub(super) fn source_axis(&self, axis: usize) -> Option<usize> {
        let wanted = self.axes.get(axis)?;
        self.source.iter().position(|axis| axis == wanted)
    }

    /// The number of rows when each row is one slice of the last axis and the rows have the order
    /// that they have in the constant.
    pub(super) fn rows(&self) -> Option<usize> {
        let lengths = self.lengths();
        let (_, before) = lengths.split_last()?;
        let in_order = strided(&lengths)? == self.axes;
        product(before).filter(|_| in_order)
    }

    /// The view after a node that only rearranges its input 0; `None` for other nodes. `ints`
    /// returns the constant integers of the other inputs.
    pub(super) fn through(
        &self,
        node: &NodeProto,
        ints: impl Fn(usize) -> Option<Vec<i64>>,
    ) -> Option<View> {
        if !node.is_onnx() {
            return None;
        }
        // Since opset 13, `axes` is an input.
        let listed = || match node.attribute("axes") {
            Some(axes) => Some(axes.ints.to_vec()),
            None => ints(1),
        };
        match node.op_type.as_str() {
            "Identity" => Some(self.clone()),
            "Transpose" => self.transposed(node),
            "Reshape" => match node.attribute("shape") {
                Some(shape) => self.reshaped(&shape.ints, false),
                None => self.reshaped(&ints(1)?, node.int("allowzero", 0) != 0),
            },
            "Squeeze" if node.input.len() < 2 && node.attribute("axes").is_none() => {
                let kept = self.axes.iter().filter(|(length, _)| *length != 1);
                Some(View { axes: kept.copied().collect(), source: self.source.clone() })
            }
            "Squeeze" => self.squeezed(&listed()?),
            "Unsqueeze" => self.unsqueezed(&listed()?),
            "Flatten" => {
                let (axis, rank) = (node.int("axis", 1), self.axes.len());
                let axis =
                    if usize::try_from(axis) == Ok(rank) { rank } else { axis_of(axis, rank)? };
                let lengths = self.lengths();
                let (rows, columns) = lengths.split_at(axis);
                self.with_shape(&[product(rows)?, product(columns)?])
            }
            _ => None,
        }
    }

    fn transposed(&self, node: &NodeProto) -> Option<View> {
        let rank = self.axes.len();
        let order: Vec<usize> = match node.attribute("perm") {
            None => (0..rank).rev().collect(),
            Some(perm) => {
                perm.ints.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?
            }
        };
        let axes = order.iter().map(|axis| self.axes[*axis]).collect();
        (order.len() == rank).then(|| View { axes, source: self.source.clone() })
    }

    fn squeezed(&self, axes: &[i64]) -> Option<View> {
        let rank = self.axes.len();
        let gone: Vec<usize> =
            axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<Vec<_>>>()?;
        let kept = (0..rank).filter(|axis| !gone.contains(axis)).map(|axis| self.axes[axis]);
        let of_one = gone.iter().all(|axis| self.axes[*axis].0 == 1);
        // Runtimes read an empty list of axes as all axes of length 1, or as none.
        (of_one && !gone.is_empty())
            .then(|| View { axes: kept.collect(), source: self.source.clone() })
    }

    fn unsqueezed(&self, axes: &[i64]) -> Option<View> {
        let rank = self.axes.len().checked_add(axes.len())?;
        let mut new: Vec<usize> =
            axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<Vec<_>>>()?;
        new.sort_unstable();
        new.dedup();
        let mut found = self.axes.clone();
        for axis in &new {
            // An axis of one element gets the stride that C order implies.
            let stride =
                found.get(*axis).map_or(Some(1), |(length, stride)| length.checked_mul(*stride))?;
            if *axis > found.len() {
                return None;
            }
            found.insert(*axis, (1, stride));
        }
        (new.len() == axes.len()).then(|| View { axes: found, source: self.source.clone() })
    }

    fn reshaped(&self, shape: &[i64], allow_zero: bool) -> Option<View> {
        let elements = product(&self.lengths())?;
        let mut lengths = Vec::new();
        for (axis, length) in shape.iter().enumerate() {
            lengths.push(match *length {
                0 if !allow_zero => self.axes.get(axis)?.0,
                -1 => 0,
                length => usize::try_from(length).ok()?,
            });
        }
        if let Some(inferred) = shape.iter().position(|length| *length == -1) {
            lengths[inferred] = 1;
            lengths[inferred] = elements.checked_div(product(&lengths)?)?;
        }
        (product(&lengths)? == elements).then(|| self.with_shape(&lengths))?
    }

    /// The same elements with another shape, if they are in C order.
    fn with_shape(&self, shape: &[usize]) -> Option<View> {
        let in_order = strided(&self.lengths())? == self.axes;
        in_order.then_some(View { axes: strided(shape)?, source: self.source.clone() })
    }

    fn lengths(&self) -> Vec<usize> {
        self.axes.iter().map(|(length, _)| *length).collect()
    }
}

/// The number of elements; `None` if it overflows.
fn product(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(1usize, |product, length| product.checked_mul(*length))
}

/// The axes of a tensor in C order: dimension and stride.
fn strided(shape: &[usize]) -> Option<Vec<(usize, usize)>> {
    let mut stride = 1usize;
    let mut axes = Vec::with_capacity(shape.len());
    for length in shape.iter().rev() {
        axes.push((*length, stride));
        stride = stride.checked_mul(*length)?;
    }
    axes.reverse();
    Some(axes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reshape_that_merges_leading_axes_keeps_the_last() {
        let view = View::of(&[16, 4, 4, 10]).unwrap().reshaped(&[256, 10], false).unwrap();
        assert_eq!(view.source_axis(1), Some(3));
        assert_eq!(view.source_axis(0), None);
    }

    #[test]
    fn shapes_that_cannot_be_counted_are_no_views() {
        assert!(View::of(&[1 << 40, 1 << 40]).is_none());
        assert!(View::of(&[2, 2]).unwrap().reshaped(&[1 << 62, 4], false).is_none());
    }

    #[test]
    fn a_transposed_axis_is_found_again() {
        let view = View::of(&[3, 5]).unwrap();
        let view = View { axes: vec![view.axes[1], view.axes[0]], source: view.source };
        assert_eq!(view.source_axis(1), Some(0));
        assert!(view.reshaped(&[15], false).is_none(), "elements are no longer in order");
        assert_eq!(view.rows(), None);
    }

    #[test]
    fn zero_and_minus_one_are_worked_out() {
        let view = View::of(&[6, 4]).unwrap().reshaped(&[0, 2, -1], false).unwrap();
        assert_eq!(view.axes, [(6, 4), (2, 2), (2, 1)]);
        assert!(View::of(&[6, 4]).unwrap().reshaped(&[5, -1], false).is_none());
    }

    #[test]
    fn axes_of_one_come_and_go() {
        let view = View::of(&[1, 6, 4]).unwrap();
        let squeezed = view.squeezed(&[0]).unwrap();
        assert_eq!(squeezed.axes, [(6, 4), (4, 1)]);
        assert!(view.squeezed(&[1]).is_none());
        let again = squeezed.unsqueezed(&[-1, 0]).unwrap();
        assert_eq!(again.lengths(), [1, 6, 4, 1]);
        assert_eq!(again.source_axis(1), Some(1));
        assert_eq!(again.rows(), Some(24));
        assert!(squeezed.unsqueezed(&[0, 0]).is_none());
        assert!(squeezed.unsqueezed(&[7]).is_none());
    }

    #[test]
    fn rows_of_both_directions_follow_one_another() {
        assert_eq!(View::of(&[2, 12, 5]).unwrap().rows(), Some(24));
        assert_eq!(View::of(&[]).unwrap().rows(), None);
    }
}
