//! The plan as a table for people.

use std::fmt;

use quantize_rs_math::{Granularity, QSpec, QType};

use super::{Decision, Plan, Planned};
use crate::Format;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "prepared: {step}"))?;
        let rows: Vec<[String; 4]> = self.values.iter().map(cells).collect();
        let header = ["value", "type", "numbers from", "why"].map(str::to_owned);
        let mut widths = [0; 3];
        for row in std::iter::once(&header).chain(&rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for [value, kind, source, why] in std::iter::once(&header).chain(&rows) {
            let line = format!(
                "{value:a$}  {kind:b$}  {source:c$}  {why}",
                a = widths[0],
                b = widths[1],
                c = widths[2]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let quantized = self.quantized().count();
        writeln!(f, "{quantized} of {} values are quantized", self.values.len())
    }
}

fn cells(value: &Planned) -> [String; 4] {
    match &value.decision {
        Decision::Quantize(plan) => [
            value.name.clone(),
            kind(&plan.spec, plan.stored, plan.format),
            plan.source.to_string(),
            plan.because.to_string(),
        ],
        Decision::Keep(kept) => {
            let dtype = value.dtype.map_or("-", quantize_rs_onnx::DataType::name);
            [value.name.clone(), dtype.to_owned(), "-".to_owned(), kept.to_string()]
        }
    }
}

/// Type, symmetry and granularity in a few words: `int8 symmetric axis 0`.
pub(crate) fn kind(spec: &QSpec, stored: QType, format: Format) -> String {
    let QSpec { qtype, symmetric, granularity, reduced, .. } = *spec;
    let stored = if stored == qtype { String::new() } else { format!(" in {}", stored.name()) };
    let reduced = if reduced { " of 7 bits" } else { "" };
    let symmetric = if symmetric && qtype.is_scaled() { " symmetric" } else { "" };
    let granularity = match granularity {
        Granularity::PerTensor => String::new(),
        Granularity::PerAxis { axis } => format!(" axis {axis}"),
        Granularity::Blocked { axis, block_size } => {
            format!(" blocks of {block_size} on axis {axis}")
        }
    };
    let format = match format {
        Format::Qdq => String::new(),
        format => format!(" as {format}"),
    };
    format!("{}{stored}{symmetric}{granularity}{reduced}{format}", qtype.name())
}
