//! What is known of one value.

use quantize_rs_onnx::{DataType, ValueInfoProto};

use super::dim::{Dim, Dims};

/// A length for each axis.
pub(crate) type Shape = Vec<Dim>;

/// What is known of one value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fact {
    /// The type of an element.
    pub(crate) dtype: Option<DataType>,
    /// The shape; `None` when even the rank is unknown.
    pub(crate) shape: Option<Shape>,
    /// The elements of a small vector or scalar of integers; `None` for one that is unknown.
    pub(crate) elements: Option<Vec<Option<Dim>>>,
    /// The elements of a small constant vector of float32: by these images are resized.
    pub(crate) floats: Option<Vec<f32>>,
}

/// Axes that a value may have: what has more is not followed.
pub(super) const AXES: usize = 32;

/// Elements that a vector may have that lengths are made of.
pub(super) const ELEMENTS: usize = 64;

impl Fact {
    /// As many axes as the value has.
    pub(crate) fn rank(&self) -> Option<usize> {
        Some(self.shape.as_ref()?.len())
    }

    /// How many elements the value has, where no length of its shape varies.
    pub(crate) fn size(&self) -> Option<usize> {
        let mut lengths = self.shape.as_ref()?.iter();
        lengths.try_fold(1_usize, |size, length| {
            size.checked_mul(usize::try_from(length.fixed()?).ok()?)
        })
    }
}

/// What the file says of a value; an unnamed length of an input is the caller's choice, elsewhere
/// nobody knows what it is.
pub(super) fn declared(info: &ValueInfoProto, dims: &mut Dims, input: bool) -> Fact {
    let Some(tensor) = info.tensor_type() else { return Fact::default() };
    let shape = tensor.shape.as_ref().filter(|shape| shape.dim.len() <= AXES);
    let shape = shape.map(|shape| {
        let lengths = shape.dim.iter().map(|dim| match (dim.value, &dim.param) {
            (Some(length), _) if length >= 0 => Dim::Fixed(length),
            (_, Some(name)) => dims.named(name, input),
            _ => dims.unnamed(input),
        });
        lengths.collect()
    });
    Fact { dtype: DataType::from_number(tensor.elem_type), shape, ..Fact::default() }
}

impl Fact {
    /// Takes what the file says besides; says where the two contradict each other.
    ///
    /// What contradicts is unknown from then on: whichever of the two is wrong, nothing is done that
    /// would follow from it. But a length that follows from those of the inputs is never fixed by a
    /// file that says so: such files come of changing the inputs of a model and nothing else.
    pub(super) fn take(&mut self, said: &Fact, dims: &mut Dims) -> Option<String> {
        let mut wrong = None;
        match (self.dtype, said.dtype) {
            (None, said) => self.dtype = said,
            (Some(made), Some(said)) if made != said => {
                wrong = Some(format!("is declared {said}, its operator makes {made}"));
                *self = Fact { shape: self.shape.take(), ..Fact::default() };
            }
            _ => {}
        }
        let Some(said) = &said.shape else { return wrong };
        let Some(made) = &mut self.shape else {
            self.shape = Some(said.clone());
            return wrong;
        };
        if made.len() != said.len() {
            let (said, made) = (said.len(), made.len());
            *self = Fact { dtype: self.dtype, ..Fact::default() };
            return Some(format!("is declared with {said} axes, its operator makes {made}"));
        }
        for (axis, (made, said)) in made.iter_mut().zip(said).enumerate() {
            match (*made, *said) {
                (Dim::Fixed(has), Dim::Fixed(declared)) if has != declared => {
                    let what =
                        format!("axis {axis} is declared {declared}, its operator makes {has}");
                    wrong = Some(what);
                    *made = dims.unnamed(false);
                    self.elements = None;
                }
                (Dim::Varies(_), Dim::Fixed(declared)) if dims.follows(*made) => {
                    let name =
                        dims.name(*made).unwrap_or_else(|| "a length of the inputs".to_owned());
                    wrong = Some(format!(
                        "axis {axis} is declared {declared}, and follows from {name}"
                    ));
                }
                (Dim::Varies(_), said) if !dims.follows(*made) => *made = said,
                _ => {}
            }
        }
        wrong
    }
}
