//! Resampling that equals Pillow's, with which models are trained.
//!
//! When an image is reduced, the filter covers all pixels that contribute to a new one. Rows are
//! resampled before columns, intermediate values have 8 bits, and weights are fixed-point numbers.

use super::Resize;
use super::decode::Pixels;

/// Fraction bits of a weight: 32, less 8 of a pixel, less 2 since weights may exceed 1.
const PRECISION: u32 = 22;

/// The image in another size, which the caller has checked not to be too large.
pub(super) fn resample(mut image: Pixels, height: usize, width: usize, resize: Resize) -> Pixels {
    let Some(filter) = Filter::of(resize) else { return nearest(&image, height, width) };
    if image.width != width {
        image = along_rows(&image, width, &filter);
    }
    if image.height != height {
        image = along_columns(&image, height, &filter);
    }
    image
}

/// The weight of a pixel as a function of the distance.
struct Filter {
    weight: fn(f64) -> f64,
    /// The distance from which on the weight is 0.
    support: f64,
}

impl Filter {
    /// `None` for the nearest pixel, which is not a filter.
    fn of(resize: Resize) -> Option<Filter> {
        match resize {
            Resize::Nearest => None,
            Resize::Bilinear => Some(Filter { weight: triangle, support: 1.0 }),
            Resize::Bicubic => Some(Filter { weight: cubic, support: 2.0 }),
            Resize::Lanczos3 => Some(Filter { weight: lanczos, support: 3.0 }),
        }
    }

    /// For each of the new pixels, the first old one with a weight, and the weights from there on.
    #[allow(clippy::cast_precision_loss)] // lengths are far below 2^53
    fn weights(&self, old: usize, new: usize) -> Vec<(usize, Vec<i32>)> {
        let scale = old as f64 / new as f64;
        let stretch = scale.max(1.0);
        let support = self.support * stretch;
        let taps = |pixel: usize| {
            let centre = (pixel as f64 + 0.5) * scale;
            let first = rounded(centre - support);
            let end = rounded(centre + support).min(old);
            let weights: Vec<f64> = (first..end)
                .map(|tap| (self.weight)((tap as f64 - centre + 0.5) * stretch.recip()))
                .collect();
            let sum: f64 = weights.iter().sum();
            let fixed = weights.iter().map(|weight| fixed_point(weight / sum));
            (first, fixed.collect())
        };
        (0..new).map(taps).collect()
    }
}

fn triangle(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 { 1.0 - x } else { 0.0 }
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { x.sin() / x };
    if (-3.0..3.0).contains(&x) {
        sinc(x * std::f64::consts::PI) * sinc(x / 3.0 * std::f64::consts::PI)
    } else {
        0.0
    }
}

/// The nearest integer, at least 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates, as is wanted
fn rounded(x: f64) -> usize {
    (x + 0.5) as usize
}

/// Rounds half away from 0.
#[allow(clippy::cast_possible_truncation)] // weights are small
fn fixed_point(weight: f64) -> i32 {
    (weight * f64::from(1 << PRECISION) + 0.5_f64.copysign(weight)) as i32
}

/// The pixel of a weighted sum.
fn pixel(sum: i32) -> u8 {
    u8::try_from((sum >> PRECISION).clamp(0, 255)).unwrap_or(u8::MAX)
}

/// The initial value of a sum, so that it is rounded at the end.
const ROUNDING: i32 = 1 << (PRECISION - 1);

fn along_rows(image: &Pixels, width: usize, filter: &Filter) -> Pixels {
    let weights = filter.weights(image.width, width);
    match image.channels {
        1 => rows_of::<1>(image, width, &weights),
        _ => rows_of::<3>(image, width, &weights),
    }
}

fn rows_of<const C: usize>(image: &Pixels, width: usize, weights: &[(usize, Vec<i32>)]) -> Pixels {
    let mut bytes = Vec::with_capacity(image.height * width * C);
    for row in image.bytes.chunks_exact(image.width * C) {
        let (row, _) = row.as_chunks::<C>();
        for (first, weights) in weights {
            let mut sums = [ROUNDING; C];
            for (old, weight) in row[*first..].iter().zip(weights) {
                for (sum, value) in sums.iter_mut().zip(old) {
                    *sum += i32::from(*value) * weight;
                }
            }
            bytes.extend(sums.map(pixel));
        }
    }
    Pixels { width, height: image.height, channels: C, bytes }
}

fn along_columns(image: &Pixels, height: usize, filter: &Filter) -> Pixels {
    let row = image.width * image.channels;
    let mut bytes = Vec::with_capacity(height * row);
    let mut sums = vec![ROUNDING; row];
    for (first, weights) in filter.weights(image.height, height) {
        sums.fill(ROUNDING);
        for (old, weight) in image.bytes.chunks_exact(row).skip(first).zip(&weights) {
            for (sum, value) in sums.iter_mut().zip(old) {
                *sum += i32::from(*value) * weight;
            }
        }
        bytes.extend(sums.iter().map(|sum| pixel(*sum)));
    }
    Pixels { height, bytes, ..*image }
}

fn nearest(image: &Pixels, height: usize, width: usize) -> Pixels {
    let (rows, columns) = (positions(image.height, height), positions(image.width, width));
    let (row, channels) = (image.width * image.channels, image.channels);
    let pixels = rows.iter().flat_map(|y| {
        columns.iter().flat_map(move |x| {
            let start = y * row + x * channels;
            image.bytes[start..start + channels].iter().copied()
        })
    });
    Pixels { width, height, channels, bytes: pixels.collect() }
}

/// The old pixel for each of the new ones. Pillow adds up steps; this has the same rounding errors.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn positions(old: usize, new: usize) -> Vec<usize> {
    let step = old as f64 / new as f64;
    let all = std::iter::successors(Some(step * 0.5), |position| Some(position + step));
    all.take(new).map(|position| (position as usize).min(old.saturating_sub(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 7 columns and 5 rows of irregular numbers.
    fn image() -> Pixels {
        let bytes = (0..35_u32).map(|i| u8::try_from(i * 111 % 256).expect("below 256")).collect();
        Pixels { width: 7, height: 5, channels: 1, bytes }
    }

    /// The results for [`image`]: 2 rows of 3, and 7 rows of 9.
    type Resampled = ([[u8; 3]; 2], [[u8; 9]; 7]);

    /// The results of Pillow 12 for [`image`].
    #[test]
    fn pixels_equal_pillow() {
        let cases: [(Resize, Resampled); 4] = [
            (
                Resize::Bilinear,
                (
                    [[104, 146, 123], [105, 145, 141]],
                    [
                        [0, 74, 160, 190, 77, 163, 107, 80, 154],
                        [5, 79, 165, 195, 82, 168, 112, 85, 159],
                        [12, 86, 172, 202, 89, 175, 119, 92, 166],
                        [18, 92, 178, 208, 95, 181, 125, 98, 172],
                        [24, 98, 184, 214, 101, 187, 131, 104, 178],
                        [31, 105, 142, 136, 108, 194, 138, 111, 185],
                        [36, 110, 83, 27, 113, 199, 143, 116, 190],
                    ],
                ),
            ),
            (
                Resize::Bicubic,
                (
                    [[99, 158, 117], [99, 152, 141]],
                    [
                        [0, 66, 173, 201, 76, 175, 103, 67, 158],
                        [2, 71, 178, 206, 81, 180, 108, 72, 163],
                        [6, 79, 186, 214, 89, 188, 116, 80, 171],
                        [13, 85, 192, 220, 95, 194, 122, 86, 177],
                        [19, 90, 207, 243, 101, 200, 128, 92, 183],
                        [27, 107, 151, 133, 109, 210, 136, 100, 191],
                        [32, 124, 79, 0, 114, 218, 141, 105, 196],
                    ],
                ),
            ),
            (
                Resize::Nearest,
                (
                    [[120, 86, 52], [138, 104, 70]],
                    [
                        [0, 111, 111, 222, 77, 188, 43, 43, 154],
                        [9, 120, 120, 231, 86, 197, 52, 52, 163],
                        [9, 120, 120, 231, 86, 197, 52, 52, 163],
                        [18, 129, 129, 240, 95, 206, 61, 61, 172],
                        [27, 138, 138, 249, 104, 215, 70, 70, 181],
                        [27, 138, 138, 249, 104, 215, 70, 70, 181],
                        [36, 147, 147, 2, 113, 224, 79, 79, 190],
                    ],
                ),
            ),
            (
                Resize::Lanczos3,
                (
                    [[101, 164, 113], [98, 154, 142]],
                    [
                        [0, 56, 195, 196, 77, 177, 106, 64, 164],
                        [1, 60, 199, 200, 81, 181, 110, 68, 168],
                        [6, 68, 206, 206, 89, 189, 118, 76, 176],
                        [13, 74, 213, 214, 95, 195, 124, 82, 182],
                        [20, 75, 239, 254, 101, 199, 131, 88, 188],
                        [25, 104, 161, 120, 109, 216, 135, 96, 196],
                        [26, 129, 79, 0, 113, 230, 136, 100, 200],
                    ],
                ),
            ),
        ];
        for (resize, (smaller, larger)) in cases {
            assert_eq!(resample(image(), 2, 3, resize).bytes, smaller.concat(), "{resize}");
            assert_eq!(resample(image(), 7, 9, resize).bytes, larger.concat(), "{resize}");
        }
    }

    #[test]
    fn three_channels_are_resampled_as_three_images() {
        let bytes = image().bytes.iter().flat_map(|b| [*b, 255 - *b, *b / 2]).collect();
        let colour = Pixels { channels: 3, bytes, ..image() };
        let halved = Pixels { bytes: image().bytes.iter().map(|b| b / 2).collect(), ..image() };
        for (_, resize) in Resize::NAMES {
            for (height, width) in [(2, 3), (7, 9), (5, 3), (8, 7)] {
                let all = resample(
                    Pixels { bytes: colour.bytes.clone(), ..colour },
                    height,
                    width,
                    *resize,
                );
                let plane =
                    |c: usize| all.bytes.iter().copied().skip(c).step_by(3).collect::<Vec<u8>>();
                assert_eq!(plane(0), resample(image(), height, width, *resize).bytes);
                let halved = Pixels { bytes: halved.bytes.clone(), ..halved };
                assert_eq!(plane(2), resample(halved, height, width, *resize).bytes);
                assert_eq!(all.bytes.len(), height * width * 3);
            }
        }
    }

    #[test]
    fn a_uniform_image_stays_uniform() {
        for value in [0, 1, 127, 255] {
            for (_, resize) in Resize::NAMES {
                for (height, width) in [(1, 1), (3, 50), (50, 3)] {
                    let flat =
                        Pixels { width: 13, height: 17, channels: 1, bytes: vec![value; 221] };
                    let found = resample(flat, height, width, *resize);
                    assert!(found.bytes.iter().all(|byte| *byte == value), "{resize} {value}");
                }
            }
        }
    }
}
