//! One session that several threads run in parallel.
//!
//! `ort` lets one thread at a time run a session, because some execution providers for other
//! devices require that. The CPU execution provider, the only one used here, keeps no state in a
//! session between or during runs, and ONNX Runtime's authors confirm that any number of threads
//! may run it (<https://github.com/microsoft/onnxruntime/issues/22967>, `/issues/114`). Sharing a
//! session costs nothing, whereas each additional session takes the time of several samples and its
//! own copy of all weights that kernels repack.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::ptr::{self, NonNull};

use ort::AsPointer;
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::value::{DynValue, Outlet};

use super::values::InputValue;

/// A session without state, for the CPU execution provider.
pub(super) struct SharedSession {
    session: Session,
    /// Names of the outputs, as C strings.
    names: Vec<CString>,
}

/// The outputs of a run, which cannot outlive the session.
pub(super) struct Outputs<'a> {
    values: Vec<DynValue>,
    _session: &'a Session,
}

impl Deref for Outputs<'_> {
    type Target = [DynValue];

    fn deref(&self) -> &[DynValue] {
        &self.values
    }
}

impl SharedSession {
    /// Wraps `session`, which must use no other than the CPU execution provider.
    pub(super) fn new(session: Session) -> ort::Result<SharedSession> {
        let names = session.outputs().iter().map(|output| c_string(output.name()));
        let names = names.collect::<Result<_, _>>()?;
        Ok(SharedSession { session, names })
    }

    /// The outputs of the model, including its observed values.
    pub(super) fn outputs(&self) -> &[Outlet] {
        self.session.outputs()
    }

    /// All outputs for these inputs.
    pub(super) fn run(
        &self,
        given: &HashMap<&str, InputValue<'_>>,
        options: &RunOptions<NoSelectedOutputs>,
    ) -> ort::Result<Outputs<'_>> {
        let input_names: Vec<CString> =
            given.keys().map(|name| c_string(name)).collect::<Result<_, _>>()?;
        let input_names = pointers(&input_names);
        let inputs: Vec<*const _> = given.values().map(|value| value.ptr()).collect();
        let names = pointers(&self.names);
        let mut outputs = vec![ptr::null_mut(); names.len()];
        // SAFETY: every pointer is valid until the call returns: the session, the options, and as
        // many names and values as the counts say. The output array has one element per output.
        // Other threads use the session only for the same call, which the library allows (see
        // above).
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                options.ptr(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                names.as_ptr(),
                names.len(),
                outputs.as_mut_ptr(),
            )
        };
        // Taken over before the status is checked, so that no value is leaked.
        let values = outputs.into_iter().filter_map(NonNull::new).map(|output| {
            // SAFETY: the library created the value and transferred its ownership exactly once; its
            // memory belongs to the session, which outlives it in `Outputs`.
            unsafe { DynValue::from_ptr(output, Some(self.session.allocator())) }
        });
        let values: Vec<DynValue> = values.collect();
        // SAFETY: the library returned the status, and it is consumed exactly once.
        unsafe { ort::Error::result_from_status(status) }?;
        if values.len() < names.len() {
            return Err(ort::Error::new("it returned fewer outputs than the model has"));
        }
        Ok(Outputs { values, _session: &self.session })
    }
}

fn c_string(name: &str) -> ort::Result<CString> {
    CString::new(name).map_err(|_| ort::Error::new("a name contains a null character"))
}

fn pointers(names: &[CString]) -> Vec<*const c_char> {
    names.iter().map(|name| name.as_ptr()).collect()
}
