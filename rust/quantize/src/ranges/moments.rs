//! The second moments of the inputs of layers that a calibration collected, from which weights can
//! be rounded later: with those of other parts of the samples, or with other options.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::swap;
use std::sync::Arc;

use quantize_rs_math::{SecondMoments, TooManySamples};

use super::moments_file::MomentsFile;
use crate::CalibrationError;

/// The most samples whose rows are kept for the evaluation.
pub(crate) const MAX_HELD_BACK: usize = 16;

/// The most rows of a sample that can be the spare one: so few take little memory.
const MAX_SPARE_ROWS: usize = 32;

/// Separates the name of the value from what else tells inputs apart.
pub(crate) const SEPARATOR: char = '\n';

/// What was collected of one input of a layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputMoments {
    /// Of each group of channels, and each span of its rows.
    pub(crate) groups: Vec<Vec<SecondMoments>>,
    /// Rows of the samples held back, of each group, by the content of the sample.
    pub(crate) held_back: BTreeMap<u64, Vec<Vec<f32>>>,
    /// The rows of the sample with the lowest key, of those with few rows, while none is held back.
    /// Its moments are not added yet, so that it can be held back.
    pub(crate) spare: Option<(u64, Vec<Vec<f32>>)>,
}

impl InputMoments {
    /// Of no samples yet.
    pub(crate) fn new(groups: Vec<Vec<SecondMoments>>) -> InputMoments {
        InputMoments { groups, held_back: BTreeMap::new(), spare: None }
    }

    /// Keeps the rows of a sample held back, unless enough others are kept.
    ///
    /// # Errors
    /// Too many samples: the spare one is added.
    pub(crate) fn hold_back(
        &mut self,
        key: u64,
        rows: Vec<Vec<f32>>,
    ) -> Result<(), TooManySamples> {
        self.held_back.insert(key, rows);
        // Which ones are kept does not depend on the order.
        if self.held_back.len() > MAX_HELD_BACK {
            self.held_back.pop_last();
        }
        self.spare.take().map_or(Ok(()), |(_, rows)| self.add_rows(&rows))
    }

    /// Adds the rows of a sample, of each group.
    ///
    /// # Errors
    /// Too many samples.
    pub(crate) fn add(&mut self, key: u64, mut rows: Vec<Vec<f32>>) -> Result<(), TooManySamples> {
        let depth: usize = self.groups.first().into_iter().flatten().map(SecondMoments::size).sum();
        let few = rows.iter().all(|rows| rows.len() <= MAX_SPARE_ROWS * depth);
        if few && self.held_back.is_empty() {
            let Some((lowest, spare)) = &mut self.spare else {
                self.spare = Some((key, rows));
                return Ok(());
            };
            if key < *lowest {
                *lowest = key;
                swap(&mut rows, spare);
            }
        }
        self.add_rows(&rows)
    }

    /// Adds the rows of a sample that cannot be held back.
    ///
    /// # Errors
    /// Too many samples.
    pub(crate) fn add_rows(&mut self, rows: &[Vec<f32>]) -> Result<(), TooManySamples> {
        let mut part = Vec::new();
        for (spans, rows) in self.groups.iter_mut().zip(rows) {
            let depth = spans.iter().map(SecondMoments::size).sum::<usize>().max(1);
            let mut start = 0;
            for moments in spans {
                let span = start..start + moments.size();
                start = span.end;
                if span.len() == depth {
                    moments.add(rows)?;
                } else {
                    part.clear();
                    rows.chunks(depth).for_each(|row| part.extend_from_slice(&row[span.clone()]));
                    moments.add(&part)?;
                }
            }
        }
        Ok(())
    }

    /// Moments to round weights for, and rows of other samples to evaluate them on, if there are at
    /// least two samples. Of few samples none may have been held back by its content, or all.
    ///
    /// # Errors
    /// Too many samples.
    pub(crate) fn divided(mut self) -> Result<InputMoments, TooManySamples> {
        let is_empty = self.groups.iter().flatten().all(|moments| moments.rows() == 0);
        match self.spare.take() {
            Some((_, rows)) if is_empty => self.add_rows(&rows)?,
            Some((key, rows)) => drop(self.held_back.insert(key, rows)),
            None => {
                let kept = usize::from(self.held_back.len() > 1);
                while is_empty && self.held_back.len() > kept {
                    let Some((_, rows)) = self.held_back.pop_last() else { break };
                    self.add_rows(&rows)?;
                }
            }
        }
        Ok(self)
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
            && self.spare.iter().all(|(_, rows)| held(rows))
    }

    /// Adds the moments of other samples, of the same form.
    fn merge(&mut self, other: &InputMoments) -> Result<(), TooManySamples> {
        for (own, other) in self.groups.iter_mut().flatten().zip(other.groups.iter().flatten()) {
            own.merge(other)?;
        }
        for (key, rows) in &other.held_back {
            self.hold_back(*key, rows.clone())?;
        }
        other.spare.clone().map_or(Ok(()), |(key, rows)| self.add(key, rows))
    }
}

/// The second moments of the inputs of layers, by input.
///
/// They belong to [`Ranges`](crate::Ranges) of a part of the samples. When ranges are merged, those
/// in memory are added. Those in files stay apart, and are added when they are needed, input by
/// input.
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

    /// The sum of two parts in memory. `None` for files, and if the moments have different forms.
    fn with(&self, other: &Part) -> Option<Part> {
        let (Part::Memory(own), Part::Memory(other)) = (self, other) else { return None };
        let alike =
            |((name, own), (its, other)): ((&String, &Option<_>), (&String, &Option<_>))| {
                let both = own.as_ref().zip(other.as_ref());
                name == its && both.is_none_or(|(own, other)| InputMoments::are_alike(own, other))
            };
        if own.len() != other.len() || !own.iter().zip(other).all(alike) {
            return None;
        }
        let sum = |(own, other): (&Option<InputMoments>, &Option<InputMoments>)| {
            let mut sum = own.clone()?;
            sum.merge(other.as_ref()?).ok().map(|()| sum)
        };
        let sums = own.iter().zip(other.values());
        Some(Part::Memory(
            sums.map(|((name, own), other)| (name.clone(), sum((own, other)))).collect(),
        ))
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
        let mut parts = self.parts.clone();
        for part in &other.parts {
            let added = |own: &Arc<Part>| own.with(part);
            match parts.iter().enumerate().find_map(|(at, own)| Some((at, added(own)?))) {
                Some((at, both)) => parts[at] = Arc::new(both),
                None => parts.push(Arc::clone(part)),
            }
        }
        Moments { parts }
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
                Some(all) if InputMoments::are_alike(all, &found) => {
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
    /// Whether the moments of two parts can be added.
    fn are_alike(one: &InputMoments, other: &InputMoments) -> bool {
        one.is_like(other) && other.is_like(one)
    }

    /// Whether the moments of another part fit these.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments of one group in spans of 2 and 1, of samples added and held back in this order.
    fn of(samples: &[(u64, &[f32], bool)]) -> InputMoments {
        let spans = vec![SecondMoments::new(2), SecondMoments::new(1)];
        let mut moments = InputMoments::new(vec![spans]);
        for (key, rows, holding) in samples {
            let rows = vec![rows.to_vec()];
            if *holding { moments.hold_back(*key, rows) } else { moments.add(*key, rows) }.unwrap();
        }
        moments
    }

    /// The number of rows to round for, and the keys of the samples held back.
    fn division(moments: InputMoments) -> (u64, Vec<u64>) {
        let divided = moments.divided().unwrap();
        assert_eq!(divided.spare, None);
        (divided.groups[0][1].rows(), divided.held_back.into_keys().collect())
    }

    const A: (u64, &[f32], bool) = (1, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], false);
    const B: (u64, &[f32], bool) = (2, &[0.5, -1.0, 2.5], false);
    const C: (u64, &[f32], bool) = (3, &[7.0, 0.0, -3.0], false);
    const HELD: (u64, &[f32], bool) = (8, &[1.0, 1.0, 1.0], true);

    #[test]
    fn the_spare_sample_depends_neither_on_the_order_nor_on_parts() {
        let all = of(&[A, B, C]);
        assert_eq!(all.spare.as_ref().map(|(key, _)| *key), Some(1));
        assert_eq!(of(&[C, A, B]), all);
        assert_eq!(of(&[B, C, A]), all);
        for (one, other) in [(&[A][..], &[B, C][..]), (&[C], &[B, A]), (&[A, B, C], &[])] {
            let mut merged = of(one);
            merged.merge(&of(other)).unwrap();
            assert_eq!(merged, all);
        }
        assert_eq!(division(all), (2, vec![1]));
    }

    #[test]
    fn parts_in_memory_are_added_at_once() {
        let part = |found| Moments::collected(BTreeMap::from([("x".to_owned(), found)]));
        let both = part(Some(of(&[A, HELD]))).with(&part(Some(of(&[B, C]))));
        assert_eq!(both.parts.len(), 1);
        assert_eq!(both.input("x").unwrap(), Some(of(&[A, HELD, B, C])));
        assert_eq!(both.with(&part(None)).input("x").unwrap(), None);
        // Moments of other forms stay apart, and are refused when they are needed.
        let other = InputMoments::new(vec![vec![SecondMoments::new(3)]]);
        let unlike = both.with(&part(Some(other)));
        assert_eq!(unlike.parts.len(), 2);
        assert!(unlike.input("x").is_err());
    }

    #[test]
    fn a_sample_held_back_by_its_content_leaves_none_to_spare() {
        let all = of(&[A, HELD, B]);
        assert_eq!((of(&[HELD, B, A]), of(&[B, A, HELD])), (all.clone(), all.clone()));
        let mut merged = of(&[HELD]);
        merged.merge(&of(&[B, A])).unwrap();
        assert_eq!(merged, all);
        let mut merged = of(&[B, A]);
        merged.merge(&of(&[HELD])).unwrap();
        assert_eq!(merged, all);
        assert_eq!((all.spare.clone(), division(all)), (None, (3, vec![8])));
    }

    #[test]
    fn few_samples_are_divided_if_there_are_two() {
        assert_eq!(division(of(&[B])), (1, vec![]));
        assert_eq!(division(of(&[A, A])), (2, vec![1]), "equal samples");
        assert_eq!(division(of(&[HELD])), (1, vec![]));
        assert_eq!(division(of(&[HELD, (16, &[2.0; 6], true)])), (2, vec![8]));
        // Samples with many rows are not spared.
        let many = [0.5; 3 * (MAX_SPARE_ROWS + 1)];
        assert_eq!(division(of(&[(0, &many, false), B])), (33, vec![2]));
        assert_eq!(division(of(&[(0, &many, false)])), (33, vec![]));
    }
}
