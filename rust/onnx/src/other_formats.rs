//! Files of other formats that are taken for models, by their first bytes.

/// A format: where its marker is, the marker, and what a file is called.
const FORMATS: &[(usize, &[u8], &str)] = &[
    (0, b"\x93NUMPY", "a NumPy array (.npy)"),
    (0, b"PK\x03\x04", "a ZIP archive, such as NumPy arrays (.npz) or a PyTorch file"),
    (0, b"\x89HDF\r\n", "an HDF5 file, such as a Keras model"),
    (0, b"\x89PNG\r\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in ORT format"),
    (8, b"{\"", "a safetensors file"),
    (0, b"version https://git-lfs", "a Git LFS pointer: the model itself was not downloaded"),
    (0, b"{", "a JSON document"),
    (0, b"<", "an XML or HTML document"),
    (0, b"\x80\x02", "a Python pickle, such as an old PyTorch file"),
    (0, b"\x80\x04", "a Python pickle"),
];

/// What the bytes are, if they have the marker of another format.
pub(crate) fn name(bytes: &[u8]) -> Option<&'static str> {
    let has =
        |at: usize, marker: &[u8]| bytes.get(at..).is_some_and(|from| from.starts_with(marker));
    FORMATS.iter().find(|(at, marker, _)| has(*at, marker)).map(|(.., name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_are_named() {
        let safetensors = [&64_u64.to_le_bytes()[..], b"{\"x\":{}}"].concat();
        for (bytes, expected) in [
            (&b"\x93NUMPY\x01\0"[..], Some("a NumPy array (.npy)")),
            (b"version https://git-lfs.github.com/spec/v1", Some(FORMATS[8].2)),
            (&safetensors, Some("a safetensors file")),
            (b"\x1c\0\0\0TFL3", Some("a TensorFlow Lite model")),
            (b"not a model", None),
            (b"", None),
        ] {
            assert_eq!(name(bytes), expected);
        }
    }
}
