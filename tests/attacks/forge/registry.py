"""The registry of attacks, and the honest model that most of them begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

Builder = Callable[[], bytes]

# Formats of samples, by the endings of their files.
SAMPLES = ("npy", "tar", "arrow")


@dataclass(frozen=True)
class Attack:
    """One hostile or unusual file, and its expected result."""

    name: str
    note: str
    build: Builder
    error: str | None
    contains: tuple[str, ...]
    opens: bool
    may_work: bool
    make: dict[str, dict[str, int | str]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"{self.name}.{self.kind}"

    @property
    def kind(self) -> str:
        """The ending of its file, with which the names of sample files begin."""
        start = self.name.partition("_")[0]
        return start if start in SAMPLES else "onnx"

    @property
    def calibrates(self) -> bool:
        return self.kind in SAMPLES


ATTACKS: dict[str, Attack] = {}


def attack(
    error: str | None,
    *contains: str,
    opens: bool = False,
    may_work: bool = False,
    **make: dict[str, int | str],
) -> Callable[[Builder], Builder]:
    """Register a builder of one file: its name is the file's, its docstring the note.

    error     the exception class that must be raised, `ModelError` for any of its kinds; None
              when the file has to work
    contains  the message contains all of these
    opens     the model can be inspected; only quantizing fails
    may_work  leaving the unusual part unchanged is accepted in place of the error; a crash is not
    make      what the test sets up beside the file: `write` maps a path to a number of zero
              bytes, `symlink` a path to what it points at
    """

    def register(build: Builder) -> Builder:
        name = build.__name__
        if name in ATTACKS:
            raise ValueError(f"two attacks are called {name}")
        note = " ".join((build.__doc__ or "").split())
        opens_too = opens or error is None
        ATTACKS[name] = Attack(name, note, build, error, contains, opens_too, may_work, make)
        return build

    return register


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(0, 0.25, shape).astype(np.float32)


def honest() -> ModelProto:
    """x [batch, 16] -> Gemm with `w` [12, 16] and `b` [12] -> h -> Relu -> y."""
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "gemm", transB=1),
            helper.make_node("Relu", ["h"], ["y"], "relu"),
        ],
        "honest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 12])],
        [
            numpy_helper.from_array(weights(12, 16), "w"),
            numpy_helper.from_array(weights(12), "b"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name="attacks")


def encoded(message: ModelProto | GraphProto) -> bytes:
    return message.SerializeToString(deterministic=True)
