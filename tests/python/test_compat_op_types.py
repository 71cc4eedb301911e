"""Lists of operator types: those of models, of onnxruntime's configurations, and of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest

from quantize_rs import OptionError
from quantize_rs.compat import onnxruntime as ours

FIXTURES = ("transformer_block", "conv_bn_relu", "shape_arithmetic", "already_qdq")


class Feeds:
    """Samples of a fixture, one by one."""

    def __init__(self, name: str) -> None:
        self.left = iter([oracle.feeds(name) for _ in range(4)])

    def get_next(self) -> Any:
        return next(self.left, None)


def types_of(fixture: str) -> list[str]:
    return [node.op_type for node in onnx.load(oracle.model(fixture)).graph.node]


def static(fixture: str, out: Path, types: list[str] | None) -> bytes:
    ours.quantize_static(
        oracle.model(fixture), out, Feeds(fixture), op_types_to_quantize=types, per_channel=True
    )
    return out.read_bytes()


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_type_of_a_model_may_be_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fixture: str
) -> None:
    out, types = tmp_path / "o.onnx", types_of(fixture)
    assert static(fixture, out, types) == static(fixture, out, None)
    said = [record.message for record in caplog.records if "not quantized" in record.message]
    never = [name for name in dict.fromkeys(types) if name in ("Erf", "Shape", "QuantizeLinear")]
    assert [line.split(":")[1].split()[0].strip(",") for line in said] == never[:1]
    model = oracle.model(fixture)
    ours.quantize_dynamic(model, out, types)
    same = out.read_bytes()
    ours.quantize_dynamic(model, out)
    assert out.read_bytes() == same


def test_types_that_are_never_quantized_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "o.onnx"
    same = static("transformer_block", out, ["MatMul"])
    assert "not quantized" not in caplog.text
    named = ["Erf", "MatMul", "Erf", "NonZero"]  # NonZero is of ONNX, and not in the model
    assert static("transformer_block", out, named) == same
    assert "op_types_to_quantize: Erf, NonZero are not quantized" in caplog.text
    ours.quantize_dynamic(oracle.model("custom_domain"), out, ["Sparkle", "Conv"])
    assert "op_types_to_quantize: Sparkle are not quantized" in caplog.text
    quantizer = ours.MatMulNBitsQuantizer(
        oracle.model("transformer_block"), block_size=32, op_types_to_quantize=["Erf", "MatMul"]
    )
    quantizer.process()
    assert quantizer.model.save_model_to_file(out).ratio > 1


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (["Erf"], "names `Erf`, which is no operator that can be quantized"),
        (["MatMul", "Sparkle"], "names `Sparkle`"),
        (["Erf", "MatMull"], "names `MatMull`, .* did you mean `MatMul`"),
        ([*types_of("transformer_block"), "Konv"], "names `Konv`"),
    ],
)
def test_types_of_no_operator_are_refused(tmp_path: Path, types: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=f"op_types_to_quantize {said}"):
        static("transformer_block", tmp_path / "o.onnx", types)


@pytest.mark.parametrize(
    "fixture", [*FIXTURES, "if_subgraph", "nested_if", "local_function", "int_input"]
)
def test_configurations_list_the_types_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fixture: str
) -> None:
    model, one, other = oracle.model(fixture), tmp_path / "one.onnx", tmp_path / "other.onnx"
    config = ours.get_qdq_config(model, Feeds(fixture))
    listed = config.op_types_to_quantize
    expected = theirs.get_qdq_config(str(model), Feeds(fixture))
    assert sorted(listed) == sorted(expected.op_types_to_quantize)
    for given in (config, expected):
        given.calibration_data_reader = Feeds(fixture)
        ours.quantize(model, one, given)
        config.op_types_to_quantize, config.calibration_data_reader = [], Feeds(fixture)
        ours.quantize(model, other, config)
        assert one.read_bytes() == other.read_bytes()
        config.op_types_to_quantize = listed
    assert "are not quantized" not in caplog.text


def test_types_of_excluded_nodes_are_not_listed(tmp_path: Path) -> None:
    model = oracle.model("transformer_block")
    graph = onnx.load(model).graph
    softmax = [node.name for node in graph.node if node.op_type == "Softmax"]
    functions: list[Any] = [softmax, lambda _, node: node.op_type == "Softmax"]
    for excluded in functions:
        lists = [
            sorted(
                tool.get_qdq_config(
                    str(model), None, nodes_to_exclude=excluded
                ).op_types_to_quantize
            )
            for tool in (ours, theirs)
        ]
        assert lists[0] == lists[1]
        assert "Softmax" not in lists[0]
    config = ours.get_qdq_config(model, None, nodes_to_exclude=softmax)
    written = []
    for types in (list(config.op_types_to_quantize), list[str]()):
        out = tmp_path / "o.onnx"
        config.op_types_to_quantize = types
        config.calibration_data_reader = Feeds("transformer_block")
        ours.quantize(model, out, config)
        written.append(out.read_bytes())
    assert written[0] == written[1]
    config = ours.get_qdq_config(model, None, op_types_to_quantize=["MatMul"])
    assert config.op_types_to_quantize == ["MatMul"]


def test_a_type_may_be_taken_out_of_a_configuration(tmp_path: Path) -> None:
    model, out = oracle.model("transformer_block"), tmp_path / "o.onnx"
    config = ours.get_qdq_config(model, Feeds("transformer_block"))
    config.op_types_to_quantize.remove("MatMul")
    ours.quantize(model, out, config)
    graph = onnx.load(out).graph
    weights = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    assert any(node.input[1] in weights for node in products)
    assert any(node.op_type == "DequantizeLinear" for node in graph.node)
