"""Arrow tables and Parquet files as samples: a column is an input, a row is a sample."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import CalibrationError, MissingPackageError
from .model_inputs import ModelInputs
from .rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are decoded at a time.
_STEP = 32

# A `pyarrow` Table, RecordBatch, RecordBatchReader or Dataset.
Tabular: TypeAlias = Any


def is_tabular(data: object) -> bool:
    """Return whether this is an object of `pyarrow`, which is not imported for the question."""
    if (arrow := sys.modules.get("pyarrow")) is None:
        return False
    dataset = sys.modules.get("pyarrow.dataset")
    kinds = (arrow.Table, arrow.RecordBatch, arrow.RecordBatchReader)
    return isinstance(data, (*kinds, dataset.Dataset) if dataset else kinds)


def length(data: Path | Tabular) -> int | None:
    """Return the number of rows, if it is known without reading them."""
    if isinstance(data, Path):
        if data.suffix.lower() != ".parquet":
            return None
        _arrow(data)
        import pyarrow.parquet as pq

        with _readable(data):
            return int(pq.read_metadata(data).num_rows)
    rows = getattr(data, "num_rows", None)
    return None if rows is None else int(rows)


def rows(data: Path | Tabular, inputs: ModelInputs | None) -> Iterator[Row]:
    """Return the rows of a file or table; with `inputs`, only the columns that belong to them."""
    place = str(data) if isinstance(data, Path) else f"the {type(data).__name__}"
    with _readable(place):
        schema, batches = _opened(data, inputs, place)
        _no_column_twice(schema, place)
        names = list(schema.names) if inputs is None else inputs.select(schema.names, place)
        position = 0
        for batch in batches:
            if isinstance(data, Path):
                # pyarrow reads offsets of damaged files unchecked, which can end the process.
                batch.validate(full=True)
            for start in range(0, batch.num_rows, _STEP):
                part = batch.slice(start, _STEP)
                columns = {
                    name: _values(part.column(name), name, inputs is None, place, position)
                    for name in names
                }
                for index in range(part.num_rows):
                    values = {name: column[index] for name, column in columns.items()}
                    yield Row(f"{place}, row {position + index}", values)
                position += part.num_rows


def _opened(
    data: Path | Tabular, inputs: ModelInputs | None, place: str
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    pa = _arrow(data)
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches()
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    if not isinstance(data, Path):
        names = data.schema.names if inputs is None else inputs.select(data.schema.names, place)
        batches = data.to_batches(
            columns=list(names), batch_size=_STEP, batch_readahead=1, fragment_readahead=1
        )
        return data.schema, batches
    if data.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        # Without the two options, a whole group of rows, often the file, is read first.
        file = pq.ParquetFile(data, buffer_size=1 << 20, pre_buffer=False)
        names = file.schema_arrow.names
        names = names if inputs is None else inputs.select(names, place)
        return file.schema_arrow, file.iter_batches(_STEP, columns=list(names))
    return _ipc(pa, data)


def _ipc(pa: Any, path: Path) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Open a file of Arrow's own: with an index, as Feather is, or a stream, as `datasets` has."""
    with path.open("rb") as start:
        magic = start.read(6)
    source = pa.memory_map(str(path))
    if magic == b"ARROW1":
        file = pa.ipc.open_file(source)
        return file.schema, map(file.get_batch, range(file.num_record_batches))
    stream = pa.ipc.open_stream(source)
    return stream.schema, stream


def _values(
    column: pa.Array, name: str, with_nulls: bool, place: str, first: int
) -> list[Any] | Any:
    """Return a value for each row: an array where there are numbers, else a Python object."""
    pa = _arrow(None)
    if isinstance(column.type, getattr(pa, "FixedShapeTensorType", ())) and not column.null_count:
        return column.to_numpy_ndarray()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column.type, pa.DictionaryType):
        column = column.dictionary_decode()
    if column.null_count:
        if with_nulls:
            return column.to_pylist()
        row = first + column.is_null().to_pylist().index(True)
        what = f"`{name}` is null: remove the row or fill in a value ({place}, row {row})"
        raise CalibrationError(what, value=name, category="data")
    if _is_number(pa, column.type):
        return column.to_numpy(zero_copy_only=False)
    if not _is_list(pa, column.type):
        return column.to_pylist()
    found = []
    for index in range(len(column)):
        row = column.slice(index, 1)
        value = _nested(pa, row)
        if isinstance(value, str) and not with_nulls:
            what = f"`{name}` {value} ({place}, row {first + index})"
            raise CalibrationError(what, value=name, category="data")
        found.append(row.to_pylist()[0] if value is None or isinstance(value, str) else value)
    return found


def _nested(pa: Any, row: pa.Array) -> Any:
    """Return the array of a list; a text that says why there is none; None if it has no numbers."""
    import pyarrow.compute as pc

    shape: list[int] = []
    while _is_list(pa, row.type):
        if row.null_count:
            return "holds a null: remove the row or fill in a value"
        lengths = pc.list_value_length(row).unique().to_pylist()
        if len(lengths) > 1:
            short, long = min(lengths), max(lengths)
            return f"has lists of {short} and {long} elements side by side: pad them to one length"
        shape.append(lengths[0] if lengths else 0)
        row = row.flatten()
    if row.null_count:
        return "holds a null: remove the row or fill in a value"
    return row.to_numpy(zero_copy_only=False).reshape(shape) if _is_number(pa, row.type) else None


def _is_number(pa: Any, kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(pa: Any, kind: pa.DataType) -> bool:
    names = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, name)(kind) for name in names if hasattr(pa.types, name))


def _no_column_twice(schema: pa.Schema, place: str) -> None:
    names = schema.names
    if twice := [name for name in names if names.count(name) > 1]:
        what = f"there are two columns `{twice[0]}`: rename one ({place})"
        raise CalibrationError(what, value=twice[0], category="data")


@contextlib.contextmanager
def _readable(place: Path | str) -> Iterator[None]:
    """Turn what `pyarrow` says of a broken file into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, CalibrationError):
        raise
    except (_arrow(place).ArrowException, OSError, UnicodeError) as error:
        what = f"cannot be read, it is damaged or of another format: {error}; write it again"
        raise CalibrationError(f"{place} {what}", category="data") from error


def _arrow(wanted: object) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        what = f'{wanted} needs pyarrow: pip install "quantization-rs[arrow]"'
        raise MissingPackageError(what, name="pyarrow") from error
    return pa
