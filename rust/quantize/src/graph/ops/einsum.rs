//! Finds the output channels of a term of an `Einsum` equation.

use quantize_rs_onnx::NodeProto;

/// The axis of output channels of a term with `rank` axes: the last axis whose label is in the
/// result and in no other term. A label that other terms share is a batch axis or is summed over.
pub(super) fn channels<const TERM: usize>(node: &NodeProto, rank: usize) -> Option<usize> {
    let equation = node.attribute("equation")?.s.as_deref()?;
    let equation: Vec<u8> = equation.iter().copied().filter(|c| !c.is_ascii_whitespace()).collect();
    axis(&equation, TERM, rank)
}

fn axis(equation: &[u8], term: usize, rank: usize) -> Option<usize> {
    let arrow = equation.windows(2).position(|pair| pair == b"->");
    let (left, result) = match arrow {
        Some(arrow) => (&equation[..arrow], Some(&equation[arrow + 2..])),
        None => (equation, None),
    };
    let terms: Vec<&[u8]> = left.split(|c| *c == b',').collect();
    let own = terms.get(term)?;
    let once = |label: u8| left.iter().filter(|c| **c == label).nth(1).is_none();
    // Without an arrow, the result has the labels that occur exactly once.
    let goes_out = |label: u8| result.is_none_or(|result| result.contains(&label));
    let is_channel = |label: u8| label.is_ascii_alphabetic() && once(label) && goes_out(label);
    let place = own.iter().rposition(|label| is_channel(*label))?;
    // How many axes an ellipsis stands for is unknown, so axes after it are counted from the end.
    let after = own.len() - 1 - place;
    let dots = own.contains(&b'.');
    match own[place..].contains(&b'.') {
        true => Some(place).filter(|place| *place < rank),
        false if dots || own.len() == rank => rank.checked_sub(after + 1),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::axis;

    #[test]
    fn a_channel_is_in_one_term_and_in_the_result() {
        assert_eq!(axis(b"bsd,dh->bsh", 1, 2), Some(1));
        assert_eq!(axis(b"bsd,hd->bsh", 1, 2), Some(0));
        assert_eq!(axis(b"dh,bsd->bsh", 0, 2), Some(1));
        assert_eq!(axis(b"bsd,dnh->bsnh", 1, 3), Some(2), "the last of two");
        assert_eq!(axis(b"bd,bdh->bh", 1, 3), Some(2));
        assert_eq!(axis(b"ij,jk", 1, 2), Some(1), "no arrow");
        assert_eq!(axis(b"...d,dh->...h", 1, 2), Some(1));
        assert_eq!(axis(b"bsd,...dh->...h", 1, 4), Some(3), "behind dots");
        assert_eq!(axis(b"bsd,h...d->h", 1, 4), Some(0), "before dots");
    }

    #[test]
    fn terms_without_output_channels_return_none() {
        assert_eq!(axis(b"bd,bd->b", 1, 2), None);
        assert_eq!(axis(b"bd,dh->b", 1, 2), None, "summed over");
        assert_eq!(axis(b"bd,dh->bh", 1, 3), None, "the rank differs from the equation");
        assert_eq!(axis(b"bd,hh->b", 1, 2), None, "a diagonal");
        assert_eq!(axis(b"", 1, 2), None);
        assert_eq!(axis(b"bd->b", 1, 2), None);
    }
}
