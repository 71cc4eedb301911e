//! What is known of the processor that this runs on.

/// Whether ONNX Runtime's sums of uint8 × int8 saturate here: on x86 it adds pairs of products in 16 bits,
/// unless the processor has instructions for the whole sum (VNNI). Two products of 255 × 127 do not fit.
pub(crate) fn sums_saturate() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        !(has!("avx512vnni") || has!("avxvnni"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
