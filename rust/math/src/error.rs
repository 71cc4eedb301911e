//! What the arithmetic refuses, and why.

/// Why a tensor cannot be laid out or quantized as asked.
///
/// The variant is the category, its fields are the place. The crate knows no names: whoever calls it
/// adds the tensor's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MathError {
    /// The axis does not exist in the shape.
    #[error("axis {axis} does not exist in shape {shape:?}, expected an axis below {}", shape.len())]
    Axis {
        /// The axis asked for.
        axis: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// A block must hold at least one element.
    #[error("block size 0, expected at least 1")]
    BlockSize,
    /// The shape has more elements than memory has addresses.
    #[error("shape {shape:?} has more elements than can be addressed")]
    TooLarge {
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The tensor has scales along the axis but no elements to take them from.
    #[error(
        "shape {shape:?} has no elements, expected at least one for each scale along axis {axis}"
    )]
    Empty {
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// The axis asked for.
        axis: usize,
    },
    /// A slice is not as long as the layout says.
    #[error("{found} {what}, expected {expected}")]
    Length {
        /// What the slice holds: `elements`, `scales`, `bytes`, `channels`.
        what: &'static str,
        /// The length of the slice.
        found: usize,
        /// The length that the layout says.
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
        /// The name asked for.
        name: String,
    },
    /// No way of choosing ranges has this name.
    #[error("unknown method `{name}`, expected one of {}", crate::range::names())]
    UnknownMethod {
        /// The name asked for.
        name: String,
    },
    /// No observer has this name.
    #[error("unknown observer `{name}`, expected one of {}", crate::observers::names())]
    UnknownObserver {
        /// The name asked for.
        name: String,
    },
    /// A number that something is made with cannot be this.
    #[error("{name} is {found}, expected {expected}")]
    Setting {
        /// What it is called.
        name: &'static str,
        /// What it was.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// No way of choosing the scales of weights has this name.
    #[error("unknown weight method `{name}`, expected one of {known}")]
    UnknownWeightMethod {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Half of the values or more would be left out at each end, or the percentile is no number.
    #[error("percentile `{found}`, expected a number above 50 and up to 100")]
    Percentile {
        /// The percentile asked for.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_was_found_and_what_would_have_been_right() {
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
             percentile:NN, entropy, mse"
        );
    }
}
