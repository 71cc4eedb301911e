//! The elements of numpy arrays, borrowed by Rust or copied. The only `unsafe` code of this crate.

use bytes::Bytes;
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

/// The bytes of `array`, which are not copied when it is contiguous.
///
/// The array lives as long as the bytes. Writing to it meanwhile changes the bytes.
pub(crate) fn borrowed(array: &Bound<'_, PyArray1<u8>>) -> Bytes {
    if !array.is_c_contiguous() {
        return copied(array);
    }
    Bytes::from_owner(Borrowed {
        start: array.data(),
        len: array.len(),
        _array: array.clone().unbind(),
    })
}

/// A copy of the bytes of `array`, so that its owner may reuse the array.
pub(crate) fn copied(array: &Bound<'_, PyArray1<u8>>) -> Bytes {
    let array = array.readonly();
    match array.as_slice() {
        Ok(bytes) => Bytes::copy_from_slice(bytes),
        Err(_) => array.as_array().iter().copied().collect(), // not contiguous
    }
}

/// The bytes of an array, and the array itself, which keeps them alive.
struct Borrowed {
    start: *const u8,
    len: usize,
    _array: Py<PyArray1<u8>>,
}

// SAFETY: `start` is only read, through `as_ref`, and points into memory that `_array` keeps alive;
// any thread may hold and drop a `Py`.
unsafe impl Send for Borrowed {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `borrowed` found a contiguous array of `len` bytes at `start`, bytes need no
        // alignment, and numpy neither moves nor frees the memory of an array with references.
        // Python code may still write to the array while samples are read. The sample then has torn
        // values, as with every numpy function that releases the interpreter.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}
