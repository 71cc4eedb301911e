//! Tables that can be sorted by a column and filtered.

use maud::{Markup, html};
use quantize_rs_math::Granularity;

use super::numbers::{decibels, name, shape};
use crate::util::text::size;
use crate::{QuantizedRow, Report, ReportRow, Role};

/// The maximum number of rows of a table: more take a browser seconds to lay out.
pub(super) const ROWS: usize = 2000;

/// The columns of the table of values, and whether they are sorted as numbers.
const COLUMNS: [(&str, bool); 10] = [
    ("value", false),
    ("role", false),
    ("shape", false),
    ("type before", false),
    ("type after", false),
    ("scales", false),
    ("source of the scale", false),
    ("SQNR", true),
    ("bytes", true),
    ("why", false),
];

/// All values of a report.
pub(super) fn values(report: &Report) -> Markup {
    let rows = report.values.iter().map(row);
    sortable("All values", &COLUMNS, report.values.len(), rows, "filter, for example: conv int8")
}

/// A table; `count` is the number of rows, of which the first are shown. A cell of a numeric column
/// has its number as `data-value`.
pub(super) fn sortable(
    title: &str,
    columns: &[(&str, bool)],
    count: usize,
    rows: impl Iterator<Item = Markup>,
    hint: &str,
) -> Markup {
    html! {
        section.sortable {
            h2 { (title) }
            p.tools hidden {
                input type="search" placeholder=(hint) aria-label="filter the table";
                output {}
            }
            @if count > ROWS {
                p.note { "The first " (ROWS) " of " (count) " rows; the JSON report has all of \
                    them." }
            }
            div.scroll {
                table {
                    thead {
                        tr { @for (column, number) in columns {
                            th scope="col" data-number[*number] {
                                button type="button" { (column) }
                            }
                        } }
                    }
                    tbody { @for row in rows.take(ROWS) { (row) } }
                }
            }
        }
    }
}

/// A cell with a number that sorts the table; NaN is sorted last.
///
/// It has ten digits: enough to sort by, and few enough that a report read back from JSON has the
/// same.
pub(super) fn number(number: Option<f64>, shown: &str) -> Markup {
    let sorted = number.filter(|number| !number.is_nan());
    let sorted = sorted.map(|number| format!("{:.9e}", number.clamp(-1e18, 1e18)));
    html! {
        td.number data-value=[sorted.and_then(|digits| digits.parse::<f64>().ok())] { (shown) }
    }
}

#[allow(clippy::cast_precision_loss)] // sizes, sorted by
fn row(value: &ReportRow) -> Markup {
    let how = value.quantized.as_ref();
    let dtype = value.dtype.map_or("", quantize_rs_onnx::DataType::name);
    let db = how.and_then(|how| how.error).map(|error| error.sqnr_db);
    let stored = how.and_then(|how| how.bytes).map(|bytes| bytes.elements + bytes.scales);
    let bytes = stored.or(value.bytes_before);
    html! {
        tr.quantized[how.is_some()] {
            td.name { (name(&value.name)) }
            td { (role(value.role)) }
            td.shape { (shape(value.shape.as_deref())) }
            td { (dtype) }
            td { (how.map(kind).unwrap_or_default()) }
            td { (how.map(granularity).unwrap_or_default()) }
            td { (name(how.map_or("", |how| &how.source))) }
            (number(db, &db.map(decibels).unwrap_or_default()))
            (number(bytes.map(|bytes| bytes as f64), &bytes.map(size).unwrap_or_default()))
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
