//! Writing a model: complete or not at all, and no weight copied on the way.

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

/// One protobuf message holds at most `i32::MAX` bytes; a little less is what all readers take.
pub(crate) const PROTOBUF_LIMIT: u64 = i32::MAX as u64 - (1 << 20);

/// Smaller tensors stay in the model file when others go beside it, as ONNX's own tools do.
const MIN_EXTERNAL_BYTES: usize = 1024;

/// Tensors beside the model begin at multiples of this, so that they can be mapped.
const ALIGNMENT: u64 = 4096;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The model file, links followed.
    pub path: PathBuf,
    /// Bytes of the model file and of the data beside it.
    pub bytes: u64,
    /// The data beside it, when there is any.
    pub data: Option<PathBuf>,
}

/// The model in one piece.
pub(crate) fn to_bytes(model: &Raw<ModelProto>, external: &External) -> Result<Vec<u8>, Error> {
    let whole = inline_external(model, external)?;
    let rope = whole.rope();
    require_fit(&rope)?;
    Ok(rope.parts().collect::<Vec<_>>().concat())
}

/// A model in two parts.
#[derive(Clone, Debug)]
pub struct ExternalDataSplit {
    /// The model. Of the constants that it lacks it says that they are in a file, which does not
    /// exist.
    pub bytes: Vec<u8>,
    /// These constants, by name.
    pub tensors: Vec<(String, Tensor)>,
}

/// The model without the constants that `wanted` names, and these.
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

/// Leaves nothing of the elements of `tensor` but where they are.
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
        let file = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
        let path = file.finish()?;
        return Ok(Saved { path, bytes: rope.len() as u64, data: None });
    }
    let (beside, name) = target.data_target();
    let (slim, chunks, data_bytes) = externalize(whole, external, &name)?;
    let rope = slim.rope();
    require_fit(&rope)?;
    let replaced = target.own_data();
    let data = beside.write(|out| write_chunks(out, &chunks))?;
    let file = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
    // The data first, in a place of its own: the model that is there keeps its data until the new
    // one, complete, takes its place. What cannot be removed then is in nobody's way.
    let data = data.finish_new()?;
    let path = file.finish().inspect_err(|_| drop(fs::remove_file(&data)))?;
    for old in &replaced {
        let _ = fs::remove_file(old);
    }
    Ok(Saved { path, bytes: rope.len() as u64 + data_bytes, data: Some(data) })
}

/// Changes tensors wherever `wanted` says so; messages without such tensors stay untouched.
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

/// The model with the data beside it taken in, by handle.
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

/// Large tensors and where in the data file they go.
type ExternalChunks = Vec<(u64, bytes::Bytes)>;

/// The model without its large tensors, the tensors, and the bytes they take.
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

/// A place to write a file to.
struct Target {
    path: PathBuf,
    existing: Option<Permissions>,
}

impl Target {
    /// Follows a link, refuses what is not a file.
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

    /// A file beside this one that is not there yet, with its name. Its mode is that of this file.
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

    /// The data that is the present file's own: named in it, and named after it by [`data_target`].
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

    /// Where the file now is. The rename itself reaches the disk with its folder; systems that
    /// cannot do this may fail.
    fn finished_path(&self) -> PathBuf {
        if let Ok(folder) = File::open(self.folder()) {
            let _ = folder.sync_all();
        }
        self.path.clone()
    }

    /// Writes a sibling temporary file and syncs it; it disappears unless it is finished.
    fn write(
        &self,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<TempFile<'_>, Error> {
        let failed = |cause| Error::io(cause, &self.path);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".quantize-rs-").suffix(".tmp");
        // What a program that does nothing special gives a new file: the system takes the umask off.
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

/// Links in a row that a system follows; Linux's own limit.
const MAX_LINKS: usize = 40;

/// The file that does not exist yet at the end of a chain of links: where they would write.
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

/// A complete temporary file, not yet in its place.
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

    /// As [`TempFile::finish`], but a file that came there in the meantime is not replaced.
    fn finish_new(self) -> Result<PathBuf, Error> {
        let target = self.target;
        self.file
            .persist_noclobber(&target.path)
            .map_err(|error| Error::io(error.error, &target.path))?;
        Ok(target.finished_path())
    }
}
