//! The flags that say how images become samples.

use std::error::Error;
use std::path::Path;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use quantize_rs_runner::samples::{ChannelOrder, ImageFolder, Layout, Resize, is_image_path};

use crate::failure::Failure;
use crate::{options, samples};

/// Set for each flag: a heading for the whole group would also apply to the flags after it.
const HEADING: &str = options::Group::Images.title();

/// What to do with images.
#[derive(Debug, Default, Args)]
pub(crate) struct ImageArguments {
    #[arg(
        long,
        help_heading = HEADING,
        help = options::help("size"),
        value_name = "H,W",
        value_delimiter = ','
    )]
    size: Option<Vec<usize>>,
    #[arg(
        long,
        help_heading = HEADING,
        help = options::help("scale"),
        value_name = "X",
        value_parser = number,
        allow_negative_numbers = true
    )]
    scale: Option<f64>,
    #[arg(
        long,
        help_heading = HEADING, help = options::help("mean"),
        value_name = "X,X,X",
        value_delimiter = ',',
        value_parser = number,
        allow_negative_numbers = true,
    )]
    mean: Option<Vec<f64>>,
    #[arg(
        long,
        help_heading = HEADING, help = options::help("std"),
        value_name = "X,X,X",
        value_delimiter = ',',
        value_parser = number,
        allow_negative_numbers = true,
    )]
    std: Option<Vec<f64>>,
    #[arg(
        long,
        help_heading = HEADING, help = options::help("layout"),
        value_name = "LAYOUT",
        ignore_case = true,
        value_parser = one_of(Layout::NAMES),
    )]
    layout: Option<Layout>,
    #[arg(
        long,
        help_heading = HEADING, help = options::help("channel_order"),
        value_name = "ORDER",
        ignore_case = true,
        value_parser = one_of(ChannelOrder::NAMES),
    )]
    channel_order: Option<ChannelOrder>,
    #[arg(
        long,
        help_heading = HEADING, help = options::help("resize"),
        value_name = "FILTER",
        ignore_case = true,
        value_parser = one_of(Resize::NAMES),
    )]
    resize: Option<Resize>,
    #[arg(long, help_heading = HEADING, help = options::help("crop"), value_name = "N")]
    crop: Option<usize>,
}

/// A parser of the names in a table of the library.
fn one_of<T>(names: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync> + Clone + Send + Sync,
{
    let names = names.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// A number, or a fraction such as `1/255`.
fn number(text: &str) -> Result<f64, std::num::ParseFloatError> {
    match text.split_once('/') {
        Some((over, under)) => Ok(over.trim().parse::<f64>()? / under.trim().parse::<f64>()?),
        None => text.parse(),
    }
}

impl ImageArguments {
    /// Rejects these flags if no source of samples is images.
    pub(crate) fn check(&self, sources: &[Option<&Path>]) -> Result<(), Failure> {
        let mut named = sources.iter().flatten().filter(|path| !samples::is_random(path));
        if named.any(|path| is_image_path(path)) {
            return Ok(());
        }
        match self.flags().first() {
            None => Ok(()),
            Some(flag) => Err(Failure::Misuse(format!(
                "{flag} is for images, and no samples are a folder, an image or a pattern"
            ))),
        }
    }

    /// The given flags, each followed by its value, for another command.
    pub(crate) fn flags(&self) -> Vec<String> {
        fn numbers<T: ToString>(numbers: &[T]) -> String {
            let texts: Vec<String> = numbers.iter().map(T::to_string).collect();
            texts.join(",")
        }
        fn name<T: PartialEq>(value: &T, names: &[(&str, T)]) -> String {
            let named = names.iter().find(|(_, one)| one == value);
            named.map_or_else(String::new, |(name, _)| (*name).to_owned())
        }
        let given = [
            ("--size", self.size.as_deref().map(numbers)),
            ("--scale", self.scale.map(|scale| scale.to_string())),
            ("--mean", self.mean.as_deref().map(numbers)),
            ("--std", self.std.as_deref().map(numbers)),
            ("--layout", self.layout.as_ref().map(|it| name(it, Layout::NAMES))),
            (
                "--channel-order",
                self.channel_order.as_ref().map(|it| name(it, ChannelOrder::NAMES)),
            ),
            ("--resize", self.resize.as_ref().map(|it| name(it, Resize::NAMES))),
            ("--crop", self.crop.map(|crop| crop.to_string())),
        ];
        let given = given.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().collect()
    }

    /// The images at `path`.
    pub(crate) fn folder(&self, path: &Path) -> Result<ImageFolder, Failure> {
        let plain = ImageFolder::new(path);
        let folder = ImageFolder {
            size: self.size()?,
            scale: self.scale.unwrap_or(plain.scale),
            mean: self.mean.clone().unwrap_or(plain.mean),
            std: self.std.clone().unwrap_or(plain.std),
            layout: self.layout,
            channel_order: self.channel_order.unwrap_or(plain.channel_order),
            resize: self.resize.unwrap_or(plain.resize),
            crop: self.crop,
            ..ImageFolder::new(path)
        };
        folder.check()?;
        Ok(folder)
    }

    fn size(&self) -> Result<Option<[usize; 2]>, Failure> {
        match self.size.as_deref() {
            None => Ok(None),
            Some([side]) => Ok(Some([*side; 2])),
            Some([height, width]) => Ok(Some([*height, *width])),
            Some(more) => {
                let message = format!("--size has {} numbers, expected 1 or 2", more.len());
                Err(Failure::Misuse(message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        images: ImageArguments,
    }

    fn parsed(flags: &[&str]) -> ImageArguments {
        let args = std::iter::once(&"quantize-rs").chain(flags);
        Only::try_parse_from(args).unwrap_or_else(|error| panic!("{error}")).images
    }

    #[test]
    fn no_flags_are_the_defaults_of_the_library() {
        let images = parsed(&[]);
        assert!(images.check(&[None]).is_ok());
        assert_eq!(images.folder(Path::new("a")).expect("a folder"), ImageFolder::new("a"));
    }

    #[test]
    fn every_flag_reaches_the_folder_and_is_refused_without_one() {
        let flags = [
            "--size=224,320",
            "--scale=0.0078125",
            "--mean=-0.5,0,0.5",
            "--std=0.25",
            "--layout=nhwc",
            "--channel-order=BGR",
            "--resize=Lanczos3",
            "--crop=256",
        ];
        let expected = ImageFolder {
            size: Some([224, 320]),
            scale: 1.0 / 128.0,
            mean: vec![-0.5, 0.0, 0.5],
            std: vec![0.25],
            layout: Some(Layout::Nhwc),
            channel_order: ChannelOrder::Bgr,
            resize: Resize::Lanczos3,
            crop: Some(256),
            ..ImageFolder::new("a")
        };
        assert_eq!(parsed(&flags).folder(Path::new("a")).expect("a folder"), expected);
        let again = parsed(&flags).flags();
        let again: Vec<String> = again.chunks(2).map(|pair| pair.join("=")).collect();
        let again: Vec<&str> = again.iter().map(String::as_str).collect();
        assert_eq!(parsed(&again).folder(Path::new("a")).expect("a folder"), expected);
        for flag in flags {
            let name = flag.split('=').next().unwrap_or_default();
            let images = parsed(&[flag]);
            for none in [&[][..], &[None, Some(Path::new("a.npy"))], &[Some(Path::new("random"))]] {
                let refused = images.check(none).expect_err(flag).message();
                assert!(refused.starts_with(&format!("{name} is for images")), "{refused}");
            }
            images.check(&[Some(Path::new("a.npy")), Some(Path::new("b/*.png"))]).expect(flag);
        }
        let fraction = parsed(&["--scale=1/255", "--mean=127.5/255", "--std=-1 / -2"]);
        let fraction = fraction.folder(Path::new("a")).expect("a folder");
        assert_eq!(
            fraction,
            ImageFolder { std: vec![0.5], mean: vec![0.5], ..ImageFolder::new("a") }
        );
        let square = parsed(&["--size", "8"]).folder(Path::new("a")).expect("a folder");
        assert_eq!(square.size, Some([8, 8]));
    }

    #[test]
    fn what_cannot_be_is_misuse() {
        for (flag, message) in [
            ("--size=1,2,3", "--size has 3 numbers"),
            ("--std=0", "--std has 0"),
            ("--scale=1/0", "--scale is inf"),
            ("--mean=1,2", "--mean has 2 numbers"),
            ("--crop=0", "--crop is 0"),
        ] {
            let failure = parsed(&[flag]).folder(Path::new("a")).expect_err(flag);
            assert!(matches!(failure, Failure::Misuse(_)));
            assert!(failure.message().starts_with(message), "{flag}");
        }
        let error = Only::try_parse_from(["quantize-rs", "--resize=cubic"]).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("bilinear, bicubic, nearest, lanczos3"), "{error}");
    }
}
