"""What a result says about the call that it comes from."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .._inputs.samples import CalibrationData, is_noise, path_of
from .._results.comparison import Comparison
from .._results.layer_errors import LayerErrors
from .._results.report import Report
from .._results.sensitivity import Sensitivity

__all__ = ["not_defaults", "stamped"]

R = TypeVar("R", Comparison, LayerErrors, Report, Sensitivity)

_LONGEST = 200


def stamped(
    found: R,
    function: str,
    positional: tuple[object, ...],
    options: Mapping[str, object],
    data: CalibrationData | None,
) -> R:
    """Return the result with the call and its samples; `options` are those that were given."""
    arguments = [_text(value) for value in positional]
    arguments += [f"{name}={_text(v)}" for name, v in options.items() if v is not None]
    command = f"quantize_rs.{function}({', '.join(arguments)})"
    samples = None if data is None else _samples(data)
    outcome = found._outcome.with_origin(command=command, samples=samples)
    origin = dataclasses.replace(found.origin, command=command, samples=samples)
    return dataclasses.replace(found, _outcome=outcome, origin=origin)


def not_defaults(function: Callable[..., object], names: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call that are not the defaults of the function, but for `data`.

    `names` are the local names of the function. What has no default is not among the result.
    """
    parameters = inspect.signature(function).parameters.values()
    options = [it for it in parameters if it.default is not it.empty and it.name != "data"]
    return {it.name: names[it.name] for it in options if not _same(names[it.name], it.default)}


def _same(value: object, default: object) -> bool:
    """Compare what may be an array, which has no single truth, with a default."""
    plain = isinstance(value, str | bool | int | float)
    return value is default or (plain and value == default)


def _samples(data: CalibrationData) -> str:
    """Describe samples without reading them."""
    if is_noise(data):
        return "random"
    path = path_of(data)
    return _text(data).strip("<>") if path is None else os.fspath(path)


def _text(value: Any) -> str:
    """Write a value as in a call; what has no short form is named by its type."""
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"<{type(value).__name__} of shape {tuple(shape)}>"
    if isinstance(value, Mapping):
        items = (f"{key!r}: {_text(item)}" for key, item in value.items())
        return _short("{" + ", ".join(items) + "}", value)
    if isinstance(value, list | tuple) and len(value) <= 20:
        return _short("[" + ", ".join(map(_text, value)) + "]", value)
    return f"<{type(value).__name__}>"


def _short(text: str, value: object) -> str:
    return text if len(text) <= _LONGEST else f"<{type(value).__name__}>"
