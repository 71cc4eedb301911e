//! What every page begins with: the evaluation, what to do next, and where the result comes from.

use maud::{Markup, html};

use super::Page;
use super::frame::{list, tile};
use super::numbers::{decibels, name, percent};
use crate::report::{ACTIVATIONS, WEIGHTS, worst_sqnr};
use crate::util::text::size;
use crate::{Accuracy, Assessment, Grade, Kernels, Origin, Report, Speed};

/// The title of a page.
pub(super) fn title(page: &Page<'_>) -> String {
    if let Some(report) = page.report {
        return format!("{} quantized", file_name(report.input.as_deref()));
    }
    let of = |what: &str, origin: &Origin| format!("{what} of {}", origin.model(0));
    match (page.comparison, page.sensitivity, page.layer_errors) {
        (Some(found), _, _) => format!("{} compared", found.origin.model(0)),
        (None, Some(found), _) => of("Layer sensitivity", &found.origin),
        (None, None, Some(found)) => of("Layer errors", &found.origin),
        (None, None, None) => "Layers".to_owned(),
    }
}

/// The evaluation, what to do next, warnings, key figures, and the origin.
pub(super) fn header(page: &Page<'_>) -> Markup {
    let mut warnings: Vec<String> = Vec::new();
    warnings.extend(page.report.into_iter().flat_map(|report| report.warnings.clone()));
    warnings.extend(page.comparison.into_iter().flat_map(|found| found.warnings.clone()));
    let origin = origin(page);
    let warnings: Vec<String> = warnings.iter().map(|warning| origin.said(warning)).collect();
    let assessment = assessment(page);
    html! {
        h1 { (name(&title(page))) }
        @if let Some(Assessment { grade, sentence, next }) = &assessment {
            p class={ "evaluation " (class(*grade)) } {
                strong { (grade.name()) } " " (name(sentence))
            }
            (list("What to do next", "suggestions", next))
        }
        (list("Warnings", "warnings", &warnings))
        dl.tiles { (tiles(page)) }
        (facts(page, origin))
    }
}

/// The evaluation of the page: that of the comparison, which measured more, if there is one.
fn assessment(page: &Page<'_>) -> Option<Assessment> {
    let report = page.report.map(Report::assessment);
    let compared = page.comparison.map(crate::Comparison::assessment);
    match (report, compared) {
        (Some(report), Some(compared)) => {
            let mut next = compared.next;
            next.extend(page.report.map(Report::suggestions).unwrap_or_default());
            Some(Assessment { grade: compared.grade.worse(report.grade), next, ..compared })
        }
        (one, other) => one
            .or(other)
            .or_else(|| page.sensitivity.map(crate::Sensitivity::assessment))
            .or_else(|| page.layer_errors.map(crate::LayerErrors::assessment)),
    }
}

fn class(grade: Grade) -> &'static str {
    match grade {
        Grade::Good => "good",
        Grade::Fair => "fair",
        Grade::Poor => "poor",
        Grade::Unknown => "unknown",
    }
}

fn origin<'a>(page: &Page<'a>) -> &'a Origin {
    static NONE: std::sync::LazyLock<Origin> = std::sync::LazyLock::new(Origin::default);
    let found = page.report.map(|report| &report.origin);
    found
        .or_else(|| page.comparison.map(|found| &found.origin))
        .or_else(|| page.sensitivity.map(|found| &found.origin))
        .or_else(|| page.layer_errors.map(|found| &found.origin))
        .unwrap_or(&NONE)
}

/// Models, samples, date, version and command.
fn facts(page: &Page<'_>, origin: &Origin) -> Markup {
    let memory = "model in memory";
    let models: Vec<&str> = match page.report {
        Some(report) => {
            vec![
                report.input.as_deref().unwrap_or(memory),
                report.output.as_deref().unwrap_or("in memory"),
            ]
        }
        None => origin.models.iter().map(String::as_str).collect(),
    };
    let labels: &[&str] =
        if models.len() == 1 { &["model"] } else { &["float model", "quantized model"] };
    let date = origin.date.trim_end_matches('Z').replace('T', " ");
    html! {
        dl.facts.origin {
            @for (label, model) in labels.iter().zip(&models) {
                dt { (label) } dd { (name(model)) }
            }
            dt { "samples" } dd { (name(&samples(page, origin))) }
            dt { "made" } dd { (date) " UTC with quantize-rs " (name(&origin.version)) }
            @if let Some(command) = &origin.command {
                dt { @if origin.command_line { "command" } @else { "call" } }
                dd { code { (name(command)) } }
            }
        }
    }
}

/// `200 from calibration.npy, run by tract`
fn samples(page: &Page<'_>, origin: &Origin) -> String {
    let (count, engine) = if let Some(report) = page.report {
        (report.samples, report.engine.clone())
    } else if let Some(found) = page.comparison {
        (found.samples, Some(found.engine.clone()))
    } else if let Some(found) = page.sensitivity {
        (found.samples, found.engine.clone())
    } else if let Some(found) = page.layer_errors {
        (found.samples, Some(found.engine.clone()))
    } else {
        (0, None)
    };
    if count == 0 {
        let synthetic = page.report.and_then(|report| report.output_check.as_ref());
        return match synthetic.filter(|check| check.failure.is_none()) {
            Some(check) => format!("none; the outputs were measured on {}", check.on()),
            None => "none".to_owned(),
        };
    }
    let from = origin.samples.as_ref().map_or(String::new(), |from| format!(" from {from}"));
    let by = engine.map_or(String::new(), |engine| format!(", run by {engine}"));
    format!("{count}{from}{by}")
}

/// The file name of a model, without its folder.
fn file_name(path: Option<&str>) -> &str {
    let path = path.unwrap_or("model in memory");
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn tiles(page: &Page<'_>) -> Markup {
    let (report, compared) = (page.report, page.comparison);
    let sizes = report.map(|report| (report.bytes_before, report.bytes_after));
    let sizes =
        sizes.or_else(|| compared.map(|found| (found.bytes_original, found.bytes_quantized)));
    let ratio = report.map(Report::ratio).or_else(|| compared.map(crate::Comparison::ratio));
    let verified = report.and_then(|report| report.verified.as_ref());
    let outputs = compared
        .map(|found| &found.outputs[..])
        .or_else(|| Some(&verified?.attempts.last()?.outputs[..]))
        .or_else(|| Some(&report?.output_check.as_ref()?.outputs[..]));
    let real = compared.is_some()
        || verified.is_some()
        || report
            .and_then(|report| report.output_check.as_ref())
            .is_some_and(|c| c.inputs.are_real());
    let same = outputs.into_iter().flatten().filter_map(|row| row.top1_agreement);
    let same = same.reduce(f64::min).filter(|_| real);
    let speed = compared.and_then(|found| found.speed.as_ref());
    let speed = speed.or_else(|| verified.and_then(|found| found.speed.as_ref()));
    let kernels = compared.and_then(|found| found.kernels.as_ref());
    html! {
        @if let (Some((before, after)), Some(ratio)) = (sizes, ratio) {
            (tile("Size", &smaller(ratio), &format!("{} → {}", size(before), size(after))))
        }
        @if let Some(db) = outputs.and_then(worst_sqnr) {
            @let about = "signal-to-quantization-noise ratio of the worst output";
            (tile("Output SQNR", &decibels(db), about))
        }
        @if let Some(part) = same { (tile("Same class", &percent(part), "of the rows")) }
        @if let Some(Accuracy { original, quantized, metric, .. }) =
            compared.and_then(|found| found.accuracy.as_ref())
        {
            @match metric {
                Some(metric) => (tile(metric, &format!("{original:.4} → {quantized:.4}"), "")),
                None => {
                    (tile(
                        "Accuracy",
                        &format!("{} → {}", percent(*original), percent(*quantized)),
                        "",
                    ))
                }
            }
        }
        @if let Some(Speed { speedup, engine, .. }) = speed {
            (tile("Speed", &format!("{speedup:.2}×"), &format!("of the float model, in {engine}")))
        }
        @if let Some(part) = kernels.and_then(Kernels::share) {
            (tile("Integer products", &percent(part), "of the matrix multiplications"))
        }
        @if let Some(report) = report {
            (tile("Weights", &report.count(WEIGHTS), &others(report, WEIGHTS)))
            @if report.config.activations.is_some() {
                (tile("Activations", &report.count(ACTIVATIONS), &others(report, ACTIVATIONS)))
            }
        }
    }
}

/// How much smaller, or larger, the result is.
fn smaller(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!("{ratio:.2}× smaller")
    } else {
        format!("{:.2}× larger", 1.0 / ratio)
    }
}

/// What stands below a number of quantized values: what the others are.
fn others(report: &Report, roles: &[crate::Role]) -> String {
    format!("quantized{}", report.others(roles))
}
