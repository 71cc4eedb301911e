//! Options whose values belong to other stages than the plan: samples and their ranges, accuracy
//! control, and how samples are run.

use std::path::PathBuf;

use super::declare::options;
use super::row::{Class, Condition, Flag, Group, Surface, Verb};
use super::value::{CheckMode, EngineName, Fraction, SamplesPath};
use super::{Method, OptionRow};

const CLI_AND_FILE: &[Surface] = &[Surface::Cli, Surface::File];

const SAMPLES: Condition = Condition::Given(&["calibration_data"]);

const RANDOM: Condition = Condition::Value("calibration_data", &["random"]);

const CALIBRATION: OptionRow =
    OptionRow { group: Group::Calibration, class: Class::CalibrationOptions, ..OptionRow::EMPTY };

const SAMPLES_TYPE: Option<&str> = Some("CalibrationData | None");

options! {
    rows CALIBRATION_ROWS from CALIBRATION;

    /// Samples that the model runs on: 128 or more real ones, prepared as in production. With
    /// `quantize` activations stay float and biases are corrected; with `calibrate` the ranges of
    /// activations follow from them.
    ///
    /// A path names a `.npy` file for models with one input, a `.npz` or `.safetensors` file with
    /// an array for each input, a folder of images, or a pattern such as `images/*.jpg`. `random`
    /// stands for noise, whose ranges are not those of data: use it only to try things. Python also
    /// takes arrays, dicts of arrays, iterables, data loaders and objects with `get_next()`.
    row calibration_data: Option<SamplesPath> = None => {
        aliases: &["data", "samples"],
        conflicts: &["ranges"],
        example: "calibration_data=\"calibration.npy\"",
        python_type: SAMPLES_TYPE,
        flag: Flag { value_name: Some("PATH"), ..Flag::PLAIN },
    };

    /// How the range of a value follows from the samples. A percentile may have its number:
    /// `percentile:99.9` leaves out what is beyond 99.9 %. With `mse:2` clipping counts twice, and
    /// with `entropy:1` the squared error is at most that of the full range.
    row method: Method = Method::default() => {
        verbs: &[Verb::Calibrate],
        only_with: Some(SAMPLES),
        example: "method=\"entropy\"",
        flag: Flag { value_name: Some("METHOD"), ..Flag::PLAIN },
    };

    /// Ranges of an earlier calibration, instead of samples. The model is not run.
    row ranges: Option<SamplesPath> = None => {
        verbs: &[Verb::Calibrate],
        conflicts: &["calibration_data"],
        example: "ranges=\"model.ranges.json\"",
        python_type: Some("Ranges | str | os.PathLike[str] | None"),
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// Run only a part of the samples and write its ranges to `ranges_out`, and no model: `2/8` is
    /// every eighth sample, from the second on. `quantize-rs ranges merge` joins the parts, which
    /// may come from several machines. The file also holds the second moments that weights are
    /// rounded with.
    row shard: Option<String> = None => {
        verbs: &[Verb::Calibrate],
        surfaces: &[Surface::Cli],
        only_with: Some(Condition::Given(&["ranges_out"])),
        example: "",
        flag: Flag { value_name: Some("I/N"), ..Flag::PLAIN },
    };

    /// Also write the ranges to this file, as JSON; those of a shard in the safetensors format.
    row ranges_out: Option<PathBuf> = None => {
        aliases: &["statistics_path"],
        verbs: &[Verb::Calibrate],
        surfaces: CLI_AND_FILE,
        only_with: Some(SAMPLES),
        conflicts: &["ranges"],
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// Use only the first N samples.
    row limit: Option<usize> = None => {
        aliases: &["calibration_samples"],
        range: (Some(1.0), None),
        default_text: Some("all samples"),
        only_with: Some(SAMPLES),
        example: "limit=200",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// How many random samples there are. Other data is used whole; see `limit`.
    row num_samples: usize = 100 => {
        range: (Some(1.0), None),
        only_with: Some(RANDOM),
        example: "num_samples=32",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// The shape of a random sample without its first axis, where the model leaves it open. Samples
    /// that are given must have this shape.
    row sample_shape: Option<Vec<usize>> = None => {
        default_text: Some("that of the model's input"),
        only_with: Some(SAMPLES),
        example: "sample_shape=(3, 224, 224)",
        flag: Flag { value_name: Some("DIMS"), commas: true, ..Flag::PLAIN },
    };

    /// The seed of random samples.
    row seed: u64 = 0 => {
        range: (Some(0.0), None),
        only_with: Some(RANDOM),
        example: "seed=1",
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };
}

const IMAGES: OptionRow = OptionRow {
    group: Group::Images,
    class: Class::ImageFolder,
    surfaces: CLI_AND_FILE,
    only_with: Some(Condition::Given(&["calibration_data", "validation_data"])),
    ..OptionRow::EMPTY
};

options! {
    rows IMAGE_ROWS from IMAGES;

    /// Height and width of images, or one number for both.
    row size: Option<Vec<usize>> = None => {
        default_text: Some("those of the model's input"),
        flag: Flag { value_name: Some("H,W"), commas: true, ..Flag::PLAIN },
    };

    /// The factor that pixels, 0 to 255, are multiplied by.
    row scale: Option<f64> = None => {
        default_text: Some("1/255"),
        flag: Flag { value_name: Some("X"), ..Flag::PLAIN },
    };

    /// The mean that is then subtracted: one number, or one for each channel in the order of the
    /// model.
    row mean: Option<Vec<f64>> = None => {
        default_text: Some("0"),
        flag: Flag { value_name: Some("X,X,X"), commas: true, ..Flag::PLAIN },
    };

    /// The standard deviation that is then divided by: one number, or one for each channel.
    row std: Option<Vec<f64>> = None => {
        default_text: Some("1"),
        flag: Flag { value_name: Some("X,X,X"), commas: true, ..Flag::PLAIN },
    };

    /// Where the channels are: `NCHW` or `NHWC`.
    row layout: Option<String> = None => {
        default_text: Some("where the model's input has 3 or 1"),
        flag: Flag { value_name: Some("LAYOUT"), ..Flag::PLAIN },
    };

    /// The order of three channels: `RGB` or `BGR`.
    row channel_order: Option<String> = None => {
        default_text: Some("RGB"),
        flag: Flag { value_name: Some("ORDER"), ..Flag::PLAIN },
    };

    /// The filter that images are resized with.
    row resize: Option<String> = None => {
        default_text: Some("bilinear"),
        flag: Flag { value_name: Some("FILTER"), ..Flag::PLAIN },
    };

    /// Resize the shorter side to N and cut the size out of the center, instead of resizing the
    /// whole image.
    row crop: Option<usize> = None => {
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };
}

const EVALUATED: Condition = Condition::Given(&["validation_data", "calibration_data"]);

const ACCURACY: OptionRow = OptionRow {
    group: Group::AccuracyControl,
    class: Class::AccuracyControl,
    only_with: Some(EVALUATED),
    ..OptionRow::EMPTY
};

options! {
    rows ACCURACY_ROWS from ACCURACY;

    /// Samples that the result is evaluated on, in the forms of `calibration_data`. All of them are
    /// kept in memory. Without it the accuracy criteria are evaluated on `calibration_data`, and
    /// the report says so. Without an accuracy criterion the result is only measured.
    row validation_data: Option<SamplesPath> = None => {
        aliases: &["verify"],
        example: "validation_data=\"validation.npy\"",
        only_with: None,
        python_type: SAMPLES_TYPE,
        flag: Flag { value_name: Some("PATH"), ..Flag::PLAIN },
    };

    /// An accuracy criterion: the least SQNR of the worst output against the float model, in
    /// decibels.
    row min_sqnr: Option<f64> = None => {
        example: "min_sqnr=25",
        flag: Flag { value_name: Some("DB"), ..Flag::PLAIN },
    };

    /// An accuracy criterion: the most accuracy that may be lost, as a fraction below 1 or a
    /// percentage such as `1%`. With `metric`, the most by which its score may be worse.
    row max_accuracy_drop: Option<Fraction> = None => {
        example: "max_accuracy_drop=0.01",
        only_with: Some(Condition::Given(&["labels", "metric"])),
        flag: Flag { value_name: Some("FRACTION"), ..Flag::PLAIN },
    };

    /// Require that the result is faster than the float model.
    row require_faster: bool = false => {
        example: "require_faster=True",
    };

    /// Where `min_sqnr` or `max_accuracy_drop` is missed, leave layers in float, the most sensitive
    /// first, until the criterion holds; the report lists them. False makes a miss an error.
    row fall_back: bool = true => {
        aliases: &["auto_fallback", "sensitivity_analysis"],
        example: "fall_back=False",
    };

    /// The correct class of each row of the samples: whole numbers, in Python also an array of
    /// them; or a `.npy` file, or a text file with one per line.
    row labels: Option<SamplesPath> = None => {
        example: "labels=labels",
        python_type: Some("npt.ArrayLike | os.PathLike[str] | None"),
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// A metric that takes the place of the accuracy: a function of the outputs and the samples,
    /// one of `quantize_rs.metrics`, or the name of one, such as `"top5"` or `"perplexity"`. The
    /// outputs of all samples are kept in memory for it.
    row metric: Option<String> = None => {
        surfaces: &[Surface::Python],
        example: "metric=\"top5\"",
        python_type: Some("MetricLike | None"),
    };

    /// Whether the outputs of the result are compared with those of the float model, where no
    /// accuracy criterion or validation data asks for more. That takes 5 seconds, or a tenth of the
    /// calibration if that is longer. The report says what was measured, and a large error is a
    /// warning. If a few layers cause it in a model that is calibrated, they stay float, and the
    /// warning names them. If weights get fewer than 8 bits and an output has less than 10 dB,
    /// convolutions get 8 bits, with a warning, unless `layer_bits` has a number for them.
    /// Equalization and smoothing are taken back where the outputs are better without them. Without
    /// `target`, weights get 7 bits where that is better on an x86 processor without VNNI. `none`
    /// leaves all that out, so that the result does not depend on what a machine measures. Without
    /// samples the inputs are made from the graph; models of more than 256 MB and models with saved
    /// ranges are not run then.
    row check: CheckMode = CheckMode::Auto => {
        example: "check=\"none\"",
        only_with: None,
        flag: Flag { value_name: Some("WHEN"), ..Flag::PLAIN },
    };

    /// The output with the scores of the classes.
    row scores: Option<String> = None => {
        default_text: Some("the first output that looks like it"),
        example: "scores=\"logits\"",
        flag: Flag { value_name: Some("NAME"), ..Flag::PLAIN },
    };
}

const RUN: OptionRow =
    OptionRow { group: Group::Run, class: Class::RunOptions, ..OptionRow::EMPTY };

options! {
    rows RUN_ROWS from RUN;

    /// The engine that runs the model on samples. Where the result is evaluated, `auto` is ONNX
    /// Runtime if it is installed. Python also takes an object with `run(dict) -> dict`, which does
    /// not evaluate.
    row engine: EngineName = EngineName::Auto => {
        example: "engine=\"onnxruntime\"",
        python_type: Some("Engine"),
        only_with: Some(EVALUATED),
        flag: Flag { value_name: Some("NAME"), ..Flag::PLAIN },
    };

    /// The library of ONNX Runtime, such as libonnxruntime.so.
    row onnxruntime: Option<PathBuf> = None => {
        surfaces: CLI_AND_FILE,
        default_text: Some("that of the active Python environment"),
        only_with: Some(EVALUATED),
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// How many samples run at once, each on a thread of its own.
    row threads: Option<usize> = None => {
        range: (Some(1.0), Some(256.0)),
        default_text: Some("one per processor core"),
        example: "threads=4",
        only_with: Some(EVALUATED),
        flag: Flag { value_name: Some("N"), ..Flag::PLAIN },
    };

    /// Also write the result to this file, as an HTML report.
    row html: Option<PathBuf> = None => {
        group: Group::Output,
        surfaces: CLI_AND_FILE,
        flag: Flag { value_name: Some("FILE"), ..Flag::PLAIN },
    };

    /// Write the model even if nothing in it can be quantized. Otherwise that is an error of the
    /// command, with the reasons; in Python it is always a warning.
    row allow_unquantized: bool = false => {
        group: Group::Output,
        surfaces: CLI_AND_FILE,
    };

    /// Show progress on standard error. In Python a function may be given: it is called with the
    /// number of samples done and the number of all samples, or None. An exception that it raises
    /// stops the run.
    row progress: Option<bool> = None => {
        surfaces: &[Surface::Python],
        default_text: Some("nothing is shown"),
        example: "progress=True",
        python_type: Some("bool | Callback | None"),
    };
}
