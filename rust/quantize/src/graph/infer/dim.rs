//! Dimensions and integers derived from them: constant, or a polynomial of dynamic dimensions.

use std::collections::{HashMap, HashSet};

/// An integer that is constant at inference time, or an expression of dynamic dimensions.
///
/// Equal values are equal whenever the model runs. Unequal values may still be equal for some
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dim {
    /// A constant.
    Fixed(i64),
    /// The index of an expression in [`Dims::forms`].
    Varies(usize),
}

impl Dim {
    /// Creates a constant dimension.
    pub(crate) fn of(length: usize) -> Option<Dim> {
        Some(Dim::Fixed(i64::try_from(length).ok()?))
    }

    /// The value of a constant.
    pub(crate) fn fixed(self) -> Option<i64> {
        match self {
            Dim::Fixed(number) => Some(number),
            Dim::Varies(_) => None,
        }
    }
}

/// A variable that is not a sum or product of others.
#[derive(Clone, Debug)]
struct Atom {
    /// Its name, expressed with the names in the file.
    name: Option<String>,
    /// Whether it is determined by the inputs of the model.
    follows: bool,
    /// Whether it may be negative.
    signed: bool,
}

/// A polynomial: the sorted atoms of each term, and the coefficient of the term.
type Form = Vec<(Vec<usize>, i64)>;

/// The maximum number of terms, and of atoms in a term. Larger expressions are unknown.
const MAX_TERMS: usize = 6;
const MAX_FACTORS: usize = 6;

/// The maximum length of the name of an expression, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Placeholder names that exporters write for unknown dimensions.
const PLACEHOLDER_NAMES: [&str; 8] = ["", "?", "-1", "0", "None", "none", "unk", "unknown"];

/// All expressions of one model.
#[derive(Debug, Default)]
pub(crate) struct Dims {
    atoms: Vec<Atom>,
    named: HashMap<String, usize>,
    floors: HashMap<(usize, i64), usize>,
    forms: Vec<Form>,
    by_form: HashMap<Form, usize>,
    /// Expressions that are dimensions, and thus non-negative, although their terms do not show it.
    lengths: HashSet<usize>,
}

impl Dims {
    /// A dimension that the file names. Equal names of input dimensions mean equal dimensions.
    /// Elsewhere the name is only displayed, since exporters do not check it.
    pub(crate) fn named(&mut self, name: &str, input: bool) -> Dim {
        if PLACEHOLDER_NAMES.contains(&name) {
            return self.unnamed(input);
        }
        if !input {
            let name = Some(name.to_owned());
            let atom = self.add(Atom { name, follows: false, signed: false });
            return self.of_atom(atom);
        }
        if let Some(atom) = self.named.get(name) {
            return self.of_atom(*atom);
        }
        let atom = Atom { name: Some(name.to_owned()), follows: true, signed: false };
        let atom = self.add(atom);
        self.named.insert(name.to_owned(), atom);
        self.of_atom(atom)
    }

    /// A dimension without a name. `input` says that the caller of the model determines it.
    pub(crate) fn unnamed(&mut self, input: bool) -> Dim {
        let atom = self.add(Atom { name: None, follows: input, signed: false });
        self.of_atom(atom)
    }

    /// `a + b · factor`, unless the expression becomes too large.
    pub(crate) fn add_times(&mut self, a: Dim, b: Dim, factor: i64) -> Option<Dim> {
        if let (Dim::Fixed(a), Dim::Fixed(b)) = (a, b) {
            return Some(Dim::Fixed(a.checked_add(b.checked_mul(factor)?)?));
        }
        let mut sum = self.form(a);
        for (atoms, times) in self.form(b) {
            add_term(&mut sum, atoms, times.checked_mul(factor)?)?;
        }
        self.of_form(sum)
    }

    /// `a · b`, unless the expression becomes too large.
    pub(crate) fn times(&mut self, a: Dim, b: Dim) -> Option<Dim> {
        match (a, b) {
            (Dim::Fixed(a), Dim::Fixed(b)) => return Some(Dim::Fixed(a.checked_mul(b)?)),
            (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => return Some(other),
            _ => {}
        }
        let mut product = Form::new();
        let (a, b) = (self.form(a), self.form(b));
        for (left, times) in &a {
            for (right, more) in &b {
                let mut atoms = [left.as_slice(), right].concat();
                atoms.sort_unstable();
                add_term(&mut product, atoms, times.checked_mul(*more)?)?;
            }
        }
        self.of_form(product)
    }

    /// `a / b`, if the division is exact for all inputs and `b` is not 0.
    pub(crate) fn exactly_over(&mut self, a: Dim, b: Dim) -> Option<Dim> {
        if let (Dim::Fixed(a), Dim::Fixed(b)) = (a, b) {
            return (b != 0 && a.checked_rem(b)? == 0).then(|| Dim::Fixed(a / b));
        }
        let divisor = self.form(b);
        let [(atoms, times)] = &divisor[..] else { return None };
        let mut quotient = Form::new();
        for (mut left, count) in self.form(a) {
            if count.checked_rem(*times)? != 0 {
                return None;
            }
            for atom in atoms {
                let at = left.iter().position(|own| own == atom)?;
                left.remove(at);
            }
            add_term(&mut quotient, left, count / times)?;
        }
        self.of_form(quotient)
    }

    /// `a / by`, rounded down.
    pub(crate) fn floor_over(&mut self, a: Dim, by: i64) -> Option<Dim> {
        if by <= 0 {
            return None;
        }
        let of = match a {
            Dim::Fixed(a) => return Some(Dim::Fixed(a.div_euclid(by))),
            Dim::Varies(of) => of,
        };
        if let Some(exact) = self.exactly_over(a, Dim::Fixed(by)) {
            return Some(exact);
        }
        if let Some(atom) = self.floors.get(&(of, by)) {
            return Some(self.of_atom(*atom));
        }
        let name = self.name(a).map(|of| format!("floor(({of})/{by})"));
        let (follows, signed) = (self.follows(a), !self.is_length(a));
        let atom = self.add(Atom { name, follows, signed });
        self.floors.insert((of, by), atom);
        Some(self.of_atom(atom))
    }

    /// Whether a number is known to be non-negative.
    pub(crate) fn is_length(&self, dim: Dim) -> bool {
        let positive = |(atoms, times): &(Vec<usize>, i64)| {
            *times >= 0 && !atoms.iter().any(|atom| self.atoms[*atom].signed)
        };
        match dim {
            Dim::Fixed(number) => number >= 0,
            Dim::Varies(form) => {
                self.lengths.contains(&form) || self.forms[form].iter().all(positive)
            }
        }
    }

    /// Records that a number is the dimension of an axis, and thus non-negative.
    pub(crate) fn set_length(&mut self, dim: Dim) {
        if let Dim::Varies(form) = dim {
            self.lengths.insert(form);
        }
    }

    /// Whether a number is determined by the inputs of the model alone.
    pub(crate) fn follows(&self, dim: Dim) -> bool {
        let Dim::Varies(form) = dim else { return true };
        self.forms[form].iter().flat_map(|(atoms, _)| atoms).all(|atom| self.atoms[*atom].follows)
    }

    /// The name of a dynamic dimension, expressed with the names in the file; `None` if it involves
    /// unnamed dimensions or would be too long.
    pub(crate) fn name(&self, dim: Dim) -> Option<String> {
        let Dim::Varies(form) = dim else { return None };
        let mut name = String::new();
        // The constant term comes last, as is customary.
        let terms = self.forms[form].iter().filter(|(atoms, _)| !atoms.is_empty());
        let constant = self.forms[form].iter().filter(|(atoms, _)| atoms.is_empty());
        for (atoms, times) in terms.chain(constant) {
            let sign = match (name.is_empty(), *times < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            name.push_str(sign);
            let mut factors = Vec::new();
            if times.unsigned_abs() != 1 || atoms.is_empty() {
                factors.push(times.unsigned_abs().to_string());
            }
            for atom in atoms {
                factors.push(self.atoms[*atom].name.clone()?);
            }
            name.push_str(&factors.join("*"));
            if name.len() > MAX_NAME_BYTES {
                return None;
            }
        }
        Some(name)
    }

    fn add(&mut self, atom: Atom) -> usize {
        self.atoms.push(atom);
        self.atoms.len() - 1
    }

    fn of_atom(&mut self, atom: usize) -> Dim {
        self.interned(vec![(vec![atom], 1)])
    }

    fn form(&self, dim: Dim) -> Form {
        match dim {
            Dim::Fixed(0) => Form::new(),
            Dim::Fixed(number) => vec![(Vec::new(), number)],
            Dim::Varies(form) => self.forms[form].clone(),
        }
    }

    fn of_form(&mut self, form: Form) -> Option<Dim> {
        match &form[..] {
            [] => return Some(Dim::Fixed(0)),
            [(atoms, times)] if atoms.is_empty() => return Some(Dim::Fixed(*times)),
            _ => {}
        }
        let small =
            form.len() <= MAX_TERMS && form.iter().all(|(atoms, _)| atoms.len() <= MAX_FACTORS);
        small.then(|| self.interned(form))
    }

    fn interned(&mut self, form: Form) -> Dim {
        if let Some(found) = self.by_form.get(&form) {
            return Dim::Varies(*found);
        }
        self.forms.push(form.clone());
        self.by_form.insert(form, self.forms.len() - 1);
        Dim::Varies(self.forms.len() - 1)
    }
}

/// Adds a term to a polynomial, whose terms are sorted and distinct.
fn add_term(sum: &mut Form, atoms: Vec<usize>, times: i64) -> Option<()> {
    match sum.binary_search_by(|(own, _)| own.cmp(&atoms)) {
        Ok(at) => {
            sum[at].1 = sum[at].1.checked_add(times)?;
            if sum[at].1 == 0 {
                sum.remove(at);
            }
        }
        Err(at) => sum.insert(at, (atoms, times)),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_one() {
        let mut dims = Dims::default();
        let (batch, seq) = (dims.named("batch", true), dims.named("seq", true));
        assert_eq!(dims.named("batch", true), batch);
        let rows = dims.times(batch, seq).unwrap();
        assert_eq!(dims.times(seq, batch), Some(rows));
        let elements = dims.times(rows, Dim::Fixed(384)).unwrap();
        assert_eq!(dims.exactly_over(elements, Dim::Fixed(384)), Some(rows));
        assert_eq!(
            dims.exactly_over(elements, batch).and_then(|rest| dims.name(rest)).as_deref(),
            Some("384*seq")
        );
        let longer = dims.add_times(seq, Dim::Fixed(3), 1).unwrap();
        assert_eq!(dims.add_times(longer, seq, -1), Some(Dim::Fixed(3)));
        assert_eq!(dims.name(longer).as_deref(), Some("seq + 3"));
    }

    #[test]
    fn floors_of_equal_expressions_are_equal() {
        let mut dims = Dims::default();
        let height = dims.named("height", true);
        let less = dims.add_times(height, Dim::Fixed(1), -1).unwrap();
        let half = dims.floor_over(less, 2).unwrap();
        assert_eq!(dims.floor_over(less, 2), Some(half));
        assert_eq!(dims.name(half).as_deref(), Some("floor((height - 1)/2)"));
        assert!(!dims.is_length(half) && dims.is_length(height));
        assert_eq!(dims.floor_over(Dim::Fixed(-3), 2), Some(Dim::Fixed(-2)));
    }

    #[test]
    fn unknown_dimensions_are_distinct() {
        let mut dims = Dims::default();
        assert_ne!(dims.unnamed(false), dims.unnamed(false));
        assert_ne!(dims.named("?", true), dims.named("?", true));
        let unknown = dims.unnamed(false);
        assert!(!dims.follows(unknown) && dims.name(unknown).is_none());
        let batch = dims.named("batch", true);
        assert!(dims.follows(batch));
        let mut all = batch;
        let grown = (0..9).all(|at| {
            let one = dims.named(&format!("d{at}"), true);
            dims.times(all, one).map(|product| all = product).is_some()
        });
        assert!(!grown, "a product of ten atoms is too large");
    }
}
