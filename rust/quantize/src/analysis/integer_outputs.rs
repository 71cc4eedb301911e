//! Outputs of integers and booleans in a comparison: how many elements are equal. Engines show
//! floats alone, so that each of these outputs is cast behind a copy of the models.

use std::collections::HashSet;

use quantize_rs_onnx::{AttributeProto, DataType, Edit, Model, NodeProto, Raw};

use crate::QuantizeError;
use crate::graph::all_names;
use crate::graph::names::Names;
use crate::report::IntegerOutputRow;

/// The first opset in which the type of a Cast is a number.
const CAST_TO_NUMBER: i64 = 6;

/// Both models with their integer outputs as floats.
pub(super) struct CastOutputs {
    pub(super) original: Model,
    pub(super) quantized: Model,
    /// The outputs, and the floats that they are cast to.
    pub(super) outputs: Vec<(String, String)>,
}

impl CastOutputs {
    /// Those of `others`, outputs that are not float, which can be cast; they are taken out of it.
    /// `None` if there are none.
    pub(super) fn of(
        original: &Model,
        quantized: &Model,
        others: &mut Vec<String>,
    ) -> Result<Option<CastOutputs>, QuantizeError> {
        let models = [original, quantized];
        let can_cast = |model: &&Model| model.opset("").is_some_and(|it| it >= CAST_TO_NUMBER);
        if others.is_empty() || !models.iter().all(can_cast) {
            return Ok(None);
        }
        let taken: HashSet<&str> =
            models.iter().flat_map(|model| all_names(model.graph())).collect();
        let mut names = Names::beside(taken);
        let mut outputs = Vec::new();
        others.retain(|name| {
            let castable = models.iter().all(|model| is_integer(model, name));
            if castable {
                outputs.push((name.clone(), names.fresh(name, "float")));
            }
            !castable
        });
        if outputs.is_empty() {
            return Ok(None);
        }
        let [original, quantized] = models.map(|model| with_casts(model, &outputs));
        Ok(Some(CastOutputs { original: original?, quantized: quantized?, outputs }))
    }
}

/// Whether an output has integers or booleans of whole bytes.
fn is_integer(model: &Model, name: &str) -> bool {
    use DataType::{Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let output = model.graph().output.iter().find(|output| output.name == name);
    let dtype = output.and_then(|output| DataType::from_number(output.tensor_type()?.elem_type));
    let integers = [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
    dtype.is_some_and(|dtype| integers.contains(&dtype))
}

fn with_casts(model: &Model, outputs: &[(String, String)]) -> Result<Model, QuantizeError> {
    let cast = |(from, to): &(String, String)| {
        let dtype = AttributeProto::int("to", i64::from(DataType::Float.number()));
        let (inputs, outputs) = (vec![from.clone()], vec![to.clone()]);
        Edit::AddNode(NodeProto::new("", "Cast", inputs, outputs, vec![Raw::new(dtype)]))
    };
    let mut model = model.clone();
    model.apply(outputs.iter().map(cast).collect())?;
    Ok(model)
}

/// Integers up to this one are all floats; of larger ones, neighbors are the same float.
const LARGEST_EXACT: f32 = 16_777_216.0;

/// The numbers of equal elements and of all elements of an output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Equality {
    equal: u64,
    all: u64,
    /// Whether some integers are so large that floats do not distinguish them.
    too_large: bool,
}

impl Equality {
    /// Adds an output of a sample in both models. Elements that only one of them has, because the
    /// shape depends on the data, are not equal.
    pub(super) fn add(&mut self, wanted: &[f32], found: &[f32]) {
        let equal = wanted.iter().zip(found).filter(|(x, y)| x == y).count();
        self.equal += equal as u64;
        self.all += wanted.len().max(found.len()) as u64;
        self.too_large |= wanted.iter().chain(found).any(|x| x.abs() >= LARGEST_EXACT);
    }

    pub(super) fn and(self, other: Equality) -> Equality {
        Equality {
            equal: self.equal + other.equal,
            all: self.all + other.all,
            too_large: self.too_large || other.too_large,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a fraction")]
    /// The result for an output; `None` if it cannot be compared.
    pub(super) fn row(self, name: &str) -> Option<IntegerOutputRow> {
        if self.too_large {
            return None;
        }
        let equal = if self.all == 0 { 1.0 } else { self.equal as f64 / self.all as f64 };
        Some(IntegerOutputRow { name: name.to_owned(), equal, elements: self.all })
    }
}
