//! Values that are not quantized, by the reason.

use super::Report;
use crate::Role;

/// The number of reasons that are shown in a line.
const SHOWN: usize = 3;

impl Report {
    /// The values with these roles that are not quantized: each reason with their names, the most
    /// frequent first. Names of nodes in a reason are replaced by `…`.
    pub fn not_quantized(&self, roles: &[Role]) -> Vec<(String, Vec<&str>)> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        let kept = self.values.iter().filter(|row| row.quantized.is_none());
        for row in kept.filter(|row| roles.contains(&row.role)) {
            let reason = without_names(row.reason());
            match groups.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, names)) => names.push(&row.name),
                None => groups.push((reason, vec![&row.name])),
            }
        }
        groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
        groups
    }

    /// What the values with these roles are that are not quantized, as the end of a line:
    /// `; the other 5: 3 fused into node … (Relu), 2 read by Softmax, which takes it in float`.
    pub fn others(&self, roles: &[Role]) -> String {
        let groups = self.not_quantized(roles);
        let all: usize = groups.iter().map(|(_, names)| names.len()).sum();
        if all == 0 {
            return String::new();
        }
        let mut parts: Vec<String> = groups
            .iter()
            .take(SHOWN)
            .map(|(reason, names)| format!("{} {reason}", names.len()))
            .collect();
        let rest: usize = groups.iter().skip(SHOWN).map(|(_, names)| names.len()).sum();
        if rest > 0 {
            parts.push(format!("{rest} for other reasons"));
        }
        format!("; the other {all}: {}", parts.join(", "))
    }
}

/// The text with `…` for each name in backticks.
fn without_names(text: &str) -> String {
    let part = |(index, part): (usize, &str)| {
        if index % 2 == 0 { part.to_owned() } else { "…".to_owned() }
    };
    text.split('`').enumerate().map(part).collect()
}
