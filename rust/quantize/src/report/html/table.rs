//! The table of every value.

use maud::{Markup, html};
use quantize_rs_math::Granularity;

use super::numbers::{decibels, name, shape};
use crate::text::size;
use crate::{QuantizedRow, Report, Role, Row};

/// Rows that a page has at most: more take a browser seconds to lay out.
const ROWS: usize = 2000;

/// The columns, and whether they sort by number.
const COLUMNS: [(&str, bool); 10] = [
    ("value", false),
    ("role", false),
    ("shape", false),
    ("type before", false),
    ("type after", false),
    ("scales", false),
    ("numbers from", false),
    ("SQNR", true),
    ("bytes", true),
    ("why", false),
];

pub(super) fn values(report: &Report) -> Markup {
    let count = report.values.len();
    html! {
        section {
            h2 { "Every value" }
            p.tools hidden {
                input #filter type="search" placeholder="filter, for example: conv int8"
                    aria-label="filter the table";
                output #shown {}
            }
            @if count > ROWS {
                p.note {
                    "The first " (ROWS) " of " (count) " values; the JSON of the report has all."
                }
            }
            div.scroll {
                table #values {
                    thead {
                        tr { @for (column, number) in COLUMNS {
                            th scope="col" data-number[number] { button type="button" { (column) } }
                        } }
                    }
                    tbody { @for value in report.values.iter().take(ROWS) { (row(value)) } }
                }
            }
        }
    }
}

fn row(value: &Row) -> Markup {
    let how = value.quantized.as_ref();
    let dtype = value.dtype.map_or("", quantize_rs_onnx::DataType::name);
    let db = how.and_then(|how| how.error).map(|error| error.sqnr_db);
    let stored = how.and_then(|how| how.bytes).map(|bytes| bytes.elements + bytes.scales);
    let bytes = stored.or_else(|| value.bytes_before());
    html! {
        tr.quantized[how.is_some()] {
            td.name { (name(&value.name)) }
            td { (role(value.role)) }
            td.shape { (shape(value.shape.as_deref())) }
            td { (dtype) }
            td { (how.map(kind).unwrap_or_default()) }
            td { (how.map(granularity).unwrap_or_default()) }
            td { (name(how.map_or("", |how| &how.source))) }
            td.number data-value=[db.map(|db| format!("{:.3}", db.min(1e9)))] { (db.map(decibels).unwrap_or_default()) }
            td.number data-value=[bytes] { (bytes.map(size).unwrap_or_default()) }
            td.why { (name(&value.why)) }
        }
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Input => "input",
        Role::Weight => "weight",
        Role::Constant => "constant",
        Role::Activation => "activation",
    }
}

fn kind(how: &QuantizedRow) -> String {
    how.kind_with(Granularity::PerTensor)
}

fn granularity(how: &QuantizedRow) -> String {
    match how.granularity {
        Granularity::PerTensor => "one".to_owned(),
        Granularity::PerAxis { axis } => format!("along axis {axis}"),
        Granularity::Blocked { axis, block_size } => {
            format!("for {block_size} along axis {axis}")
        }
    }
}
