//! Names for new values, none of which is taken.

use std::collections::HashSet;

use crate::graph::Graph;

/// The names of a model and those given out since.
pub(super) struct Names<'m> {
    taken: &'m HashSet<&'m str>,
    given: HashSet<String>,
}

impl<'m> Names<'m> {
    pub(super) fn of(graph: &'m Graph<'m>) -> Names<'m> {
        Names { taken: graph.names(), given: HashSet::new() }
    }

    /// `{base}_{suffix}`, with a number behind it when that is taken.
    pub(super) fn fresh(&mut self, base: &str, suffix: &str) -> String {
        let plain = format!("{base}_{suffix}");
        let mut name = plain.clone();
        let mut number = 0;
        while self.taken.contains(name.as_str()) || self.given.contains(&name) {
            number += 1;
            name = format!("{plain}_{number}");
        }
        self.given.insert(name.clone());
        name
    }
}
