//! Ranges and second moments in one file of the safetensors format: the ranges as JSON, a list of
//! the moments as JSON, and for each input a tensor of sums and one of the rows held back.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use quantize_rs_math::SecondMoments;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::moments::{InputMoments, Moments, value_of};
use crate::CalibrationError;
use crate::util::fnv::Fnv;

/// The tensors that hold JSON.
const RANGES: &str = "ranges.json";
const LIST: &str = "moments.json";

/// The entry of the header with the checksum of both.
const CHECKSUM: &str = "checksum";

/// The bytes before the header, which say how long it is.
const LENGTH: usize = size_of::<u64>();

/// A longer header is refused; safetensors has the same limit.
const MAX_HEADER: u64 = 100_000_000;

/// An input, and the sizes of what its tensors hold one after the other.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    name: String,
    /// More samples than can be added exactly: it has no tensors.
    too_many: bool,
    groups: Vec<Vec<Sums>>,
    /// For each sample held back, the number of floats of each group.
    held_back: Vec<(u64, Vec<usize>)>,
    /// The same of the spare sample, whose rows follow.
    #[serde(default)]
    spare: Option<(u64, Vec<usize>)>,
    /// Of all that its tensors hold.
    checksum: u64,
}

/// The form of second moments.
#[derive(Debug, Serialize, Deserialize)]
struct Sums {
    size: usize,
    diagonal: bool,
    rows: u64,
    samples: u64,
    levels: Vec<i32>,
}

impl Sums {
    fn of(moments: &SecondMoments) -> Sums {
        Sums {
            size: moments.size(),
            diagonal: moments.is_diagonal(),
            rows: moments.rows(),
            samples: moments.samples(),
            levels: moments.levels().map(|(level, _)| level).collect(),
        }
    }

    /// The number of sums of a level; `None` if it is no number of a file.
    fn entries(&self) -> Option<usize> {
        if self.diagonal {
            Some(self.size)
        } else {
            Some(self.size.checked_mul(self.size.checked_add(1)?)? / 2)
        }
    }
}

impl Input {
    fn of(name: &str, moments: Option<&InputMoments>) -> Input {
        let groups = moments.map(|moments| {
            let of_group = |group: &Vec<SecondMoments>| group.iter().map(Sums::of).collect();
            moments.groups.iter().map(of_group).collect()
        });
        let lengths = |rows: &Vec<Vec<f32>>| rows.iter().map(Vec::len).collect();
        let held_back = moments.map(|moments| {
            moments.held_back.iter().map(|(key, rows)| (*key, lengths(rows))).collect()
        });
        let spare = moments.and_then(|moments| moments.spare.as_ref());
        Input {
            name: name.to_owned(),
            too_many: moments.is_none(),
            groups: groups.unwrap_or_default(),
            held_back: held_back.unwrap_or_default(),
            spare: spare.map(|(key, rows)| (*key, lengths(rows))),
            checksum: moments.map_or(0, checksum),
        }
    }

    /// The numbers of sums and of floats; `None` if they overflow.
    fn lengths(&self) -> Option<(usize, usize)> {
        let mut sums = self.groups.iter().flatten();
        let sums = sums.try_fold(0_usize, |all, one| {
            all.checked_add(one.entries()?.checked_mul(one.levels.len())?)
        })?;
        let mut rows = self.held_back.iter().chain(&self.spare).flat_map(|(_, lengths)| lengths);
        let rows = rows.try_fold(0_usize, |all, length| all.checked_add(*length))?;
        Some((sums, rows))
    }
}

/// A number that changes with nearly every change of moments.
fn checksum(moments: &InputMoments) -> u64 {
    let mut hash = Fnv::default();
    for sums in moments.groups.iter().flatten() {
        hash.word(sums.rows());
        hash.word(sums.samples());
        for (level, sums) in sums.levels() {
            hash.word(u64::from(level.cast_unsigned()));
            for sum in sums {
                hash.word(sum.to_bits());
            }
        }
    }
    let held_back = moments.held_back.iter().map(|(key, rows)| (*key, rows));
    let spare = moments.spare.iter().map(|(key, rows)| (*key, rows));
    for (key, rows) in held_back.chain(spare) {
        hash.word(key);
        for x in rows.iter().flatten() {
            hash.word(u64::from(x.to_bits()));
        }
    }
    hash.finish()
}

/// A number that changes with nearly every change of the JSON.
fn checksum_of_text(ranges: &str, list: &str) -> String {
    let mut hash = Fnv::default();
    hash.bytes(ranges.as_bytes());
    hash.bytes(list.as_bytes());
    format!("{:016x}", hash.finish())
}

/// A file with moments, which are read input by input.
#[derive(Debug)]
pub(super) struct MomentsFile {
    path: PathBuf,
    file: Mutex<File>,
    /// Its length and the time of its last change when it was opened.
    state: (u64, Option<SystemTime>),
    /// Where the data of the tensors begins.
    start: u64,
    metadata: Metadata,
    /// By name, with the position in the file.
    inputs: BTreeMap<String, (usize, Input)>,
}

fn sums_of(input: usize) -> String {
    format!("{input}.sums")
}

fn rows_of(input: usize) -> String {
    format!("{input}.rows")
}

/// Writes ranges and their moments, input by input.
pub(super) fn write(path: &Path, ranges: &str, moments: &Moments) -> Result<(), WriteError> {
    let mut list = Vec::new();
    for name in moments.inputs() {
        list.push(Input::of(name, moments.input(name)?.as_ref()));
    }
    // Serialization cannot fail: all keys are strings.
    let text = serde_json::to_string(&list).unwrap_or_default();
    let mut tensors = Vec::new();
    let mut end = 0;
    let mut push = |name: String, dtype: Dtype, count: usize| {
        let begin = end;
        end += count * dtype.bitsize() / 8;
        tensors.push((name, TensorInfo { dtype, shape: vec![count], data_offsets: (begin, end) }));
    };
    for (at, input) in list.iter().enumerate() {
        let (sums, rows) = input.lengths().unwrap_or_default();
        push(sums_of(at), Dtype::F64, sums);
        push(rows_of(at), Dtype::F32, rows);
    }
    push(RANGES.to_owned(), Dtype::U8, ranges.len());
    push(LIST.to_owned(), Dtype::U8, text.len());
    let about = HashMap::from([(CHECKSUM.to_owned(), checksum_of_text(ranges, &text))]);
    let metadata = Metadata::new(Some(about), tensors).map_err(|error| {
        CalibrationError::data("these second moments cannot be written").caused_by(error)
    })?;
    let mut header = serde_json::to_vec(&metadata).unwrap_or_default();
    // As other tools write it.
    header.resize(header.len().next_multiple_of(LENGTH), b' ');
    let mut unread = None;
    let written = quantize_rs_onnx::write_file_with(path, |out| {
        let out = &mut io::BufWriter::new(out);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for name in moments.inputs() {
            let found = moments.input(name).map_err(|error| {
                let said = error.to_string();
                unread = Some(error);
                io::Error::other(said)
            })?;
            let Some(found) = found else { continue };
            let sums = found.groups.iter().flatten().flat_map(SecondMoments::levels);
            write_all(out, sums.flat_map(|(_, sums)| sums).map(|sum| sum.to_le_bytes()))?;
            let spare = found.spare.iter().map(|(_, rows)| rows);
            let rows = found.held_back.values().chain(spare).flatten().flatten();
            write_all(out, rows.map(|x| x.to_le_bytes()))?;
        }
        out.write_all(ranges.as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.flush()
    });
    match unread {
        Some(error) => Err(error.into()),
        None => Ok(written?),
    }
}

fn write_all<const N: usize>(
    out: &mut dyn Write,
    mut each: impl Iterator<Item = [u8; N]>,
) -> io::Result<()> {
    each.try_for_each(|bytes| out.write_all(&bytes))
}

/// Ranges could not be written.
pub(super) enum WriteError {
    /// The moments of a part could not be read.
    Read(CalibrationError),
    /// The file could not be written.
    Write(quantize_rs_onnx::Error),
}

impl From<CalibrationError> for WriteError {
    fn from(error: CalibrationError) -> WriteError {
        WriteError::Read(error)
    }
}

impl From<quantize_rs_onnx::Error> for WriteError {
    fn from(error: quantize_rs_onnx::Error) -> WriteError {
        WriteError::Write(error)
    }
}

impl MomentsFile {
    /// The number of bytes that tell such a file from JSON.
    pub(super) const MARK: u64 = LENGTH as u64 + 1;

    /// Whether a file begins as one of the safetensors format: a length of a header, and JSON.
    pub(super) fn is_begun_by(first: &[u8]) -> bool {
        first.get(LENGTH) == Some(&b'{') && first[LENGTH / 2..LENGTH].iter().all(|byte| *byte == 0)
    }

    /// The moments in a file, and the ranges as JSON.
    ///
    /// # Errors
    /// The file cannot be read, or is not one that [`write`] wrote.
    pub(super) fn open(mut file: File, path: &Path) -> Result<(MomentsFile, String), OpenError> {
        let state = state_of(&file)?;
        let (length, _) = state;
        let mut first = [0; LENGTH];
        file.read_exact(&mut first)?;
        let header = u64::from_le_bytes(first);
        if header > MAX_HEADER.min(length) {
            return Err(OpenError::Form("its header is longer than the file".to_owned()));
        }
        let header = bytes_of(&mut file, header)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| OpenError::Form(error.to_string()))?;
        let start = (LENGTH + header.len()) as u64;
        if start.checked_add(metadata.data_len() as u64) != Some(length) {
            return Err(OpenError::Form("it has another length than its header says".to_owned()));
        }
        let mut opened = MomentsFile {
            path: path.to_path_buf(),
            file: Mutex::new(file),
            state,
            start,
            metadata,
            inputs: BTreeMap::new(),
        };
        let text = |name| {
            let bytes = opened.tensor(name, Dtype::U8)?;
            String::from_utf8(bytes).map_err(|error| OpenError::Form(error.to_string()))
        };
        let (ranges, list) = (text(RANGES)?, text(LIST)?);
        let about = opened.metadata.metadata().as_ref();
        if about.and_then(|about| about.get(CHECKSUM)) != Some(&checksum_of_text(&ranges, &list)) {
            return Err(OpenError::damaged());
        }
        let list: Vec<Input> =
            serde_json::from_str(&list).map_err(|error| OpenError::Form(error.to_string()))?;
        for (at, input) in list.into_iter().enumerate() {
            let name = input.name.clone();
            if opened.inputs.insert(name, (at, input)).is_some() {
                return Err(OpenError::Form("it has an input twice".to_owned()));
            }
        }
        Ok((opened, ranges))
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.keys().map(String::as_str)
    }

    /// The moments of an input; `None` if they are not there, or of too many samples.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(super) fn read(&self, name: &str) -> Result<Option<InputMoments>, CalibrationError> {
        let Some((at, input)) = self.inputs.get(name) else { return Ok(None) };
        if input.too_many {
            return Ok(None);
        }
        self.moments(*at, input).map(Some).map_err(|error| {
            let file = self.path.display().to_string();
            error.of_ranges().in_file(file).at_value(value_of(name))
        })
    }

    fn moments(&self, at: usize, input: &Input) -> Result<InputMoments, OpenError> {
        let sums = self.tensor(&sums_of(at), Dtype::F64)?;
        let rows = self.tensor(&rows_of(at), Dtype::F32)?;
        let damaged = OpenError::damaged;
        let (sums, _) = sums.as_chunks::<{ size_of::<f64>() }>();
        let (rows, _) = rows.as_chunks::<{ size_of::<f32>() }>();
        if input.lengths() != Some((sums.len(), rows.len())) {
            return Err(damaged());
        }
        let mut sums = sums.iter().map(|bytes| f64::from_le_bytes(*bytes));
        let mut read = |of: &Sums| {
            let entries = of.entries()?;
            let levels: Vec<(i32, Vec<f64>)> = of
                .levels
                .iter()
                .map(|level| (*level, sums.by_ref().take(entries).collect()))
                .collect();
            let kind = if of.diagonal { SecondMoments::of_diagonal } else { SecondMoments::new };
            kind(of.size).with_levels(of.rows, of.samples, levels)
        };
        let of_group = |group: &Vec<Sums>| group.iter().map(&mut read).collect::<Option<Vec<_>>>();
        let groups: Option<Vec<_>> = input.groups.iter().map(of_group).collect();
        let mut moments = InputMoments::new(groups.ok_or_else(damaged)?);
        let mut rows = rows.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut sample = |(key, lengths): &(u64, Vec<usize>)| {
            let of_group = |length: &usize| rows.by_ref().take(*length).collect::<Vec<f32>>();
            let each: Vec<Vec<f32>> = lengths.iter().map(of_group).collect();
            let is_finite = each.iter().flatten().all(|x| x.is_finite());
            is_finite.then_some((*key, each)).ok_or_else(damaged)
        };
        for held in &input.held_back {
            let (key, rows) = sample(held)?;
            moments.hold_back(key, rows).map_err(|_| damaged())?;
        }
        moments.spare = input.spare.as_ref().map(sample).transpose()?;
        if checksum(&moments) == input.checksum { Ok(moments) } else { Err(damaged()) }
    }

    /// The bytes of a tensor.
    fn tensor(&self, name: &str, dtype: Dtype) -> Result<Vec<u8>, OpenError> {
        let found = self.metadata.info(name).filter(|info| info.dtype == dtype);
        let Some(info) = found else {
            return Err(OpenError::Form(format!("it has no tensor `{name}`")));
        };
        let (begin, end) = info.data_offsets;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.start + begin as u64))?;
        let bytes = bytes_of(&mut file, (end - begin) as u64);
        // A file that is overwritten in place has the header of another one.
        if state_of(&file)? != self.state {
            let what = "it was changed since it was loaded: load it again";
            return Err(OpenError::Form(what.to_owned()));
        }
        bytes
    }
}

fn state_of(file: &File) -> io::Result<(u64, Option<SystemTime>)> {
    let found = file.metadata()?;
    Ok((found.len(), found.modified().ok()))
}

/// The next bytes of a file; no more are allocated than there are.
fn bytes_of(file: &mut File, count: u64) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == count { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A file could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    Io(io::Error),
    Form(String),
}

impl OpenError {
    fn damaged() -> OpenError {
        OpenError::Form("it is damaged: calibrate this part again".to_owned())
    }

    pub(super) fn of_ranges(self) -> CalibrationError {
        match self {
            OpenError::Io(cause) => {
                CalibrationError::data(format!("the file of ranges cannot be read: {cause}"))
                    .caused_by(cause)
            }
            OpenError::Form(what) => CalibrationError::data(format!("not a ranges file: {what}")),
        }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

impl From<io::ErrorKind> for OpenError {
    fn from(kind: io::ErrorKind) -> OpenError {
        OpenError::Io(kind.into())
    }
}
