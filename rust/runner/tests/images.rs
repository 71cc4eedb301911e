//! Folders of images, through the public functions. The images are generated here; the Python tests
//! compare them with Pillow.

use std::fs;
use std::path::Path;

use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, RgbImage, Rgba};
use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec};
use quantize_rs_onnx::{DataType, Tensor};
use quantize_rs_runner::samples::{self, ChannelOrder, ImageFolder, Layout};
use tempfile::TempDir;

fn input(dtype: DataType, shape: &[i64]) -> InputSpec {
    let shape = Some(shape.iter().map(|dim| usize::try_from(*dim).ok()).collect());
    InputSpec { name: "x".into(), dtype: Some(dtype), shape }
}

/// An image of 4 columns and 2 rows whose numbers begin with `first`.
fn small_image(first: u8) -> RgbImage {
    let bytes = (0..24).map(|place| first.wrapping_add(place * 7)).collect();
    RgbImage::from_raw(4, 2, bytes).expect("24 bytes")
}

/// An image of 40 columns and 30 rows that has more than a few bytes when encoded.
fn larger_image() -> DynamicImage {
    let bytes = (0..3600_u32).map(|place| u8::try_from(place * place / 97 % 251).expect("a byte"));
    RgbImage::from_raw(40, 30, bytes.collect()).expect("3600 bytes").into()
}

fn folder(files: &[(&str, DynamicImage)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    for (name, image) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        image.save(path).expect("saved");
    }
    folder
}

fn small_images(names: &[&str]) -> TempDir {
    let firsts = (0..=u8::MAX).step_by(9);
    let files: Vec<_> =
        names.iter().zip(firsts).map(|(name, first)| (*name, small_image(first).into())).collect();
    folder(&files)
}

/// All values, or the first error.
fn values(images: &ImageFolder, input: &InputSpec) -> Result<Vec<Tensor>, CalibrationError> {
    let mut samples = images.open(std::slice::from_ref(input), None)?;
    let hint = samples.len_hint();
    let all: Result<Vec<Tensor>, _> = std::iter::from_fn(|| samples.next_sample())
        .map(|sample| sample.map(|sample| sample.inputs[0].1.clone()))
        .collect();
    assert!(all.as_ref().is_ok_and(|all| hint == Some(all.len())) || all.is_err());
    all
}

fn raw(path: &Path) -> ImageFolder {
    ImageFolder { scale: 1.0, ..ImageFolder::new(path) }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_f32().expect("float32")
}

/// The red byte of the first pixel, which identifies the image.
fn first(path: &Path) -> Vec<f32> {
    let all = values(&raw(path), &input(DataType::Float, &[1, 3, 2, 4])).expect("images");
    all.iter().map(|value| floats(value)[0]).collect()
}

#[test]
fn a_mean_in_other_units_than_the_pixels_gets_a_warning() {
    let folder = small_images(&["a.png"]);
    let float = [input(DataType::Float, &[1, 3, 2, 4])];
    let warning = |scale: f64, mean: &[f64]| {
        let images = ImageFolder { scale, mean: mean.to_vec(), ..ImageFolder::new(folder.path()) };
        images.open(&float, None).expect("opened").conversions().join("")
    };
    let ones = 1.0 / 255.0;
    for (scale, mean) in [
        (ones, &[0.485, 0.456, 0.406][..]),
        (ones, &[0.0]),
        (1.0, &[123.7, 116.3, 103.5]),
        (1.0, &[0.0]),
        (2.0 * ones, &[1.0]),
        (-ones, &[-0.5]),
    ] {
        assert_eq!(warning(scale, mean), "", "{scale} {mean:?}");
    }
    assert_eq!(
        warning(ones, &[123.7, 116.3, 103.5]),
        "mean has 123.7, and pixels times scale are from 0 to 1; a mean of pixels from 0 to 255 \
         needs scale=1"
    );
    assert_eq!(
        warning(1.0, &[0.485, 0.456, 0.406]),
        "mean is [0.485, 0.456, 0.406], and pixels times scale are from 0 to 255; a mean of \
         pixels from 0 to 1 needs scale=1/255"
    );
    assert_eq!(warning(ones, &[-0.5]), "mean has -0.5, and pixels times scale are from 0 to 1");
}

#[test]
fn images_are_sorted_by_name_and_other_files_ignored() {
    let folder = small_images(&["b.png", "a.png", "c.PNG", "d/e.png"]);
    for name in ["labels.txt", "b", ".hidden.png", "._a.png", "a.png.bak"] {
        fs::write(folder.path().join(name), "no image").expect("written");
    }
    fs::create_dir(folder.path().join("f.png")).expect("created");
    assert_eq!(first(folder.path()), [9.0, 0.0, 18.0]);
    let float = input(DataType::Float, &[1, 3, 2, 4]);
    let two = ImageFolder { limit: Some(2), ..raw(folder.path()) };
    assert_eq!(values(&two, &float).expect("images").len(), 2);
    let mut one = two.open(&[float], Some(1)).expect("opened");
    assert!(one.next_sample().is_some_and(|sample| sample.is_ok()));
    assert!(one.next_sample().is_none());
}

#[test]
fn a_pattern_selects_matching_files() {
    let folder = small_images(&["b.png", "a.png", "c.jpeg", "d/e.png", "d/f/a.png", "g/h.png"]);
    fs::write(folder.path().join("a.txt"), "no image").expect("written");
    let names = |pattern: &str| -> Vec<usize> {
        let mut numbers: Vec<usize> = Vec::new();
        for number in first(&folder.path().join(pattern)) {
            numbers.push(
                (0..6)
                    .find(|n| number == f32::from(u8::try_from(n * 9).expect("small")))
                    .unwrap_or(9),
            );
        }
        numbers
    };
    assert_eq!(names("*.png"), [1, 0]);
    assert_eq!(names("[ab].*"), [1, 0]);
    assert_eq!(names("?.png"), [1, 0]);
    assert_eq!(names("{b,d/e}.png"), [0, 3]);
    assert_eq!(names("*/*.png"), [3, 5]);
    assert_eq!(names("d/**"), [3, 4]);
    assert_eq!(names("**/a.png"), [1, 4]);
    assert_eq!(names("b.png"), [0]);
    // a file with exactly that name is not a pattern
    fs::create_dir(folder.path().join("[x]")).expect("created");
    fs::copy(folder.path().join("b.png"), folder.path().join("[x]/y.png")).expect("copied");
    assert_eq!(names("[x]"), [0]);
    assert_eq!(names("[[]x]/*"), [0]);
    // and a folder in a pattern neither
    assert_eq!(names("[x]/*"), [0]);
    assert_eq!(names("[x]/[y].*"), [0]);
}

#[test]
#[cfg(unix)]
fn links_are_followed_but_not_in_circles() {
    use std::os::unix::fs::symlink;
    let folder = small_images(&["a/b.png"]);
    symlink(folder.path(), folder.path().join("a/circle")).expect("a link");
    symlink(folder.path().join("a/b.png"), folder.path().join("c.png")).expect("a link");
    assert_eq!(first(&folder.path().join("**/*.png")).len(), 2);
    assert_eq!(first(&folder.path().join("a/circle/*.png")).len(), 1);
}

#[test]
fn missing_images_are_reported() {
    let folder = small_images(&["d/e.png"]);
    let float = input(DataType::Float, &[1, 3, 2, 4]);
    let error = |name: &str| {
        let path = folder.path().join(name);
        let error = samples::open(&path, std::slice::from_ref(&float), None).err().expect(name);
        (error.kind().clone(), error.to_string())
    };
    let (kind, text) = error("");
    assert!(matches!(kind, CalibrationErrorKind::NoSamples { .. }), "{text}");
    assert!(text.contains("no images, `") && text.contains("**` includes all"), "{text}");
    for name in ["*.png", "x/*.png", "**/*.jpg", "**/*.txt"] {
        let (kind, text) = error(name);
        assert!(matches!(kind, CalibrationErrorKind::NoSamples { .. }), "{text}");
        assert!(text.contains("there is no .jpg, .jpeg, .png (`"), "{text}");
    }
    fs::remove_dir_all(folder.path().join("d")).expect("removed");
    assert!(error("").1.contains("there is no .jpg, .jpeg, .png (`"));
    assert!(error("[").1.contains("not a valid pattern of paths"));
    let missing = error("none");
    assert!(missing.1.starts_with("cannot read the file"), "{}", missing.1);
    fs::write(folder.path().join("a.png"), "").expect("written");
    let error = raw(folder.path()).open(&[float], Some(0)).err().expect("a limit of 0");
    assert!(matches!(error.kind(), CalibrationErrorKind::NoSamples { .. }), "{error}");
}

#[test]
fn pixels_are_scaled_shifted_and_laid_out_by_the_options() {
    let folder = small_images(&["a.png"]);
    let image = small_image(0);
    let options = ImageFolder {
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
        ..ImageFolder::new(folder.path())
    };
    for (shape, layout) in [([-1, 3, 2, 4], Layout::Nchw), ([-1, 2, 4, 3], Layout::Nhwc)] {
        for order in [ChannelOrder::Rgb, ChannelOrder::Bgr] {
            let options = ImageFolder { channel_order: order, ..options.clone() };
            let found = values(&options, &input(DataType::Float, &shape)).expect("an image");
            let found = floats(&found[0]);
            for (x, y, Rgb(pixel)) in image.enumerate_pixels() {
                for channel in 0..3 {
                    let source = if order == ChannelOrder::Rgb { channel } else { 2 - channel };
                    let (x, y) = (x as usize, y as usize);
                    let place = match layout {
                        Layout::Nchw => (channel * 2 + y) * 4 + x,
                        Layout::Nhwc => (y * 4 + x) * 3 + channel,
                    };
                    let value = f64::from(pixel[source]) * (1.0 / 255.0);
                    #[allow(clippy::cast_possible_truncation)] // to the nearest
                    let expected = ((value - options.mean[channel]) / options.std[channel]) as f32;
                    assert_eq!(found[place], expected);
                }
            }
        }
    }
}

#[test]
fn pixels_from_0_to_1_are_the_quotients_by_255() {
    let grey = GrayImage::from_raw(16, 16, (0..=u8::MAX).collect()).expect("256 bytes");
    let folder = folder(&[("a.png", grey.into())]);
    let options = ImageFolder::new(folder.path());
    let found = values(&options, &input(DataType::Float, &[1, 1, 16, 16])).expect("an image");
    let expected: Vec<f32> = (0..=u8::MAX).map(|pixel| f32::from(pixel) / 255.0).collect();
    assert_eq!(floats(&found[0]), expected);
}

#[test]
fn integers_get_the_pixels_and_other_types_are_converted() {
    let folder = small_images(&["a.png"]);
    let options = ImageFolder::new(folder.path());
    let shape = [1, 2, 4, 3];
    let bytes = small_image(0).into_raw();
    let found = values(&options, &input(DataType::UInt8, &shape)).expect("an image");
    assert_eq!((found[0].dtype, &found[0].data[..]), (DataType::UInt8, &bytes[..]));
    let found = values(&options, &input(DataType::Int32, &shape)).expect("an image");
    let expected: Vec<u8> = bytes.iter().flat_map(|byte| i32::from(*byte).to_le_bytes()).collect();
    assert_eq!(found[0].data[..], expected);
    // shifted pixels are integers if all numbers are
    let shifted = ImageFolder { scale: 1.0, mean: vec![128.0], ..options.clone() };
    let found = values(&shifted, &input(DataType::Int8, &shape)).expect("an image");
    let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_sub(128)).collect();
    assert_eq!(found[0].data[..], expected);
    let halves = ImageFolder { std: vec![2.0], ..options.clone() };
    let error = values(&halves, &input(DataType::UInt8, &shape)).expect_err("no integers");
    assert!(error.to_string().contains("does not fit uint8 (`x`, in `"), "{error}");
    assert!(error.to_string().contains("a.png"), "{error}");
    let found = values(&options, &input(DataType::Float16, &shape)).expect("an image");
    assert_eq!((found[0].dtype, found[0].data.len()), (DataType::Float16, 48));
}

#[test]
fn every_kind_of_pixel_becomes_grey_or_three_colours() {
    let grey = |value: u8| (vec![f32::from(value); 3], f32::from(value));
    let colour = (vec![10.0, 200.0, 90.0], 131.0); // (10·0.299 + 200·0.587 + 90·0.114) = 130.65
    let (wide, narrow) = (10 * 256 + 255_u16, 10);
    let cases: [(DynamicImage, (Vec<f32>, f32)); 8] = [
        (GrayImage::from_pixel(4, 4, Luma([77])).into(), grey(77)),
        (ImageBuffer::from_pixel(4, 4, LumaA([77_u8, 3])).into(), grey(77)),
        (RgbImage::from_pixel(4, 4, Rgb([10, 200, 90])).into(), colour.clone()),
        (ImageBuffer::from_pixel(4, 4, Rgba([10_u8, 200, 90, 0])).into(), colour.clone()),
        (ImageBuffer::from_pixel(4, 4, Luma([wide])).into(), grey(narrow)),
        (ImageBuffer::from_pixel(4, 4, LumaA([wide, 9])).into(), grey(narrow)),
        (ImageBuffer::from_pixel(4, 4, Rgb([wide, 51200, 23295])).into(), colour.clone()),
        (ImageBuffer::from_pixel(4, 4, Rgba([wide, 51200, 23295, 0])).into(), colour),
    ];
    for (number, (image, (colours, luma))) in cases.into_iter().enumerate() {
        let folder = folder(&[("a.png", image)]);
        let found = values(&raw(folder.path()), &input(DataType::Float, &[1, 3, 4, 4]));
        let found = floats(&found.expect("an image")[0]);
        let first: Vec<f32> = found.chunks(16).map(|plane| plane[0]).collect();
        assert_eq!(first, colours, "{number}");
        let found = values(&raw(folder.path()), &input(DataType::Float, &[1, 1, 4, 4]));
        assert_eq!(floats(&found.expect("an image")[0]), [luma; 16], "{number}");
    }
}

#[test]
fn a_sample_has_as_many_images_as_the_batch_size() {
    let folder = small_images(&["a.png", "b.png", "c.png", "d.png", "e.png"]);
    let pairs = input(DataType::Float, &[2, 3, 2, 4]);
    let error = values(&raw(folder.path()), &pairs).expect_err("one is left over").to_string();
    assert!(error.contains("takes 2 images at a time, there are 5: 1 are left over"), "{error}");
    let four = ImageFolder { limit: Some(4), ..raw(folder.path()) };
    let found = values(&four, &pairs).expect("pairs");
    assert_eq!(found.len(), 2);
    assert_eq!(found[1].shape, [2, 3, 2, 4]);
    assert_eq!((floats(&found[1])[0], floats(&found[1])[24]), (18.0, 27.0));
    let mut one = raw(folder.path()).open(&[pairs], Some(1)).expect("a limit of samples");
    assert_eq!(one.len_hint(), Some(1));
    assert!(one.next_sample().is_some_and(|sample| sample.is_ok()));
    assert!(one.next_sample().is_none());
}

#[test]
fn a_model_with_two_inputs_does_not_accept_images() {
    let folder = small_images(&["a.png"]);
    let x = input(DataType::Float, &[1, 3, 2, 4]);
    let inputs = [x.clone(), InputSpec { name: "y".into(), ..x }];
    let error = samples::open(folder.path(), &inputs, None).err().expect("two inputs").to_string();
    assert!(error.contains("the model has 2, `x`, `y`: use .npz, .safetensors"), "{error}");
}

#[test]
fn a_broken_image_is_named_when_it_is_reached() {
    let folder = small_images(&["a.png", "b.png"]);
    let float = input(DataType::Float, &[1, 3, 2, 4]);
    let path = folder.path().join("b.png");
    let good = fs::read(&path).expect("read");
    let mut jpeg = std::io::Cursor::new(Vec::new());
    let image = larger_image();
    image.write_to(&mut jpeg, ImageFormat::Jpeg).expect("written");
    let jpeg = jpeg.into_inner();
    let mut flipped = good.clone();
    let at = flipped.len() - 20; // within the pixels
    flipped[at] ^= 0xFF;
    let broken: [(&[u8], &str); 8] = [
        (b"", "expected JPEG or PNG, found neither"),
        (b"junk", "expected JPEG or PNG, found neither"),
        (b"RIFF\x08\0\0\0WEBPVP8 ", "expected JPEG or PNG, found image/webp"),
        (b"GIF89a", "expected JPEG or PNG, found image/gif"),
        (&good[..good.len() / 2], "cannot decode the PNG image"),
        (&flipped, "cannot decode the PNG image"),
        (&jpeg[..jpeg.len() / 2], "the JPEG image is truncated"),
        (&jpeg[..jpeg.len() - 2], "the JPEG image is truncated"),
    ];
    for (bytes, message) in broken {
        fs::write(&path, bytes).expect("written");
        let images = raw(folder.path());
        let mut samples = images.open(std::slice::from_ref(&float), None).expect("opened");
        assert!(samples.next_sample().is_some_and(|sample| sample.is_ok()));
        let error = samples.next_sample().expect("another").expect_err(message).to_string();
        assert!(error.starts_with(message), "{error:?} without {message:?}");
        assert!(error.ends_with("b.png`)"), "{error}");
    }
    // The name of a file does not decide its format; trailing bytes after a JPEG image are ignored.
    fs::write(&path, [&jpeg[..], b"trailing"].concat()).expect("written");
    assert!(values(&raw(folder.path()), &float).is_ok());
    let cut = (0..jpeg.len()).filter(|length| {
        fs::write(&path, &jpeg[..*length]).expect("written");
        values(&raw(folder.path()), &float).is_ok()
    });
    assert_eq!(cut.count(), 0);
}

#[test]
fn an_image_with_a_huge_size_is_refused_before_allocation() {
    let folder = small_images(&["a.png"]);
    let float = input(DataType::Float, &[1, 3, 2, 4]);
    let path = folder.path().join("a.png");
    let png = fs::read(&path).expect("read");
    let mut huge = png.clone();
    huge[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]); // 60000 × 60000
    let checksum = crc32(&huge[12..29]);
    huge[29..33].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&path, &huge).expect("written");
    let error = values(&raw(folder.path()), &float).expect_err("huge").to_string();
    assert!(error.contains("60000 × 60000 pixels are too many"), "{error}");

    let mut jpeg = std::io::Cursor::new(Vec::new());
    DynamicImage::from(small_image(0)).write_to(&mut jpeg, ImageFormat::Jpeg).expect("written");
    let mut jpeg = jpeg.into_inner();
    let frame = jpeg.windows(2).position(|pair| pair == [0xFF, 0xC0]).expect("a frame header");
    jpeg[frame + 5..frame + 9].fill(0xFF); // 65535 × 65535
    fs::write(&path, &jpeg).expect("written");
    let error = values(&raw(folder.path()), &float).expect_err("huge").to_string();
    assert!(error.contains("65535 × 65535 pixels are too many"), "{error}");
}

/// The checksum of a PNG chunk.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn damaged_images_are_errors_and_never_panics() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("a.png");
    let image = larger_image();
    let float = input(DataType::Float, &[1, 3, 8, 8]);
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).expect("31 bits") % below
    };
    for format in [ImageFormat::Png, ImageFormat::Jpeg] {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).expect("written");
        let bytes = bytes.into_inner();
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            for _ in 0..=next(4) {
                let at = next(damaged.len());
                damaged[at] = u8::try_from(next(256)).expect("a byte");
            }
            fs::write(&path, damaged).expect("written");
            match values(&raw(folder.path()), &float) {
                Ok(all) => assert_eq!(all[0].shape, [1, 3, 8, 8]),
                Err(error) => assert!(error.to_string().ends_with("a.png`)"), "{error}"),
            }
        }
    }
}
