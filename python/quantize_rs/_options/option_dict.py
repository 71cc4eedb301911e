"""The option dicts that functions of the extension module take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

from . import check
from .match import overrides
from .resolve import Resolved


class _Overrides(TypedDict, total=False):
    overrides: list[dict[str, Any]]


class OptionDict(_Overrides):
    """Options of quantization; `overrides` is there only if there are any."""

    bits: int | None
    weights: str | None
    with_activations: bool
    activations: str | None
    activation_types: dict[str, str]
    per_channel: bool
    symmetric: bool
    activation_symmetric: bool
    narrow_range: bool | None
    block_size: int | None
    weight_method: str | None
    rounding: str | None
    native_int4: bool | None
    exclude: list[str]
    include: list[str] | None
    min_elements: int
    layer_bits: dict[str, int]
    layer_types: dict[str, str]
    target: str | None
    op_types: list[str] | None
    prune: tuple[str, float] | None
    bias_correction: bool
    smooth: bool
    passes: list[str] | None
    opset: int | None
    output_format: str
    accuracy_level: int | None
    dynamic_lstm: bool


class CompareDict(TypedDict):
    """Options of `compare`."""

    labels: list[int] | None
    scores: str | None
    latency: bool
    runs: int
    latency_threads: int


class AccuracyControlDict(TypedDict):
    """The accuracy criteria, and how they are evaluated."""

    min_sqnr: float | None
    max_accuracy_drop: float | None
    require_faster: bool
    fall_back: bool
    labels: list[int] | None
    scores: str | None
    held_out: bool


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


def option_dict(found: Resolved, *, bits: int | None, with_activations: bool) -> OptionDict:
    """Return the options that a plan is made of, checked; `bits` gives way to weights."""
    widths, types = check.layers(found["layer_bits"], found["layer_types"])
    made = OptionDict(
        bits=bits,
        weights=found["weights"],
        with_activations=with_activations,
        activations=found["activations"],
        activation_types=check.types_by_name("activation_types", found["activation_types"]),
        per_channel=found["per_channel"],
        symmetric=found["symmetric"],
        activation_symmetric=found["activation_symmetric"],
        narrow_range=found["narrow_range"],
        block_size=check.optional_count("block_size", found["block_size"]),
        weight_method=found["weight_method"],
        rounding=found["rounding"],
        native_int4=found["native_int4"],
        exclude=check.names("exclude", found["exclude"]),
        include=check.optional_names("include", found["include"]),
        min_elements=check.count("min_elements", found["min_elements"]),
        layer_bits=widths,
        layer_types=types,
        target=found["target"],
        op_types=check.optional_names("op_types", found["op_types"]),
        prune=check.pruning(found["prune"], found["sparsity"]),
        bias_correction=found["bias_correction"],
        smooth=found["smooth"],
        passes=check.passes(found["passes"]),
        opset=check.optional_count("opset", found["opset"], least=1),
        output_format=found["output_format"],
        accuracy_level=check.optional_count("accuracy_level", found["accuracy_level"]),
        dynamic_lstm=found["dynamic_lstm"],
    )
    entries = overrides(found["overrides"])
    if entries:
        made["overrides"] = entries
    return made
