//! Decodes image files to pixels.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use quantize_rs::CalibrationError;

use crate::catch_panic;
use crate::samples::{data, io_error};

/// The maximum number of pixels of an image: 512 MiB in colour, which is Pillow's limit too.
pub(super) const MAX_PIXELS: usize = (512 << 20) / 3;

/// The maximum size of an image file, and of its decoded pixels.
const MAX_BYTES: u64 = 512 << 20;

/// An image with 8 bits per channel, row by row, with interleaved channels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

/// Reads an image, with its EXIF orientation applied, as this many channels.
pub(super) fn read(path: &Path, channels: usize) -> Result<Pixels, CalibrationError> {
    let bytes = read_file(path)?;
    let decoded = catch_panic::caught(|| decoded(bytes)).unwrap_or_else(|panic| Err(data(panic)));
    decoded
        .map(|image| pixels(&image, channels))
        .map_err(|error| error.at_value(path.to_string_lossy()))
}

fn read_file(path: &Path) -> Result<Vec<u8>, CalibrationError> {
    let refused = |what: String| data(what).at_value(path.to_string_lossy());
    let metadata = std::fs::metadata(path).map_err(|error| io_error(path, error))?;
    if !metadata.is_file() {
        return Err(refused("expected an image, found no regular file".to_owned()));
    }
    if metadata.len() > MAX_BYTES {
        return Err(refused(format!("{} bytes are too many for an image", metadata.len())));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| io_error(path, error))?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| io_error(path, error))?;
    Ok(bytes)
}

/// Decodes an image by its contents, not by its file name.
fn decoded(bytes: Vec<u8>) -> Result<DynamicImage, CalibrationError> {
    let format = match image::guess_format(&bytes) {
        Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png)) => format,
        Ok(other) => {
            return Err(data(format!("expected JPEG or PNG, found {}", other.to_mime_type())));
        }
        Err(_) => return Err(data("expected JPEG or PNG, found neither")),
    };
    if format == ImageFormat::Jpeg && !jpeg_ends(&bytes) {
        return Err(data("the JPEG image is truncated"));
    }
    let broken = |error: image::ImageError| {
        let kind = if format == ImageFormat::Jpeg { "JPEG" } else { "PNG" };
        data(format!("cannot decode the {kind} image: {error}")).caused_by(error)
    };
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_BYTES);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS as u64 || limits.reserve(decoder.total_bytes()).is_err() {
        return Err(data(format!("{width} × {height} pixels are too many for an image")));
    }
    let orientation = decoder.orientation().map_err(broken)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(broken)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// Whether a JPEG file has its end marker. The decoder fills missing parts with grey.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        // The next marker: 0xFF, which may be repeated, and a byte with its type.
        let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xFF && pair[1] != 0xFF) else {
            return false;
        };
        let marker = rest[at + 1];
        rest = &rest[at + 2..];
        match marker {
            0xD9 => return true,
            // Within a scan: an escaped 0xFF, or a restart; the start of the file.
            0 | 1 | 0xD0..=0xD8 => {}
            // All others begin with their length, and may contain images.
            _ => {
                let Some(length) = rest.first_chunk().map(|length| u16::from_be_bytes(*length))
                else {
                    return false;
                };
                rest = rest.get(usize::from(length)..).unwrap_or_default();
            }
        }
    }
}

/// The pixels of a decoded image with 8 bits per channel.
fn pixels(image: &DynamicImage, channels: usize) -> Pixels {
    let colours = usize::from(image.color().channel_count()); // with transparency
    let wide = image.color().bytes_per_pixel() > image.color().channel_count();
    let bytes = if wide {
        // 16 bits in native byte order: the upper 8.
        let upper = |pair: &[u8]| pair[usize::from(cfg!(target_endian = "little"))];
        let bytes: Vec<u8> = image.as_bytes().chunks_exact(2).map(upper).collect();
        channel_values(&bytes, colours, channels)
    } else {
        channel_values(image.as_bytes(), colours, channels)
    };
    Pixels { width: image.width() as usize, height: image.height() as usize, channels, bytes }
}

/// Values of `channels` channels, from those of 1 (grey), 2 (grey and alpha), 3 or 4.
fn channel_values(bytes: &[u8], from: usize, channels: usize) -> Vec<u8> {
    let pixels = bytes.chunks_exact(from);
    match (from, channels) {
        (1 | 2, 1) => pixels.map(|pixel| pixel[0]).collect(),
        (1 | 2, _) => pixels.flat_map(|pixel| [pixel[0]; 3]).collect(),
        (_, 1) => pixels.map(|pixel| luma(pixel[0], pixel[1], pixel[2])).collect(),
        _ => pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
    }
}

/// The luma of ITU-R 601, in Pillow's fixed-point arithmetic.
fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471;
    u8::try_from((sum + 0x8000) >> 16).unwrap_or(u8::MAX)
}
