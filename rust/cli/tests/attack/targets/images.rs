//! Images: the chunks of a PNG with right checksums, the segments of a JPEG.

use std::fs;
use std::io::{Cursor, Write};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage, RgbaImage};
use quantize_rs::{DataType, InputSpec};
use quantize_rs_runner::samples::{ImageFolder, Resize};

use super::Attack;
use crate::corpus::Corpus;
use crate::mutate::bytes;
use crate::random::Random;

/// Images of several kinds, encoded.
fn seeds(format: ImageFormat) -> Vec<Vec<u8>> {
    let values = |count: u32| (0..count).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    let wide: Vec<u16> = (0..5 * 7).map(|at: u16| at * 1871).collect();
    let mut images: Vec<DynamicImage> = vec![
        GrayImage::from_raw(9, 7, values(63)).unwrap().into(),
        RgbImage::from_raw(20, 17, values(1020)).unwrap().into(),
        RgbImage::from_raw(1, 1, values(3)).unwrap().into(),
    ];
    if format == ImageFormat::Png {
        images.push(RgbaImage::from_raw(6, 5, values(120)).unwrap().into());
        images
            .push(image::ImageBuffer::<image::Luma<u16>, _>::from_raw(5, 7, wide).unwrap().into());
    }
    let encoded = images.into_iter().map(|image| {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    });
    encoded.collect()
}

/// Reads images of a path as an input of some shape and options.
fn read(path: &std::path::Path, random: &mut Random) -> bool {
    let shape = match random.below(3) {
        0 => vec![None, Some(3), Some(8), Some(6)],
        1 => vec![Some(1), Some(8), Some(8), Some(1)],
        _ => vec![Some(1), Some(3), None, None],
    };
    let dtype = Some(if random.once_in(4) { DataType::UInt8 } else { DataType::Float });
    let input = InputSpec { name: "x".to_owned(), dtype, shape: Some(shape) };
    let images = ImageFolder {
        size: random.once_in(3).then_some([8, 6]),
        crop: random.once_in(3).then_some(9),
        resize: *random.of_all(&[Resize::Bilinear, Resize::Nearest, Resize::Bicubic]),
        ..ImageFolder::new(path)
    };
    let Ok(mut found) = images.open(&[input], None) else { return false };
    found.next_sample().is_some_and(|sample| sample.is_ok())
}

/// The chunks of a PNG: their types and contents.
fn chunks(png: &[u8]) -> Vec<([u8; 4], Vec<u8>)> {
    let (mut at, mut chunks) = (8, Vec::new());
    while at + 12 <= png.len() {
        let length = u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        let kind = png[at + 4..at + 8].try_into().unwrap();
        chunks.push((kind, png[at + 8..at + 8 + length].to_vec()));
        at += 12 + length;
    }
    chunks
}

/// The content of an odd chunk of this type.
fn odd_chunk(random: &mut Random) -> ([u8; 4], Vec<u8>) {
    let kinds: [&[u8; 4]; 10] =
        [b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"zTXt", b"IDAT", b"IHDR", b"gAMA"];
    let kind = **random.of_all(&kinds);
    let mut content: Vec<u8> = (0..random.below(40)).map(|_| random.byte()).collect();
    if matches!(&kind, b"iCCP" | b"zTXt") {
        content = b"name\0\0".to_vec();
        content.extend(deflated(&vec![0; 1 << random.below(21)]));
    } else if &kind == b"eXIf" {
        content = exif(random);
    }
    (kind, content)
}

/// EXIF data with an orientation.
fn exif(random: &mut Random) -> Vec<u8> {
    let mut exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend([random.byte() % 10, 0, 0, 0, 0, 0, 0, 0]);
    if random.once_in(3) {
        bytes::mutate(&mut exif, random);
    }
    exif
}

fn deflated(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn mutated_png(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut chunks = chunks(seed);
    for _ in 0..=random.below(3) {
        let at = random.below(chunks.len());
        match random.below(7) {
            // Width, height, depth, colours, compression, filter, interlacing.
            0 | 1 => {
                let fields = [(0, 4), (4, 4), (8, 1), (9, 1), (10, 1), (11, 1), (12, 1)];
                let (place, length) = *random.of_all(&fields);
                if let Some(field) = chunks[0].1.get_mut(place..place + length) {
                    bytes::number(field, true, random);
                }
            }
            2 => {
                let chunk = odd_chunk(random);
                chunks.insert(at.min(chunks.len()), chunk);
            }
            3 if chunks.len() > 1 => drop(chunks.remove(at)),
            4 => {
                let chunk = chunks[at].clone();
                chunks.insert(random.below(chunks.len()), chunk);
            }
            5 => {
                let rows = deflated(&vec![random.byte() % 6; 1 << random.below(19)]);
                if let Some(data) = chunks.iter_mut().find(|chunk| &chunk.0 == b"IDAT") {
                    data.1 = rows;
                }
            }
            _ => bytes::mutate(&mut chunks[at].1, random),
        }
    }
    let mut png = seed[..8].to_vec();
    for (kind, content) in chunks {
        png.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
        let mut crc = Crc::new();
        crc.update(&kind);
        crc.update(&content);
        png.extend(kind);
        png.extend(content);
        png.extend(crc.sum().to_be_bytes());
    }
    if random.once_in(20) {
        bytes::mutate(&mut png, random);
    }
    png
}

pub(super) fn png(_: &Corpus) -> Attack {
    attack(ImageFormat::Png, "x.png", mutated_png)
}

pub(super) fn jpeg(_: &Corpus) -> Attack {
    attack(ImageFormat::Jpeg, "x.jpg", mutated_jpeg)
}

fn attack(format: ImageFormat, name: &str, mutated: fn(&[u8], &mut Random) -> Vec<u8>) -> Attack {
    let folder = tempfile::tempdir().unwrap();
    let (path, seeds) = (folder.path().join(name), seeds(format));
    Box::new(move |random| {
        let _kept = &folder;
        let seed: &Vec<u8> = random.of_all(&seeds);
        fs::write(&path, mutated(seed, random)).unwrap();
        read(&path, random)
    })
}

/// Where the segments of a JPEG begin: at their markers.
fn segments(jpeg: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (2, Vec::new());
    while let Some([0xff, marker, high, low]) = jpeg.get(at..at + 4) {
        found.push(at);
        if *marker == 0xda {
            break;
        }
        at += 2 + usize::from(u16::from_be_bytes([*high, *low]));
    }
    found
}

fn mutated_jpeg(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut jpeg = seed.to_vec();
    for _ in 0..=random.below(3) {
        let found = segments(&jpeg);
        let Some(at) = found.get(random.below(found.len())).copied() else { break };
        match random.below(7) {
            0 => jpeg[at + 1] = random.byte() | 0xc0,
            1 => bytes::number(&mut jpeg[at + 2..at + 4], true, random),
            // In a frame: precision, height, width, the number of components.
            2 | 3 => {
                let frame = found.iter().find(|at| matches!(jpeg[**at + 1], 0xc0..=0xc2));
                let (place, length) = *random.of_all(&[(4, 1), (5, 2), (7, 2), (9, 1), (11, 1)]);
                if let Some(field) =
                    frame.and_then(|at| jpeg.get_mut(at + place..)?.get_mut(..length))
                {
                    bytes::number(field, true, random);
                }
            }
            4 => {
                let mut segment = b"\xff\xe1\0\x24Exif\0\0".to_vec();
                segment.extend(exif(random));
                jpeg.splice(at..at, segment);
            }
            5 => {
                let place = at + random.below(jpeg.len() - at);
                jpeg[place] = random.byte();
            }
            _ => {
                let end = found.last().copied().unwrap_or(at);
                let place = end + random.below(jpeg.len() - end);
                jpeg[place] = random.byte();
            }
        }
    }
    if random.once_in(20) {
        bytes::mutate(&mut jpeg, random);
    }
    jpeg
}
