//! Tables that can be sorted by a column and filtered.

use maud::{Markup, html};
use quantize_rs_math::Granularity;

use super::numbers::{band, decibels, name, shape};
use crate::util::text::size;
use crate::{QuantizedRow, Report, ReportRow, Role};

/// The maximum number of rows of a table: more take a browser seconds to lay out.
pub(super) const ROWS: usize = 2000;

/// A table with more rows is folded.
const OPEN: usize = 12;

/// A cell of a table.
#[derive(Debug)]
pub(super) struct Cell {
    text: String,
    class: &'static str,
    /// What a column of numbers is sorted by; NaN is last.
    number: Option<f64>,
}

impl Cell {
    /// A text.
    pub(super) fn text(class: &'static str, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), class, number: None }
    }

    /// A number.
    pub(super) fn number(number: Option<f64>, shown: impl Into<String>) -> Cell {
        Cell { text: shown.into(), class: "number", number }
    }

    /// Decibels, in the colour of their band.
    pub(super) fn decibels(db: Option<f64>) -> Cell {
        let class = match db.map(band) {
            Some("close") => "number close",
            Some("fair") => "number fair",
            Some("coarse") => "number coarse",
            Some(_) => "number far",
            None => "number",
        };
        Cell { text: db.map(decibels).unwrap_or_default(), class, number: db }
    }

    /// It has ten digits: enough to sort by, and few enough that a report read back from JSON has
    /// the same.
    fn markup(&self) -> Markup {
        let sorted = self.number.filter(|number| !number.is_nan());
        let sorted = sorted.map(|number| format!("{:.9e}", number.clamp(-1e18, 1e18)));
        let sorted = sorted.and_then(|digits| digits.parse::<f64>().ok());
        html! {
            td class=(self.class) data-value=[sorted] {
                (name(&self.text))
            }
        }
    }
}

/// A row: whether it is about something quantized, and its cells.
pub(super) type Row = (bool, Vec<Cell>);

/// A table; `count` is the number of rows, of which the first are shown. Columns that are empty, or
/// that repeat an earlier column of text, are left out.
pub(super) fn sortable(
    title: &str,
    columns: &[(&str, bool)],
    count: usize,
    rows: impl Iterator<Item = Row>,
    hint: &str,
) -> Markup {
    let rows: Vec<Row> = rows.take(ROWS).collect();
    let kept: Vec<usize> =
        (0..columns.len()).filter(|at| says_something(&rows, columns, *at)).collect();
    html! {
        section.sortable {
            details open[count <= OPEN] {
                summary { h2 { (title) " (" (count) ")" } }
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
                            tr { @for (column, number) in kept.iter().map(|at| columns[*at]) {
                                th scope="col" data-number[number] {
                                    button type="button" { (column) }
                                }
                            } }
                        }
                        tbody { @for (quantized, cells) in &rows {
                            tr.quantized[*quantized] {
                                @for at in &kept { (cells[*at].markup()) }
                            }
                        } }
                    }
                }
            }
        }
    }
}

/// Whether a column has a text that no earlier column has in every row.
fn says_something(rows: &[Row], columns: &[(&str, bool)], at: usize) -> bool {
    let is_empty = rows.iter().all(|(_, cells)| cells[at].text.is_empty());
    let repeats = |other: usize| {
        !columns[at].1
            && !columns[other].1
            && rows.iter().all(|(_, cells)| cells[at].text == cells[other].text)
    };
    at == 0 || rows.is_empty() || (!is_empty && !(0..at).any(repeats))
}

/// The columns of the table of values, and whether they are sorted as numbers.
const COLUMNS: [(&str, bool); 8] = [
    ("value", false),
    ("SQNR", true),
    ("type", false),
    ("bytes", true),
    ("scale", false),
    ("shape", false),
    ("role", false),
    ("why", false),
];

/// All values of a report.
pub(super) fn values(report: &Report) -> Markup {
    let rows = report.values.iter().map(row);
    sortable("All values", &COLUMNS, report.values.len(), rows, "filter, for example: conv int8")
}

#[allow(clippy::cast_precision_loss)] // sizes, sorted by
fn row(value: &ReportRow) -> Row {
    let how = value.quantized.as_ref();
    let dtype = value.dtype.map_or("", quantize_rs_onnx::DataType::name);
    let kind = how.map_or(dtype.to_owned(), |how| {
        format!("{dtype} → {}", how.kind_with(Granularity::PerTensor))
    });
    let stored = how.and_then(|how| how.bytes).map(|bytes| bytes.elements + bytes.scales);
    let bytes = stored.or(value.bytes_before);
    let cells = vec![
        Cell::text("name", &*value.name),
        Cell::decibels(how.and_then(|how| how.error).map(|error| error.sqnr_db)),
        Cell::text("type", kind),
        Cell::number(bytes.map(|bytes| bytes as f64), bytes.map(size).unwrap_or_default()),
        Cell::text("", how.map(scale).unwrap_or_default()),
        Cell::text("shape", shape(value.shape.as_deref())),
        Cell::text("", role(value.role)),
        Cell::text("why", value.reason()),
    ];
    (how.is_some(), cells)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Input => "input",
        Role::Weight => "weight",
        Role::Constant => "constant",
        Role::Activation => "activation",
    }
}

/// How many scales there are, and what they come from.
fn scale(how: &QuantizedRow) -> String {
    let from = if how.source == "weights" { String::new() } else { format!(", {}", how.source) };
    match how.granularity {
        Granularity::PerTensor => format!("one{from}"),
        Granularity::PerAxis { axis } => format!("along axis {axis}{from}"),
        Granularity::Blocked { axis, block_size } => {
            format!("for {block_size} along axis {axis}{from}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_repeated_columns_are_left_out() {
        let row = |name: &str| {
            let cells = ["name", "node", "note"].iter().zip([name, name, ""]);
            (true, cells.map(|(class, text)| Cell::text(class, text)).collect())
        };
        let columns = [("value", false), ("node", false), ("note", false)];
        let table = sortable("t", &columns, 2, [row("a"), row("b")].into_iter(), "");
        let table = table.into_string();
        assert!(table.contains("value") && !table.contains("node") && !table.contains("note"));
    }
}
