//! The elements of numpy arrays, lent to Rust or copied. The one place with
//! `unsafe` in this crate.

use bytes::Bytes;
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

/// The bytes of `array`, which are not copied when it is contiguous.
///
/// The array lives as long as the bytes. Whoever writes to it meanwhile changes what is read.
pub(crate) fn lent(array: &Bound<'_, PyArray1<u8>>) -> Bytes {
    if !array.is_c_contiguous() {
        return copied(array);
    }
    Bytes::from_owner(Lent {
        start: array.data(),
        len: array.len(),
        _array: array.clone().unbind(),
    })
}

/// A copy of the bytes of `array`, which whoever made it may fill anew.
pub(crate) fn copied(array: &Bound<'_, PyArray1<u8>>) -> Bytes {
    let array = array.readonly();
    match array.as_slice() {
        Ok(bytes) => Bytes::copy_from_slice(bytes),
        Err(_) => array.as_array().iter().copied().collect(), // not contiguous
    }
}

/// The bytes of an array and the array itself, so that they stay.
struct Lent {
    start: *const u8,
    len: usize,
    _array: Py<PyArray1<u8>>,
}

// SAFETY: `start` is read only, through `as_ref`, and points into memory that `_array` keeps; a
// `Py` may be held and dropped by any thread.
unsafe impl Send for Lent {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `lent` found a contiguous array of `len` bytes at `start`, bytes need no
        // alignment, and numpy neither moves nor frees the memory of an array that somebody holds.
        // What remains is Python code writing to the array while samples are read: torn values of
        // a sample, as with every numpy function that releases the interpreter.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}
