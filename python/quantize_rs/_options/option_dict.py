"""The option dicts that functions of the extension module take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict


class OptionDict(TypedDict):
    """Options of quantization."""

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
