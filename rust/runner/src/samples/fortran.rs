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
}

/// Rearranges an array of `rows` rows of `row_bytes` bytes, whose elements have `width` bytes.
pub(super) fn rearranged(
    elements: &mut dyn Read,
    rows: usize,
    row_bytes: usize,
    width: usize,
) -> io::Result<Rearranged> {
    let all = rows.saturating_mul(row_bytes);
    if all <= MAX_RESIDENT_BYTES {
        let mut columns = Vec::new();
        elements.read_to_end(&mut columns)?;
        if columns.len() != all {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut ordered = Vec::with_capacity(all);
        for row in 0..rows {
            of_row(&columns, row, rows, width).for_each(|element| ordered.extend(element));
        }
        return Ok(Rearranged::Memory(ordered));
    }
    let mut file = tempfile::tempfile()?;
    let column = rows * width;
    let columns = (CHUNK_BYTES / column).clamp(1, row_bytes / width);
    let mut chunk = vec![0; columns * column];
    let mut part = Vec::with_capacity(columns * width);
    let mut done = 0;
    while done < row_bytes {
        let bytes = (columns * width).min(row_bytes - done);
        let chunk = &mut chunk[..bytes * rows];
        elements.read_exact(chunk)?;
        for row in 0..rows {
            part.clear();
            of_row(chunk, row, rows, width).for_each(|element| part.extend(element));
            file.seek(SeekFrom::Start((row * row_bytes + done) as u64))?;
            file.write_all(&part)?;
        }
        done += bytes;
    }
    file.rewind()?;
    Ok(Rearranged::File(BufReader::new(file)))
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

    #[test]
    fn large_arrays_are_rearranged_in_a_file() {
        // More than the limit, with a last chunk that is not full.
        let (rows, columns, width) = (700_000, 13, 2);
        let value = |row: usize, column: usize| {
            u16::try_from((row * 31 + column * 7) % 65_521).expect("small")
        };
        let bytes: Vec<u8> = (0..columns)
            .flat_map(|column| (0..rows).flat_map(move |row| value(row, column).to_le_bytes()))
            .collect();
        let found = rearranged(&mut bytes.as_slice(), rows, columns * width, width).expect("done");
        let Rearranged::File(mut file) = found else { panic!("it is in memory") };
        let mut row = vec![0; columns * width];
        for index in 0..rows {
            file.read_exact(&mut row).expect("a row");
            if index % 997 == 0 || index + 1 == rows {
                let expected: Vec<u8> =
                    (0..columns).flat_map(|column| value(index, column).to_le_bytes()).collect();
                assert_eq!(row, expected, "row {index}");
            }
        }
        assert_eq!(file.read(&mut row).expect("the end"), 0);
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
