//! Writing a model: complete or not at all, and no weight copied on the way.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::Kept;
use crate::data;
use crate::error::{Error, ErrorKind};
use crate::external::External;
use crate::schema::{GraphProto, ModelProto, TensorProto};

/// One protobuf message holds at most `i32::MAX` bytes; a little less is what all readers take.
pub(crate) const PROTOBUF_LIMIT: u64 = i32::MAX as u64 - (1 << 20);

/// Smaller tensors stay in the model file when others go beside it, as ONNX's own tools do.
const BESIDE_FROM: usize = 1024;

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
pub(crate) fn to_bytes(model: &Kept<ModelProto>, external: &External) -> Result<Vec<u8>, Error> {
    let whole = gathered(model, external)?;
    let rope = whole.rope();
    if rope.len() as u64 > PROTOBUF_LIMIT {
        return Err(Error::new(ErrorKind::TooLarge {
            bytes: rope.len() as u64,
            limit: PROTOBUF_LIMIT,
        }));
    }
    Ok(rope.parts().collect::<Vec<_>>().concat())
}

pub(crate) fn save(
    model: &Kept<ModelProto>,
    external: &External,
    path: &Path,
    limit: u64,
) -> Result<Saved, Error> {
    let target = Target::at(path)?;
    let whole = gathered(model, external)?;
    let rope = whole.rope();
    if (rope.len() as u64) < limit {
        let file = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
        let path = file.finish()?;
        return Ok(Saved { path, bytes: rope.len() as u64, data: None });
    }
    let (slim, pieces, data_bytes) = spilled(whole, external, &target.data_name())?;
    let rope = slim.rope();
    let beside = target.beside();
    let data = beside.write(|out| write_pieces(out, &pieces))?;
    let file = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)))?;
    // The data first: a model without its data would not load, data without its model harms none.
    let data = data.finish()?;
    let path = file.finish()?;
    Ok(Saved { path, bytes: rope.len() as u64 + data_bytes, data: Some(data) })
}

/// Every tensor of a graph and of the graphs inside it.
pub(crate) fn tensors(graph: &GraphProto) -> impl Iterator<Item = &TensorProto> {
    let mut all: Vec<&TensorProto> = Vec::new();
    collect(graph, &mut all);
    all.into_iter()
}

fn collect<'a>(graph: &'a GraphProto, all: &mut Vec<&'a TensorProto>) {
    all.extend(graph.initializer.iter().map(|tensor| &**tensor));
    for node in &graph.node {
        all.extend(node.attribute.iter().filter_map(|attribute| attribute.t.as_deref()));
        node.subgraphs().for_each(|body| collect(body, all));
    }
}

/// Changes tensors wherever `wanted` says so; messages without such tensors stay untouched.
fn change(
    graph: &mut Kept<GraphProto>,
    wanted: &impl Fn(&TensorProto) -> bool,
    with: &mut impl FnMut(&mut TensorProto) -> Result<(), Error>,
) -> Result<(), Error> {
    if !tensors(graph).any(wanted) {
        return Ok(());
    }
    let graph = graph.edit();
    for tensor in graph.initializer.iter_mut().filter(|tensor| wanted(tensor)) {
        with(tensor.edit())?;
    }
    for node in &mut graph.node {
        let concerned = node.attribute.iter().any(|attribute| {
            attribute.t.as_deref().is_some_and(wanted)
                || attribute.g.iter().chain(&attribute.graphs).any(|body| tensors(body).any(wanted))
        });
        if !concerned {
            continue;
        }
        for attribute in &mut node.edit().attribute {
            let attribute = attribute.edit();
            if let Some(tensor) = attribute.t.as_mut().filter(|tensor| wanted(tensor)) {
                with(tensor.edit())?;
            }
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                change(body, wanted, with)?;
            }
        }
    }
    Ok(())
}

/// The model with the data beside it taken in, by handle.
fn gathered(model: &Kept<ModelProto>, external: &External) -> Result<Kept<ModelProto>, Error> {
    let mut model = model.clone();
    if model.graph.as_deref().is_some_and(|graph| tensors(graph).any(TensorProto::is_external))
        && let Some(graph) = &mut model.edit().graph
    {
        change(graph, &TensorProto::is_external, &mut |tensor| {
            tensor.raw_data = Some(data::tensor(tensor, external)?.data);
            tensor.external_data.clear();
            tensor.data_location = 0;
            Ok(())
        })?;
    }
    Ok(model)
}

/// Large tensors and where in the data file they go.
type Pieces = Vec<(u64, bytes::Bytes)>;

/// The model without its large tensors, the tensors, and the bytes they take.
fn spilled(
    mut model: Kept<ModelProto>,
    external: &External,
    location: &str,
) -> Result<(Kept<ModelProto>, Pieces, u64), Error> {
    let mut pieces = Pieces::new();
    let mut end = 0u64;
    let large = |tensor: &TensorProto| {
        data::facts(tensor).is_ok_and(|facts| facts.byte_len.is_some_and(|len| len >= BESIDE_FROM))
    };
    if let Some(graph) = &mut model.edit().graph {
        change(graph, &large, &mut |tensor| {
            let data = data::tensor(tensor, external)?.data;
            let offset = end.next_multiple_of(ALIGNMENT);
            end = offset + data.len() as u64;
            tensor.external_data = vec![
                ("location".to_owned(), location.to_owned()),
                ("offset".to_owned(), offset.to_string()),
                ("length".to_owned(), data.len().to_string()),
            ];
            tensor.data_location = 1;
            tensor.raw_data = None;
            tensor.typed.clear();
            pieces.push((offset, data));
            Ok(())
        })?;
    }
    Ok((model, pieces, end))
}

fn write_pieces(out: &mut dyn Write, pieces: &Pieces) -> io::Result<()> {
    let mut at = 0u64;
    for (offset, data) in pieces {
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
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                // A link to a file that does not exist yet: write where it points.
                let path = fs::read_link(path).map_or_else(
                    |_| path.to_path_buf(),
                    |link| path.parent().unwrap_or(Path::new("")).join(link),
                );
                if path.file_name().is_none() {
                    return Err(Error::io(cause, &path));
                }
                Ok(Target { path, existing: None })
            }
            Err(cause) => Err(Error::io(cause, path)),
        }
    }

    fn data_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}.data")
    }

    fn beside(&self) -> Target {
        let path = self.path.with_file_name(self.data_name());
        let existing = fs::metadata(&path).ok().map(|metadata| metadata.permissions());
        Target { path, existing }
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// Writes a sibling temporary file and syncs it; it disappears unless it is finished.
    fn write(
        &self,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Written<'_>, Error> {
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
        Ok(Written { file, target: self })
    }
}

/// A complete temporary file, not yet in its place.
struct Written<'a> {
    file: NamedTempFile,
    target: &'a Target,
}

impl Written<'_> {
    fn finish(self) -> Result<PathBuf, Error> {
        let target = self.target;
        self.file.persist(&target.path).map_err(|error| Error::io(error.error, &target.path))?;
        // The rename itself reaches the disk with its folder; systems that cannot do this may fail.
        if let Ok(folder) = File::open(target.folder()) {
            let _ = folder.sync_all();
        }
        Ok(target.path.clone())
    }
}
