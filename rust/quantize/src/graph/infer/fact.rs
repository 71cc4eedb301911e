//! The inferred facts about one value.

use quantize_rs_onnx::{DataType, ValueInfoProto};

use super::dim::{Dim, Dims};

/// The dimension of each axis.
pub(crate) type Shape = Vec<Dim>;

/// The inferred facts about one value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fact {
    /// The element type.
    pub(crate) dtype: Option<DataType>,
    /// The shape; `None` if the rank is unknown.
    pub(crate) shape: Option<Shape>,
    /// The elements of a small integer vector or scalar. Unknown elements are `None`.
    pub(crate) elements: Option<Vec<Option<Dim>>>,
    /// The elements of a small constant float32 vector, for example the scales of a `Resize`.
    pub(crate) floats: Option<Vec<f32>>,
}

/// The maximum number of axes of a tracked shape.
pub(super) const MAX_AXES: usize = 32;

/// The maximum number of elements of a tracked vector.
pub(super) const MAX_ELEMENTS: usize = 64;

impl Fact {
    /// The number of axes.
    pub(crate) fn rank(&self) -> Option<usize> {
        Some(self.shape.as_ref()?.len())
    }

    /// The number of elements, if the shape is constant.
    pub(crate) fn size(&self) -> Option<usize> {
        let mut lengths = self.shape.as_ref()?.iter();
        lengths.try_fold(1_usize, |size, length| {
            size.checked_mul(usize::try_from(length.fixed()?).ok()?)
        })
    }
}

/// The facts that the file declares about a value. The caller determines an unnamed dimension of an
/// input; elsewhere such a dimension is unknown.
pub(super) fn declared(info: &ValueInfoProto, dims: &mut Dims, input: bool) -> Fact {
    let Some(tensor) = info.tensor_type() else { return Fact::default() };
    let shape = tensor.shape.as_ref().filter(|shape| shape.dim.len() <= MAX_AXES);
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
    /// Adds the facts that the file declares. Returns a message if the two contradict each other.
    ///
    /// Contradictory facts become unknown: since either may be wrong, nothing is derived from them.
    /// The exception is a dimension that is determined by the inputs. A declaration never fixes it,
    /// because such files result from editing only the inputs of a model.
    pub(super) fn take(&mut self, said: &Fact, dims: &mut Dims) -> Option<String> {
        let mut wrong = None;
        match (self.dtype, said.dtype) {
            (None, said) => self.dtype = said,
            (Some(made), Some(said)) if made != said => {
                wrong = Some(format!("is declared {said}, but its operator returns {made}"));
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
            return Some(format!("is declared with {said} axes, but its operator returns {made}"));
        }
        for (axis, (made, said)) in made.iter_mut().zip(said).enumerate() {
            match (*made, *said) {
                (Dim::Fixed(has), Dim::Fixed(declared)) if has != declared => {
                    let what = format!(
                        "axis {axis} is declared {declared}, but its operator returns {has}"
                    );
                    wrong = Some(what);
                    *made = dims.unnamed(false);
                    self.elements = None;
                }
                (Dim::Varies(_), Dim::Fixed(declared)) if dims.follows(*made) => {
                    let name =
                        dims.name(*made).unwrap_or_else(|| "a dimension of the inputs".to_owned());
                    wrong =
                        Some(format!("axis {axis} is declared {declared}, but depends on {name}"));
                }
                (Dim::Varies(_), said) if !dims.follows(*made) => *made = said,
                _ => {}
            }
        }
        wrong
    }
}
