"""The extension module, written in Rust."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ._model import Wishes

_Array: TypeAlias = tuple[str, str, Sequence[int], NDArray[np.uint8]]
_Numbers: TypeAlias = tuple[NDArray[np.float32], Sequence[int], NDArray[np.int32]]
_Cut: TypeAlias = tuple[int | None, int | None]

__all__ = [
    "Model",
    "Plan",
    "Quantized",
    "Ranges",
    "Source",
    "__version__",
    "dequantize_linear",
    "dtype_of",
    "pack",
    "quantize_linear",
    "run_cli",
    "scale_zero_point",
    "unpack",
]

__version__: str

@final
class Model:
    @staticmethod
    def open(path: str | os.PathLike[str]) -> Model: ...
    @staticmethod
    def from_bytes(data: bytes | bytearray) -> Model: ...
    @property
    def path(self) -> os.PathLike[str] | None: ...
    def info(self) -> str: ...
    def plan(self, wishes: Wishes) -> Plan: ...

@final
class Plan:
    def to_json(self) -> str: ...
    def calibrate(
        self,
        source: Source,
        *,
        method: str,
        engine: str,
        limit: int | None,
        threads: int | None,
        progress: Callable[[int, int | None], object] | None,
    ) -> Ranges: ...
    def apply(self, ranges: Ranges | None) -> Quantized: ...

@final
class Quantized:
    def report(self) -> tuple[str, str]: ...
    def save(self, path: str | os.PathLike[str]) -> tuple[str, str]: ...
    def to_bytes(self) -> bytes: ...

@final
class Ranges:
    @staticmethod
    def from_json(text: str) -> Ranges: ...
    def to_json(self) -> str: ...
    def merge(self, other: Ranges) -> Ranges: ...

@final
class Source:
    @staticmethod
    def file(path: str | os.PathLike[str]) -> Source: ...
    @staticmethod
    def arrays(arrays: Sequence[_Array]) -> Source: ...
    @staticmethod
    def random(count: int, shape: Sequence[int] | None, seed: int) -> Source: ...
    @staticmethod
    def iterator(iterator: Iterator[Sequence[_Array]]) -> Source: ...

def dtype_of(dtype: str) -> tuple[bool, int]: ...
def quantize_linear(
    x: NDArray[np.float32], shape: Sequence[int], numbers: _Numbers, dtype: str, cut: _Cut
) -> NDArray[np.uint8]: ...
def dequantize_linear(
    packed: NDArray[np.uint8], shape: Sequence[int], numbers: _Numbers, dtype: str, cut: _Cut
) -> NDArray[np.float32]: ...
def pack(values: NDArray[np.int8], dtype: str) -> NDArray[np.uint8]: ...
def unpack(packed: NDArray[np.uint8], dtype: str, elements: int) -> NDArray[np.int8]: ...
def scale_zero_point(min: float, max: float, dtype: str, symmetric: bool) -> tuple[float, int]: ...
def run_cli(arguments: Sequence[str]) -> int: ...
