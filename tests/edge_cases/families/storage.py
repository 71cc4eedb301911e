"""How the bytes lie in the file, and beside it."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto
from rows import Beast, Refused, fixture, row
from ways import WAYS

fixture("storage", "external_data", 2)
fixture("storage", "metadata_everywhere", 2)
fixture("storage", "noncanonical_wire", 2)
fixture("storage", "split_messages", 2)


def move_out(d: Beast, location: str, names: list[str], align: int = 1) -> None:
    """Put these initializers into a file beside the model."""
    data = b""
    for tensor in d.initializers:
        if tensor.name in names:
            data = data.ljust(-(-len(data) // align) * align, b"\0")
            where = {"location": location, "offset": len(data), "length": len(tensor.raw_data)}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            data += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    d.side_files[location] = data


@row(2)
def external_in_folder(d: Beast) -> None:
    """Weights and biases lie in a file in a folder below the model's, at pages."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))
    names = [tensor.name for tensor in d.initializers]
    move_out(d, "data/weights.bin", names, align=4096)


@row(2)
def external_unaligned(d: Beast) -> None:
    """External weights begin at odd bytes."""
    d.const("odd", np.array([1, 2, 3], np.uint8))
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))
    move_out(d, "weights", ["odd", "gemm1_w", "gemm2_w"])


@row(2)
def external_half_model(d: Beast) -> None:
    """External weights of float16."""
    x = d.input("x", ["batch", 64], TensorProto.FLOAT16)
    w1 = d.const("w1", d.normal((64, 64), 1).astype(np.float16))
    w2 = d.const("w2", d.normal((64, 32), 1).astype(np.float16))
    h = d.node("MatMul", [d.relu(d.node("MatMul", [x, w1])), w2])
    d.output(h, ["batch", 32], TensorProto.FLOAT16)
    move_out(d, "weights", ["w1", "w2"])


@row(2, read_only=True)
def read_only_folder(d: Beast) -> None:
    """The model lies in a folder that may not be written to: nothing is left there."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))


@row(2)
def doc_strings(d: Beast) -> None:
    """Nodes and the graph have doc strings longer than the model's numbers."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))
    for node in d.nodes:
        node.doc_string = "a word " * 3000


ABSENT = {way: Refused("ExternalDataError", "weights") for way in WAYS}


@row(0, **ABSENT, checked=False)
def external_in_memory(d: Beast) -> ModelProto:
    """A model in memory with external data: the folder is unknown."""
    d.output(d.gemm(d.input("x", ["batch", 64]), 64, 64), ["batch", 64])
    move_out(d, "weights", ["gemm1_w"])
    model = d.model()
    d.side_files.clear()
    return model


@row(0, **ABSENT, checked=False)
def external_too_short(d: Beast) -> None:
    """The file beside the model ends before the weights do."""
    d.output(d.gemm(d.input("x", ["batch", 64]), 64, 64), ["batch", 64])
    move_out(d, "weights", ["gemm1_w"])
    d.side_files["weights"] = d.side_files["weights"][:-4]


@row(0, **ABSENT, checked=False)
def external_outside(d: Beast) -> ModelProto:
    """The location of the weights leads out of the model's folder."""
    d.output(d.gemm(d.input("x", ["batch", 64]), 64, 64), ["batch", 64])
    move_out(d, "../weights", ["gemm1_w"])
    return d.model()
