//! Generates unique names for new values.

use std::collections::{HashMap, HashSet};

use crate::graph::Graph;

/// The names of a model, and the names generated so far.
pub(crate) struct Names<'m> {
    taken: &'m HashSet<&'m str>,
    given: HashSet<String>,
    /// The next number to try, by name without number.
    next: HashMap<String, usize>,
}

impl<'m> Names<'m> {
    pub(crate) fn of(graph: &'m Graph<'m>) -> Names<'m> {
        Names::beside(graph.names())
    }

    /// Creates a generator that avoids the given names.
    pub(crate) fn beside(taken: &'m HashSet<&'m str>) -> Names<'m> {
        Names { taken, given: HashSet::new(), next: HashMap::new() }
    }

    /// Returns `{base}_{suffix}`, followed by a number if that name is taken.
    pub(crate) fn fresh(&mut self, base: &str, suffix: &str) -> String {
        let plain = format!("{base}_{suffix}");
        let number = self.next.entry(plain.clone()).or_insert(0);
        let mut name;
        loop {
            name = if *number == 0 { plain.clone() } else { format!("{plain}_{number}") };
            *number += 1;
            if !self.taken.contains(name.as_str()) && !self.given.contains(&name) {
                break;
            }
        }
        self.given.insert(name.clone());
        name
    }
}
