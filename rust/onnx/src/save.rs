//! Writes a model atomically, without copying weights.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::data;
use crate::error::{Error, ErrorKind};
use crate::external::External;
use crate::map;
use crate::schema::{AttributeProto, GraphProto, ModelProto, TensorProto};
use crate::wire::{Rope, Span};
use crate::{Raw, Tensor};

/// A protobuf message has at most `i32::MAX` bytes; this is a little less, which all readers
/// accept.
pub(crate) const PROTOBUF_LIMIT: u64 = i32::MAX as u64 - (1 << 20);

/// Smaller tensors stay in the model file, as in ONNX's own tools.
const MIN_EXTERNAL_BYTES: usize = 1024;

/// External tensors begin at multiples of this, so that they can be memory-mapped.
const ALIGNMENT: u64 = 4096;

/// The result of saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The model file, with links resolved.
    pub path: PathBuf,
    /// Bytes of the model file and of its external data.
    pub bytes: u64,
    /// The file of external data, when there is one.
    pub data: Option<PathBuf>,
}

/// The model as one message.
pub(crate) fn to_bytes(model: &Raw<ModelProto>, external: &External) -> Result<Vec<u8>, Error> {
    let whole = inline_external(model, external)?;
    let rope = whole.rope();
    require_fit(&rope)?;
    Ok(rope.parts().collect::<Vec<_>>().concat())
}

/// A model whose external data is in memory.
#[derive(Clone, Debug)]
pub struct ExternalDataSplit {
    /// The model, in which the initializers below are external, in a file that does not exist.
    pub bytes: Vec<u8>,
    /// These initializers, by name.
    pub tensors: Vec<(String, Tensor)>,
}

/// The model without the initializers that `wanted` selects, and these initializers.
pub(crate) fn split(
    model: &Raw<ModelProto>,
    external: &External,
    wanted: &dyn Fn(&TensorProto) -> bool,
) -> Result<ExternalDataSplit, Error> {
    let mut tensors = Vec::new();
    let mut slim = inline_external(model, external)?;
    if let Some(graph) = &mut slim.edit().graph {
        for tensor_message in graph.edit().initializer.iter_mut().filter(|tensor| wanted(tensor)) {
            let tensor = data::tensor(tensor_message, external)?;
            let length = tensor.data.len();
            mark_external(tensor_message.edit(), "nowhere", 0, length);
            tensors.push((tensor_message.name.clone(), tensor));
        }
    }
    let rope = slim.rope();
    require_fit(&rope)?;
    Ok(ExternalDataSplit { bytes: rope.parts().collect::<Vec<_>>().concat(), tensors })
}

/// Removes the elements of `tensor`, and sets where they are stored.
fn mark_external(tensor: &mut TensorProto, location: &str, offset: u64, length: usize) {
    tensor.external_data = vec![
        ("location".to_owned(), location.to_owned()),
        ("offset".to_owned(), offset.to_string()),
        ("length".to_owned(), length.to_string()),
    ];
    tensor.data_location = 1;
    tensor.raw_data = None;
    tensor.typed.clear();
}

fn require_fit(rope: &Rope) -> Result<(), Error> {
    let (bytes, limit) = (rope.len() as u64, PROTOBUF_LIMIT);
    if bytes > limit { Err(Error::new(ErrorKind::TooLarge { bytes, limit })) } else { Ok(()) }
}

pub(crate) fn save(
    model: &Raw<ModelProto>,
    external: &External,
    path: &Path,
    limit: u64,
) -> Result<Saved, Error> {
    let target = Target::at(path)?;
    let whole = inline_external(model, external)?;
    let rope = whole.rope();
    if (rope.len() as u64) < limit.min(PROTOBUF_LIMIT) {
        return target.save_whole(&rope);
    }
    let (beside, name) = target.data_target();
    let (slim, chunks, data_bytes) = externalize(whole, external, &name)?;
    let rope = slim.rope();
    require_fit(&rope)?;
    if chunks.is_empty() {
        return target.save_whole(&rope);
    }
    let replaced = target.own_data();
    let data = beside.write(|out| write_chunks(out, &chunks))?;
    let file = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
    // The data is written first, under a new name: the existing model keeps its data until the
    // complete new one replaces it. A failure to remove the old data afterwards does no harm.
    let data = data.finish_new()?;
    let path = file.finish().inspect_err(|_| drop(fs::remove_file(&data)))?;
    for old in &replaced {
        let _ = fs::remove_file(old);
    }
    Ok(Saved { path, bytes: rope.len() as u64 + data_bytes, data: Some(data) })
}

/// Edits the tensors that `wanted` selects; messages without such tensors are not modified.
fn edit_tensors(
    graph: &mut Raw<GraphProto>,
    wanted: &impl Fn(&TensorProto) -> bool,
    with: &mut impl FnMut(&mut TensorProto) -> Result<(), Error>,
) -> Result<(), Error> {
    if !graph.tensors().any(wanted) {
        return Ok(());
    }
    let graph = graph.edit();
    for tensor in graph.initializer.iter_mut().filter(|tensor| wanted(tensor)) {
        with(tensor.edit())?;
    }
    let concerned = |attribute: &Raw<AttributeProto>| {
        attribute.tensors().any(wanted)
            || attribute.subgraphs().any(|body| body.tensors().any(wanted))
    };
    for node in graph.node.iter_mut().filter(|node| node.attribute.iter().any(concerned)) {
        for attribute in node.edit().attribute.iter_mut().filter(|attribute| concerned(attribute)) {
            let attribute = attribute.edit();
            let tensors = attribute.t.iter_mut().chain(&mut attribute.tensors);
            for tensor in tensors.filter(|tensor| wanted(tensor)) {
                with(tensor.edit())?;
            }
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                edit_tensors(body, wanted, with)?;
            }
        }
    }
    Ok(())
}

/// The model with its external data included, without a copy.
fn inline_external(model: &Raw<ModelProto>, external: &External) -> Result<Raw<ModelProto>, Error> {
    let mut model = model.clone();
    if model.graph.as_deref().is_some_and(|graph| graph.tensors().any(TensorProto::is_external))
        && let Some(graph) = &mut model.edit().graph
    {
        edit_tensors(graph, &TensorProto::is_external, &mut |tensor| {
            tensor.raw_data = Some(data::tensor(tensor, external)?.data);
            tensor.external_data.clear();
            tensor.data_location = 0;
            Ok(())
        })?;
    }
    Ok(model)
}

/// Large tensors and their offsets in the data file.
type ExternalChunks = Vec<(u64, bytes::Bytes)>;

/// The model without its large tensors, these tensors, and their total size.
fn externalize(
    mut model: Raw<ModelProto>,
    external: &External,
    location: &str,
) -> Result<(Raw<ModelProto>, ExternalChunks, u64), Error> {
    let mut chunks = ExternalChunks::new();
    let mut end = 0u64;
    let large = |tensor: &TensorProto| {
        data::tensor_info(tensor)
            .is_ok_and(|info| info.byte_len.is_some_and(|len| len >= MIN_EXTERNAL_BYTES))
    };
    if let Some(graph) = &mut model.edit().graph {
        edit_tensors(graph, &large, &mut |tensor| {
            let data = data::tensor(tensor, external)?.data;
            let offset = end.next_multiple_of(ALIGNMENT);
            end = offset + data.len() as u64;
            mark_external(tensor, location, offset, data.len());
            chunks.push((offset, data));
            Ok(())
        })?;
    }
    Ok((model, chunks, end))
}

fn write_chunks(out: &mut dyn Write, chunks: &ExternalChunks) -> io::Result<()> {
    let mut at = 0u64;
    for (offset, data) in chunks {
        io::copy(&mut io::Read::take(io::repeat(0), offset - at), out)?;
        out.write_all(data)?;
        at = offset + data.len() as u64;
    }
    Ok(())
}

/// A file to write.
struct Target {
    path: PathBuf,
    existing: Option<Permissions>,
}

impl Target {
    /// Resolves links, and refuses what is not a file.
    fn at(path: &Path) -> Result<Target, Error> {
        let refused = |what| Err(Error::new(ErrorKind::NotAFile(what)).at(Some(path)));
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => refused("a directory"),
            Ok(metadata) if !metadata.is_file() => refused("a device, socket or pipe"),
            Ok(metadata) => {
                let path = path.canonicalize().map_err(|cause| Error::io(cause, path))?;
                Ok(Target { path, existing: Some(metadata.permissions()) })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => match resolve_links(path) {
                Some(path) if path.file_name().is_some() => Ok(Target { path, existing: None }),
                _ => Err(Error::io(cause, path)),
            },
            Err(cause) => Err(Error::io(cause, path)),
        }
    }

    fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// A new data file next to this one, and its name. It gets the mode of this file.
    fn data_target(&self) -> (Target, String) {
        let mut name = format!("{}.data", self.name());
        for number in 1u64.. {
            if fs::symlink_metadata(self.path.with_file_name(&name)).is_err() {
                break;
            }
            name = format!("{}.{number}.data", self.name());
        }
        let path = self.path.with_file_name(&name);
        (Target { path, existing: self.existing.clone() }, name)
    }

    /// Writes a model without external data, and removes that of the model it replaces.
    fn save_whole(&self, rope: &Rope) -> Result<Saved, Error> {
        let replaced = self.own_data();
        let file = self.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
        let path = file.finish()?;
        for old in &replaced {
            let _ = fs::remove_file(old);
        }
        Ok(Saved { path, bytes: rope.len() as u64, data: None })
    }

    /// The external data of the existing file that is named after it as by [`data_target`].
    ///
    /// [`data_target`]: Target::data_target
    fn own_data(&self) -> BTreeSet<PathBuf> {
        let model =
            map::bytes_of(&self.path).and_then(|bytes| Raw::<ModelProto>::read(Span::whole(bytes)));
        let Ok(Some(graph)) = model.as_ref().map(|model| &model.graph) else {
            return BTreeSet::new();
        };
        let own = |location: &str| {
            let rest = location.strip_prefix(&*self.name())?;
            let number = rest.strip_suffix(".data")?;
            let counted = |digits: &str| {
                !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
            };
            let path = self.path.with_file_name(location);
            let ours = number.is_empty() || number.strip_prefix('.').is_some_and(counted);
            (ours && fs::symlink_metadata(&path).ok()?.is_file()).then_some(path)
        };
        let external = graph.tensors().filter(|tensor| tensor.is_external());
        external.filter_map(|tensor| own(tensor.external_entry("location")?)).collect()
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// The path of the file after the rename. Syncing the folder writes the rename to disk; systems
    /// that do not support it may fail.
    fn finished_path(&self) -> PathBuf {
        if let Ok(folder) = File::open(self.folder()) {
            let _ = folder.sync_all();
        }
        self.path.clone()
    }

    /// Writes and syncs a temporary file in the same folder; it is removed unless it is finished.
    fn write(
        &self,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<TempFile<'_>, Error> {
        let failed = |cause| Error::io(cause, &self.path);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".quantize-rs-").suffix(".tmp");
        // The default mode of new files; the system applies the umask.
        #[cfg(unix)]
        let new_file: Option<Permissions> =
            Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        #[cfg(not(unix))]
        let new_file: Option<Permissions> = None;
        if let Some(permissions) = self.existing.clone().or(new_file) {
            builder.permissions(permissions);
        }
        let mut file = builder.tempfile_in(self.folder()).map_err(failed)?;
        contents(file.as_file_mut()).map_err(failed)?;
        if let Some(permissions) = &self.existing {
            file.as_file().set_permissions(permissions.clone()).map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        Ok(TempFile { file, target: self })
    }
}

/// The maximum number of consecutive links, as on Linux.
const MAX_LINKS: usize = 40;

/// The file at the end of a chain of links, which does not exist yet.
fn resolve_links(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

/// A complete temporary file before its rename.
struct TempFile<'a> {
    file: NamedTempFile,
    target: &'a Target,
}

impl TempFile<'_> {
    fn finish(self) -> Result<PathBuf, Error> {
        let target = self.target;
        self.file.persist(&target.path).map_err(|error| Error::io(error.error, &target.path))?;
        Ok(target.finished_path())
    }

    /// As [`TempFile::finish`], but does not replace a file that was created in the meantime.
    fn finish_new(self) -> Result<PathBuf, Error> {
        let target = self.target;
        self.file
            .persist_noclobber(&target.path)
            .map_err(|error| Error::io(error.error, &target.path))?;
        Ok(target.finished_path())
    }
}
