//! The versions of ONNX's own operators, and the IR version of each.

/// Opset versions at which the IR version rose, and that IR version.
///
/// Source: the table of versions in <https://onnx.ai/onnx/repo-docs/Versioning.html>.
const SINCE: [(i64, i64); 12] = [
    (1, 3),
    (9, 4),
    (10, 5),
    (11, 6),
    (12, 7),
    (15, 8),
    (19, 9),
    (21, 10),
    (23, 11),
    (24, 12),
    (25, 13),
    (28, 14),
];

/// The first IR version that supports this opset version of ONNX's own operators.
///
/// ```
/// use quantize_rs_onnx::ir_of_opset;
/// assert_eq!((ir_of_opset(13), ir_of_opset(21)), (7, 10));
/// ```
pub fn ir_of_opset(version: i64) -> i64 {
    SINCE.iter().rev().find(|(opset, _)| *opset <= version).map_or(3, |(_, ir)| *ir)
}
