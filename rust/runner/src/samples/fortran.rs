//! Arrays in Fortran order, in which the elements of a sample are scattered over the whole array.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

/// Larger arrays are rearranged in a temporary file instead of in memory.
const MAX_RESIDENT_BYTES: usize = 16 << 20;

/// The bytes that are rearranged at a time.
const CHUNK_BYTES: usize = 8 << 20;

/// The elements of an array in Fortran order, row by row along its first axis. Within a row they
/// are still in Fortran order.
pub(super) enum Rearranged {
    Memory(Vec<u8>),
    File(BufReader<File>),
    Columns(Columns),
}

/// Why an array could not be rearranged.
pub(super) enum Failure {
    /// Its elements cannot be read.
    Elements(io::Error),
    /// The temporary file cannot be made or written.
    Temporary(io::Error),
}

/// Where the elements come from.
pub(super) enum Elements<'e> {
    File(&'e mut BufReader<File>),
    Stream(&'e mut dyn Read),
}

/// Rearranges an array of `rows` rows of `row_bytes` bytes, whose elements have `width` bytes.
///
/// A large array with more rows than columns is read some rows at a time, one with more columns is
/// written to a temporary file in rows: either takes few and large reads and writes.
pub(super) fn rearranged(
    elements: Elements<'_>,
    rows: usize,
    row_bytes: usize,
    width: usize,
) -> Result<Rearranged, Failure> {
    let all = rows.saturating_mul(row_bytes);
    if all <= MAX_RESIDENT_BYTES {
        return in_memory(elements.reader(), rows, all, width).map_err(Failure::Elements);
    }
    if row_bytes / width >= rows {
        return in_rows(elements.reader(), rows, row_bytes, width).map(Rearranged::File);
    }
    let (file, start) = match elements {
        Elements::File(file) => {
            let start = file.stream_position().map_err(Failure::Elements)?;
            (file.get_ref().try_clone().map_err(Failure::Elements)?, start)
        }
        Elements::Stream(elements) => (copied(elements, all)?, 0),
    };
    let (at, first, band) = (0, 0, Vec::new());
    Ok(Rearranged::Columns(Columns { file, start, rows, row_bytes, width, at, band, first }))
}

impl<'e> Elements<'e> {
    fn reader(self) -> &'e mut dyn Read {
        match self {
            Elements::File(file) => file,
            Elements::Stream(elements) => elements,
        }
    }
}

fn in_memory(
    elements: &mut dyn Read,
    rows: usize,
    all: usize,
    width: usize,
) -> io::Result<Rearranged> {
    let mut columns = Vec::new();
    elements.read_to_end(&mut columns)?;
    if columns.len() != all {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut ordered = Vec::with_capacity(all);
    for row in 0..rows {
        of_row(&columns, row, rows, width).for_each(|element| ordered.extend(element));
    }
    Ok(Rearranged::Memory(ordered))
}

/// A temporary file with the rows.
fn in_rows(
    elements: &mut dyn Read,
    rows: usize,
    row_bytes: usize,
    width: usize,
) -> Result<BufReader<File>, Failure> {
    let mut file = tempfile::tempfile().map_err(Failure::Temporary)?;
    let column = rows * width;
    let columns = (CHUNK_BYTES / column).clamp(1, row_bytes / width);
    let mut chunk = vec![0; columns * column];
    let mut part = Vec::with_capacity(columns * width);
    let mut done = 0;
    while done < row_bytes {
        let bytes = (columns * width).min(row_bytes - done);
        let chunk = &mut chunk[..bytes * rows];
        elements.read_exact(chunk).map_err(Failure::Elements)?;
        for row in 0..rows {
            part.clear();
            of_row(chunk, row, rows, width).for_each(|element| part.extend(element));
            let place = SeekFrom::Start((row * row_bytes + done) as u64);
            let written = file.seek(place).and_then(|_| file.write_all(&part));
            written.map_err(Failure::Temporary)?;
        }
        done += bytes;
    }
    file.rewind().map_err(Failure::Temporary)?;
    Ok(BufReader::new(file))
}

/// A temporary file with the elements as they are.
fn copied(elements: &mut dyn Read, all: usize) -> Result<File, Failure> {
    let mut file = tempfile::tempfile().map_err(Failure::Temporary)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(all)];
    let mut left = all;
    while left > 0 {
        let part = left.min(chunk.len());
        elements.read_exact(&mut chunk[..part]).map_err(Failure::Elements)?;
        file.write_all(&chunk[..part]).map_err(Failure::Temporary)?;
        left -= part;
    }
    Ok(file)
}

/// The columns of an array in a file, read as rows.
pub(super) struct Columns {
    file: File,
    /// Where the first column begins.
    start: u64,
    rows: usize,
    row_bytes: usize,
    width: usize,
    /// The byte that is read next, counted in rows.
    at: usize,
    /// The rows that were read last, and their first byte.
    band: Vec<u8>,
    first: usize,
}

impl Columns {
    /// Passes over the next bytes.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.rows * self.row_bytes);
    }

    /// Reads the rows from `row` on that fit into a chunk.
    fn load(&mut self, row: usize) -> io::Result<()> {
        let count = (CHUNK_BYTES / self.row_bytes).clamp(1, self.rows - row);
        let mut column = vec![0; count * self.width];
        self.first = row * self.row_bytes;
        self.band.clear(); // is empty after an error
        let mut band = vec![0; count * self.row_bytes];
        for place in (0..self.row_bytes).step_by(self.width) {
            let start = place * self.rows + row * self.width;
            self.file.seek(SeekFrom::Start(self.start + start as u64))?;
            self.file.read_exact(&mut column)?;
            let elements = column.chunks_exact(self.width);
            for (row, element) in band.chunks_exact_mut(self.row_bytes).zip(elements) {
                row[place..place + self.width].copy_from_slice(element);
            }
        }
        self.band = band;
        Ok(())
    }
}

impl Read for Columns {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.rows * self.row_bytes || buffer.is_empty() {
            return Ok(0);
        }
        if !(self.first..self.first + self.band.len()).contains(&self.at) {
            self.load(self.at / self.row_bytes)?;
        }
        let ready = &self.band[self.at - self.first..];
        let count = ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ready[..count]);
        self.at += count;
        Ok(count)
    }
}

/// The elements of one row in columns that follow each other.
fn of_row(columns: &[u8], row: usize, rows: usize, width: usize) -> impl Iterator<Item = &[u8]> {
    columns.chunks_exact(rows * width).map(move |column| &column[row * width..(row + 1) * width])
}

/// The elements in C order, from Fortran order, in which the first axis is contiguous.
pub(super) fn c_order(elements: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = width;
    for length in shape {
        strides.push(stride);
        stride *= length; // at most the length of `elements`
    }
    let mut ordered = Vec::with_capacity(elements.len());
    let mut index = vec![0; shape.len()];
    while ordered.len() < elements.len() {
        let start: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        ordered.extend_from_slice(&elements[start..start + width]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 2;

    fn value(row: usize, column: usize) -> [u8; WIDTH] {
        let value = (row * 31 + column * 7) % 65_521;
        u16::try_from(value).expect("small").to_le_bytes()
    }

    fn in_fortran_order(rows: usize, columns: usize) -> Vec<u8> {
        (0..columns).flat_map(|column| (0..rows).flat_map(move |row| value(row, column))).collect()
    }

    fn row_of(row: usize, columns: usize) -> Vec<u8> {
        (0..columns).flat_map(|column| value(row, column)).collect()
    }

    fn check_all(file: &mut dyn Read, rows: usize, columns: usize) {
        let mut row = vec![0; columns * WIDTH];
        for index in 0..rows {
            file.read_exact(&mut row).expect("a row");
            if index % 97 == 0 || index + 1 == rows {
                assert_eq!(row, row_of(index, columns), "row {index}");
            }
        }
        assert_eq!(file.read(&mut row).expect("the end"), 0);
    }

    #[test]
    fn large_arrays_with_many_columns_are_rearranged_in_a_file() {
        // More than the limit, with a last chunk that is not full.
        let (rows, columns) = (1300, 7001);
        let bytes = in_fortran_order(rows, columns);
        let elements = Elements::Stream(&mut bytes.as_slice());
        let found = rearranged(elements, rows, columns * WIDTH, WIDTH);
        let Ok(Rearranged::File(mut file)) = found else { panic!("it is elsewhere") };
        check_all(&mut file, rows, columns);
    }

    fn in_columns(elements: Elements<'_>, rows: usize, columns: usize) -> Columns {
        match rearranged(elements, rows, columns * WIDTH, WIDTH) {
            Ok(Rearranged::Columns(found)) => found,
            _ => panic!("it is elsewhere"),
        }
    }

    #[test]
    fn large_arrays_with_many_rows_are_read_some_rows_at_a_time() {
        let (rows, columns) = (700_000, 13);
        let bytes = in_fortran_order(rows, columns);
        let mut stream = bytes.as_slice();
        check_all(&mut in_columns(Elements::Stream(&mut stream), rows, columns), rows, columns);

        // After a header, from the file itself.
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[&[1, 2, 3], bytes.as_slice()].concat()).expect("written");
        let mut file = BufReader::new(file);
        file.seek(SeekFrom::Start(3)).expect("after the header");
        let mut found = in_columns(Elements::File(&mut file), rows, columns);
        check_all(&mut found, rows, columns);

        file.seek(SeekFrom::Start(3)).expect("after the header");
        let mut found = in_columns(Elements::File(&mut file), rows, columns);
        let mut row = vec![0; columns * WIDTH];
        for index in [0, 5, 699_998] {
            found.skip(index * row.len() - found.at);
            found.read_exact(&mut row).expect("a row");
            assert_eq!(row, row_of(index, columns));
        }
        found.skip(usize::MAX);
        assert_eq!(found.read(&mut row).expect("the end"), 0);
    }

    #[test]
    fn an_array_that_ends_too_early_is_an_error() {
        for (rows, columns) in [(1300, 7001), (700_000, 13), (3, 4)] {
            let bytes = in_fortran_order(rows, columns);
            let elements = Elements::Stream(&mut &bytes[..bytes.len() - 1]);
            let found = rearranged(elements, rows, columns * WIDTH, WIDTH);
            assert!(matches!(found, Err(Failure::Elements(_))), "{rows}");
        }
    }

    #[test]
    fn fortran_order_is_converted_to_c_order() {
        let columns = [0, 10, 1, 11, 2, 12]; // [[0, 1, 2], [10, 11, 12]]
        assert_eq!(c_order(&columns, &[2, 3], 1), [0, 1, 2, 10, 11, 12]);
        let cube: Vec<u8> = (0..24).collect();
        let ordered = c_order(&cube, &[2, 3, 4], 1);
        for (i, j, k) in [(0, 0, 0), (1, 0, 0), (0, 2, 1), (1, 2, 3)] {
            assert_eq!(ordered[(i * 3 + j) * 4 + k], cube[i + 2 * (j + 3 * k)]);
        }
        assert!(c_order(&[], &[2, 0], 4).is_empty());
    }
}
