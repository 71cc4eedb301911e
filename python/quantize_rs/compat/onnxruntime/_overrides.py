"""``TensorQuantOverrides``: types and ranges of single tensors, all of them checked."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._flow.model import Model
from ..._flow.plan import Plan
from ..._results.rows import PlannedValue
from ...errors import OptionError
from ._choices import in_their_words, type_of, with_warnings

__all__ = ["Overrides", "read"]

_log = logging.getLogger("quantize_rs")

_KEYS = (
    "quant_type",
    "axis",
    "scale",
    "zero_point",
    "symmetric",
    "reduce_range",
    "rmin",
    "rmax",
    "convert",
)

# The smallest and the largest integer of each type.
_ENDS = {
    f"{sign}int{bits}": ((0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    for sign in ("", "u")
    for bits in (4, 8, 16)
}

_WHERE = "extra_options['TensorQuantOverrides']"


@dataclass
class Overrides:
    """Options of `Model.plan` for single tensors, and ranges that calibration does not find."""

    activation_types: dict[str, str] = field(default_factory=dict)
    overrides: list[dict[str, Any]] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    # The type of each value whose range is to be symmetric.
    symmetric: dict[str, str] = field(default_factory=dict)
    # The axis of the scales of each weight that has one, and the number of entries.
    axes: dict[str, tuple[int, int]] = field(default_factory=dict)
    # The entries as they were given.
    entries: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add_to(self, options: dict[str, Any]) -> None:
        """Add the options of `Model.plan`, but not the types of activations."""
        options["overrides"] += self.overrides
        if options.get("activation_symmetric"):
            self.symmetric.clear()  # as all are
        if self.ranges or self.symmetric:
            # They are those of the given model, in which no channel is rescaled.
            options |= {"equalize": False, "smooth": False}

    def ends(self, known: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Return other ends for some of the known ranges."""
        found = {name: ends for name, ends in self.ranges.items() if name in known}
        for name, kind in self.symmetric.items():
            if name in known and kind in _ENDS:
                found[name] = _symmetric(found.get(name, known[name]), kind)
        return found

    def plan(self, model: Model, options: dict[str, Any]) -> Plan:
        """Plan with the types of values that are quantized anyway.

        As in onnxruntime, a type for any other has no effect. In `Model.plan`, it has one: what is
        fused with that value takes this type.

        Raises
        ------
        OptionError
            A weight has its scales along another axis.
        """
        if self.activation_types:
            # The names are those of the given model only if no channel is rescaled.
            alone = options | {"equalize": False, "smooth": False}
            self._drop_types(model.plan(**alone))
            options = options | {"activation_types": self.activation_types}
        plan = self._explain_types(model.plan(**options))
        self.check(plan)
        return plan

    def _drop_types(self, plan: Plan) -> None:
        """Remove the types of values that a plan leaves float, with a warning for each."""
        rows = {value.name: value for value in plan.values}
        for name in list(self.activation_types):
            row = rows.get(name)
            if row is None or not row.quantized:
                _warn_unused(name, _float(row))
                del self.activation_types[name], self.entries[name]

    def _explain_types(self, plan: Plan) -> Plan:
        """Say in the words of the caller what a plan says of the types: one warning for each."""
        if not self.activation_types:
            return plan
        rows = {value.name: value for value in plan.values}
        warnings = list(plan.warnings)
        for name, kind in self.activation_types.items():
            start = f"activation_types names `{name}`, "
            said = [text for text in warnings if text.startswith(start)]
            warnings = [text for text in warnings if text not in said]
            row = rows.get(name)
            if row is not None and not row.quantized:
                why = row.why.removeprefix("not quantized: ")
                what = "%s[%r] leaves it float, as nothing computes on integers with %s there: %s"
                _log.warning(what, _WHERE, name, kind, in_their_words(why))
            elif said:
                _warn_unused(name, said[0].removeprefix(start).removeprefix("but "))
            else:
                continue
            del self.entries[name]
        return with_warnings(plan, warnings)

    def check(self, plan: Plan) -> None:
        """Refuse an axis that a plan does not have, and warn of each entry that changes nothing.

        Raises
        ------
        OptionError
            A weight has its scales along another axis.
        """
        rows = {value.name: value for value in plan.values} if self.entries else {}
        for name, (axis, count) in self.axes.items():
            if (row := rows.get(name)) is not None:
                _check_axis(row, axis, count)
        for name, entries in self.entries.items():
            for entry in entries:
                if why := _unused(entry, rows.get(name)):
                    _warn_unused(name, why)
                    break


def _symmetric(ends: tuple[float, float], kind: str) -> tuple[float, float]:
    """Return a range whose zero point is that of onnxruntime: 0, or half of all unsigned steps."""
    low, high = _ENDS[kind]
    largest = max(map(abs, ends))
    # A signed type leaves out its smallest integer.
    scale = largest / high if low else 2 * largest / high
    point = 0 if low else (high + 1) // 2
    return ((low - point) * scale, (high - point) * scale)


def _warn_unused(name: str, why: str) -> None:
    _log.warning("%s[%r] has no effect: %s", _WHERE, name, in_their_words(why))


def _check_axis(row: PlannedValue, axis: int, count: int) -> None:
    """Reject an axis that a weight does not have, or along which its scales do not lie."""
    shape = row.shape or ()
    if not -len(shape) <= axis < len(shape):
        raise _wrong(row.name, f"has axis {axis}, but the shape of the weight is {list(shape)}")
    axis %= len(shape)
    if count not in (1, shape[axis]):
        what = f"has {count} entries, expected one, or {shape[axis]} as axis {axis} is long"
        raise _wrong(row.name, what)
    if row.axis not in (None, axis):
        lie, rest = ("blocks", "") if row.block_size else ("scales", " for one scale")
        what = f"has axis {axis}, but its {lie} lie along axis {row.axis}: set axis to {row.axis}"
        raise _wrong(row.name, f"{what}, or omit it{rest}")


def _float(row: PlannedValue | None) -> str:
    """Return why a value stays float."""
    return "the passes before planning removed it" if row is None else f"it is {row.why}"


def _unused(entry: Mapping[str, Any], row: PlannedValue | None) -> str | None:
    """Return why an entry changes nothing, or None if it does."""
    if not any(value is not None for value in entry.values()):
        return None
    if row is None or not row.quantized:
        return _float(row)
    if entry.get("quant_type") is not None:
        kind = type_of("quant_type", entry["quant_type"])
        if kind != row.qtype:
            return f"it is {row.qtype} where it is read, and not {kind}"
    if entry.get("axis") is not None and row.axis is None:
        return "it has one scale"
    if entry.get("symmetric") is False and row.symmetric:
        return "it is symmetric, as all values of its kind"
    of_range = "rmin" in entry or "scale" in entry
    if entry.get("symmetric") and not row.symmetric:
        of_range = True
    if of_range and row.source not in ("calibration", "weights"):
        return f"its range is {row.source}"
    return None


def read(
    given: Mapping[str, Any] | None,
    weights: Collection[str],
    values: Collection[str],
    usual: str | None,
    others: Mapping[str, Any],
) -> Overrides:
    """Return the options for overrides.

    `usual` is the type of other activations, or None if they are quantized when the model runs;
    `others` are the options of `Model.plan` for other weights, in which `symmetric` is None if it
    follows from the type or the target.

    Raises
    ------
    OptionError
        A tensor is not in the model, or an entry is not valid or not supported.
    """
    found = Overrides()
    for name, entries in (given or {}).items():
        if name not in weights and name not in values:
            near = difflib.get_close_matches(name, [*weights, *values], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _wrong(name, f"is not in the model{hint}")
        entries = [entries] if isinstance(entries, Mapping) else list(entries)
        found.entries[name] = entries
        for entry in entries:
            _check(name, entry, is_weight=name in weights)
        if name in weights:
            _weight(found, name, entries, others)
        elif usual is None:
            what = "is not a weight: activations are quantized when the model runs"
            raise _wrong(name, what)
        else:
            _activation(found, name, entries, usual)
    return found


def _wrong(name: str, what: str) -> OptionError:
    return OptionError(f"{_WHERE}[{name!r}] {what}", option="extra_options")


def _check(name: str, entry: Any, *, is_weight: bool) -> None:
    """Reject an entry that contradicts itself, or that is for other tensors."""
    if not isinstance(entry, Mapping):
        raise _wrong(name, f"is {entry!r}, expected dictionaries")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise _wrong(name, f"has {unknown[0]!r}, expected some of {', '.join(_KEYS)}")
    if ("scale" in entry) != ("zero_point" in entry):
        raise _wrong(name, "has one of scale and zero_point, expected both")
    others = [key for key in ("symmetric", "reduce_range", "rmin", "rmax") if key in entry]
    if "scale" in entry and others:
        raise _wrong(name, f"has scale and {others[0]}, expected one of them")
    if ("rmin" in entry) != ("rmax" in entry):
        raise _wrong(name, "has one of rmin and rmax, expected both")
    if not is_weight and ("axis" in entry or "reduce_range" in entry):
        key = "axis" if "axis" in entry else "reduce_range"
        raise _wrong(name, f"has {key}, which is for initializers")


def _weight(
    found: Overrides,
    name: str,
    entries: list[Mapping[str, Any]],
    others: Mapping[str, Any],
) -> None:
    """Add the type of a weight, and whether it has a scale for each channel."""
    types = {
        type_of("quant_type", entry["quant_type"]) for entry in entries if "quant_type" in entry
    }
    if len(types) > 1:
        raise _wrong(name, f"has the types {', '.join(sorted(types))}, expected one")
    for key in ("scale", "rmin", "reduce_range", "convert"):
        if any(key in entry for entry in entries):
            raise _wrong(name, f"has {key}: scales of weights are computed from their elements")
    entry: dict[str, Any] = {"match": {"name": name}}
    kind = others["weights"]
    if types:
        kind = entry["weights"] = types.pop()
    symmetric = others["symmetric"]
    if symmetric is None and others["target"] != "qnn":
        symmetric = not kind.startswith("uint")
    asked = {bool(one["symmetric"]) for one in entries if one.get("symmetric") is not None}
    if symmetric is not None and asked - {symmetric}:
        what = f"has symmetric: {not symmetric}, unlike other weights: set WeightSymmetric"
        raise _wrong(name, what)
    if (axis := _axis(name, entries)) is not None:
        found.axes[name] = (axis, len(entries))
        entry["per_channel"] = True
    elif entries and others["per_channel"]:
        entry["per_channel"] = False
    if len(entry) > 1:
        found.overrides.append(entry)


def _axis(name: str, entries: list[Mapping[str, Any]]) -> int | None:
    """Return the axis that the first of several entries gives, or None for one scale."""
    given = [entry.get("axis") for entry in entries]
    for axis in given:
        if axis is not None and not isinstance(axis, int | np.integer):
            raise _wrong(name, f"has axis {axis!r}, expected an integer")
    if len(entries) > 1 and given[0] is None:
        what = f"has {len(entries)} entries, one for each channel, but the first has no axis"
        raise _wrong(name, what)
    if len(found := {int(axis) for axis in given if axis is not None}) > 1:
        listed = ", ".join(map(str, sorted(found)))
        raise _wrong(name, f"has the axes {listed}, expected one")
    return next(iter(found), None)


def _activation(found: Overrides, name: str, entries: list[Mapping[str, Any]], usual: str) -> None:
    """Add the type and the range of an activation."""
    if len(entries) != 1:
        raise _wrong(name, f"has {len(entries)} entries, expected one: activations have one scale")
    [entry] = entries
    kind = usual
    if "quant_type" in entry:
        kind = found.activation_types[name] = type_of("quant_type", entry["quant_type"])
    if "convert" in entry:
        what = "has convert: a value has one type, and is converted where others read it"
        raise _wrong(name, what)
    if entry.get("symmetric"):
        found.symmetric[name] = kind
    if "rmin" in entry:
        found.ranges[name] = (float(entry["rmin"]), float(entry["rmax"]))
    elif "scale" in entry:
        scale, point = float(entry["scale"]), int(entry["zero_point"])
        low, high = _ENDS.get(kind, (0, 0))
        if not (scale > 0 and math.isfinite(scale) and low <= point <= high):
            raise _wrong(
                name, f"has scale {scale} and zero_point {point}, which {kind} cannot have"
            )
        found.ranges[name] = ((low - point) * scale, (high - point) * scale)
