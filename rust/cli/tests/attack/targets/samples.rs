//! Sample files that are arrays: `.npy`, `.npz`, `.safetensors`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use quantize_rs::{DataType, InputSpec};
use quantize_rs_runner::samples;
use serde_json::{Value, json};

use super::Attack;
use crate::corpus::Corpus;
use crate::mutate::{bytes, json};
use crate::random::Random;

/// A path in a folder of its own, which is removed with it.
struct Place {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Place {
    fn new(name: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        Place { path: folder.path().join(name), _folder: folder }
    }
}

/// Reads the samples of a file for inputs of many types and shapes.
pub(super) fn read(path: &std::path::Path, random: &mut Random) -> bool {
    let types = [DataType::Float, DataType::Int64, DataType::UInt8, DataType::Float16];
    let shapes: [Option<Vec<Option<usize>>>; 6] = [
        None,
        Some(vec![None, Some(4)]),
        Some(vec![Some(2), Some(4)]),
        Some(vec![None, None, None]),
        Some(vec![Some(1), Some(3), None, Some(2)]),
        Some(Vec::new()),
    ];
    let input = |name: &str, random: &mut Random| {
        // Without a shape most arrays are taken.
        let shape = if random.once_in(2) { None } else { random.of_all(&shapes).clone() };
        InputSpec { name: name.to_owned(), dtype: Some(*random.of_all(&types)), shape }
    };
    let mut inputs = vec![input("x", random)];
    if random.once_in(4) {
        inputs.push(input("y", random));
    }
    let limit = [None, Some(3), Some(usize::MAX)][random.below(3)];
    let Ok(mut found) = samples::open(path, &inputs, limit) else { return false };
    let hint = found.len_hint();
    assert!(hint.is_none_or(|hint| hint < 1 << 24), "a small file has {hint:?} samples");
    let mut taken = false;
    for _ in 0..100 {
        match found.next_sample() {
            None => break,
            Some(Ok(sample)) => {
                taken = true;
                for (_, value) in &sample.inputs {
                    let elements: usize = value.shape.iter().product();
                    assert!(value.to_f32().is_none_or(|values| values.len() == elements));
                }
            }
            Some(Err(_)) => return false,
        }
    }
    taken
}

/// A `.npy` array with a header that may lie.
fn array(random: &mut Random) -> Vec<u8> {
    let lie = |random: &mut Random| random.once_in(12);
    let types = ["<f4", "<f2", "<f8", "|u1", "<i8", ">f4", "|b1", "<i2", "=u4"];
    let odd = ["<c8", "|O", "<U4", "f4", "", "<f4'", "é", "|V8", "<M8[ns]"];
    let widths = [4, 2, 8, 1, 8, 4, 1, 2, 4];
    let at = random.below(types.len());
    let rank = 1 + random.below(4);
    let shape: Vec<u64> = (0..rank).map(|_| 1 + random.next() % 5).collect();
    let elements: u64 = shape.iter().product();
    let mut data: Vec<u8> = (0..elements * widths[at]).map(|_| random.byte() & 0x3f).collect();
    let mut said: Vec<String> = shape.iter().map(u64::to_string).collect();
    if lie(random) {
        let place = random.below(said.len());
        said[place] = match random.below(3) {
            0 => random.edge().to_string(),
            1 => "-1".to_owned(),
            _ => (random.next() % 9).to_string(),
        };
    }
    if lie(random) {
        said.push("0".to_owned());
    }
    let descr = if lie(random) { random.of_all(&odd) } else { &types[at] };
    let order = if random.once_in(4) { "True" } else { "False" };
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({},), }}",
        said.join(", ")
    );
    if lie(random) {
        header = crate::mutate::text::mutated(&header, random);
    }
    header.push_str(&" ".repeat((random.below(3)) * 16));
    header.push('\n');
    let version = if lie(random) { random.byte() } else { 1 + u8::from(random.once_in(3)) };
    let mut array = b"\x93NUMPY".to_vec();
    array.extend([version, 0]);
    let mut length = header.len() as u64;
    if lie(random) {
        length = random.edge();
    }
    let length = length.to_le_bytes();
    array.extend(if version == 1 { &length[..2] } else { &length[..4] });
    array.extend(header.as_bytes());
    if lie(random) {
        bytes::mutate(&mut data, random);
    }
    array.extend(data);
    if lie(random) {
        bytes::mutate(&mut array, random);
    }
    array
}

pub(super) fn npy(_: &Corpus) -> Attack {
    let place = Place::new("x.npy");
    Box::new(move |random| {
        let place = &place;
        fs::write(&place.path, array(random)).unwrap();
        read(&place.path, random)
    })
}

/// Puts a number of the directory or of an entry of an archive.
fn field(bytes: &mut [u8], random: &mut Random) {
    // The signature of a record, and the place and length of each of its numbers.
    type Fields = &'static [(usize, usize)];
    let records: [(&[u8], Fields); 3] = [
        (b"PK\x03\x04", &[(6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)]),
        (
            b"PK\x01\x02",
            &[(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)],
        ),
        (b"PK\x05\x06", &[(8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]),
    ];
    let (signature, fields) = random.of_all(&records);
    let found: Vec<usize> = (0..bytes.len().saturating_sub(46))
        .chain(bytes.len().saturating_sub(22)..bytes.len())
        .filter(|at| bytes[*at..].starts_with(signature))
        .collect();
    let (offset, length) = *random.of_all(fields);
    if let Some(at) = found.get(random.below(found.len()))
        && let Some(field) = bytes.get_mut(at + offset..at + offset + length)
    {
        bytes::number(field, false, random);
    }
}

/// An archive with these entries, stored or deflated.
fn archive(entries: &[(&str, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    let short = |number: usize| u16::try_from(number).unwrap().to_le_bytes();
    let long = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    for (name, content) in entries {
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let deflated = random.once_in(2);
        let held = if deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        } else {
            content.clone()
        };
        let method = if deflated { 8 } else { 0 };
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0]);
        common.extend(short(method));
        common.extend([0; 4]);
        common.extend(crc.sum().to_le_bytes());
        common.extend(long(held.len()));
        common.extend(long(content.len()));
        common.extend(short(name.len()));
        common.extend([0, 0]);
        let offset = archive.len();
        archive.extend(b"PK\x03\x04");
        archive.extend(&common);
        archive.extend(name.as_bytes());
        archive.extend(held);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(long(offset));
        directory.extend(name.as_bytes());
    }
    let (start, length) = (archive.len(), directory.len());
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(short(entries.len()));
    archive.extend(short(entries.len()));
    archive.extend(long(length));
    archive.extend(long(start));
    archive.extend([0, 0]);
    archive
}

pub(super) fn npz(_: &Corpus) -> Attack {
    let place = Place::new("x.npz");
    Box::new(move |random| {
        let place = &place;
        let names = ["x.npy", "y.npy", "arr_0.npy", "../x.npy", "label"];
        let mut entries = vec![("x.npy", array(random))];
        for _ in 0..random.below(3) {
            entries.push((*random.of_all(&names), array(random)));
        }
        let mut bytes = archive(&entries, random);
        if random.once_in(3) {
            for _ in 0..=random.below(2) {
                field(&mut bytes, random);
            }
        }
        if random.once_in(16) {
            bytes::mutate(&mut bytes, random);
        }
        fs::write(&place.path, bytes).unwrap();
        read(&place.path, random)
    })
}

pub(super) fn safetensors(_: &Corpus) -> Attack {
    let place = Place::new("x.safetensors");
    let header = |rows: usize| {
        let (first, second) = (rows * 16, rows * 16 + rows * 8);
        json!({
            "x": {"dtype": "F32", "shape": [rows, 4], "data_offsets": [0, first]},
            "y": {"dtype": "I64", "shape": [rows], "data_offsets": [first, second]},
            "__metadata__": {"format": "np"},
        })
    };
    let types = ["F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F64", "C64", "F4"];
    Box::new(move |random| {
        let place = &place;
        let rows = random.below(5);
        let mut document = header(rows);
        let mut data: Vec<u8> = (0..rows * 24).map(|_| random.byte() & 0x3f).collect();
        for name in ["x", "y"] {
            if random.once_in(4) {
                document[name]["dtype"] = Value::from(*random.of_all(&types));
            }
            if random.once_in(8) {
                document[name]["shape"][0] = Value::from(random.edge());
            }
            if random.once_in(8) {
                let end = random.below(2);
                document[name]["data_offsets"][end] = Value::from(random.edge());
            }
        }
        let text =
            if random.once_in(3) { json::mutated(&document, random) } else { document.to_string() };
        let length = if random.once_in(12) { random.edge() } else { text.len() as u64 };
        let mut file = length.to_le_bytes().to_vec();
        file.extend(text.as_bytes());
        if random.once_in(12) {
            bytes::mutate(&mut data, random);
        }
        file.extend(data);
        fs::write(&place.path, file).unwrap();
        read(&place.path, random)
    })
}
