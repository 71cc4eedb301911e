//! Errors of the arithmetic.

/// Why a tensor cannot be laid out or quantized as requested.
///
/// The variant is the category; its fields say where. The crate knows no tensor names: the caller
/// adds the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MathError {
    /// The axis does not exist in the shape.
    #[error(
        "axis {axis} does not exist in shape {shape:?}, expected an axis below {}",
        shape.len()
    )]
    Axis {
        /// The requested axis.
        axis: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// A block must hold at least one element.
    #[error("block size 0, expected at least 1")]
    BlockSize,
    /// The shape has more elements than can be addressed.
    #[error("shape {shape:?} has more elements than can be addressed")]
    TooLarge {
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// There is one scale per index along the axis, but the tensor has no elements to compute it
    /// from.
    #[error(
        "shape {shape:?} has no elements, expected at least one for each scale along axis {axis}"
    )]
    Empty {
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// The requested axis.
        axis: usize,
    },
    /// The length of a slice differs from that of the layout.
    #[error("{found} {what}, expected {expected}")]
    Length {
        /// What the slice contains: `elements`, `scales`, `bytes`, `channels`.
        what: &'static str,
        /// The length of the slice.
        found: usize,
        /// The length required by the layout.
        expected: usize,
    },
    /// An element is NaN or infinite.
    #[error("element {index} is {value}, expected a finite number")]
    NonFinite {
        /// Index of the first such element, in C order.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// No numeric type has this name.
    #[error("unknown type `{name}`, expected one of {}", crate::QType::names())]
    UnknownType {
        /// The requested name.
        name: String,
    },
    /// No calibration method has this name.
    #[error("unknown method `{name}`, expected one of {}", crate::range::names())]
    UnknownMethod {
        /// The requested name.
        name: String,
    },
    /// No observer has this name.
    #[error("unknown observer `{name}`, expected one of {}", crate::observers::names())]
    UnknownObserver {
        /// The requested name.
        name: String,
    },
    /// An option has a value that is not allowed.
    #[error("{name} is {found}, expected {expected}")]
    Setting {
        /// The name of the option.
        name: &'static str,
        /// The value found.
        found: String,
        /// The values allowed.
        expected: &'static str,
    },
    /// No weight method has this name.
    #[error("unknown weight method `{name}`, expected one of {known}")]
    UnknownWeightMethod {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The percentile is not a number, or would leave out half of the values or more at each end.
    #[error("percentile `{found}`, expected a number above 50 and up to 100")]
    Percentile {
        /// The requested percentile.
        found: String,
    },
    /// The weight of the clipping error is not a number, or clipping would count less than
    /// rounding.
    #[error("weight of clipping `{found}`, expected a number from 1 to 1000")]
    ClippingWeight {
        /// The requested weight.
        found: String,
    },
    /// The limit of a squared error, by that of the full range, is not a number or below 1.
    #[error("ratio of squared errors `{found}`, expected a number of at least 1")]
    ErrorRatio {
        /// The requested ratio.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_what_was_found_and_expected() {
        let axis = MathError::Axis { axis: 2, shape: vec![3, 4] };
        assert_eq!(
            axis.to_string(),
            "axis 2 does not exist in shape [3, 4], expected an axis below 2"
        );
        let length = MathError::Length { what: "scales", found: 3, expected: 4 };
        assert_eq!(length.to_string(), "3 scales, expected 4");
        let unknown = MathError::UnknownType { name: "int5".into() };
        assert!(unknown.to_string().ends_with("bfloat16, int32"), "{unknown}");
        let method = MathError::UnknownMethod { name: "median".into() };
        assert_eq!(
            method.to_string(),
            "unknown method `median`, expected one of minmax, moving_average, percentile, \
             percentile:NN, entropy, entropy:RATIO, mse, mse:WEIGHT"
        );
    }
}
