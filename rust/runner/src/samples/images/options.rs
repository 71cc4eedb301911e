//! Options of image folders, by name.

use std::fmt::{self, Display};
use std::str::FromStr;

use quantize_rs::QuantizeError;

use super::ImageFolder;

/// The position of the channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Before height and width.
    Nchw,
    /// After height and width.
    Nhwc,
}

/// The order of the channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelOrder {
    /// Red first.
    Rgb,
    /// Blue first, as OpenCV reads images.
    Bgr,
}

/// How an image is resized: Pillow's filters, which include all pixels when an image is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Linear interpolation.
    Bilinear,
    /// Cubic interpolation.
    Bicubic,
    /// The nearest pixel.
    Nearest,
    /// A windowed sinc, three pixels to each side.
    Lanczos3,
}

impl Layout {
    /// All layouts and their names.
    pub const NAMES: &'static [(&'static str, Layout)] =
        &[("NCHW", Layout::Nchw), ("NHWC", Layout::Nhwc)];
}

impl ChannelOrder {
    /// All channel orders and their names.
    pub const NAMES: &'static [(&'static str, ChannelOrder)] =
        &[("RGB", ChannelOrder::Rgb), ("BGR", ChannelOrder::Bgr)];
}

impl Resize {
    /// All filters and their names.
    pub const NAMES: &'static [(&'static str, Resize)] = &[
        ("bilinear", Resize::Bilinear),
        ("bicubic", Resize::Bicubic),
        ("nearest", Resize::Nearest),
        ("lanczos3", Resize::Lanczos3),
    ];
}

macro_rules! named {
    ($type:ty, $option:literal) => {
        impl FromStr for $type {
            type Err = QuantizeError;

            /// Parses a name, in upper or lower case.
            fn from_str(name: &str) -> Result<$type, QuantizeError> {
                let found = <$type>::NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
                found.map(|(_, value)| *value).ok_or_else(|| {
                    let known: Vec<&str> = <$type>::NAMES.iter().map(|(name, _)| *name).collect();
                    let what = format!("is `{name}`, expected one of: {}", known.join(", "));
                    QuantizeError::option($option, what)
                })
            }
        }

        impl Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = <$type>::NAMES.iter().find(|(_, value)| value == self);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    };
}

named!(Layout, "layout");
named!(ChannelOrder, "channel_order");
named!(Resize, "resize");

/// Refuses values that are invalid for every model.
pub(super) fn check(folder: &ImageFolder) -> Result<(), QuantizeError> {
    for (option, numbers) in [("mean", &folder.mean), ("std", &folder.std)] {
        if !matches!(numbers.len(), 1 | 3) {
            let what = format!("has {} numbers, expected 1, or 3 for 3 channels", numbers.len());
            return Err(QuantizeError::option(option, what));
        }
        if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
            return Err(QuantizeError::option(option, format!("has {number}, expected numbers")));
        }
    }
    if folder.std.contains(&0.0) {
        return Err(QuantizeError::option("std", "has 0, but pixels are divided by it"));
    }
    if !folder.scale.is_finite() || folder.scale == 0.0 {
        let what = format!("is {}, expected a number that is not 0", folder.scale);
        return Err(QuantizeError::option("scale", what));
    }
    if let Some(size) = folder.size
        && size.contains(&0)
    {
        return Err(QuantizeError::option("size", format!("is {size:?}, expected height, width")));
    }
    for (option, count) in [("crop", folder.crop), ("limit", folder.limit)] {
        if count == Some(0) {
            return Err(QuantizeError::option(option, "is 0, expected 1 or more"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_display() {
        for (name, layout) in Layout::NAMES {
            assert_eq!((layout.to_string().as_str(), name.parse().ok()), (*name, Some(*layout)));
        }
        for (name, order) in ChannelOrder::NAMES {
            assert_eq!((order.to_string().as_str(), name.parse().ok()), (*name, Some(*order)));
        }
        for (name, resize) in Resize::NAMES {
            assert_eq!((resize.to_string().as_str(), name.parse().ok()), (*name, Some(*resize)));
        }
        assert_eq!("nchw".parse::<Layout>().ok(), Some(Layout::Nchw));
        let error = "NCWH".parse::<Layout>().expect_err("no layout").to_string();
        assert_eq!(error, "layout is `NCWH`, expected one of: NCHW, NHWC");
    }

    #[test]
    fn an_invalid_option_is_refused_by_name() {
        let good = ImageFolder::new("x");
        assert!(check(&good).is_ok());
        let cases = [
            (ImageFolder { mean: vec![], ..good.clone() }, "mean has 0 numbers"),
            (ImageFolder { std: vec![1.0; 2], ..good.clone() }, "std has 2 numbers"),
            (ImageFolder { mean: vec![f64::NAN], ..good.clone() }, "mean has NaN"),
            (ImageFolder { std: vec![1.0, 0.0, 1.0], ..good.clone() }, "std has 0"),
            (ImageFolder { scale: f64::INFINITY, ..good.clone() }, "scale is inf"),
            (ImageFolder { scale: 0.0, ..good.clone() }, "scale is 0"),
            (ImageFolder { size: Some([3, 0]), ..good.clone() }, "size is [3, 0]"),
            (ImageFolder { crop: Some(0), ..good.clone() }, "crop is 0"),
            (ImageFolder { limit: Some(0), ..good }, "limit is 0"),
        ];
        for (folder, message) in cases {
            let error = check(&folder).expect_err(message).to_string();
            assert!(error.starts_with(message), "{error:?} without {message:?}");
        }
    }
}
