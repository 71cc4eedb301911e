//! numpy's `.npy`: a header that is a Python dict, then the elements.
//!
//! The header is parsed here and not by a library because its lengths are untrusted: each is
//! compared with the length of the file before memory is allocated.

use std::io::{BufReader, Read};
use std::path::Path;

use quantize_rs::{CalibrationError, InputSpec};
use quantize_rs_onnx::DataType;

use super::rows::{Rows, Source};
use super::{BoxedSamples, Format, batching, data, open_file};
use crate::inputs::byte_len;

pub(super) const FORMAT: Format =
    Format { extension: "npy", about: "one numpy array, for models with one input", open };

fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let what = path.to_string_lossy().into_owned();
    let [_] = inputs else {
        let count = inputs.len();
        let message = format!(
            "a .npy file feeds one input and the model has {count}, use .npz or .safetensors"
        );
        return Err(crate::inputs::mismatch(message).at_value(what));
    };
    let (file, length) = open_file(path)?;
    let mut reader = BufReader::new(file);
    let header = read_header(&mut reader, length, &what)?;
    let rows = header.rows(&what, length, Source::File(reader))?;
    batching::samples(vec![rows], inputs, limit)
}

/// The contents of a header, and where the elements begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DataType,
    pub(super) big_endian: bool,
    pub(super) fortran: bool,
    pub(super) shape: Vec<usize>,
    pub(super) data_start: u64,
}

impl Header {
    /// Bytes of the elements; `None` on overflow.
    pub(super) fn data_len(&self) -> Option<usize> {
        byte_len(self.dtype, &self.shape)
    }

    /// The rows of the elements that `source` gives next. The header and they have `length` bytes.
    pub(super) fn rows(
        self,
        what: &str,
        length: u64,
        source: Source,
    ) -> Result<Rows, CalibrationError> {
        let available = length - self.data_start;
        let rows = Rows::new(what, self.dtype, self.big_endian, self.shape, available, source)?;
        if self.fortran { rows.in_fortran_order() } else { Ok(rows) }
    }
}

/// Reads the header at the start of `reader`, whose total length is `length`.
pub(super) fn read_header(
    reader: &mut impl Read,
    length: u64,
    what: &str,
) -> Result<Header, CalibrationError> {
    let error = |message: &str| data(format!("not a .npy array: {message}")).at_value(what);
    let mut read = |bytes: &mut [u8]| {
        reader.read_exact(bytes).map_err(|cause| error("it ends in its header").caused_by(cause))
    };
    let mut start = [0; 8];
    read(&mut start)?;
    let [magic @ .., major, _] = start;
    if magic != *b"\x93NUMPY" {
        return Err(error("it does not begin with \\x93NUMPY"));
    }
    let (header_length, prefix) = match major {
        1 => {
            let mut bytes = [0; 2];
            read(&mut bytes)?;
            (u32::from(u16::from_le_bytes(bytes)), 10)
        }
        2 | 3 => {
            let mut bytes = [0; 4];
            read(&mut bytes)?;
            (u32::from_le_bytes(bytes), 12)
        }
        _ => return Err(error("versions 1, 2 and 3 are known, this is another")),
    };
    let data_start = prefix + u64::from(header_length);
    let longest = 1 << 20; // numpy itself stops at 10 000 bytes
    let header_length = usize::try_from(header_length).unwrap_or(usize::MAX);
    if data_start > length || header_length > longest {
        return Err(error("its header claims to be longer than the file"));
    }
    let mut text = vec![0; header_length];
    read(&mut text)?;
    let text = std::str::from_utf8(&text);
    let text = text.map_err(|cause| error("its header is no text").caused_by(cause))?;
    let dict =
        Dict::parse(text).ok_or_else(|| error("its header is no dict as numpy writes it"))?;
    let (dtype, big_endian) = element_type(dict.descr).ok_or_else(|| {
        let message = format!("elements of numpy type {} are not plain numbers", dict.descr);
        data(message).at_value(what)
    })?;
    Ok(Header { dtype, big_endian, fortran: dict.fortran, shape: dict.shape, data_start })
}

/// The header: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`
struct Dict<'t> {
    /// The type as a Python literal.
    descr: &'t str,
    fortran: bool,
    shape: Vec<usize>,
}

impl Dict<'_> {
    fn parse(text: &str) -> Option<Dict<'_>> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        while !rest.is_empty() {
            let (key, after) = literal(rest)?;
            let (value, after) = literal(after.trim_start().strip_prefix(':')?.trim_start())?;
            rest = after.trim_start().strip_prefix(',').unwrap_or(after).trim_start();
            match key.trim_matches(['\'', '"']) {
                "descr" => descr = Some(value),
                "fortran_order" => fortran = Some(value == "True"),
                "shape" => shape = Some(tuple(value)?),
                _ => return None,
            }
        }
        Some(Dict { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

/// The Python literal at the start of `text`, and the rest.
fn literal(text: &str) -> Option<(&str, &str)> {
    let end = match text.chars().next()? {
        quote @ ('\'' | '"') => text[1..].find(quote)? + 2,
        '(' => text.find(')')? + 1,
        '[' => text.rfind(']')? + 1,
        _ => text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len()),
    };
    (end > 0).then(|| text.split_at(end))
}

/// `(3, 2)`, `(3,)` or `()`; Python 2 wrote `(3L,)`.
fn tuple(text: &str) -> Option<Vec<usize>> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    let lengths = inside.split(',').map(str::trim).filter(|length| !length.is_empty());
    lengths.map(|length| length.trim_end_matches('L').parse().ok()).collect()
}

/// The type that numpy writes as `'<f4'`, and whether it is big-endian.
fn element_type(descr: &str) -> Option<(DataType, bool)> {
    let descr = descr.trim_matches(['\'', '"']);
    let (order, kind) = descr.split_at_checked(1)?;
    let dtype = match kind {
        "f2" => DataType::Float16,
        "f4" => DataType::Float,
        "f8" => DataType::Double,
        "i1" => DataType::Int8,
        "i2" => DataType::Int16,
        "i4" => DataType::Int32,
        "i8" => DataType::Int64,
        "u1" => DataType::UInt8,
        "u2" => DataType::UInt16,
        "u4" => DataType::UInt32,
        "u8" => DataType::UInt64,
        "b1" => DataType::Bool,
        _ => return None,
    };
    matches!(order, "<" | ">" | "|" | "=").then_some((dtype, order == ">"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(start: &[u8], dict: &str) -> Result<Header, CalibrationError> {
        let bytes = [start, dict.as_bytes()].concat();
        let length = bytes.len() as u64;
        read_header(&mut bytes.as_slice(), length, "x.npy")
    }

    fn version_1(dict: &str) -> Result<Header, CalibrationError> {
        let length = u16::try_from(dict.len()).expect("short").to_le_bytes();
        header(&[b"\x93NUMPY\x01\x00", length.as_slice()].concat(), dict)
    }

    #[test]
    fn the_three_versions_differ_in_the_width_of_a_length() {
        let dict = "{'descr': '>f4', 'fortran_order': True, 'shape': (3L, 2), }   \n";
        let expected = Header {
            dtype: DataType::Float,
            big_endian: true,
            fortran: true,
            shape: vec![3, 2],
            data_start: 10 + dict.len() as u64,
        };
        assert_eq!(version_1(dict).expect("read"), expected);
        for version in [2, 3] {
            let length = u32::try_from(dict.len()).expect("short").to_le_bytes();
            let start = [b"\x93NUMPY".as_slice(), &[version, 0], &length].concat();
            let expected =
                Header { data_start: 12 + dict.len() as u64, ..version_1(dict).expect("read") };
            assert_eq!(header(&start, dict).expect("read"), expected);
        }
    }

    #[test]
    fn every_plain_numeric_type_is_supported_and_no_other() {
        for (descr, dtype) in
            [("|b1", "bool"), ("<f2", "float16"), ("=i8", "int64"), ("|u1", "uint8")]
        {
            let dict = format!("{{'shape': (), 'descr': {descr:?}, 'fortran_order': False}}");
            let header = version_1(&dict).expect(descr);
            assert_eq!((header.dtype.name(), header.shape.len()), (dtype, 0));
        }
        for descr in [
            "'|O'",
            "'<U7'",
            "'<c8'",
            "'<M8[ns]'",
            "'|V2'",
            "''",
            "'é'",
            "[('a', '<f4'), ('b', '<i4')]",
        ] {
            let dict = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}");
            let error = version_1(&dict).expect_err(descr).to_string();
            assert_eq!(
                error,
                format!("elements of numpy type {descr} are not plain numbers (`x.npy`)")
            );
        }
    }

    #[test]
    fn a_broken_header_is_an_error() {
        for dict in [
            "",
            "{",
            "{}",
            "{'descr': '<f4'}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1e9,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1}",
            "{'descr: <f4, 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
            "[[[[[[[[[[[[",
            "{'descr': [[[[, 'fortran_order': False, 'shape': (1,)}",
            "{'é': 'é'}",
        ] {
            let error = version_1(dict).expect_err(dict).to_string();
            assert!(error.starts_with("not a .npy array: "), "{dict}: {error}");
        }
        for start in
            [b"".as_slice(), b"\x93NUMPY", b"\x93NUMPY\x04\x00\x00\x00", b"\x93NUMPX\x01\x00"]
        {
            assert!(header(start, "").is_err());
        }
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
        let error = header(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "{}").expect_err("4 GB");
        assert!(error.to_string().contains("longer than the file"), "{error}");
        // Even in a file that is long enough, a header of 4 GB is not allocated.
        let mut endless = std::io::repeat(b' ');
        let mut claim = b"\x93NUMPY\x02\x00\xff\xff\xff\xff".chain(&mut endless);
        let error = read_header(&mut claim, u64::MAX, "x.npy").expect_err("4 GB");
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}
