//! `AttributeProto`: a named constant of a node.

use super::{
    Bytes, Encode, Error, Field, GraphProto, Message, Numbers, Raw, Reader, Rope, Span,
    SparseTensorProto, TensorProto, put_messages, put_rest, put_string,
};

/// `AttributeProto`: a named constant of a node.
#[derive(Clone, Debug, Default)]
pub struct AttributeProto {
    /// Name of the attribute.
    pub name: String,
    /// `AttributeProto.AttributeType`: 1 float, 2 int, 3 string, 4 tensor, 5 graph, 7 ints, ….
    pub kind: i32,
    /// A float.
    pub f: Option<f32>,
    /// An integer.
    pub i: Option<i64>,
    /// A string.
    pub s: Option<Bytes>,
    /// A tensor.
    pub t: Option<Raw<TensorProto>>,
    /// A graph.
    pub g: Option<Raw<GraphProto>>,
    /// Floats.
    pub floats: Numbers<f32>,
    /// Integers.
    pub ints: Numbers<i64>,
    /// Tensors.
    pub tensors: Vec<Raw<TensorProto>>,
    /// Graphs.
    pub graphs: Vec<Raw<GraphProto>>,
    /// In a function, the name of the attribute of the call that this one refers to.
    pub ref_attr_name: Option<String>,
    rest: Vec<Bytes>,
}

/// The repeated fields of which a tree ensemble has millions: floats, integers and strings.
const RUNS: std::ops::RangeInclusive<u32> = 7..=9;

impl Message for AttributeProto {
    const NAME: &'static str = "AttributeProto";

    fn take(&mut self, field: &Field) -> Result<bool, Error> {
        match field.number {
            1 => self.name = field.string()?,
            2 => self.f = Some(field.float()?),
            3 => self.i = Some(field.int()?),
            4 => self.s = Some(field.span()?.bytes.clone()),
            5 => Raw::read_into(&mut self.t, field.span()?.clone())?,
            6 => Raw::read_into(&mut self.g, field.span()?.deeper(field)?)?,
            7 => self.floats.push(field)?,
            8 => self.ints.push(field)?,
            10 => self.tensors.push(Raw::read(field.span()?.clone())?),
            11 => self.graphs.push(Raw::read(field.span()?.deeper(field)?)?),
            20 => self.kind = field.int32()?,
            21 => self.ref_attr_name = Some(field.string()?),
            22 | 23 => {
                // Sparse tensors are copied as they are, but their data must not be external.
                Raw::<SparseTensorProto>::read(field.span()?.clone())?;
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn rest(&mut self) -> &mut Vec<Bytes> {
        &mut self.rest
    }

    fn merge(&mut self, span: Span) -> Result<(), Error> {
        let mut reader = Reader::new(span, Self::NAME);
        while let Some(mut field) = reader.next_field()? {
            if RUNS.contains(&field.number) {
                reader.extend_to_run(&mut field)?;
            }
            if !self.take(&field)? {
                self.rest.push(field.encoded);
            }
        }
        Ok(())
    }
}

/// Reads an attribute. One without a name is refused here, so that two bytes cannot allocate
/// hundreds.
pub(super) fn read_attribute(field: &Field) -> Result<Raw<AttributeProto>, Error> {
    let attribute = Raw::<AttributeProto>::read(field.span()?.clone())?;
    if attribute.name.is_empty() {
        return Err(Field { message: AttributeProto::NAME, ..field.clone() }
            .wrong("an attribute without a name"));
    }
    Ok(attribute)
}

impl Encode for AttributeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        out.string(1, &self.name);
        if let Some(value) = self.f {
            out.float(2, value);
        }
        if let Some(value) = self.i {
            out.int(3, value);
        }
        if let Some(value) = &self.s {
            out.bytes(4, value);
        }
        put_messages(&mut out, 5, self.t.as_slice());
        put_messages(&mut out, 6, self.g.as_slice());
        self.floats.encode(&mut out, 7);
        self.ints.encode(&mut out, 8);
        put_messages(&mut out, 10, &self.tensors);
        put_messages(&mut out, 11, &self.graphs);
        out.int(20, i64::from(self.kind));
        put_string(&mut out, 21, self.ref_attr_name.as_ref());
        put_rest(&mut out, &self.rest);
        out
    }
}

impl AttributeProto {
    /// An integer attribute.
    pub fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto { name: name.to_owned(), kind: 2, i: Some(value), ..Default::default() }
    }

    /// A list of integers.
    pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
        let ints = values.to_vec().into();
        AttributeProto { name: name.to_owned(), kind: 7, ints, ..Default::default() }
    }

    /// A float attribute.
    pub fn float(name: &str, value: f32) -> AttributeProto {
        AttributeProto { name: name.to_owned(), kind: 1, f: Some(value), ..Default::default() }
    }

    /// A list of floats.
    pub fn floats(name: &str, values: &[f32]) -> AttributeProto {
        let floats = values.to_vec().into();
        AttributeProto { name: name.to_owned(), kind: 6, floats, ..Default::default() }
    }

    /// A string attribute.
    pub fn string(name: &str, value: &str) -> AttributeProto {
        let s = Some(Bytes::copy_from_slice(value.as_bytes()));
        AttributeProto { name: name.to_owned(), kind: 3, s, ..Default::default() }
    }

    /// A tensor attribute.
    pub fn tensor(name: &str, tensor: TensorProto) -> AttributeProto {
        let t = Some(Raw::new(tensor));
        AttributeProto { name: name.to_owned(), kind: 4, t, ..Default::default() }
    }

    /// The type of its value, as in [`AttributeProto::kind`], which files before IR 2 do not have.
    pub(crate) fn kind_of_content(&self) -> i32 {
        // The only field that is copied as it is: strings, 9, with a length.
        let strings = self.rest.iter().any(|field| field.first() == Some(&0x4a));
        let held = [
            (self.f.is_some(), 1),
            (self.i.is_some(), 2),
            (self.s.is_some(), 3),
            (self.t.is_some(), 4),
            (self.g.is_some(), 5),
            (self.floats.holds_any(), 6),
            (strings, 8),
            (!self.tensors.is_empty(), 9),
            (!self.graphs.is_empty(), 10),
        ];
        // An empty attribute is a list; integers are by far the most frequent.
        held.iter().find(|(holds, _)| *holds).map_or(7, |(_, kind)| *kind)
    }

    /// The tensors of the attribute.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        self.t.iter().chain(&self.tensors).map(|tensor| &**tensor)
    }

    /// The subgraphs of the attribute.
    pub fn subgraphs(&self) -> impl Iterator<Item = &GraphProto> {
        self.g.iter().chain(&self.graphs).map(|graph| &**graph)
    }

    /// The subgraphs of the attribute, to change or replace.
    pub fn subgraphs_mut(&mut self) -> impl Iterator<Item = &mut Raw<GraphProto>> {
        self.g.iter_mut().chain(&mut self.graphs)
    }

    pub(super) fn collect<'a>(&'a self, all: &mut Vec<&'a TensorProto>) {
        all.extend(self.tensors());
        self.subgraphs().for_each(|body| body.collect(all));
    }
}
