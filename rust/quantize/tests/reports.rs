//! Tests of reports: JSON round trips, sizes add up, and names are escaped in HTML.

mod common;

use common::{fixtures, with_activations};
use quantize_rs::{Config, Model, PreprocessedModel, QType, QuantizeErrorKind, Report, WeightType};

/// The report of weight-only quantization.
fn report(model: &Model, config: Config) -> Report {
    let prepared = PreprocessedModel::of(model, config).unwrap();
    prepared.plan().apply(&prepared.model, None).unwrap().report().clone()
}

#[test]
fn a_report_round_trips_through_json() {
    let int8 = fixtures().into_iter().map(|(name, model)| (name, model, QType::Int8));
    // Floats that are cast have no scale.
    let float16 = ("float16".to_owned(), common::fixture("conv2d_relu"), QType::Float16);
    for (name, model, weights) in int8.chain([float16]) {
        let report =
            report(&model, Config { weights: WeightType::Of(weights), ..Config::default() });
        let again = Report::from_json(&report.to_json()).unwrap();
        assert_eq!(again.html(), report.html(), "{name}");
    }
    let model = common::fixture("conv2d_relu");
    let report = common::quantized(&model, with_activations()).report().clone();
    assert!(report.quantized().any(|(_, how)| how.histogram.is_some()));
    let again = Report::from_json(&report.to_json()).unwrap();
    assert_eq!((again.html(), again.config), (report.html(), report.config));
    let error = Report::from_json("{\"values\": 3}").unwrap_err();
    assert!(matches!(error.kind(), QuantizeErrorKind::Option { option, .. } if option == "report"));
}

#[test]
fn stored_bytes_are_counted_once_and_fit_the_file() {
    for (name, model) in fixtures() {
        let report = report(&model, Config::default());
        let stored = || report.quantized().filter_map(|(row, how)| Some((row, how.bytes?)));
        for (row, bytes) in stored() {
            let before = row.bytes_before;
            let fits = before.is_none_or(|before| bytes.elements <= before);
            assert!(fits, "{name}: {}, {before:?}", row.name);
        }
        let all: u64 = stored().map(|(_, bytes)| bytes.elements + bytes.scales).sum();
        assert!(all <= report.bytes_after, "{name}: {all} of {}", report.bytes_after);
    }
}

#[test]
fn every_name_is_in_the_html_report_and_escaped() {
    let nasty = "</script><img onerror=\"x\">";
    let model = common::fixture("conv2d_relu");
    let mut report = common::quantized(&model, with_activations()).report().clone();
    report.input = Some(nasty.to_owned());
    report.engine = Some(nasty.to_owned());
    report.warnings.push(nasty.to_owned());
    report.notes.push(nasty.to_owned());
    for row in &mut report.values {
        (row.name, row.why) = (nasty.to_owned(), nasty.to_owned());
    }
    let page = report.html();
    assert!(!page.contains("<img"), "{page}");
    assert_eq!(page.matches("</script>").count(), 1);
    let shown = page.matches("&lt;img onerror=&quot;x&quot;&gt;").count();
    assert!(shown >= 2 * report.values.len() + 3, "{shown}");
    let title = page.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    assert_eq!(title, Some("script&gt;&lt;img onerror=&quot;x&quot;&gt; quantized"), "text alone");
}

#[test]
fn an_empty_report_is_valid_html() {
    let shown = |report: &Report| report.html().split("<script>").next().unwrap().to_owned();
    let page = shown(&Report::default());
    assert!(page.contains("model in memory") && !page.contains("NaN"), "{page}");
    let model = common::fixture("conv2d_relu");
    assert!(!shown(common::quantized(&model, with_activations()).report()).contains("NaN"));
}
