"""Rows of files and tables as samples: each field is checked against its input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CalibrationError
from .arrays import Array, array_of, as_numpy, objects_in
from .encoded import Encoded, encoded_images
from .model_inputs import Input, ModelInputs

Transform: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One sample: a dictionary by the names of inputs, or an array; and where it was found.

    `has_first_axis` says that it is what a model gets, and not a row without its first axis.
    """

    place: str
    values: Any
    has_first_axis: bool = False


def transformed(rows: Iterable[Row], transform: Transform) -> Iterator[Row]:
    """Apply a function to each row."""
    return (dataclasses.replace(row, values=_applied(transform, row)) for row in rows)


def _applied(transform: Transform, row: Row) -> Any:
    try:
        return transform(row.values)
    except Exception as error:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"transform was applied to {row.place}")
        raise


def feeds(
    rows: Iterable[Row], inputs: ModelInputs, where: str, part: str = ""
) -> Iterator[list[Array]]:
    """Return the arrays of each sample; a model that takes N rows at a time gets N.

    `where` names the source in errors, and `part` what the rows are of it.
    """
    waiting: list[dict[str, Any]] = []
    is_empty = True
    for row in rows:
        is_empty = False
        found = _fields(row, inputs)
        if inputs.batch == 1 or _is_whole(found, inputs.batch):
            yield _joined([found], inputs)
            continue
        waiting.append(found)
        if len(waiting) == inputs.batch:
            yield _joined(waiting, inputs)
            waiting = []
    if waiting:
        what = (
            f"the model takes {inputs.batch} rows at a time, and the last {len(waiting)} of "
            f"{where} are left over: give a multiple of {inputs.batch}"
        )
        raise CalibrationError(what, category="input_mismatch")
    if is_empty:
        what = f"no calibration samples: there are none in {part}{where}"
        raise CalibrationError(what, category="no_samples")


def _is_whole(found: Mapping[str, Any], batch: int) -> bool:
    return all(isinstance(one, np.ndarray) and one.shape[:1] == (batch,) for one in found.values())


def _joined(samples: list[dict[str, Any]], inputs: ModelInputs) -> list[Array]:
    first = samples[0]
    if any(isinstance(value, Encoded) for value in first.values()):
        [name] = first
        return encoded_images([sample[name] for sample in samples], inputs)
    if len(samples) == 1:
        return [array_of(name, value) for name, value in first.items()]
    for name in first:
        shapes = [one[name].shape[1:] for one in samples]
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        if other is not None:
            what = (
                f"the model takes {inputs.batch} rows at a time, and those of input {name!r} have "
                f"the shapes {shapes[0]} and {other}: pad them to one"
            )
            raise CalibrationError(what, category="input_mismatch")
    return [array_of(name, np.concatenate([one[name] for one in samples])) for name in first]


def _fields(row: Row, inputs: ModelInputs) -> dict[str, Any]:
    """Return the value of each input, with its first axis."""
    given = row.values if isinstance(row.values, Mapping) else {"": row.values}
    names = inputs.select(given, row.place)
    only = inputs.all[0] if len(inputs.all) == 1 else None
    specs = {one.name: one for one in inputs.all}
    fields = {}
    for name in names:
        spec = specs.get(name, only if name in ("", "arr_0") else None)
        if spec is None:  # the extension module says what is wrong
            fields[name] = given[name]
        elif isinstance(given[name], Encoded):
            fields[spec.name] = given[name]
        else:
            fields[spec.name] = _fitted(spec, given[name], inputs.batch, row)
    return fields


def _fitted(spec: Input, value: Any, batch: int, row: Row) -> npt.NDArray[Any]:
    """Return the value as an array that fits an input, or raise an error that names the place."""
    array = _numbers(spec.name, value, row.place)
    if spec.shape is None:
        array = array if row.has_first_axis else array[None]
    else:
        if array.ndim == len(spec.shape) - 1:
            array = array[None]
        elif array.ndim == 0 and all(length == 1 for length in spec.shape[1:]):
            array = array.reshape((1,) * len(spec.shape))
        _check_shape(spec, array, batch, row.place)
    _check_values(spec, array, row.place)
    return array


def _numbers(name: str, value: Any, place: str) -> npt.NDArray[Any]:
    if value is None:
        what = f"`{name}` is null: remove the sample or fill in a value ({place})"
        raise CalibrationError(what, value=name, category="data")
    try:
        array = as_numpy(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        what = f"`{name}` does not become an array of numbers: {error} ({place})"
        raise CalibrationError(what, value=name, category="data") from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        what = f"`{name}` {_instead(value, array)} ({place})"
        raise CalibrationError(what, value=name, category="data")
    return array


def _instead(value: Any, array: npt.NDArray[Any]) -> str:
    """Say what stands in place of numbers."""
    if array.dtype.kind == "U":
        return "is text, expected numbers"
    if array.dtype.kind == "S":
        return "is bytes, expected numbers: decode them with Samples(..., transform=)"
    what = f"has elements of type {array.dtype}, expected numbers"
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{key}`" for key in value)
        hint = f"it is a struct of {keys}; make an array of it with Samples(..., transform=)"
        return f"{what}: {hint}"
    return f"{what}: it holds {objects_in(array)}" if array.dtype.hasobject else what


def _check_shape(spec: Input, array: npt.NDArray[Any], batch: int, place: str) -> None:
    expected = spec.shape or ()
    if len(expected) == array.ndim:
        pairs = list(zip(expected, array.shape, strict=True))
        first_of_one = batch > 1 and array.shape[0] == 1
        if all(want in (None, have) for want, have in pairs[first_of_one:]):
            return
    shape = ", ".join("?" if length is None else str(length) for length in expected)
    what = (
        f"`{spec.name}` has shape {list(array.shape)}, and the input takes [{shape}]: "
        f"store it in that shape, or reshape it with Samples(..., transform=) ({place})"
    )
    raise CalibrationError(what, value=spec.name, category="input_mismatch")


def _check_values(spec: Input, array: npt.NDArray[Any], place: str) -> None:
    """Refuse numbers that the type of the input does not hold."""
    if array.dtype.kind == "f":
        wrong = np.isnan(array) | np.isposinf(array)
        if wrong.any():
            raise _wrong_value(spec, array, wrong, "samples must be finite", "non_finite", place)
    if spec.dtype is None or not spec.dtype.startswith(("int", "uint", "bool")):
        return
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return
    with np.errstate(invalid="ignore"):
        cast = array.astype(wanted)
    # A cast beyond the limits may give the same number again, when both become floats.
    limits = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)
    wrong = (cast != array) | (array < limits[0]) | (array > limits[1])
    if wrong.any():
        hint = f"does not fit {spec.dtype}, the type of the input"
        raise _wrong_value(spec, array, wrong, hint, "data", place)


def _wrong_value(
    spec: Input,
    array: npt.NDArray[Any],
    wrong: npt.NDArray[np.bool_],
    why: str,
    category: str,
    place: str,
) -> CalibrationError:
    index = tuple(int(at[0]) for at in np.nonzero(wrong))
    what = f"`{spec.name}` holds {array[index]} at {list(index)}, {why} ({place})"
    return CalibrationError(what, value=spec.name, category=category)
