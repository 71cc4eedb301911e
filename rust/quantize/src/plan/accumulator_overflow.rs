//! Overflow of sums of integer products, which runtimes accumulate in int32 without a check.

use quantize_rs_math::{QSpec, QType};

/// Whether a sum of `summed` products of 8-bit activations and weights of this type may overflow
/// int32.
pub(super) fn overflows(summed: usize, spec: &QSpec) -> bool {
    let (lo, hi) = spec.grid();
    let farthest = if spec.symmetric {
        (hi - spec.zero_point_midpoint()).max(spec.zero_point_midpoint() - lo)
    } else {
        hi - lo
    };
    let product = i64::from(QType::UInt8.max()) * i64::from(farthest);
    i64::try_from(summed).is_ok_and(|summed| summed > i64::from(i32::MAX) / product)
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::Granularity;

    use super::*;

    #[test]
    fn the_longest_sum_is_that_of_the_largest_products() {
        let spec = |symmetric| QSpec::new(QType::Int8, symmetric, Granularity::PerTensor);
        for (spec, longest) in [(spec(true), 66_311), (spec(false), 33_025)] {
            assert!(!overflows(longest, &spec), "{spec:?}");
            assert!(overflows(longest + 1, &spec), "{spec:?}");
        }
    }
}
