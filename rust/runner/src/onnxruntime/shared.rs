//! One session that several threads run at once. The one place with `unsafe` in this crate.
//!
//! `ort` lets a session run for one thread at a time, because some execution providers for other
//! devices cannot do more. On processors, where all is computed here, a session keeps no state
//! between or during runs, and ONNX Runtime's authors answer for running it from any number of
//! threads (<https://github.com/microsoft/onnxruntime/issues/22967>, `/issues/114`). Sharing one
//! costs nothing, while each further session takes the time of several samples and its own copy of
//! all weights that kernels arrange anew.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::ptr::{self, NonNull};

use ort::AsPointer;
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::value::{DynValue, Outlet};

use super::values::InputValue;

/// A session without state, for the provider of processors.
pub(super) struct SharedSession {
    session: Session,
    /// Names of the outputs, as the library takes them.
    names: Vec<CString>,
}

/// What a run gave; it does not outlive the session.
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
    /// `session`, which computes on processors alone: no other execution provider was named for it.
    pub(super) fn new(session: Session) -> ort::Result<SharedSession> {
        let names = session.outputs().iter().map(|output| c_string(output.name()));
        let names = names.collect::<Result<_, _>>()?;
        Ok(SharedSession { session, names })
    }

    /// What the model gives, its taps among it.
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
        // SAFETY: every pointer is to something that lives until the call returns: the session, the
        // options, as many names and values as the counts beside them say. Where the outputs are to
        // be stands a place for each. The session is used by other threads only for the same call,
        // which the library allows (see above).
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
        // Taken over before the status is looked at, so that none is lost.
        let values = outputs.into_iter().filter_map(NonNull::new).map(|output| {
            // SAFETY: the library made the value and gave it to us, whole and once; its memory is of
            // the session, which outlives it in `Outputs`.
            unsafe { DynValue::from_ptr(output, Some(self.session.allocator())) }
        });
        let values: Vec<DynValue> = values.collect();
        // SAFETY: the status is the library's own and looked at once.
        unsafe { ort::Error::result_from_status(status) }?;
        if values.len() < names.len() {
            return Err(ort::Error::new("it gave fewer outputs than the model has"));
        }
        Ok(Outputs { values, _session: &self.session })
    }
}

fn c_string(name: &str) -> ort::Result<CString> {
    CString::new(name).map_err(|_| ort::Error::new("a name holds the character 0"))
}

fn pointers(names: &[CString]) -> Vec<*const c_char> {
    names.iter().map(|name| name.as_ptr()).collect()
}
