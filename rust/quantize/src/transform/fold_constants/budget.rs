//! Decides which constant expressions are evaluated in advance, so that the file does not grow.

/// Values up to this size cost nothing: the nodes that compute them are larger.
pub(super) const FREE_BYTES: usize = 64;

/// The number of rounds in which one candidate of a group is given up, the worst. Later rounds give
/// up all that are too large, so that the work stays proportional to the size of the model.
const PATIENT_ROUNDS: usize = 64;

/// The number of rounds after which all of a group is given up.
const MAX_ROUNDS: usize = 256;

/// A constant that the model stores and that candidates are computed from.
pub(super) struct Source {
    pub(super) bytes: usize,
    /// Whether it stays in the file whatever is evaluated: other nodes read it.
    pub(super) stays: bool,
}

/// A node that could be replaced with its value.
pub(super) struct Candidate {
    pub(super) inputs: Vec<Part>,
    /// The size of its value.
    pub(super) bytes: usize,
    /// How much larger its value may be than what it makes unused.
    pub(super) growth: usize,
    /// Whether a node that is no candidate reads its value.
    pub(super) is_read: bool,
    /// Whether another candidate has the same value, and the file stores it once.
    pub(super) is_shared: bool,
}

/// An input of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Source(usize),
    /// The output of an earlier candidate.
    Candidate(usize),
}

/// Which candidates are evaluated. They are in topological order.
///
/// Candidates that share a constant are considered together: four slices of a weight may replace it
/// although each alone would be stored beside it. What all groups may add together is `total`; if
/// they would add more, none that grows is evaluated.
pub(super) fn chosen(candidates: &[Candidate], sources: &[Source], total: usize) -> Vec<bool> {
    let mut choice = Choice::of(candidates, sources);
    let mut growing = Vec::new();
    let mut all = 0usize;
    for group in choice.groups() {
        let growth = choice.settle(&group, usize::MAX);
        if growth > FREE_BYTES {
            all = all.saturating_add(growth);
            growing.push(group);
        }
    }
    if all > total {
        for group in growing {
            choice.settle(&group, FREE_BYTES);
        }
    }
    choice.chosen
}

/// The candidates of a group that are stored, and what they cost.
struct Cost {
    /// Each stored candidate with the bytes that it adds beyond those that only it makes unused.
    stored: Vec<(usize, usize)>,
    /// The bytes that the group adds to the file.
    growth: usize,
}

struct Choice<'c> {
    candidates: &'c [Candidate],
    sources: &'c [Source],
    /// The candidates that read each candidate.
    readers: Vec<Vec<usize>>,
    /// The candidates that read each source.
    readers_of_sources: Vec<Vec<usize>>,
    chosen: Vec<bool>,
}

/// Which stored candidates need a value.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Nothing,
    One(usize),
    Several,
}

impl Owner {
    fn and(self, other: Owner) -> Owner {
        match (self, other) {
            (Owner::Nothing, owner) | (owner, Owner::Nothing) => owner,
            (one, other) if one == other => one,
            _ => Owner::Several,
        }
    }
}

impl<'c> Choice<'c> {
    fn of(candidates: &'c [Candidate], sources: &'c [Source]) -> Choice<'c> {
        let mut readers = vec![Vec::new(); candidates.len()];
        let mut readers_of_sources = vec![Vec::new(); sources.len()];
        for (index, candidate) in candidates.iter().enumerate() {
            for part in &candidate.inputs {
                match part {
                    Part::Source(source) => readers_of_sources[*source].push(index),
                    Part::Candidate(candidate) => readers[*candidate].push(index),
                }
            }
        }
        let chosen = vec![true; candidates.len()];
        Choice { candidates, sources, readers, readers_of_sources, chosen }
    }

    /// The candidates that are connected by values that are not free, each group in topological
    /// order.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut seen = vec![false; self.candidates.len()];
        let mut seen_sources = vec![false; self.sources.len()];
        let mut groups = Vec::new();
        for first in 0..self.candidates.len() {
            let mut group = Vec::new();
            let mut waiting = vec![first];
            while let Some(index) = waiting.pop() {
                if std::mem::replace(&mut seen[index], true) {
                    continue;
                }
                group.push(index);
                let candidate = &self.candidates[index];
                if candidate.bytes > FREE_BYTES {
                    waiting.extend(&self.readers[index]);
                }
                for part in &candidate.inputs {
                    match *part {
                        Part::Candidate(input) if self.candidates[input].bytes > FREE_BYTES => {
                            waiting.push(input);
                        }
                        Part::Source(source)
                            if self.sources[source].bytes > FREE_BYTES
                                && !std::mem::replace(&mut seen_sources[source], true) =>
                        {
                            waiting.extend(&self.readers_of_sources[source]);
                        }
                        _ => {}
                    }
                }
            }
            if !group.is_empty() {
                group.sort_unstable();
                groups.push(group);
            }
        }
        groups
    }

    /// Gives up candidates of a group until it grows no more than its values may, and no more than
    /// `most`. Returns how much it grows.
    fn settle(&mut self, group: &[usize], most: usize) -> usize {
        for round in 0..MAX_ROUNDS {
            let Cost { mut stored, growth } = self.cost(group);
            let limit = |index: usize| self.candidates[index].growth.min(most);
            if growth <= stored.iter().map(|(index, _)| limit(*index)).max().unwrap_or(0) {
                return growth;
            }
            let too_large =
                |(index, own): &&(usize, usize)| *own > limit(*index) && *own > FREE_BYTES;
            let worst = stored.iter().filter(too_large).max_by_key(|(_, own)| *own).copied();
            if let Some(worst) = worst.filter(|_| round < PATIENT_ROUNDS) {
                stored = vec![worst];
            } else if worst.is_some() {
                stored.retain(|one| too_large(&one));
            } else {
                // Each is small enough, but not all together.
                stored.retain(|(_, own)| *own > 0);
            }
            if stored.is_empty() {
                break;
            }
            for (index, _) in stored {
                self.chosen[index] = false;
            }
        }
        for index in group {
            self.chosen[*index] = false;
        }
        0
    }

    fn cost(&self, group: &[usize]) -> Cost {
        let mut owners = vec![Owner::Nothing; group.len()];
        let place = |candidate: usize| group.binary_search(&candidate).ok();
        let mut stored = Vec::new();
        for (at, index) in group.iter().enumerate().rev().filter(|(_, index)| self.chosen[**index])
        {
            let readers = &self.readers[*index];
            let mut owner = readers
                .iter()
                .filter(|reader| self.chosen[**reader])
                .filter_map(|reader| Some(owners[place(*reader)?]))
                .fold(Owner::Nothing, Owner::and);
            let candidate = &self.candidates[*index];
            if candidate.is_read || readers.iter().any(|reader| !self.chosen[*reader]) {
                owner = owner.and(Owner::One(*index));
                stored.push((*index, if candidate.is_shared { 0 } else { candidate.bytes }));
            }
            owners[at] = owner;
        }
        let added: usize = stored.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes));
        let mut freed = 0usize;
        let mut sources: Vec<usize> = group
            .iter()
            .flat_map(|index| &self.candidates[*index].inputs)
            .filter_map(|part| match part {
                Part::Source(source) => Some(*source),
                Part::Candidate(_) => None,
            })
            .collect();
        sources.sort_unstable();
        sources.dedup();
        stored.sort_unstable();
        for source in sources {
            let Source { bytes, stays } = self.sources[source];
            let readers = &self.readers_of_sources[source];
            if stays || bytes <= FREE_BYTES || readers.iter().any(|reader| !self.chosen[*reader]) {
                continue;
            }
            freed = freed.saturating_add(bytes);
            let owner = readers
                .iter()
                .filter_map(|reader| Some(owners[place(*reader)?]))
                .fold(Owner::Nothing, Owner::and);
            if let Owner::One(index) = owner
                && let Ok(at) = stored.binary_search_by_key(&index, |(index, _)| *index)
            {
                stored[at].1 = stored[at].1.saturating_sub(bytes);
            }
        }
        Cost { stored, growth: added.saturating_sub(freed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn source(bytes: usize) -> Source {
        Source { bytes, stays: false }
    }

    fn candidate(inputs: &[Part], bytes: usize, is_read: bool) -> Candidate {
        Candidate { inputs: inputs.to_vec(), bytes, growth: 64 * KIB, is_read, is_shared: false }
    }

    /// Three slices of a weight, and their concatenation in another order.
    fn gates(bytes: usize) -> Vec<Candidate> {
        let weight = &[Part::Source(0)][..];
        vec![
            candidate(weight, bytes / 4, false),
            candidate(weight, bytes / 4, false),
            candidate(weight, bytes / 2, false),
            candidate(&[0, 1, 2].map(Part::Candidate), bytes, true),
        ]
    }

    #[test]
    fn slices_that_replace_a_weight_together_are_evaluated() {
        let bytes = 1 << 20;
        let joined = gates(bytes);
        assert_eq!(chosen(&joined, &[source(bytes)], 0), [true; 4]);
        let mut apart = gates(bytes);
        apart.pop();
        for slice in &mut apart {
            slice.is_read = true;
        }
        assert_eq!(chosen(&apart, &[source(bytes)], 0), [true; 3]);
    }

    #[test]
    fn a_weight_that_something_else_reads_is_not_copied() {
        let bytes = 256 * KIB;
        let kept = [Source { bytes, stays: true }];
        assert_eq!(chosen(&gates(bytes), &kept, usize::MAX), [false; 4]);
    }

    #[test]
    fn a_value_that_is_too_large_stays_and_what_it_is_computed_from_is_evaluated() {
        let bytes = 1 << 20;
        let mut all = gates(bytes);
        all[3].is_read = false;
        all.push(candidate(&[Part::Candidate(3)], 2 * bytes, true));
        assert_eq!(chosen(&all, &[source(bytes)], 0), [true, true, true, true, false]);
    }

    #[test]
    fn all_values_together_have_a_budget() {
        let all: Vec<Candidate> = (0..8).map(|_| candidate(&[], 10 * KIB, true)).collect();
        assert_eq!(chosen(&all, &[], 80 * KIB), [true; 8]);
        assert_eq!(chosen(&all, &[], 80 * KIB - 1), [false; 8]);
        let small: Vec<Candidate> = (0..8).map(|_| candidate(&[], FREE_BYTES, true)).collect();
        assert_eq!(chosen(&small, &[], 0), [true; 8]);
    }

    #[test]
    fn equal_values_of_two_branches_are_counted_once() {
        let bytes = 1 << 20;
        let mut both = gates(bytes);
        let mut other = gates(bytes);
        other[3].inputs = [4, 5, 6].map(Part::Candidate).to_vec();
        other[3].is_shared = true;
        both.append(&mut other);
        assert_eq!(chosen(&both, &[source(bytes)], 0), [true; 8]);
        both[7].is_shared = false;
        assert_eq!(chosen(&both, &[source(bytes)], 0), [false; 8]);
    }
}
