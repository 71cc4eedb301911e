"""The extension module, written in Rust."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ._arrays import Array as _Array
from ._compare import Compared
from ._guard import Guarded
from ._model import Wishes

_Numbers: TypeAlias = tuple[NDArray[np.float32], Sequence[int], NDArray[np.int32]]

class _Adapter(Protocol):
    def prepare(self, model: bytes, outputs: list[str]) -> None: ...
    def run(self, feed: Sequence[_Array], wanted: Sequence[str]) -> list[NDArray[np.float32]]: ...

_Cut: TypeAlias = tuple[int | None, int | None]
_Grid: TypeAlias = tuple[int, int]
_Found: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]

__all__ = [
    "Comparison",
    "Engine",
    "Feeds",
    "Model",
    "Observer",
    "Optimized",
    "Plan",
    "Quantized",
    "Ranges",
    "Run",
    "Source",
    "__version__",
    "check_guard",
    "compare",
    "dequantize_linear",
    "dtype_of",
    "fake_quantize",
    "fake_quantize_gradients",
    "fake_quantize_stochastic",
    "guarded",
    "layer_errors",
    "learn_scale",
    "mixed_precision",
    "outliers",
    "pack",
    "page",
    "quantize_linear",
    "run_cli",
    "scale_zero_point",
    "sensitivity",
    "unpack",
    "unreadable",
    "validate",
    "weight_sensitivity",
]

__version__: str

@final
class Feeds:
    def __iter__(self) -> Feeds: ...
    def __next__(self) -> list[_Array]: ...

@final
class Model:
    @staticmethod
    def open(path: str | os.PathLike[str]) -> Model: ...
    @staticmethod
    def from_bytes(data: bytes | bytearray) -> Model: ...
    @property
    def path(self) -> os.PathLike[str] | None: ...
    def pruned(
        self, below: tuple[str, float], per_channel: bool, exclude: Sequence[str]
    ) -> tuple[Model, str, str]: ...
    def recommended(
        self, target: str | None, samples: str | None, in_memory: bool
    ) -> tuple[str, str]: ...
    def converted(self, opset: int) -> tuple[Model, str, str]: ...
    def inferred(self) -> tuple[Model, str, str]: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def to_bytes(self) -> bytes: ...
    def info(self) -> str: ...
    def optimize(self, passes: Sequence[str] | None, skip: Sequence[str]) -> Optimized: ...
    def module_options(
        self, modules: str
    ) -> tuple[str, str | None, dict[str, str], dict[str, str], list[str]]: ...
    def plan(self, wishes: Wishes) -> Plan: ...

@final
class Optimized:
    def report(self) -> tuple[str, str]: ...
    def save(self, path: str | os.PathLike[str]) -> tuple[str, str]: ...
    def to_bytes(self) -> bytes: ...

@final
class Plan:
    @property
    def model(self) -> Model: ...
    def to_json(self) -> str: ...
    def calibrate(self, source: Source, method: str, run: Run) -> Ranges: ...
    def compare_methods(self, source: Source, run: Run) -> Comparison: ...
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
    @staticmethod
    def from_tensorrt(text: str, model: Model) -> Ranges: ...
    def to_json(self) -> str: ...
    def summary(self) -> str: ...
    def to_tensorrt(self, version: str) -> str: ...
    def using(self, method: str) -> Ranges: ...
    def diff(self, other: Ranges) -> tuple[str, str]: ...
    def merge(self, other: Ranges) -> Ranges: ...
    def histogram(self, value: str) -> str | None: ...
    @property
    def warnings(self) -> list[str]: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Comparison:
    @property
    def warnings(self) -> list[str]: ...
    def to_json(self) -> str: ...
    def ranges(self) -> dict[str, Ranges]: ...

@final
class Engine:
    @staticmethod
    def auto(library: str | os.PathLike[str]) -> Engine: ...
    @staticmethod
    def auto_without(why: str) -> Engine: ...
    @staticmethod
    def tract() -> Engine: ...
    @staticmethod
    def onnxruntime(library: str | os.PathLike[str]) -> Engine: ...
    @staticmethod
    def python(name: str, adapter: _Adapter, prepares: bool) -> Engine: ...

@final
class Run:
    def __new__(
        cls,
        engine: Engine,
        *,
        limit: int | None,
        threads: int | None,
        progress: Callable[[int, int | None], object] | None,
    ) -> Run: ...

@final
class Source:
    @staticmethod
    def file(path: str | os.PathLike[str]) -> Source: ...
    @staticmethod
    def images(
        path: str | os.PathLike[str],
        *,
        size: tuple[int, int] | None,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float,
        layout: str | None,
        channel_order: str,
        resize: str,
        crop: int | None,
        limit: int | None,
    ) -> Source: ...
    @staticmethod
    def arrays(arrays: Sequence[_Array]) -> Source: ...
    @staticmethod
    def random(count: int, shape: Sequence[int] | None, seed: int) -> Source: ...
    @staticmethod
    def iterator(iterator: Iterator[Sequence[_Array]], items: int | None) -> Source: ...
    @staticmethod
    def again(source: Source) -> Source: ...
    def feeds(self, model: Model, limit: int | None) -> Feeds: ...

@final
class Observer:
    def __new__(
        cls,
        name: str,
        dtype: str,
        symmetric: bool,
        reduce_range: bool,
        grid: _Grid | None,
        eps: float,
        averaging_constant: float,
        bins: int,
    ) -> Observer: ...
    @property
    def grid(self) -> _Grid: ...
    def observe(self, x: NDArray[np.float32], shape: Sequence[int], axis: int | None) -> None: ...
    def ranges(self) -> list[tuple[float, float]]: ...
    def qparams(self) -> _Found: ...
    def reset(self) -> None: ...

def fake_quantize(
    x: NDArray[np.float32], shape: Sequence[int], numbers: _Numbers, grid: _Grid, cut: _Cut
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]: ...
def fake_quantize_gradients(
    x: NDArray[np.float32],
    gradient: NDArray[np.float32],
    shape: Sequence[int],
    numbers: _Numbers,
    grid: _Grid,
    cut: _Cut,
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]: ...
def fake_quantize_stochastic(
    x: NDArray[np.float32],
    shape: Sequence[int],
    numbers: _Numbers,
    grid: _Grid,
    cut: _Cut,
    temperature: float,
    seed: int,
) -> NDArray[np.float32]: ...
def learn_scale(
    x: NDArray[np.float32],
    shape: Sequence[int],
    numbers: _Numbers,
    grid: _Grid,
    cut: _Cut,
    steps: int,
    rates: tuple[float, float],
) -> tuple[_Found, float, float]: ...
def compare(
    original: Model, quantized: Model, source: Source, options: Compared, run: Run
) -> tuple[str, str]: ...
def check_guard(options: Guarded) -> None: ...
def guarded(
    model: Model,
    wishes: Wishes,
    ranges: Ranges | None,
    source: Source,
    options: Guarded,
    run: Run,
) -> Quantized: ...
def mixed_precision(
    model: Model,
    wishes: Wishes,
    goal: tuple[float | None, float | None, Sequence[int]],
    data: tuple[Source, Run] | None,
) -> tuple[str, str]: ...
def layer_errors(
    original: Model, quantized: Model, source: Source, run: Run
) -> tuple[str, str]: ...
def sensitivity(
    plan: Plan,
    ranges: Ranges | None,
    source: Source,
    options: tuple[str, bool, str | os.PathLike[str] | None],
    run: Run,
) -> tuple[str, str]: ...
def weight_sensitivity(plan: Plan) -> tuple[str, str]: ...
def outliers(model: Model, fence: float, most: int) -> tuple[str, str]: ...
def validate(
    original: Model, quantized: Model, passes: Sequence[str] | None, target: str | None
) -> tuple[str, str]: ...
def unreadable(path: str | os.PathLike[str] | None, error: str) -> tuple[str, str]: ...
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
def page(
    *,
    report: str | None = None,
    comparison: str | None = None,
    sensitivity: str | None = None,
    layer_errors: str | None = None,
) -> str: ...
def run_cli(arguments: Sequence[str]) -> int: ...
def option_table() -> str: ...
def unused_options(given: str, verb: str) -> list[tuple[str, str]]: ...
