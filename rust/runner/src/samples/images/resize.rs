//! Resizes and crops images.

use quantize_rs::CalibrationError;

use super::Resize;
use super::decode::{MAX_PIXELS, Pixels};
use super::resample::resample;
use crate::samples::data;

/// The image in this size (height and width). With `crop`, the shorter side is resized to that
/// length, followed by a center crop; without, the whole image is resized.
pub(super) fn fit(
    image: Pixels,
    size: [usize; 2],
    crop: Option<usize>,
    resize: Resize,
) -> Result<Pixels, CalibrationError> {
    let Some(shorter) = crop else { return resized(image, size, resize) };
    let (height, width) = (image.height, image.width);
    let longer = |long: usize, short: usize| shorter.saturating_mul(long) / short.max(1);
    let whole = if height <= width {
        [shorter, longer(width, height)]
    } else {
        [longer(height, width), shorter]
    };
    Ok(centre(&resized(image, whole, resize)?, size))
}

fn resized(
    image: Pixels,
    [height, width]: [usize; 2],
    resize: Resize,
) -> Result<Pixels, CalibrationError> {
    // Rows come first: the intermediate image has the old height and the new width.
    let pixels = image.height.max(height).checked_mul(width);
    if pixels.is_none_or(|pixels| pixels > MAX_PIXELS) {
        let (from, to) = ([image.height, image.width], [height, width]);
        return Err(data(format!("resizing {from:?} to {to:?} takes too many pixels")));
    }
    Ok(if (image.height, image.width) == (height, width) {
        image
    } else {
        resample(image, height, width, resize)
    })
}

/// The center crop of an image that is at least this large. Of two centers the one whose corner has
/// even coordinates, as in torchvision.
fn centre(image: &Pixels, [height, width]: [usize; 2]) -> Pixels {
    let half = |free: usize| free / 2 + usize::from(free % 4 == 3);
    let (top, left) = (half(image.height - height), half(image.width - width));
    let row = image.width * image.channels;
    let rows = image.bytes.chunks_exact(row.max(1)).skip(top).take(height);
    let columns = left * image.channels..(left + width) * image.channels;
    let bytes = rows.flat_map(|row| row[columns.clone()].iter().copied()).collect();
    Pixels { width, height, channels: image.channels, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(width: usize, height: usize) -> Pixels {
        let bytes = (0..=u8::MAX).cycle().take(width * height).collect();
        Pixels { width, height, channels: 1, bytes }
    }

    #[test]
    fn an_image_of_the_right_size_stays_as_it_is() {
        for (_, resize) in Resize::NAMES {
            assert_eq!(fit(ramp(5, 3), [3, 5], None, *resize).ok(), Some(ramp(5, 3)));
        }
    }

    #[test]
    fn the_center_crop_equals_torchvision() {
        // round(free / 2) with halves to even: 0 → 0, 1 → 0, 2 → 1, 3 → 2, 4 → 2, 5 → 2, 7 → 4
        for (free, corner) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3), (7, 4)] {
            let cut = centre(&ramp(4 + free, 1), [1, 4]);
            assert_eq!(usize::from(cut.bytes[0]), corner, "{free}");
        }
    }

    #[test]
    fn a_crop_keeps_proportions() {
        for (width, height) in [(40, 10), (10, 40), (17, 11), (3, 5)] {
            let cut = fit(ramp(width, height), [6, 7], Some(8), Resize::Bilinear).expect("room");
            assert_eq!((cut.height, cut.width, cut.bytes.len()), (6, 7, 42));
        }
    }

    #[test]
    fn a_line_that_would_become_a_huge_image_is_refused() {
        let error = fit(ramp(65535, 1), [224, 224], Some(256), Resize::Bilinear).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(error, "resizing [1, 65535] to [256, 16776960] takes too many pixels");
    }
}
