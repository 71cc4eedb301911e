//! Quantization of biases to int32, with the scale of the matrix multiplication.

use crate::QType;

/// Quantizes a bias to int32. Each of `scales` is the product of an input scale and a weight scale:
/// one per element, or one for all.
///
/// The result is `saturate(round_half_even(bias / scale))`, computed in f64, in which the error of
/// the quotient of two f32 is far below one integer. NaN becomes the smallest integer, as in
/// `QuantizeLinear`. The zero point of a bias is 0.
pub fn quantize_bias(bias: &[f32], scales: &[f32]) -> Vec<i32> {
    if let &[scale] = scales {
        return bias.iter().map(|&x| quantize_one(x, scale)).collect();
    }
    assert_eq!(scales.len(), bias.len(), "scales and elements of the bias");
    bias.iter().zip(scales).map(|(&x, &scale)| quantize_one(x, scale)).collect()
}

fn quantize_one(x: f32, scale: f32) -> i32 {
    let steps = (f64::from(x) / f64::from(scale)).round_ties_even();
    if steps.is_nan() { QType::Int32.min() } else { steps as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_round_to_even_and_ends_saturate() {
        assert_eq!(quantize_bias(&[0.5, 1.5, -0.5, -1.5], &[1.0]), [0, 2, 0, -2]);
        assert_eq!(quantize_bias(&[3.0, 3.0], &[0.5, 1e-30]), [6, i32::MAX]);
        assert_eq!(
            quantize_bias(&[-1.0, f32::NAN, 0.0], &[1e-38, 1.0, 1.0]),
            [i32::MIN, i32::MIN, 0]
        );
    }

    #[test]
    fn large_quotients_keep_every_bit() {
        // Near 2³⁰, neighbouring f32 values are 64 apart.
        let (bias, scale) = (3_221_225_472.0_f32, 2.999_999_8_f32);
        let exact = (f64::from(bias) / f64::from(scale)).round_ties_even();
        assert_ne!(exact, f64::from(bias / scale));
        assert_eq!(quantize_bias(&[bias], &[scale]), [exact as i32]);
    }
}
