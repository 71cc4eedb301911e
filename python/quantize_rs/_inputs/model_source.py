"""The types that a model is accepted as: a path, bytes or an ``onnx.ModelProto``."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TypeAlias, runtime_checkable

from .. import _core
from ..errors import UnsupportedModelError

__all__ = ["ModelSource", "OpenedModel", "core_model", "read_model"]


@runtime_checkable
class SerializesToString(Protocol):
    """An ``onnx.ModelProto``."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the model as the bytes of a file."""


@runtime_checkable
class OpenedModel(Protocol):
    """A `quantize_rs.Model`, which is open already."""

    @property
    def _model(self) -> _core.Model: ...


ModelSource: TypeAlias = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | SerializesToString
)


def read_model(source: ModelSource) -> _core.Model:
    """Open a model; bytes are held without a copy."""
    match source:
        case bytes() | bytearray():
            return _core.Model.from_bytes(source)
        case memoryview():
            return _core.Model.from_bytes(bytes(source))
        case str() | os.PathLike():
            return _core.Model.open(source)
        case SerializesToString():
            return _core.Model.from_bytes(_serialized(source))
        case _:
            kind = type(source).__name__
            raise TypeError(f"expected a path, bytes or an onnx.ModelProto, got {kind}")


def core_model(source: ModelSource | OpenedModel) -> _core.Model:
    """Return the model of the extension module; open it if it is not open yet."""
    return source._model if isinstance(source, OpenedModel) else read_model(source)


def _serialized(proto: SerializesToString) -> bytes:
    try:
        return proto.SerializeToString()
    except Exception as error:
        if not isinstance(error, (ValueError, *_errors_of_protobuf())):
            raise
        raise UnsupportedModelError(
            f"the model in memory cannot be written by protobuf: {error}; "
            "save it with external data and give its path",
            feature="models of 2 GiB in one piece",
        ) from error


def _errors_of_protobuf() -> list[type[Exception]]:
    """Return the class of its errors; where a message exists, protobuf is imported."""
    module = sys.modules.get("google.protobuf.message")
    return [] if module is None else [module.Error]
