//! A model: what is in the file, and the only functions that change it or write it.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::check;
use crate::data;
use crate::edit::{self, Edit};
use crate::error::{Error, ErrorKind};
use crate::external::External;
use crate::map;
use crate::save::{self, ExternalDataSplit, Saved};
use crate::schema::{GraphProto, Message, ModelProto, TensorProto};
use crate::wire::Span;
use crate::{Raw, Tensor};

/// An ONNX model. Its weights stay where they are: in the mapped file, or in the bytes given.
///
/// Cloning is cheap: what is not changed is shared.
#[derive(Clone, Debug)]
pub struct Model {
    proto: Raw<ModelProto>,
    external: External,
    path: Option<PathBuf>,
    bytes: u64,
}

impl Model {
    /// Opens a model file; large ones are mapped, not read.
    ///
    /// Data beside the model is looked for in its own folder.
    ///
    /// # Errors
    /// The file cannot be read, is not ONNX, or is not a legal model; see [`ErrorKind`].
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        let path = path.as_ref();
        let bytes = map::bytes_of(path)?;
        let folder = match path.canonicalize().ok().as_deref().and_then(Path::parent) {
            Some(folder) => folder.to_path_buf(),
            None => PathBuf::from("."),
        };
        Model::read(bytes, External::in_folder(&folder), Some(path))
            .map_err(|error| error.at(Some(path)))
    }

    /// Reads a model from the bytes of a file. Data beside the model cannot be found this way.
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
        let proto = Raw::<ModelProto>::read(Span::whole(bytes))?;
        check::model(&proto, &external)?;
        Ok(Model { proto, external, path: path.map(Path::to_path_buf), bytes: size })
    }

    /// The messages of the file.
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

    /// Where the model was opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes of the file, and of the data beside it that it uses.
    pub fn byte_len(&self) -> u64 {
        let beside: usize = self
            .graph()
            .tensors()
            .filter(|tensor| tensor.is_external())
            .filter_map(|tensor| data::tensor_info(tensor).ok()?.byte_len)
            .sum();
        self.bytes + beside as u64
    }

    /// Version of the operator set of `domain` (empty for ONNX's own); `None` when not imported.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let same = |other: &str| other == domain || (domain.is_empty() && other == "ai.onnx");
        let imported = self.proto.opset_import.iter().find(|opset| same(&opset.domain));
        match imported {
            Some(opset) => Some(opset.version),
            // Before IR 3 a model did not say: version 1 of ONNX's own.
            None if domain.is_empty() && self.proto.opset_import.is_empty() => Some(1),
            None => None,
        }
    }

    /// The elements of a tensor of this model; nothing is copied unless they stand in the
    /// integer fields of old exporters.
    ///
    /// # Errors
    /// The data is missing, has the wrong length, or is strings.
    pub fn tensor(&self, proto: &TensorProto) -> Result<Tensor, Error> {
        data::tensor(proto, &self.external).map_err(|error| error.at(self.path()))
    }

    /// Changes the model: all of `edits`, then the nodes are put in order and the result checked.
    ///
    /// # Errors
    /// An edit that does not fit, or a result that is not a legal model. The model is then as it
    /// was.
    pub fn apply(&mut self, edits: Vec<Edit>) -> Result<(), Error> {
        let mut changed = self.proto.clone();
        edit::apply(changed.edit(), edits)?;
        check::model(&changed, &self.external)?;
        self.bytes = changed.rope().len() as u64;
        self.proto = changed;
        Ok(())
    }

    /// The model as the bytes of one file, data beside the model taken in.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] from 2 GiB on.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        save::to_bytes(&self.proto, &self.external)
    }

    /// The model as bytes without those constants of the main graph that `apart` names, and these
    /// by handle: for a reader that takes them as they lie in memory.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when the rest is still 2 GiB, or a constant of strings is named.
    pub fn split(&self, apart: impl Fn(&TensorProto) -> bool) -> Result<ExternalDataSplit, Error> {
        save::split(&self.proto, &self.external, &apart)
    }

    /// Writes the model to `path`, complete or not at all.
    ///
    /// A sibling temporary file is written, synced and renamed into place. A link is followed, the
    /// mode of an existing file kept. From 2 GiB on, weights go to `<name>.data` beside the file.
    ///
    /// No file that is there is written over but the model: when `<name>.data` exists, the weights
    /// go to `<name>.1.data`, and so on. The model in `path` is whole at every moment: its own
    /// data, which it names and which is named after it, is removed when the new model is in its
    /// place. Other files stay.
    ///
    /// # Errors
    /// The path is a directory or device, the model does not fit even without its weights
    /// ([`ErrorKind::TooLarge`]), or the system refuses; nothing is left behind.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved, Error> {
        self.save_within(path, save::PROTOBUF_LIMIT)
    }

    /// As [`Model::save`], but weights go beside the file when it would take `limit` bytes or more.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn save_within(&self, path: impl AsRef<Path>, limit: u64) -> Result<Saved, Error> {
        save::save(&self.proto, &self.external, path.as_ref(), limit)
    }
}
