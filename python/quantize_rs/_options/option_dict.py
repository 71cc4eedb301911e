"""The option dicts that functions of the extension module take and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict

from ..errors import OptionError
from . import check
from .match import overrides
from .resolve import Resolved
from .table import OPTIONS

OptionDict: TypeAlias = dict[str, Any]
"""Options of quantization by name, as the extension module takes them."""


class CompareDict(TypedDict):
    """Options of `compare`."""

    labels: list[int] | None
    scores: str | None
    latency: bool
    runs: int
    latency_threads: int
    metric: object


class VariantDict(TypedDict):
    """Options of `variants`."""

    platform: str
    only: list[str] | None
    stem: str


class HalfDict(TypedDict):
    """Options of `convert_float16`."""

    dtype: str
    keep_io: bool
    exclude: list[str]
    enough_sqnr: float


class AccuracyControlDict(TypedDict):
    """The accuracy criteria, and how they are evaluated."""

    min_sqnr: float | None
    max_accuracy_drop: float | None
    require_faster: bool
    fall_back: bool
    labels: list[int] | None
    scores: str | None
    held_out: bool
    metric: object


class ModuleConfig(Protocol):
    """A `quantize_rs.QConfig`."""

    @property
    def weight(self) -> str | None:
        """The type of weights; None keeps them float."""

    @property
    def activation(self) -> str | None:
        """The type of activations; None keeps them float."""


class ModuleConfigDict(TypedDict):
    """The configs of modules."""

    all: ModuleConfig
    names: Sequence[tuple[str, ModuleConfig]]
    types: Sequence[tuple[str, ModuleConfig]]


class ModuleOptionDict(TypedDict):
    """The options of quantization that configs of modules stand for."""

    weights: str
    activations: str | None
    layer_bits: dict[str, str]
    activation_types: dict[str, str]
    exclude: list[str]


# How the value of an option is checked and converted; all others go to Rust as they are, which
# checks them by the table.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "activation_types": check.types_by_name,
    "block_size": check.optional_count,
    "exclude": check.names,
    "include": check.optional_names,
    "min_elements": check.count,
    "op_types": check.optional_names,
    "overrides": lambda _, entries: overrides(entries),
    "passes": lambda _, passes: check.passes(passes),
    "prune": check.optional_number,
    "sparsity": check.optional_number,
    "opset": lambda option, value: check.optional_count(option, value, least=1),
    "accuracy_level": check.optional_count,
}


def names_in_errors(options: OptionDict) -> dict[str, str]:
    """Return what the extension module calls other than the caller did."""
    # It has one name for types of layers, whichever of both options gave them.
    only_types = options["layer_types"] and not options["layer_bits"]
    return {"layer_bits": "layer_types"} if only_types else {}


def stated_bits(found: Resolved) -> int | None:
    """Return the bits that the caller gave, checked; None leaves them to the type of weights."""
    return check.bits("bits", found["bits"]) if "bits" in found.stated else None


def option_dict(found: Resolved, *, bits: int | None, with_activations: bool) -> OptionDict:
    """Return the options that a plan is made of, checked; `bits` may be None."""
    if found["prune"] is not None and found["sparsity"] is not None:
        raise OptionError("sparsity: give it or prune, not both", option="sparsity")
    made: OptionDict = {
        name: _CHECKS[name](name, found[name]) if name in _CHECKS else found[name]
        for name, row in OPTIONS.items()
        if row.cls == "QuantizeOptions"
    }
    widths, types = check.layers(found["layer_bits"], found["layer_types"])
    made |= {"bits": bits, "layer_bits": widths, "layer_types": types}
    return {**made, "with_activations": with_activations}
