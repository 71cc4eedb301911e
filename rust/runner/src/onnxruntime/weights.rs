//! Sessions that hold the weights of their model once.

use std::sync::Arc;

use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::sys::os_char;
use ort::{AsPointer, value::DynValue};
use quantize_rs::CalibrationError;
use quantize_rs_onnx::Tensor;

use super::values;

/// ONNX Runtime takes files in memory as part of the model, in which no weight has this many bytes.
const MAX_FILE_BYTES: usize = 1 << 31;

/// Weights that are external data of a model, each in a file named after its position.
#[derive(Default)]
pub(super) struct Weights {
    files: Vec<(usize, Tensor)>,
    values: Vec<(String, Arc<DynValue>)>,
}

impl Weights {
    /// Larger weights become values that live as long as the session.
    ///
    /// # Errors
    /// A value cannot be made.
    pub(super) fn of(tensors: Vec<(String, Tensor)>) -> Result<Weights, CalibrationError> {
        Weights::divided(tensors, MAX_FILE_BYTES)
    }

    fn divided(tensors: Vec<(String, Tensor)>, most: usize) -> Result<Weights, CalibrationError> {
        let mut weights = Weights::default();
        for (position, (name, tensor)) in tensors.into_iter().enumerate() {
            if tensor.data.len() < most || !values::is_known(tensor.dtype) {
                weights.files.push((position, tensor));
                continue;
            }
            let value = values::value(&tensor).map_err(|error| error.at_value(&name))?;
            weights.values.push((name, Arc::new(value)));
        }
        Ok(weights)
    }

    /// A session of the model in `bytes`, whose external data these weights are.
    ///
    /// ONNX Runtime copies files in memory, and frees the copies as soon as its kernels have packed
    /// their own. Values must be aligned, and live as long as the session, packed or not.
    pub(super) fn session(self, mut builder: SessionBuilder, bytes: &[u8]) -> ort::Result<Session> {
        for (name, value) in self.values {
            builder = builder.with_external_initializer(name, value)?;
        }
        let files: Vec<Vec<os_char>> = self.files.iter().map(|(at, _)| file_name(*at)).collect();
        let names: Vec<*const os_char> = files.iter().map(Vec::as_ptr).collect();
        let elements = self.files.iter().map(|(_, weight)| weight.data.as_ptr().cast_mut().cast());
        let elements: Vec<_> = elements.collect();
        let lengths: Vec<usize> = self.files.iter().map(|(_, weight)| weight.data.len()).collect();
        // SAFETY: there are as many names, buffers and lengths as the count says. The call copies
        // the names. The buffers are only read, and only until the session is made, which is before
        // `self` is dropped.
        let status = unsafe {
            (ort::api().AddExternalInitializersFromMemory)(
                builder.ptr_mut(),
                names.as_ptr(),
                elements.as_ptr(),
                lengths.as_ptr(),
                lengths.len(),
            )
        };
        // SAFETY: the library returned the status, and it is consumed exactly once.
        unsafe { ort::Error::result_from_status(status) }?;
        builder.commit_from_memory(bytes)
    }
}

/// The digits of `position`, as a path of the system.
fn file_name(position: usize) -> Vec<os_char> {
    let digits = format!("{position}\0").into_bytes();
    digits.into_iter().filter_map(|digit| os_char::try_from(digit).ok()).collect()
}

/// Returns memory that was freed to the system. The GNU C library keeps tens of megabytes of what a
/// session needs only while it is made, since blocks of up to 32 MiB are part of its heap.
pub(super) fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it changes nothing that is in use, and several threads may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
#[path = "../../tests/installed/mod.rs"]
mod installed;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ort::session::RunOptions;
    use quantize_rs_onnx::{DataType, ExternalDataSplit, Model};

    use super::*;
    use crate::onnxruntime::{library, shared::SharedSession};

    #[test]
    fn weights_are_the_same_as_files_and_as_values() {
        let Some(library) = installed::library() else { return };
        let environment = library::open(&library).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
        let image = Tensor::from_f32(vec![1, 1, 8, 8], &[0.5; 64]);
        let outputs = |most: usize| {
            let model = Model::open(path).unwrap();
            let ExternalDataSplit { bytes, tensors } = model.split(|_| true).unwrap();
            let floats = tensors.iter().filter(|(_, tensor)| tensor.dtype == DataType::Float);
            let large = floats.filter(|(_, tensor)| tensor.data.len() >= most).count();
            let weights = Weights::divided(tensors, most).unwrap();
            let builder = Session::builder(&environment).unwrap();
            let session = weights.session(builder, &bytes).unwrap();
            // Files are copied: nothing of them is left when the session runs.
            drop((model, bytes));
            let session = SharedSession::new(session).unwrap();
            let given = HashMap::from([("image", values::input_value(&image).unwrap())]);
            let found = session.run(&given, &RunOptions::new().unwrap()).unwrap();
            (large, found[0].try_extract_tensor::<f32>().unwrap().1.to_vec())
        };
        let (none, wanted) = outputs(usize::MAX);
        let (some, mixed) = outputs(4096);
        let (all, values) = outputs(1);
        assert!(none == 0 && some > 0 && some < all, "{none} {some} {all}");
        assert_eq!((&mixed, &values), (&wanted, &wanted));
    }
}
