//! Generates unique names for new values.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::GraphProto;

use crate::graph::{Graph, all_names};

/// A name that is longer is not repeated in new names, which would be most of a small file.
const MAX_REPEATED_BYTES: usize = 16;

/// The names of a model, and the names generated so far.
pub(crate) struct Names<'m> {
    /// The graph whose names are not collected yet: many passes generate none.
    unread: Option<&'m GraphProto>,
    taken: HashSet<&'m str>,
    given: HashSet<String>,
    /// The next number to try, by name without number.
    next: HashMap<String, usize>,
    /// Whether long names are repeated too.
    repeats: bool,
}

impl<'m> Names<'m> {
    /// Creates a generator that avoids the names of a model.
    pub(crate) fn of(graph: &Graph<'m>) -> Names<'m> {
        Names { unread: Some(graph.model.graph()), ..Names::beside(HashSet::new()) }
    }

    /// Creates a generator that avoids the given names.
    pub(crate) fn beside(taken: HashSet<&'m str>) -> Names<'m> {
        let (given, next) = (HashSet::new(), HashMap::new());
        Names { unread: None, taken, given, next, repeats: false }
    }

    /// The same, which repeats long names too, if `repeats` says so.
    pub(crate) fn repeating(self, repeats: bool) -> Names<'m> {
        Names { repeats, ..self }
    }

    /// Returns `{base}_{suffix}`, followed by a number if that name is taken.
    pub(crate) fn fresh(&mut self, base: &str, suffix: &str) -> String {
        self.numbered(&format!("{base}_{suffix}"), "_", 0)
    }

    /// As [`Names::fresh`], but does not repeat a long name: the first letter of the suffix and a
    /// number. For values that are not looked up by name.
    pub(crate) fn short(&mut self, base: &str, suffix: &str) -> String {
        match suffix.get(..1).filter(|_| base.len() > MAX_REPEATED_BYTES && !self.repeats) {
            Some(letter) => self.numbered(letter, "", 1),
            None => self.fresh(base, suffix),
        }
    }

    /// The name without a number if `from` is 0 and the name is not taken, otherwise with the first
    /// number from `from` on that is not taken.
    fn numbered(&mut self, plain: &str, separator: &str, from: usize) -> String {
        if let Some(graph) = self.unread.take() {
            self.taken = all_names(graph);
        }
        let number = self.next.entry(plain.to_owned()).or_insert(from);
        let mut name;
        loop {
            name =
                if *number == 0 { plain.to_owned() } else { format!("{plain}{separator}{number}") };
            *number += 1;
            if !self.taken.contains(name.as_str()) && !self.given.contains(&name) {
                break;
            }
        }
        self.given.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_not_repeated() {
        let (long, taken) = ("model/block_1/depthwise/BiasAdd:0", HashSet::from(["s2", "y_scale"]));
        let mut names = Names::beside(taken);
        assert_eq!(names.short(long, "scale"), "s1");
        assert_eq!(names.short(long, "scale"), "s3");
        assert_eq!(names.short(long, "quantized"), "q1");
        assert_eq!(names.short("y", "scale"), "y_scale_1");
        assert_eq!(names.fresh(long, "scale"), format!("{long}_scale"));
    }
}
