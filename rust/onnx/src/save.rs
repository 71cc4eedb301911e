//! Writes a model atomically, without copying weights.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::data;
use crate::error::{Error, ErrorKind};
use crate::external::External;
use crate::schema::{AttributeProto, GraphProto, ModelProto, TensorProto};
use crate::target::{Complete, Target};
use crate::wire::Rope;
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
    joined(&whole.rope())
}

/// The bytes of a model of any size.
fn joined(rope: &Rope) -> Result<Vec<u8>, Error> {
    require_fit(rope)?;
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(rope.len()).is_err() {
        return Err(Error::new(ErrorKind::Io(io::ErrorKind::OutOfMemory)));
    }
    rope.parts().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

/// A model whose external data is in memory.
#[derive(Clone, Debug)]
pub struct ExternalDataSplit {
    /// The model, in which the initializers below are external. The file of each, which does not
    /// exist, is named after its position.
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
            mark_external(tensor_message.edit(), &tensors.len().to_string(), 0, length);
            tensors.push((tensor_message.name.clone(), tensor));
        }
    }
    Ok(ExternalDataSplit { bytes: joined(&slim.rope())?, tensors })
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

/// The file to write a model to, which is not one that the model reads.
fn target(external: &External, path: &Path) -> Result<Target, Error> {
    let target = Target::at(path)?;
    if external.reads(target.path()) {
        return Err(Error::new(ErrorKind::OwnData).at(Some(path)));
    }
    Ok(target)
}

pub(crate) fn save(
    model: &Raw<ModelProto>,
    external: &External,
    path: &Path,
    limit: u64,
) -> Result<Saved, Error> {
    let target = target(external, path)?;
    target.clear_leftovers();
    let whole = inline_external(model, external)?;
    let rope = whole.rope();
    if (rope.len() as u64) < limit.min(PROTOBUF_LIMIT) {
        return save_whole(&target, &rope, external);
    }
    let (beside, name) = target.data_target();
    let (mut slim, chunks, data_bytes) = externalize(&whole, external, &name)?;
    if chunks.is_empty() {
        let rope = slim.rope();
        require_fit(&rope)?;
        return save_whole(&target, &rope, external);
    }
    require_fit(&slim.rope())?;
    let mut data_path = beside.path().to_path_buf();
    let data = beside.write(|out| write_chunks(out, &chunks));
    external.unchanged()?;
    let mut data = data?;
    // The data is in place first, under a new name: the existing model keeps its data until the
    // complete new one replaces it.
    let file = loop {
        let file = write_rope(&target, &slim.rope(), external)?;
        match data.name_new(&data_path) {
            Ok(()) => break file,
            // Another process has taken the name meanwhile.
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(Error::io(cause, &data_path)),
        }
        let (other, name) = target.data_target();
        data_path = other.path().to_path_buf();
        slim = externalize(&whole, external, &name)?.0;
    };
    target.sync_folder();
    let path = file.finish().inspect_err(|_| drop(fs::remove_file(&data_path)))?;
    Ok(Saved { path, bytes: slim.rope().len() as u64 + data_bytes, data: Some(data_path) })
}

/// As [`save`], with external data of one name; see [`crate::Model::save_with_data`].
pub(crate) fn save_with_data(
    model: &Raw<ModelProto>,
    external: &External,
    path: &Path,
    limit: u64,
    suffix: &str,
) -> Result<Saved, Error> {
    let target = target(external, path)?;
    target.clear_leftovers();
    let whole = inline_external(model, external)?;
    let rope = whole.rope();
    if (rope.len() as u64) < limit.min(PROTOBUF_LIMIT) {
        return save_whole(&target, &rope, external);
    }
    let (beside, name) = target.named_data(suffix);
    if external.reads(beside.path()) {
        return Err(Error::new(ErrorKind::OwnData).at(Some(beside.path())));
    }
    let (slim, chunks, data_bytes) = externalize(&whole, external, &name)?;
    let rope = slim.rope();
    require_fit(&rope)?;
    if chunks.is_empty() {
        return save_whole(&target, &rope, external);
    }
    if target.is_data_of_another(&beside) {
        return Err(Error::new(ErrorKind::DataInUse).at(Some(beside.path())));
    }
    let data = beside.write(|out| write_chunks(out, &chunks));
    external.unchanged()?;
    let data = data?;
    // Both are complete before either is in place.
    let file = write_rope(&target, &rope, external)?;
    data.replace()?;
    let path = file.finish()?;
    let data = beside.path().to_path_buf();
    Ok(Saved { path, bytes: rope.len() as u64 + data_bytes, data: Some(data) })
}

/// Writes a model without external data.
fn save_whole(target: &Target, rope: &Rope, external: &External) -> Result<Saved, Error> {
    let path = write_rope(target, rope, external)?.finish()?;
    Ok(Saved { path, bytes: rope.len() as u64, data: None })
}

/// Writes a model file, if the files it was read from are unchanged. If they are not, writing may
/// have failed for that reason.
fn write_rope<'a>(
    target: &'a Target,
    rope: &Rope,
    external: &External,
) -> Result<Complete<'a>, Error> {
    let written = target.write(|out| rope.parts().try_for_each(|part| out.write_all(part)));
    external.unchanged()?;
    written
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
            for body in attribute.subgraphs_mut() {
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
    model: &Raw<ModelProto>,
    external: &External,
    location: &str,
) -> Result<(Raw<ModelProto>, ExternalChunks, u64), Error> {
    let mut model = model.clone();
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
