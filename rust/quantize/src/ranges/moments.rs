//! The second moments of the inputs of layers that a calibration collected, from which weights can
//! be rounded later: with those of other parts of the samples, or with other options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quantize_rs_math::{SecondMoments, TooManySamples};

use super::moments_file::MomentsFile;
use crate::CalibrationError;

/// The most samples whose rows are kept for the evaluation.
pub(crate) const MAX_HELD_BACK: usize = 16;

/// Separates the name of the value from what else tells inputs apart.
pub(crate) const SEPARATOR: char = '\n';

/// What was collected of one input of a layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputMoments {
    /// Of each group of channels, and each span of its rows.
    pub(crate) groups: Vec<Vec<SecondMoments>>,
    /// Rows of the samples held back, of each group, by the content of the sample.
    pub(crate) held_back: BTreeMap<u64, Vec<Vec<f32>>>,
}

impl InputMoments {
    /// Keeps the rows of a sample held back, unless enough others are kept.
    pub(crate) fn hold_back(&mut self, key: u64, rows: Vec<Vec<f32>>) {
        self.held_back.insert(key, rows);
        // Which ones are kept does not depend on the order.
        if self.held_back.len() > MAX_HELD_BACK {
            self.held_back.pop_last();
        }
    }

    /// The rows of a group that are held back.
    pub(crate) fn held_back(&self, group: usize) -> Vec<f32> {
        self.held_back.values().flat_map(|groups| &groups[group]).copied().collect()
    }

    /// Whether these are moments of inputs with this many groups, and spans of these lengths.
    pub(crate) fn is_of(&self, groups: usize, spans: &[usize], diagonal: bool) -> bool {
        let depth = spans.iter().copied().fold(0, usize::saturating_add);
        let fits = |(moments, span): (&SecondMoments, &usize)| {
            moments.size() == *span && moments.is_diagonal() == diagonal
        };
        let of_group = |group: &Vec<SecondMoments>| {
            group.len() == spans.len() && group.iter().zip(spans).all(fits)
        };
        let whole = |rows: &Vec<f32>| rows.len().checked_rem(depth) == Some(0);
        let held = |rows: &Vec<Vec<f32>>| rows.len() == groups && rows.iter().all(whole);
        self.groups.len() == groups
            && self.groups.iter().all(of_group)
            && self.held_back.values().all(held)
    }

    /// Adds the moments of other samples, of the same form.
    fn merge(&mut self, other: &InputMoments) -> Result<(), TooManySamples> {
        for (own, other) in self.groups.iter_mut().flatten().zip(other.groups.iter().flatten()) {
            own.merge(other)?;
        }
        for (key, rows) in &other.held_back {
            self.hold_back(*key, rows.clone());
        }
        Ok(())
    }
}

/// The second moments of the inputs of layers, by input.
///
/// They belong to [`Ranges`](crate::Ranges) of a part of the samples. Those of merged ranges stay
/// apart, in memory or in files, and are added when they are needed, input by input.
#[derive(Clone, Debug)]
pub struct Moments {
    parts: Vec<Arc<Part>>,
}

/// The moments of some samples. `None` for an input with more samples than can be added exactly.
pub(super) type Collected = BTreeMap<String, Option<InputMoments>>;

#[derive(Debug)]
enum Part {
    Memory(Collected),
    File(MomentsFile),
}

impl Part {
    fn inputs(&self) -> BTreeSet<&str> {
        match self {
            Part::Memory(collected) => collected.keys().map(String::as_str).collect(),
            Part::File(file) => file.inputs().collect(),
        }
    }
}

impl Moments {
    /// Moments in memory.
    pub(crate) fn collected(inputs: Collected) -> Moments {
        Moments { parts: vec![Arc::new(Part::Memory(inputs))] }
    }

    pub(super) fn in_file(file: MomentsFile) -> Moments {
        Moments { parts: vec![Arc::new(Part::File(file))] }
    }

    /// The inputs.
    pub(crate) fn inputs(&self) -> BTreeSet<&str> {
        self.parts.first().map(|part| part.inputs()).unwrap_or_default()
    }

    /// These and the moments of other samples.
    pub(super) fn with(&self, other: &Moments) -> Moments {
        Moments { parts: [&self.parts[..], &other.parts].concat() }
    }

    /// The moments of an input, over all parts. `None` if they are not known, or of too many
    /// samples.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub(crate) fn input(&self, name: &str) -> Result<Option<InputMoments>, CalibrationError> {
        let mut all: Option<InputMoments> = None;
        for part in &self.parts {
            let found = match &**part {
                Part::Memory(collected) => collected.get(name).cloned().flatten(),
                Part::File(file) => file.read(name)?,
            };
            let Some(found) = found else { return Ok(None) };
            match &mut all {
                None => all = Some(found),
                Some(all) if all.is_like(&found) && found.is_like(all) => {
                    if all.merge(&found).is_err() {
                        return Ok(None);
                    }
                }
                Some(_) => {
                    let what = "its second moments have different forms in these ranges: \
                                calibrate all parts again";
                    return Err(CalibrationError::data(what).at_value(value_of(name)));
                }
            }
        }
        Ok(all)
    }
}

/// The name of the value that an input is.
pub(super) fn value_of(input: &str) -> &str {
    input.split(SEPARATOR).next().unwrap_or_default()
}

impl InputMoments {
    /// Whether the moments of another part can be added.
    fn is_like(&self, other: &InputMoments) -> bool {
        let first = self.groups.first();
        let spans: Vec<usize> = first.into_iter().flatten().map(SecondMoments::size).collect();
        let diagonal =
            first.and_then(|group| group.first()).is_some_and(SecondMoments::is_diagonal);
        other.is_of(self.groups.len(), &spans, diagonal)
    }
}

impl PartialEq for Moments {
    fn eq(&self, other: &Moments) -> bool {
        let same = |name: &&str| match (self.input(name), other.input(name)) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        };
        self.inputs() == other.inputs() && self.inputs().iter().all(same)
    }
}
