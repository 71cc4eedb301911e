"""Tables of embeddings in compat: the type of activations, as in onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.execution_providers import qnn as their_qnn

import quantize_rs
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime.execution_providers import qnn as our_qnn

F = np.float32


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A table whose elements are all positive, a normalization and a product."""
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "gather"),
        helper.make_node("LayerNormalization", ["rows", "ones"], ["n"], "normalize", axis=-1),
        helper.make_node("MatMul", ["n", "w"], ["y"], "product"),
    ]
    tensors = {
        "table": generator.uniform(0.5, 1.5, (200, 32)),
        "ones": np.ones(32),
        "w": generator.normal(size=(32, 32)) / 6,
    }
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 32])],
        [numpy_helper.from_array(array.astype(F), name) for name, array in tensors.items()],
    )
    path = tmp_path / "encoder.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


class Reader(theirs.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.samples = ids(1, 64)

    def get_next(self) -> Any:
        return next(self.samples, None)


def ids(seed: int, count: int) -> Iterator[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return iter([{"ids": generator.integers(0, 200, (1, 8))} for _ in range(count)])


def accuracy(encoder: Path, result: Path) -> float:
    feeds = list(ids(2, 20))
    return oracle.sqnr(
        [np.stack([oracle.ort(encoder, feed)[0] for feed in feeds])],
        [np.stack([oracle.ort(result, feed)[0] for feed in feeds])],
    )


def table_type(path: Path) -> str:
    (table,) = (t for t in onnx.load(path).graph.initializer if t.name == "table_quantized")
    return str(TensorProto.DataType.Name(table.data_type))


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8", "QUInt16", "QInt16"])
def test_static_tables_are_as_accurate_as_those_of_onnxruntime(encoder: Path, kind: str) -> None:
    results = []
    for module in (ours, theirs):
        result = encoder.with_name(f"{module.__name__}.onnx")
        activation_type = getattr(module.QuantType, kind)
        module.quantize_static(encoder, result, Reader(), activation_type=activation_type)
        results.append(result)
    assert table_type(results[0]) == table_type(results[1])
    assert accuracy(encoder, results[0]) > accuracy(encoder, results[1]) - 0.1


def test_dynamic_tables_are_as_accurate_as_those_of_onnxruntime(encoder: Path) -> None:
    results = []
    for module in (ours, theirs):
        result = encoder.with_name(f"{module.__name__}.onnx")
        module.quantize_dynamic(encoder, result)
        results.append(result)
    assert table_type(results[0]) == table_type(results[1]) == "UINT8"
    assert accuracy(encoder, results[0]) > accuracy(encoder, results[1]) - 0.1


def test_table_beside_uint16_for_qnn_has_16_bits_too(encoder: Path) -> None:
    results = []
    for module, qnn in ((ours, our_qnn), (theirs, their_qnn)):
        kinds = {
            "activation_type": module.QuantType.QUInt16,
            "weight_type": module.QuantType.QUInt8,
        }
        config = qnn.get_qnn_qdq_config(encoder, Reader(), **kinds)
        results.append(encoder.with_name(f"{module.__name__}.onnx"))
        module.quantize(encoder, results[-1], config)
    assert table_type(results[0]) == "INT16"
    assert accuracy(encoder, results[0]) > accuracy(encoder, results[1]) - 0.1


def test_shapes_that_are_gathered_are_no_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Exporters write the batch of a view as a Gather of its shape, which is folded away."""
    weight = np.random.default_rng(0).normal(size=(32, 8)).astype(F)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Concat", ["batch", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"], "product"),
    ]
    graph = helper.make_graph(
        nodes,
        "view",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([32], np.int64), "rest"),
            numpy_helper.from_array(weight, "w"),
        ],
    )
    path = tmp_path / "view.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    ours.quantize_dynamic(path, tmp_path / "out.onnx")
    assert "Gather" not in caplog.text


@pytest.mark.parametrize("per_channel", [False, True])
def test_tables_give_no_warning_about_symmetry(
    encoder: Path, per_channel: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ours.quantize_dynamic(encoder, encoder.with_name("dynamic.onnx"), per_channel=per_channel)
    result = encoder.with_name("static.onnx")
    ours.quantize_static(encoder, result, Reader(), per_channel=per_channel)
    assert "symmetric" not in caplog.text


def test_an_override_without_effect_on_symmetry_is_a_warning(encoder: Path) -> None:
    def warnings(*overrides: Any, **options: Any) -> list[str]:
        made = quantize_rs.open(encoder).plan(include=["*"], overrides=overrides, **options)
        return [warning for warning in made.warnings if "symmetric=False" in warning]

    skewed, centred = ({"match": {"name": "w"}, "symmetric": it} for it in (False, True))
    assert warnings(skewed, weights="int8", activations="uint8")
    assert not warnings(skewed, weights="int8", activations="uint8", per_channel=False)
    rest = {"match": {"name": "table"}, "exclude": True}
    dynamic = {"weights": "int8", "output_format": "dynamic"}
    assert not warnings(rest, centred, symmetric=False, **dynamic)
    assert not warnings(rest, symmetric=False, **dynamic)


def test_an_override_gives_one_weight_a_zero_point_of_its_own(encoder: Path) -> None:
    def made(*overrides: Any) -> Any:
        options: dict[str, Any] = {"weights": "uint8", "per_channel": False, "include": ["*"]}
        return quantize_rs.open(encoder).plan(**options, symmetric=True, overrides=overrides)

    skewed = quantize_rs.Match(name="table", symmetric=False)
    points = {}
    for case, plan in (("none", made()), ("table", made(skewed))):
        model = onnx.load_from_string(plan.apply().to_bytes())
        points[case] = {
            t.name: int(numpy_helper.to_array(t))
            for t in model.graph.initializer
            if t.name.endswith("_zp")
        }
    assert points["none"]["table_zp"] == points["table"]["w_zp"] == 128
    assert points["table"].get("table_zp", 0) == 0
    assert skewed.to_dict() == {"match": {"name": "table"}, "symmetric": False}
