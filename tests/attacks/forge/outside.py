"""External data that is not where it should be, or where it must not be."""

from __future__ import annotations

from onnx import TensorProto

from .registry import attack, encoded, honest


def _external(**entries: str | int) -> bytes:
    """The honest model, the data of `w` in a file beside it."""
    model = honest()
    w = model.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        w.external_data.add(key=key, value=str(value))
    return encoded(model)


@attack("ExternalDataError", "`w`", "../secret.bin", write={"../secret.bin": 768})
def external_parent_path() -> bytes:
    """Data in the folder above, which exists and has the right length."""
    return _external(location="../secret.bin", length=768)


@attack("ExternalDataError", "`w`", "..", write={"inner/here.bin": 1, "../secret.bin": 768})
def external_hidden_parent_path() -> bytes:
    """The folder above, by way of a folder inside."""
    return _external(location="inner/../../secret.bin", length=768)


@attack("ExternalDataError", "`w`", "/etc/passwd")
def external_absolute() -> bytes:
    """Data at an absolute path."""
    return _external(location="/etc/passwd")


@attack("ExternalDataError", "`w`", "missing.bin")
def external_missing() -> bytes:
    """Data in a file that is not there."""
    return _external(location="missing.bin", length=768)


@attack("ExternalDataError", "`w`", "short.bin", "expected 768", write={"short.bin": 800})
def external_short() -> bytes:
    """Offset and length reach beyond the end of the file."""
    return _external(location="short.bin", offset=64, length=768)


@attack("ExternalDataError", "`w`", "expected 768", write={"weights.bin": 1000})
def external_length_lies() -> bytes:
    """The length is not that of the shape."""
    return _external(location="weights.bin", length=1000)


@attack("ExternalDataError", "`w`", "offset", "-8", write={"weights.bin": 1000})
def external_negative_offset() -> bytes:
    """Data that begins before the file."""
    return _external(location="weights.bin", offset=-8, length=768)


@attack("ExternalDataError", "`w`", write={"weights.bin": 1000})
def external_offset_overflow() -> bytes:
    """Offset and length add up to less than nothing."""
    return _external(location="weights.bin", offset=2**64 - 16, length=768)


@attack("ExternalDataError", "`w`", "offset", "sixteen", write={"weights.bin": 1000})
def external_offset_not_a_number() -> bytes:
    """An offset in words."""
    return _external(location="weights.bin", offset="sixteen", length=768)


@attack("ExternalDataError", "`w`")
def external_no_location() -> bytes:
    """External data without a location."""
    return _external(length=768)


@attack("ExternalDataError", "`w`")
def external_is_folder() -> bytes:
    """The folder of the model itself."""
    return _external(location=".", length=768)


@attack(
    "ExternalDataError",
    "`w`",
    "linked.bin",
    write={"../secret.bin": 768},
    symlink={"linked.bin": "../secret.bin"},
)
def external_symlink_out() -> bytes:
    """A plain name beside the model, which is a link to a file outside."""
    return _external(location="linked.bin", length=768)
