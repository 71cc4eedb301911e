//! The layout, channels and size of images for an input.

use quantize_rs::{CalibrationError, InputSpec};
use quantize_rs_onnx::DataType;

use super::decode::MAX_PIXELS;
use super::{ChannelOrder, ImageFolder, Layout};
use crate::inputs::{describe, listed, mismatch};

/// What to say where neither the model nor the caller says how large images are.
const NO_SIZE: &str = "it has a dynamic image size: give ImageFolder(size=(height, width))";

/// The form in which images are passed to the input.
pub(super) struct Frame {
    /// Name of the input.
    pub(super) name: String,
    pub(super) dtype: DataType,
    /// Whether the input has a batch axis.
    pub(super) batched: bool,
    /// Images per sample.
    pub(super) batch: usize,
    pub(super) layout: Layout,
    pub(super) order: ChannelOrder,
    /// 1 or 3.
    pub(super) channels: usize,
    /// Height and width.
    pub(super) size: [usize; 2],
}

impl Frame {
    pub(super) fn of(
        folder: &ImageFolder,
        inputs: &[InputSpec],
    ) -> Result<Frame, CalibrationError> {
        let [input] = inputs else {
            let names = listed(inputs.iter().map(|input| input.name.as_str()), 8);
            let count = inputs.len();
            return Err(mismatch(format!(
                "images can be passed to one input, but the model has {count}, {names}: \
                 use .npz, .safetensors or dictionaries of arrays"
            ))
            .at_value(folder.path.to_string_lossy()));
        };
        let name = &input.name;
        let refused = |what: String| {
            let message = format!("input `{name}` is {}: {what}", describe(input));
            mismatch(message).at_value(folder.path.to_string_lossy())
        };
        let anything = [None; 4];
        let declared = input.shape.as_deref().unwrap_or(&anything);
        let (batch, image) = match declared {
            [batch, image @ ..] if image.len() == 3 => (Some(batch.unwrap_or(1)), image),
            image if image.len() == 3 => (None, image),
            _ => {
                return Err(refused(
                    "images need 4 axes ([N, C, H, W] or [N, H, W, C]), or 3 without N".to_owned(),
                ));
            }
        };
        if batch == Some(0) {
            return Err(refused("it has a batch size of 0".to_owned()));
        }
        let layout = match folder.layout {
            Some(layout) => layout,
            None => layout_of(image).ok_or_else(|| {
                refused(
                    "the axis of the 3 channels or the single one is ambiguous: give \
                     ImageFolder(layout=\"NCHW\") or NHWC"
                        .to_owned(),
                )
            })?,
        };
        let (channels, declared) = match (layout, image) {
            (Layout::Nchw, [channels, height, width])
            | (Layout::Nhwc, [height, width, channels]) => (*channels, [*height, *width]),
            _ => return Err(refused("images need 3 axes".to_owned())),
        };
        let channels = channels.unwrap_or(3);
        if !matches!(channels, 1 | 3) {
            let what = format!("as {layout} it has {channels} channels, images have 1 or 3");
            return Err(refused(what));
        }
        let size = size(folder, declared).map_err(refused)?;
        Ok(Frame {
            name: name.clone(),
            dtype: input.dtype.unwrap_or(DataType::Float),
            batched: batch.is_some(),
            batch: batch.unwrap_or(1),
            layout,
            order: folder.channel_order,
            channels,
            size,
        })
    }

    /// Shape of a sample.
    pub(super) fn shape(&self) -> Vec<usize> {
        let ([height, width], channels) = (self.size, self.channels);
        let image = match self.layout {
            Layout::Nchw => [channels, height, width],
            Layout::Nhwc => [height, width, channels],
        };
        let batch = if self.batched { &[self.batch][..] } else { &[] };
        [batch, &image].concat()
    }

    /// One number per channel; equal numbers are used for any number of channels.
    pub(super) fn by_channel(
        &self,
        option: &str,
        numbers: &[f64],
    ) -> Result<Vec<f64>, CalibrationError> {
        match numbers {
            [first, rest @ ..] if rest.iter().all(|number| number == first) => {
                Ok(vec![*first; self.channels])
            }
            _ if numbers.len() == self.channels => Ok(numbers.to_vec()),
            _ => {
                let (name, channels, count) = (&self.name, self.channels, numbers.len());
                let message =
                    format!("input `{name}` has {channels} channel, {option} has {count}");
                Err(mismatch(message).at_value(name))
            }
        }
    }
}

/// The layout, if the axis of the 3 channels or of the single one is unambiguous.
fn layout_of(image: &[Option<usize>]) -> Option<Layout> {
    let colours = |dim: Option<&Option<usize>>| matches!(dim, Some(Some(1 | 3)));
    match (colours(image.first()), colours(image.last())) {
        (true, false) => Some(Layout::Nchw),
        (false, true) => Some(Layout::Nhwc),
        _ => None,
    }
}

/// Height and width, from the model, or from the options if the model has dynamic ones.
fn size(folder: &ImageFolder, declared: [Option<usize>; 2]) -> Result<[usize; 2], String> {
    let size = match (folder.size, declared) {
        (None, [Some(height), Some(width)]) => [height, width],
        (None, _) => return Err(NO_SIZE.to_owned()),
        (Some(size), _) => {
            let fits = declared.iter().zip(size).all(|(want, have)| want.is_none_or(|w| w == have));
            if !fits {
                return Err(format!("images of size {size:?} do not fit"));
            }
            size
        }
    };
    let [height, width] = size;
    match height.checked_mul(width) {
        Some(pixels) if (1..=MAX_PIXELS).contains(&pixels) => {}
        _ => return Err(format!("images cannot have the size {size:?}")),
    }
    match folder.crop {
        Some(crop) if crop < height.max(width) => {
            Err(format!("a crop of {crop} is too small for a size of {size:?}"))
        }
        _ => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(shape: Option<&[i64]>, folder: &ImageFolder) -> Result<Frame, String> {
        let shape = shape.map(|dims| dims.iter().map(|dim| usize::try_from(*dim).ok()).collect());
        let input = InputSpec { name: "x".into(), dtype: Some(DataType::Float), shape };
        Frame::of(folder, &[input]).map_err(|error| error.to_string())
    }

    #[test]
    fn layout_channels_and_size_are_those_of_the_model() {
        let folder = ImageFolder::new("images");
        for (shape, layout, channels, size, sample) in [
            (&[-1, 3, 8, 6][..], Layout::Nchw, 3, [8, 6], &[1, 3, 8, 6][..]),
            (&[1, 1, 28, 28], Layout::Nchw, 1, [28, 28], &[1, 1, 28, 28]),
            (&[-1, 8, 6, 3], Layout::Nhwc, 3, [8, 6], &[1, 8, 6, 3]),
            (&[4, 8, 6, 1], Layout::Nhwc, 1, [8, 6], &[4, 8, 6, 1]),
            (&[3, 8, 6], Layout::Nchw, 3, [8, 6], &[3, 8, 6]),
            (&[8, 6, 3], Layout::Nhwc, 3, [8, 6], &[8, 6, 3]),
        ] {
            let frame = frame(Some(shape), &folder).expect("a frame");
            assert_eq!((frame.layout, frame.channels, frame.size), (layout, channels, size));
            assert_eq!(frame.shape(), sample);
        }
    }

    #[test]
    fn options_set_what_the_model_leaves_dynamic() {
        let folder = ImageFolder {
            size: Some([8, 6]),
            layout: Some(Layout::Nhwc),
            ..ImageFolder::new("images")
        };
        for shape in [None, Some(&[-1, -1, -1, -1][..]), Some(&[1, 8, -1, 3])] {
            let frame = frame(shape, &folder).expect("a frame");
            assert_eq!(frame.shape(), [1, 8, 6, 3]);
        }
    }

    #[test]
    fn an_input_that_images_do_not_match_is_explained() {
        let plain = ImageFolder::new("images");
        let sized = ImageFolder { size: Some([8, 6]), ..plain.clone() };
        let nchw = ImageFolder { layout: Some(Layout::Nchw), ..plain.clone() };
        let cropped = ImageFolder { crop: Some(7), ..plain.clone() };
        let vast = ImageFolder { size: Some([usize::MAX, 2]), ..plain.clone() };
        let cases = [
            (Some(&[-1, 10][..]), &plain, "input `x` is float32 [?, 10]: images need 4 axes"),
            (Some(&[]), &plain, "images need 4 axes"),
            (None, &plain, "input `x` is float32 of any shape: the axis"),
            (
                Some(&[1, 4, 8, 6]),
                &plain,
                "the axis of the 3 channels or the single one is ambiguous",
            ),
            (Some(&[1, 3, 8, 3]), &plain, "give ImageFolder(layout=\"NCHW\") or NHWC"),
            (Some(&[1, 8, 6, 3]), &nchw, "as NCHW it has 8 channels, images have 1 or 3"),
            (Some(&[1, 3, -1, -1]), &plain, NO_SIZE),
            (Some(&[1, 3, 9, -1]), &sized, "images of size [8, 6] do not fit (`images`)"),
            (Some(&[1, 3, 8, 6]), &cropped, "a crop of 7 is too small for a size of [8, 6]"),
            (Some(&[1, 3, -1, -1]), &vast, "images cannot have the size [18446744073709551615, 2]"),
            (Some(&[1, 3, 0, 6]), &plain, "images cannot have the size [0, 6]"),
            (Some(&[0, 3, 8, 6]), &plain, "it has a batch size of 0"),
        ];
        for (shape, folder, message) in cases {
            let error = frame(shape, folder).err().unwrap_or_default();
            assert!(error.contains(message), "{error:?} without {message:?}");
        }
        let none = Frame::of(&plain, &[]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(none.contains("the model has 0"), "{none}");
    }

    #[test]
    fn one_number_applies_to_all_channels() {
        let grey = frame(Some(&[1, 1, 8, 6]), &ImageFolder::new("images")).expect("a frame");
        assert_eq!(grey.by_channel("mean", &[0.5; 3]).ok(), Some(vec![0.5]));
        let error = grey.by_channel("mean", &[0.4, 0.5, 0.6]).expect_err("3 for 1").to_string();
        assert_eq!(error, "input `x` has 1 channel, mean has 3 (`x`)");
        let colour = frame(Some(&[1, 3, 8, 6]), &ImageFolder::new("images")).expect("a frame");
        assert_eq!(colour.by_channel("std", &[0.5]).ok(), Some(vec![0.5; 3]));
        assert_eq!(colour.by_channel("std", &[0.4, 0.5, 0.6]).ok(), Some(vec![0.4, 0.5, 0.6]));
    }
}
