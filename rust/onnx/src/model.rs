//! A model: the contents of a file, and the only functions that change or write it.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::check;
use crate::data;
use crate::edit::{self, Edit};
use crate::error::{Error, ErrorKind};
use crate::external::External;
use crate::other_formats;
use crate::save::{self, ExternalDataSplit, Saved};
use crate::schema::{GraphProto, Message, ModelProto, TensorProto, canonical_domain};
use crate::trace;
use crate::wire::Span;
use crate::{Raw, Tensor};

/// An ONNX model. Its weights stay in the mapped file, or in the given bytes.
///
/// Cloning is cheap: unchanged messages are shared.
#[derive(Clone, Debug)]
pub struct Model {
    proto: Raw<ModelProto>,
    external: External,
    path: Option<PathBuf>,
    bytes: u64,
}

impl Model {
    /// Opens a model file. Its weights are memory-mapped from 16 MiB on (on Windows 64 MiB),
    /// together with its data.
    ///
    /// External data is read from the folder of the model.
    ///
    /// # Errors
    /// The file cannot be read, is not ONNX, or is not a valid model; see [`ErrorKind`].
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        let _span = trace::Span::stage("open");
        let path = path.as_ref();
        let (bytes, external) = External::of_model(path)?;
        let files = external.clone();
        let model = Model::read(bytes, external, Some(path));
        files.unchanged()?;
        model.map_err(|error| error.at(Some(path)))
    }

    /// Reads a model from the bytes of a file. Models with external data cannot be read this way.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Model, Error> {
        Model::read(bytes.into(), External::default(), None)
    }

    fn read(bytes: Bytes, external: External, path: Option<&Path>) -> Result<Model, Error> {
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Format {
                message: ModelProto::NAME,
                field: 0,
                offset: 0,
                what: "the file is empty".to_owned(),
            }));
        }
        let size = bytes.len() as u64;
        let other = other_formats::name(&bytes);
        let read = Raw::<ModelProto>::read(Span::whole(bytes));
        let proto = read.and_then(|proto| check::model(&proto, &external).map(|()| proto));
        // The marker of another format may also be the beginning of a model.
        let proto = proto.map_err(|error| match other {
            Some(name) => Error::new(ErrorKind::OtherFormat(name)),
            None => error,
        })?;
        Ok(Model { proto, external, path: path.map(Path::to_path_buf), bytes: size })
    }

    /// The `ModelProto` of the file.
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// The main graph.
    pub fn graph(&self) -> &GraphProto {
        // `check::model` refuses a model without one.
        static NONE: std::sync::LazyLock<GraphProto> =
            std::sync::LazyLock::new(GraphProto::default);
        self.proto.graph.as_deref().unwrap_or(&NONE)
    }

    /// The path that the model was opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether the file at `path`, with all links resolved, is external data of this model.
    pub fn reads(&self, path: &Path) -> bool {
        self.external.reads(path)
    }

    /// Bytes of the file and of its external data.
    pub fn byte_len(&self) -> u64 {
        let beside: usize = self
            .graph()
            .tensors()
            .filter(|tensor| tensor.is_external())
            .filter_map(|tensor| data::tensor_info(tensor).ok()?.byte_len)
            .sum();
        self.bytes + beside as u64
    }

    /// Version of the opset of `domain` (empty or `ai.onnx` for ONNX's own); `None` when it is not
    /// imported.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let imported = self.proto.opset_import.iter().find(|opset| opset.is_of(domain));
        match imported {
            Some(opset) => Some(opset.version),
            // Before IR 3, `opset_import` was optional: version 1 of ONNX's own operators.
            None if canonical_domain(domain).is_empty() && self.proto.opset_import.is_empty() => {
                Some(1)
            }
            None => None,
        }
    }

    /// The elements of a tensor of this model. They are copied only from the integer fields of old
    /// exporters.
    ///
    /// # Errors
    /// The data is missing, has the wrong length, or consists of strings.
    pub fn tensor(&self, proto: &TensorProto) -> Result<Tensor, Error> {
        data::tensor(proto, &self.external).map_err(|error| error.at(self.path()))
    }

    /// An error if a mapped file of the model was changed since it was opened: what was read from
    /// it meanwhile may be anything.
    ///
    /// [`Model::save`], [`Model::to_bytes`] and [`Model::split`] call this.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`], with the path of the file.
    pub fn unchanged(&self) -> Result<(), Error> {
        self.external.unchanged()
    }

    /// Applies all of `edits`, sorts the nodes, and checks the result.
    ///
    /// # Errors
    /// An edit does not apply, or the result is not a valid model. The model is then unchanged.
    pub fn apply(&mut self, edits: Vec<Edit>) -> Result<(), Error> {
        let mut changed = self.proto.clone();
        edit::apply(changed.edit(), edits)?;
        check::model(&changed, &self.external)?;
        self.bytes = changed.rope().len() as u64;
        self.proto = changed;
        Ok(())
    }

    /// The model as the bytes of one file, including external data.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] from 2 GiB on, or [`ErrorKind::Changed`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let bytes = save::to_bytes(&self.proto, &self.external);
        self.unchanged()?;
        bytes
    }

    /// The model as bytes without the initializers of the main graph that `apart` selects, and
    /// these initializers as shared tensors, for runtimes that accept initializers from memory.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when the rest is still 2 GiB, or a selected initializer consists of
    /// strings.
    pub fn split(&self, apart: impl Fn(&TensorProto) -> bool) -> Result<ExternalDataSplit, Error> {
        let split = save::split(&self.proto, &self.external, &apart);
        self.unchanged()?;
        split
    }

    /// Writes the model to `path` atomically.
    ///
    /// The model is written to a new file in the same folder, synced and renamed. Links are
    /// followed, and the mode of an existing file is kept. From 2 GiB on, weights are written to
    /// `<name>.data` as external data.
    ///
    /// Only the model file is overwritten: if `<name>.data` exists, the weights are written to
    /// `<name>.1.data`, and so on. The file at `path` is complete at every moment. Its former
    /// external data, if named after it, is removed when the new model is in place. Other files
    /// stay.
    ///
    /// # Errors
    /// The path is a directory, a device or external data of this model
    /// ([`ErrorKind::OwnData`]), the model is too large even without its weights
    /// ([`ErrorKind::TooLarge`]), a file it is read from was changed ([`ErrorKind::Changed`]), or
    /// the system reports an error; no temporary files are left.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved, Error> {
        self.save_within(path, save::PROTOBUF_LIMIT)
    }

    /// As [`Model::save`], but weights become external data if the file would have `limit` bytes or
    /// more.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn save_within(&self, path: impl AsRef<Path>, limit: u64) -> Result<Saved, Error> {
        let _span = trace::Span::stage("save");
        save::save(&self.proto, &self.external, path.as_ref(), limit)
    }

    /// As [`Model::save_within`], but external data is always named `<name>` and then `suffix`, for
    /// runtimes that look for that name. A file of this name is replaced just before the model: an
    /// earlier model that reads it is not whole in between.
    ///
    /// # Errors
    /// As [`Model::save`]; also [`ErrorKind::DataInUse`] if another model in the folder reads the
    /// file that would be replaced.
    pub fn save_with_data(
        &self,
        path: impl AsRef<Path>,
        limit: u64,
        suffix: &str,
    ) -> Result<Saved, Error> {
        let _span = trace::Span::stage("save");
        save::save_with_data(&self.proto, &self.external, path.as_ref(), limit, suffix)
    }
}
