//! Properties of the processor.

/// Whether ONNX Runtime's uint8 × int8 dot products can saturate on this processor. On x86, it adds
/// pairs of products in 16 bits unless the processor supports VNNI, and two products of 255 × 127
/// do not fit.
pub(crate) fn sums_saturate() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        !(has!("avx512vnni") || has!("avxvnni"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
