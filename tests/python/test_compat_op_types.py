"""Lists of operator types: those of models, of onnxruntime's configurations, and of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
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
