"""Sample files for the digits network, whose input is `image`, float32 [batch, 1, 8, 8]."""

from __future__ import annotations

import base64
import io
import struct
import tarfile
import zlib

import numpy as np

from .registry import attack

MAGIC = b"\x93NUMPY"


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _images(count: int = 20) -> np.ndarray:
    """Something like digits: sparse, between 0 and 1, in steps of 1/16."""
    rng = np.random.default_rng(11)
    images = rng.integers(0, 17, (count, 1, 8, 8)) * rng.integers(0, 2, (count, 1, 8, 8))
    return (images / 16).astype(np.float32)


def _headed(shape: str, data: bytes, descr: str = "<f4") -> bytes:
    """A file of version 1.0 with the given shape and dtype in its header, true or not."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header.ljust(117) + "\n"
    return MAGIC + b"\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + data


# --- unusual, but every one has a meaning ---


@attack(None)
def npy_int64() -> bytes:
    """Whole numbers, to be converted."""
    return _npy((_images() > 0.5).astype(np.int64))


@attack(None)
def npy_uint8() -> bytes:
    """Pixels as bytes, to be converted (not scaled: no option asks for it)."""
    return _npy((_images() * 16).astype(np.uint8))


@attack(None)
def npy_float64() -> bytes:
    """Double precision, to be converted."""
    return _npy(_images().astype(np.float64))


@attack(None)
def npy_float16() -> bytes:
    """Half precision, to be converted."""
    return _npy(_images().astype(np.float16))


@attack(None)
def npy_big_endian() -> bytes:
    """float32 with the high byte first."""
    return _npy(_images().astype(">f4"))


@attack(None)
def npy_fortran_order() -> bytes:
    """Columns first."""
    return _npy(np.asfortranarray(_images()))


@attack(None)
def npy_version_3() -> bytes:
    """The header of version 3.0, four bytes of length and UTF-8."""
    file = io.BytesIO()
    np.lib.format.write_array(file, _images(), version=(3, 0))
    return file.getvalue()


# --- not what the model takes ---


@attack("CalibrationError", "`image`", "64]")
def npy_wrong_rank() -> bytes:
    """Twenty flat rows of 64."""
    return _npy(_images().reshape(20, 64))


@attack("CalibrationError", "`image`", "3, 8, 8]")
def npy_wrong_shape() -> bytes:
    """Three channels for a network that takes one."""
    return _npy(np.repeat(_images(), 3, axis=1))


@attack("CalibrationError", "|O")
def npy_object_dtype() -> bytes:
    """Pickled Python objects, which must never be unpickled."""
    objects = np.empty(2, object)
    objects[:] = [{"image": 1}, None]
    return _npy(objects)


@attack("CalibrationError", "<U5")
def npy_string_dtype() -> bytes:
    """Words."""
    return _npy(np.array(["seven", "three"]))


@attack("CalibrationError", "`image`", "NaN", "sample 3")
def npy_nan() -> bytes:
    """One NaN, in sample 3 (counted from 0)."""
    images = _images()
    images[3, 0, 4, 4] = np.nan
    return _npy(images)


@attack("CalibrationError", "`image`", "inf", "sample 5")
def npy_inf() -> bytes:
    """One infinity, in sample 5 (counted from 0)."""
    images = _images()
    images[5, 0, 0, 7] = np.inf
    return _npy(images)


@attack("CalibrationError", "no calibration samples")
def npy_empty_zero_samples() -> bytes:
    """The right shape, but for a batch of none."""
    return _npy(np.zeros((0, 1, 8, 8), np.float32))


# --- not what a file can be ---


@attack("CalibrationError", "bytes")
def npy_claims_1_9_pb() -> bytes:
    """A header of 1.9 PB over 64 bytes of data: memory must not be asked for."""
    return _headed("(7421703487488, 1, 8, 8)", bytes(64))


@attack("CalibrationError")
def npy_shape_overflow() -> bytes:
    """The number of elements overflows 64 bits."""
    return _headed("(4294967296, 4294967296, 8, 8)", bytes(64))


@attack("CalibrationError")
def npy_negative_shape() -> bytes:
    """Minus one sample."""
    return _headed("(-1, 1, 8, 8)", bytes(256))


@attack("CalibrationError", "header")
def npy_header_length_4gb() -> bytes:
    """A header that says it is 4 GB long."""
    return MAGIC + b"\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{'descr': '<f4', "


@attack("CalibrationError")
def npy_header_is_code() -> bytes:
    """A header that would do harm if it were evaluated as Python."""
    return _headed("__import__('os').abort()", bytes(256))


@attack("CalibrationError", "bytes")
def npy_truncated() -> bytes:
    """The last sample is cut in half."""
    return _npy(_images())[:-128]


@attack("CalibrationError", "npy")
def npy_not_npy() -> bytes:
    """A text with the name of an array."""
    return b"0.0, 0.5, 1.0\n" * 64


@attack("CalibrationError")
def npy_no_bytes() -> bytes:
    """An empty file."""
    return b""


# --- files that are read in Python ---


def _tar(name: str, content: bytes, size: int | None = None) -> bytes:
    """An archive with one file, whose header may claim another length."""
    info = tarfile.TarInfo(name)
    info.size = len(content) if size is None else size
    held = content + bytes(-len(content) % 512)
    return info.tobuf(tarfile.USTAR_FORMAT) + held + bytes(1024)


@attack("CalibrationError", "0.npy cannot be read as .npy")
def tar_npy_header_does_not_end() -> bytes:
    """An array whose header opens a bracket and ends."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 8, 8), ".ljust(117) + "\n"
    array = MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    return _tar("0.npy", array + bytes(256))


@attack("CalibrationError", "0.npy cannot be read as .npy")
def tar_npy_claims_4_gb() -> bytes:
    """An array of 64 numbers whose header claims four gigabytes."""
    return _tar("0.npy", _headed("(1, 1, 32768, 32768)", bytes(256)))


@attack("CalibrationError", "is not a complete archive")
def tar_hidden_claims_8_gb() -> bytes:
    """A hidden file, which is skipped, that claims all that its header can say."""
    return _tar(".a", b"", size=(1 << 33) - 1)


@attack("CalibrationError", "is damaged")
def arrow_offset_out_of_bounds() -> bytes:
    """A stream with a list that ends behind the numbers that there are."""
    # One column `image` with [[1, 2], [3]], written by pyarrow; the second offset was 2.
    text = (
        b"c-nPOyA8rH6uiVvh>!~x7D_=u$rfY~8j1*|NXGz-!w8JQM$XwB3bNqIe)m4-^LsJI_yFLMYzv1L4LU}&$}$JD"
        b"j^4_%EPU}TGZz>izIsRAhIg7T*D=>^?s)`iwAf@-uRkl3aIg0ePPcIexryJtdD-*J_#_5#9d?@7WmOo9Uh_aZ"
        b"_3T*fbk?plR<rnTPUwreFZz&XUGU6r*<r2UPbudaKKmtH08}Lz+W"
    )
    return zlib.decompress(base64.b85decode(text))
