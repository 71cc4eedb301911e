"""The engines that run a model on samples: tract, onnxruntime, or an object of the caller."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import CalibrationError, OptionError
from .arrays import Array, as_feed, as_numpy

__all__ = ["Engine", "Runs"]


@runtime_checkable
class Runs(Protocol):
    """Any object that runs a model.

    If it has a method ``prepare(model: bytes, outputs: list[str])``, that is called first, with a
    model whose outputs include the values to observe; `run` then returns them.
    """

    def run(self, feed: dict[str, npt.NDArray[Any]], /) -> Mapping[str, npt.ArrayLike]:
        """Return every value to observe for one sample, by name."""


Engine: TypeAlias = str | Runs

_KNOWN = '"auto", "tract", "onnxruntime", or an object with run(dict) -> dict'


def engine(wanted: Engine) -> _core.Engine:
    """Return the engine with this name, or wrap an object as an engine."""
    match wanted:
        case "auto":
            match library():
                case Missing(why):
                    return _core.Engine.auto_without(why)
                case path:
                    return _core.Engine.auto(path)
        case "tract":
            return _core.Engine.tract()
        case "onnxruntime":
            match library():
                case Missing(why):
                    what = f"engine is 'onnxruntime', but {why}: pip install -U onnxruntime"
                    raise OptionError(what, option="engine")
                case path:
                    return _core.Engine.onnxruntime(path)
        case str():
            raise OptionError(f"engine is {wanted!r}, expected {_KNOWN}", option="engine")
        case Runs():
            return _core.Engine.python(
                type(wanted).__name__, _Adapter(wanted), hasattr(wanted, "prepare")
            )
        case _:
            what = f"engine is of type {type(wanted).__name__}, expected {_KNOWN}"
            raise OptionError(what, option="engine")


def deployed(wanted: Engine) -> _core.Engine:
    """Return an engine that is close to deployment: ONNX Runtime if it is installed, else tract.

    An object is refused: it runs one model at a time, and several are needed.
    """
    if wanted == "auto":
        match library():
            case Missing():
                return _core.Engine.tract()
            case path:
                return _core.Engine.onnxruntime(path)
    if not isinstance(wanted, str):
        what = (
            f'engine is of type {type(wanted).__name__}, expected "auto", "tract" or "onnxruntime"'
        )
        raise OptionError(what, option="engine")
    return engine(wanted)


@dataclass(frozen=True)
class Missing:
    """The reason why no library was found."""

    why: str


def library() -> Path | Missing:
    """Find the library of the installed ``onnxruntime`` package without importing it."""
    if named := os.environ.get("ORT_DYLIB_PATH"):
        return Path(named)
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except ValueError:  # a module without a spec stands in its place
        spec = None
    if spec is None:
        return Missing("no onnxruntime is installed")
    folders = spec.submodule_search_locations or []
    names = ("libonnxruntime.so*", "libonnxruntime.*dylib", "onnxruntime.dll")
    found = [
        path for folder in folders for name in names for path in Path(folder, "capi").glob(name)
    ]
    if not found:
        where = ", ".join(map(str, folders)) or spec.origin
        return Missing(f"the onnxruntime in {where} brings no library, as those before 1.19 do not")
    return max(found, key=_version)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


class _Adapter:
    """Calls an engine object with numpy arrays and checks the arrays that it returns."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted

    def prepare(self, model: bytes, outputs: list[str]) -> None:
        """Pass the model to the engine."""
        self._wanted.prepare(model, outputs)

    def run(self, feed: Sequence[Array], wanted: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Run a sample and return the wanted values, in order."""
        found = self._wanted.run(as_feed(feed))
        if not isinstance(found, Mapping):
            what = f"{self._name}.run gave a {type(found).__name__}, expected a dict of arrays"
            raise CalibrationError(what)
        if missing := [name for name in wanted if name not in found]:
            names = ", ".join(f"`{name}`" for name in missing)
            what = f"{self._name}.run gave no {names}: every value to observe is needed"
            raise CalibrationError(what, value=missing[0])
        return [self._floats(name, found[name]) for name in wanted]

    def _floats(self, name: str, value: Any) -> npt.NDArray[np.float32]:
        array = as_numpy(value)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            what = f"{self._name}.run gave elements of {array.dtype}, expected floats"
            raise CalibrationError(what, value=name)
        return np.asarray(array, dtype=np.float32, order="C")

    @property
    def _name(self) -> str:
        return type(self._wanted).__name__
