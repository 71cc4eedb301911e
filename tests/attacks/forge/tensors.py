"""Initializers whose shape, type or numbers are wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .registry import attack, encoded, honest, weights


def _with_weight(
    dims: Sequence[int] = (12, 16), data: bytes | None = None, element: int = TensorProto.FLOAT
) -> bytes:
    """The honest model, its weight `w` said to be something else."""
    model = honest()
    w = model.graph.initializer[0]
    del w.dims[:]
    w.dims.extend(dims)
    w.data_type = element
    if data is not None:
        w.raw_data = data
    return encoded(model)


@attack("ModelError", "`w`", "2147483648")
def dims_2_62() -> bytes:
    """2^31 times 2^31 elements: the bytes of them overflow 64 bits."""
    return _with_weight([2**31, 2**31])


@attack("ModelError", "`w`", "4611686018427387904")
def dims_overflow() -> bytes:
    """2^62 times 2^62 elements: their number overflows to zero."""
    return _with_weight([2**62, 2**62], b"")


@attack("ModelError", opens=True, may_work=True)
def empty_with_many_channels() -> bytes:
    """A weight of 0 times 2^31 elements, and an Add that would be folded into its channels."""
    model = honest()
    w, two = model.graph.initializer
    w.dims[:] = [0, 2**31]
    w.raw_data = b""
    two.CopyFrom(numpy_helper.from_array(np.array([2], np.float32), "two"))
    del model.graph.node[:]
    model.graph.node.extend(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
            helper.make_node("Add", ["h", "two"], ["y"], "sum"),
        ]
    )
    return encoded(model)


@attack("ModelError", "`w`", "negative")
def dims_negative() -> bytes:
    """-12 times -16 elements: the product looks right."""
    return _with_weight([-12, -16])


@attack("ModelError", "`w`", "expected 768")
def data_too_short() -> bytes:
    """One float less than the shape asks for."""
    return _with_weight(data=weights(12, 16).tobytes()[:-4])


@attack("ModelError", "`w`", "expected 768")
def data_too_long() -> bytes:
    """One byte more than the shape asks for."""
    return _with_weight(data=weights(12, 16).tobytes() + b"\0")


@attack("ModelError", "`w`", "expected 192")
def data_missing() -> bytes:
    """No data at all, in no field."""
    model = honest()
    model.graph.initializer[0].ClearField("raw_data")
    return encoded(model)


@attack("ModelError", "`w`")
def data_in_wrong_field() -> bytes:
    """The floats stand in double_data."""
    model = honest()
    w = model.graph.initializer[0]
    w.ClearField("raw_data")
    w.double_data.extend(float(v) for v in weights(12, 16).reshape(-1))
    return encoded(model)


@attack("ModelError", "`w`", "99")
def unknown_element_type() -> bytes:
    """Element type 99."""
    return _with_weight(element=99)


@attack("ModelError", "`w`")
def undefined_element_type() -> bytes:
    """Element type 0, which is UNDEFINED."""
    return _with_weight(element=TensorProto.UNDEFINED)


@attack("ModelError", "`w`", "strings")
def strings_in_raw_data() -> bytes:
    """A tensor of strings that are raw bytes."""
    return _with_weight(element=TensorProto.STRING)


@attack(None)
def nan_weight() -> bytes:
    """Element 37 (row 2, column 5) is NaN, which no scale can hold: the weight stays float."""
    return _with_weight(data=_spoiled(np.nan))


@attack(None)
def inf_weight() -> bytes:
    """Element 37 (row 2, column 5) is infinite: the weight stays float."""
    return _with_weight(data=_spoiled(-np.inf))


def _spoiled(value: float) -> bytes:
    w = weights(12, 16)
    w[2, 5] = value
    return w.tobytes()


@attack(None)
def zero_size_weight() -> bytes:
    """A MatMul over zero products beside the honest Gemm: it must stay as it is."""
    model = honest()
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("none", TensorProto.FLOAT, [2, 0]))
    graph.output.append(helper.make_tensor_value_info("zeros", TensorProto.FLOAT, [2, 3]))
    graph.initializer.append(numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty"))
    graph.node.append(helper.make_node("MatMul", ["none", "empty"], ["zeros"], "matmul"))
    return encoded(model)
