//! The protobuf wire format: decodes and encodes fields.
//!
//! Source of the format: <https://protobuf.dev/programming-guides/encoding/>.

use bytes::Bytes;

use crate::error::{Error, ErrorKind};

/// The maximum nesting depth of subgraphs (bodies of `If`, `Loop`, `Scan`).
///
/// Protobuf's own parsers stop at 100 messages, and a subgraph takes three: other tools could not
/// read deeper models.
const MAX_GRAPH_DEPTH: usize = 32;

/// The maximum nesting depth of groups in unknown fields.
const MAX_GROUP_DEPTH: usize = 32;

/// The number of `AttributeProto.strings`.
const STRINGS: u32 = 9;

/// The value of a field, by wire type.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Len(Span),
    /// A group, a form of message that ONNX never used: copied, not interpreted.
    Group,
}

/// The bytes of a message and their offset in the file.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) bytes: Bytes,
    pub(crate) offset: usize,
    pub(crate) depth: usize,
}

impl Span {
    pub(crate) fn whole(bytes: Bytes) -> Span {
        Span { bytes, offset: 0, depth: 0 }
    }

    /// The same bytes, one subgraph deeper.
    pub(crate) fn deeper(&self, field: &Field) -> Result<Span, Error> {
        if self.depth >= MAX_GRAPH_DEPTH {
            return Err(field.wrong(format!("graphs are nested more than {MAX_GRAPH_DEPTH} deep")));
        }
        Ok(Span { depth: self.depth + 1, ..self.clone() })
    }
}

/// One field of a message.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) wire: Wire,
    /// Tag and value as encoded in the file.
    pub(crate) encoded: Bytes,
    pub(crate) message: &'static str,
    pub(crate) offset: usize,
}

impl Field {
    pub(crate) fn wrong(&self, what: impl Into<String>) -> Error {
        format_error(self.message, self.number, self.offset, what)
    }

    pub(crate) fn varint(&self) -> Result<u64, Error> {
        match self.wire {
            Wire::Varint(value) => Ok(value),
            _ => Err(self.wrong("expected an integer")),
        }
    }

    /// An `int64`; `int32` fields are sign-extended to the same varint.
    pub(crate) fn int(&self) -> Result<i64, Error> {
        self.varint().map(u64::cast_signed)
    }

    /// An `int32` or an enum; out-of-range values are an error, not truncated.
    pub(crate) fn int32(&self) -> Result<i32, Error> {
        let value = self.int()?;
        i32::try_from(value).map_err(|_| self.wrong(format!("{value} does not fit 32 bits")))
    }

    pub(crate) fn float(&self) -> Result<f32, Error> {
        match self.wire {
            Wire::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.wrong("expected a float")),
        }
    }

    pub(crate) fn span(&self) -> Result<&Span, Error> {
        match &self.wire {
            Wire::Len(span) => Ok(span),
            _ => Err(self.wrong("expected bytes")),
        }
    }

    pub(crate) fn string(&self) -> Result<String, Error> {
        let bytes = &self.span()?.bytes;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| self.wrong("a name that is not UTF-8"))
    }

    /// Appends a repeated `int64`, packed or not.
    pub(crate) fn ints_into(&self, values: &mut Vec<i64>) -> Result<(), Error> {
        match &self.wire {
            Wire::Varint(value) => values.push(value.cast_signed()),
            Wire::Len(span) => {
                let mut reader = Reader::new(span.clone(), self.message);
                while !reader.at_end() {
                    values.push(reader.varint(self.number)?.cast_signed());
                }
            }
            _ => return Err(self.wrong("expected integers")),
        }
        Ok(())
    }

    /// Appends a repeated `float`, packed or not.
    pub(crate) fn floats_into(&self, values: &mut Vec<f32>) -> Result<(), Error> {
        match &self.wire {
            Wire::Fixed32(bits) => values.push(f32::from_bits(*bits)),
            Wire::Len(span) => {
                let (whole, rest) = span.bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(self.wrong("packed floats whose length is not a multiple of 4"));
                }
                values.extend(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            _ => return Err(self.wrong("expected floats")),
        }
        Ok(())
    }
}

fn format_error(
    message: &'static str,
    field: u32,
    offset: usize,
    what: impl Into<String>,
) -> Error {
    Error::new(ErrorKind::Format { message, field, offset, what: what.into() })
}

/// Reads the fields of one message in order.
pub(crate) struct Reader {
    span: Span,
    at: usize,
    message: &'static str,
}

impl Reader {
    pub(crate) fn new(span: Span, message: &'static str) -> Reader {
        Reader { span, at: 0, message }
    }

    pub(crate) fn at_end(&self) -> bool {
        self.at >= self.span.bytes.len()
    }

    /// The next field, or `None` at the end of the message.
    pub(crate) fn next_field(&mut self) -> Result<Option<Field>, Error> {
        if self.at_end() {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint(0)?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number) if number != 0 => number,
            _ => return Err(self.wrong(0, start, "an invalid field number")),
        };
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint(number)?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.fixed(number)?)),
            2 => Wire::Len(self.len_delimited(number)?),
            3 => {
                self.skip_group(number, 0)?;
                Wire::Group
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.fixed(number)?)),
            other => {
                return Err(self.wrong(
                    number,
                    start,
                    format!("wire type {other}, which ONNX does not use"),
                ));
            }
        };
        Ok(Some(Field {
            number,
            wire,
            encoded: self.span.bytes.slice(start..self.at),
            message: self.message,
            offset: self.span.offset + start,
        }))
    }

    /// Makes `field`, the last that was read, include the fields right after it that have the same
    /// tag. Their values are checked, but not decoded. Numbers in packed form are not joined.
    pub(crate) fn extend_to_run(&mut self, field: &mut Field) -> Result<(), Error> {
        let start = field.offset - self.span.offset;
        let number = field.number;
        let tag = self.span.bytes[start];
        // Tags of several bytes are those of no field with many values.
        if tag & 0x80 != 0 {
            return Ok(());
        }
        let end = self.at;
        while self.span.bytes.get(self.at) == Some(&tag) {
            let value = self.at;
            self.at += 1;
            match field.wire {
                Wire::Varint(_) => drop(self.varint(number)?),
                Wire::Fixed32(_) => drop(self.fixed::<4>(number)?),
                Wire::Len(_) if number == STRINGS => self.skip_len_delimited(number)?,
                _ => {
                    self.at = value;
                    break;
                }
            }
        }
        if self.at > end {
            field.encoded = self.span.bytes.slice(start..self.at);
        }
        Ok(())
    }

    fn varint(&mut self, field: u32) -> Result<u64, Error> {
        let start = self.at;
        let mut value = 0u64;
        for (index, byte) in self.span.bytes[start..].iter().take(10).enumerate() {
            // The tenth byte can have only the 64th bit.
            if index == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.at += index + 1;
                return Ok(value);
            }
        }
        let what = if self.span.bytes.len() - start < 10 {
            "the bytes end inside an integer"
        } else {
            "an integer longer than 64 bits"
        };
        Err(self.wrong(field, start, what))
    }

    fn fixed<const N: usize>(&mut self, field: u32) -> Result<[u8; N], Error> {
        match self.span.bytes[self.at..].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.wrong(field, self.at, "the bytes end inside a number")),
        }
    }

    fn len_delimited(&mut self, field: u32) -> Result<Span, Error> {
        let length = self.length(field)?;
        let bytes = self.span.bytes.slice(self.at..self.at + length);
        let offset = self.span.offset + self.at;
        self.at += length;
        Ok(Span { bytes, offset, depth: self.span.depth })
    }

    fn skip_len_delimited(&mut self, field: u32) -> Result<(), Error> {
        self.at += self.length(field)?;
        Ok(())
    }

    /// The length of what follows, which the bytes that are left have.
    fn length(&mut self, field: u32) -> Result<usize, Error> {
        let length = self.varint(field)?;
        let left = self.span.bytes.len() - self.at;
        match usize::try_from(length) {
            Ok(length) if length <= left => Ok(length),
            _ => Err(self.wrong(
                field,
                self.at,
                format!("a length of {length} bytes where {left} are left: truncated or damaged"),
            )),
        }
    }

    /// Skips to the end of the group that field `number` began.
    fn skip_group(&mut self, number: u32, depth: usize) -> Result<(), Error> {
        let start = self.at;
        while !self.at_end() && depth < MAX_GROUP_DEPTH {
            let tag = self.varint(number)?;
            match (tag & 7, u32::try_from(tag >> 3)) {
                (4, Ok(end)) if end == number => return Ok(()),
                (0, Ok(_)) => drop(self.varint(number)?),
                (1, Ok(_)) => drop(self.fixed::<8>(number)?),
                (2, Ok(_)) => drop(self.len_delimited(number)?),
                (3, Ok(inner)) => self.skip_group(inner, depth + 1)?,
                (5, Ok(_)) => drop(self.fixed::<4>(number)?),
                _ => break,
            }
        }
        Err(self.wrong(number, start, "a group without an end"))
    }

    fn wrong(&self, field: u32, at: usize, what: impl Into<String>) -> Error {
        format_error(self.message, field, self.span.offset + at, what)
    }
}

/// Bytes to write: small ones are collected, large ones shared, so that no weight is copied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rope {
    parts: Vec<Bytes>,
    tail: Vec<u8>,
    len: usize,
}

/// Slices from this length on are shared.
const MIN_SHARED_BYTES: usize = 1024;

impl Rope {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The parts, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &part[..]).chain(std::iter::once(&self.tail[..]))
    }

    pub(crate) fn push(&mut self, bytes: &Bytes) {
        if bytes.len() < MIN_SHARED_BYTES {
            self.push_slice(bytes);
        } else {
            self.seal();
            self.len += bytes.len();
            self.parts.push(bytes.clone());
        }
    }

    fn push_slice(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push(Bytes::from(std::mem::take(&mut self.tail)));
        }
    }

    fn append(&mut self, mut other: Rope) {
        if other.parts.is_empty() {
            self.push_slice(&other.tail);
        } else {
            self.seal();
            self.len += other.len;
            self.parts.append(&mut other.parts);
            self.tail = other.tail;
        }
    }

    fn put_varint(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                self.push_slice(&[low & 0x7f]);
                return;
            }
            self.push_slice(&[low | 0x80]);
        }
    }

    fn put_tag(&mut self, number: u32, wire: u64) {
        self.put_varint(u64::from(number) << 3 | wire);
    }

    pub(crate) fn int(&mut self, number: u32, value: i64) {
        self.put_tag(number, 0);
        self.put_varint(value.cast_unsigned());
    }

    pub(crate) fn float(&mut self, number: u32, value: f32) {
        self.put_tag(number, 5);
        self.push_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, number: u32, value: &Bytes) {
        self.put_tag(number, 2);
        self.put_varint(value.len() as u64);
        self.push(value);
    }

    pub(crate) fn string(&mut self, number: u32, value: &str) {
        self.put_tag(number, 2);
        self.put_varint(value.len() as u64);
        self.push_slice(value.as_bytes());
    }

    pub(crate) fn message(&mut self, number: u32, body: Rope) {
        self.put_tag(number, 2);
        self.put_varint(body.len as u64);
        self.append(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: Vec<u8>) -> Result<Vec<Field>, Error> {
        let mut reader = Reader::new(Span::whole(bytes.into()), "Test");
        let mut fields = Vec::new();
        while let Some(field) = reader.next_field()? {
            fields.push(field);
        }
        Ok(fields)
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error_not_an_allocation() {
        let error = read(vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]).unwrap_err();
        assert!(error.to_string().contains("truncated or damaged"), "{error}");
    }

    #[test]
    fn an_integer_of_eleven_bytes_is_refused() {
        let mut bytes = vec![0x08];
        bytes.extend([0xff; 11]);
        assert!(read(bytes).is_err());
    }

    proptest! {
        #[test]
        fn written_fields_are_read_back(number in 1u32..1000, int: i64, float: f32, text in ".*") {
            let mut rope = Rope::default();
            rope.int(number, int);
            rope.float(number, float);
            rope.string(number, &text);
            let fields = read(rope.parts().collect::<Vec<_>>().concat()).unwrap();
            prop_assert_eq!(fields.len(), 3);
            prop_assert_eq!(fields[0].int().unwrap(), int);
            prop_assert_eq!(fields[1].float().unwrap().to_bits(), float.to_bits());
            prop_assert_eq!(fields[2].string().unwrap(), text);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = read(bytes);
        }
    }
}
