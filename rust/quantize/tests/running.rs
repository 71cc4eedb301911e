//! Tests of running samples, with an engine that outputs the number of each sample.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Even, Numbers, fixture, plan, ranges, upgraded, with_activations};
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Config, Control, DataType, Engine, HalfOptions,
    HalfType, Method, MixedOptions, Model, QuantizeError, QuantizeErrorKind, Range, Ranges, Sample,
    Samples, SensitivityOptions, Session, Tensor, TimedSession, ValueSink, VariantOptions,
    calibrate, convert_half_with_samples, mixed_precision, sensitivity, variants,
};

/// The calibration error.
fn calibration(error: &QuantizeError) -> &CalibrationError {
    let QuantizeErrorKind::Calibration(error) = error.kind() else { panic!("{error}") };
    error
}

/// An engine whose values are all `[-sample, sample / 2]`; one sample may have another value.
#[derive(Clone, Default)]
struct Echo {
    outputs: usize,
    replaced: Option<(u16, f32)>,
    cancel_seen: std::sync::Arc<AtomicBool>,
}

impl Engine for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn prepare(
        &self,
        _: &Model,
        observed: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        Ok(Box::new(Echo { outputs: observed.len(), ..self.clone() }))
    }
}

impl Session for Echo {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let value = sample.get("x").and_then(Tensor::to_f32).unwrap()[0];
        let shown = match self.replaced {
            Some((number, replaced)) if f32::from(number) == value => replaced,
            _ => value,
        };
        for index in 0..self.outputs {
            sink.observe(index, &[2], &[-shown, shown / 2.0]);
        }
        self.cancel_seen.fetch_or(cancelled.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn ranges_do_not_depend_on_threads() {
    let model = fixture("residual_add");
    let plan = plan(&model, with_activations());
    let run = |threads| {
        let mut go_on = |_| true;
        let control = Control { threads, progress: &mut go_on };
        calibrate(
            &model,
            &plan,
            &Echo::default(),
            &mut Numbers((0..50).collect()),
            &Method::full_range(),
            control,
        )
        .unwrap()
    };
    let one = run(1);
    assert_eq!(one, run(4));
    assert_eq!(one.samples, 50);
    assert!(one.values.values().all(|range| *range == Range { min: -49.0, max: 24.5 }));
    assert_eq!(Ranges::from_json(&one.to_json()).unwrap(), one);
    assert_eq!(one.merge(&one).unwrap().values, one.values);
}

#[test]
fn ranges_of_another_model_are_rejected() {
    let (model, other) = (fixture("residual_add"), fixture("conv2d_relu"));
    let plan = plan(&other, with_activations());
    let ranges = ranges(&model, &self::plan(&model, with_activations()));
    let error = plan.apply(&other, Some(&ranges)).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}

#[test]
fn a_non_finite_value_is_reported_with_its_sample() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    // The numbers count down, so that number 30 is sample 19 of 50.
    let engine = Echo { replaced: Some((30, f32::NAN)), ..Echo::default() };
    let mut go_on = |_| true;
    let control = Control { threads: 2, progress: &mut go_on };
    let error = calibrate(
        &model,
        &plan,
        &engine,
        &mut Numbers((0..50).collect()),
        &Method::default(),
        control,
    )
    .unwrap_err();
    assert!(
        matches!(calibration(&error).kind(), CalibrationErrorKind::NonFiniteActivation { .. }),
        "{error}"
    );
    assert_eq!(calibration(&error).sample(), Some(19));
    assert!(plan.observed().contains(&calibration(&error).value().unwrap().to_owned()));
}

#[test]
fn returning_false_cancels_the_run() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let mut go_on = |progress: quantize_rs::Progress| progress.done < 5;
    let control = Control { threads: 2, progress: &mut go_on };
    let mut samples = Numbers((0..60_000).collect());
    let error =
        calibrate(&model, &plan, &Echo::default(), &mut samples, &Method::default(), control)
            .unwrap_err();
    assert_eq!(calibration(&error).kind(), &CalibrationErrorKind::Cancelled);
    assert!(samples.0.len() > 59_000, "it went on for {} samples", 60_000 - samples.0.len());
}

#[test]
fn no_samples_is_an_error() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let mut go_on = |_| true;
    let control = Control { threads: 1, progress: &mut go_on };
    let error = calibrate(
        &model,
        &plan,
        &Echo::default(),
        &mut Numbers((0..0).collect()),
        &Method::default(),
        control,
    )
    .unwrap_err();
    assert!(matches!(calibration(&error).kind(), CalibrationErrorKind::NoSamples { .. }));
}

#[test]
fn a_plan_with_activations_requires_ranges_of_its_model() {
    let (model, other) = (fixture("conv2d_relu"), fixture("residual_add"));
    let plan = plan(&model, with_activations());
    let error = plan.apply(&model, None).unwrap_err();
    assert!(matches!(error.kind(), QuantizeErrorKind::Calibration(_)), "{error}");
    let error = plan.apply(&other, None).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}

/// An engine that does not load models with integers of 4 bits.
struct Wide;

impl Engine for Wide {
    fn name(&self) -> &'static str {
        "wide"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let narrow = [DataType::Int4.number(), DataType::UInt4.number()];
        if model.graph().initializer.iter().any(|tensor| narrow.contains(&tensor.data_type)) {
            let problem = "no kernel".to_owned();
            let kind = CalibrationErrorKind::Engine { engine: Some("wide"), problem };
            return Err(CalibrationError::new(kind));
        }
        Even::default().prepare(model, observed, sample)
    }
}

#[test]
fn mixed_precision_leaves_out_bits_that_the_engine_does_not_run() {
    let model = fixture("conv2d_relu");
    let found = |bits: &[u8]| {
        let options =
            MixedOptions { target_size: Some(0.9), bits: bits.to_vec(), ..MixedOptions::default() };
        let mut go_on = |_| true;
        let control = Control { threads: 1, progress: &mut go_on };
        let data: Option<(&dyn Engine, &mut dyn Samples)> =
            Some((&Wide, &mut Numbers((1..5).collect())));
        mixed_precision(
            &model,
            &Config { min_elements: 0, ..Config::default() },
            &options,
            data,
            control,
        )
    };
    let both = found(&[8, 4]).unwrap();
    assert!(both.layers.iter().all(|layer| layer.bits != Some(4)), "{both}");
    assert!(both.layers.iter().any(|layer| layer.bits == Some(8)), "{both}");
    assert_eq!(both.notes, ["no layer gets 4 bits: no kernel"]);
    assert!(both.to_string().ends_with("note: no layer gets 4 bits: no kernel\n"), "{both}");
    assert!(found(&[8]).unwrap().notes.is_empty());
    let error = found(&[4]).unwrap_err();
    assert!(matches!(calibration(&error).kind(), CalibrationErrorKind::Engine { .. }), "{error}");
}

/// An engine that refuses to run a model as it is deployed.
struct Refusing;

impl Engine for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        Even::default().prepare(model, observed, sample)
    }

    fn timed(
        &self,
        _: &Model,
        _: &Sample,
        _: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let problem = "this Resize is not supported".to_owned();
        Err(CalibrationError::new(CalibrationErrorKind::Engine { engine: None, problem }))
    }
}

#[test]
fn a_result_in_float16_that_does_not_run_is_warned_about() {
    let model = fixture("conv2d_relu");
    let warnings = |half: HalfType, engine: &dyn Engine| {
        let options = HalfOptions { half, ..HalfOptions::default() };
        let control = Control { threads: 1, progress: &mut |_| true };
        let samples = &mut Numbers(vec![1, 2]);
        let made = convert_half_with_samples(&model, &options, engine, samples, control);
        let warnings = made.unwrap().report().warnings.clone();
        warnings.into_iter().filter(|warning| warning.contains("cannot run")).collect::<Vec<_>>()
    };
    let found = warnings(HalfType::Float16, &Refusing);
    assert!(found[0].contains("refusing cannot run the result: "), "{found:?}");
    assert!(found[0].contains("this Resize is not supported"), "{found:?}");
    assert!(warnings(HalfType::Float16, &Even::default()).is_empty());
    // No engine on a CPU has kernels for bfloat16.
    assert!(warnings(HalfType::BFloat16, &Refusing).is_empty());
}

/// An engine that chooses another one.
struct Choosing;

impl Engine for Choosing {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        Ok(Box::new(Chosen(Even::default().prepare(model, observed, sample)?)))
    }
}

struct Chosen(Box<dyn Session>);

impl Session for Chosen {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.0.run(sample, sink, cancelled)
    }

    fn engine(&self) -> Option<&'static str> {
        Some("chosen")
    }
}

#[test]
fn variants_say_which_engine_ran_how_many_samples() {
    let folder = tempfile::tempdir().unwrap();
    let made = |only: &str| {
        let (platform, stem) = ("transformers.js".to_owned(), "model".to_owned());
        let options = VariantOptions { platform, stem, only: Some(vec![only.to_owned()]) };
        let samples: Option<(&dyn Engine, &mut dyn Samples, usize)> =
            Some((&Choosing, &mut Numbers((0..40).collect()), 1));
        let model = fixture("conv2d_relu");
        variants(&model, folder.path(), &options, samples, &mut |_| true).unwrap()
    };
    let run = made("fp32");
    assert!(run.variants[0].sqnr_db.is_some(), "{run}");
    assert_eq!((run.samples, run.engine.as_deref()), (32, Some("chosen")));
}

#[test]
fn sensitivity_continues_no_rows_of_other_rounded_weights() {
    let model = upgraded("matmul_2d");
    let config =
        Config { weights: "int4".parse().unwrap(), allow_larger: true, ..Config::default() };
    let plan = plan(&model, config);
    let rounded = ranges(&model, &plan);
    assert!(rounded.values.is_empty() && !rounded.rounded.is_empty());
    let other = Ranges { rounded: Arc::default(), ..rounded.clone() };
    let folder = tempfile::tempdir().unwrap();
    let resume = Some(folder.path().join("known.json"));
    let options = SensitivityOptions { resume, ..SensitivityOptions::default() };
    let found = |ranges: &Ranges| {
        let control = Control { threads: 1, progress: &mut |_| true };
        let samples = &mut Numbers(vec![1]);
        sensitivity(&model, &plan, Some(ranges), &Even::default(), samples, &options, control)
    };
    let first = found(&rounded).unwrap();
    assert_eq!(first.layers.len(), 1);
    assert_eq!(found(&rounded).unwrap().layers.len(), 1);
    let error = found(&other).unwrap_err().to_string();
    assert!(error.contains("other ranges or samples"), "{error}");
}

#[test]
fn rounding_continues_from_its_file_under_another_path() {
    let folder = tempfile::tempdir().unwrap();
    let model = upgraded("matmul_2d");
    let entries = |path: &str| {
        let path = folder.path().join(path);
        let resume_rounding = Some(path.clone());
        let weights = "int4".parse().unwrap();
        let config = Config { weights, allow_larger: true, resume_rounding, ..Config::default() };
        assert!(!ranges(&model, &plan(&model, config)).rounded.is_empty());
        std::fs::read_to_string(path).unwrap().lines().count()
    };
    let once = entries("rounded.jsonl");
    assert!(once > 1);
    assert_eq!(entries("./rounded.jsonl"), once);
}
