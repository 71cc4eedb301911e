"""Which layers cost the most, and where accuracy is lost."""

from __future__ import annotations

import json
from pathlib import Path

import judge
import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import pytest

import quantize_rs
from quantize_rs import CalibrationError, OptionError

Images = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def images() -> Images:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    found: Images = np.load(folder / "calibration.npy")[:12]
    return found


def spoilt(digits: Path, place: int) -> tuple[onnx.ModelProto, str]:
    """The model with a weight of which one scale for all leaves nothing, and its name."""
    proto = onnx.load(digits)
    weights = [tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1]
    tensor = weights[place]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] *= 300
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return proto, tensor.name


@pytest.mark.parametrize("place", [0, 1])
def test_a_planted_bad_layer_is_the_first(digits: Path, images: Images, place: int) -> None:
    proto, name = spoilt(digits, place)
    assert quantize_rs.sensitivity(proto).layers[0].name == name
    for metric in ("sqnr", "mse"):
        for all_but_one in (False, True):
            found = quantize_rs.sensitivity(
                proto, images, metric, all_but_one=all_but_one, activations=None
            )
            assert found.layers[0].name == name, found


def test_a_layer_alone_is_the_model_with_all_others_float(digits: Path, images: Images) -> None:
    found = quantize_rs.sensitivity(digits, images, activations=None)
    names = [layer.name for layer in found.layers]
    for layer in found.layers:
        others = [name for name in names if name != layer.name]
        alone = quantize_rs.quantize(digits, None, excluded_layers=others)
        assert alone.model is not None
        whole = quantize_rs.compare(digits, alone.model, images, latency=False)
        assert layer.outputs[0].sqnr_db == pytest.approx(whole.outputs[0].sqnr_db, abs=1e-3)
        assert layer.weight_error is not None
        assert layer.outputs[0].top1_agreement == whole.outputs[0].top1_agreement


def test_scores_are_those_of_the_metric(digits: Path, images: Images) -> None:
    for metric in ("sqnr", "cosine", "max_abs", "mse", "top1", "weight"):
        found = quantize_rs.sensitivity(digits, images, metric)
        scores = [layer.score for layer in found.layers]
        assert scores == sorted(scores, reverse=metric in ("max_abs", "mse"))
        assert found.metric == metric


def test_what_is_known_is_not_done_again(digits: Path, images: Images, tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    seen: list[int] = []

    def stop(done: int, _: int | None) -> None:
        seen.append(done)
        if file.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_rs.sensitivity(
            digits, images, activations=None, resume=file, threads=1, progress=stop
        )
    known = len(json.loads(file.read_text())["layers"])
    whole = quantize_rs.sensitivity(digits, images, activations=None)
    assert 0 < known <= len(whole.layers)
    rest = quantize_rs.sensitivity(digits, images, activations=None, resume=file)
    for layer, other in zip(rest.layers, whole.layers, strict=True):
        assert layer.name == other.name
        assert layer.score == pytest.approx(other.score, abs=1e-9)  # text loses the last digit
    assert len(json.loads(file.read_text())["layers"]) == len(whole.layers)
    with pytest.raises(OptionError, match="of another model"):
        quantize_rs.sensitivity(digits, images[:3], activations=None, resume=file)
    file.write_text("{}")
    with pytest.raises(OptionError, match="no such file"):
        quantize_rs.sensitivity(digits, images, activations=None, resume=file)


def test_what_makes_no_sense_is_refused(digits: Path, images: Images) -> None:
    with pytest.raises(OptionError, match="metric"):
        quantize_rs.sensitivity(digits, images, "accuracy")
    with pytest.raises(OptionError, match="metric"):
        quantize_rs.sensitivity(digits, metric="mse")
    with pytest.raises(OptionError, match="data"):
        quantize_rs.sensitivity(digits, all_but_one=True)
    with pytest.raises(CalibrationError):
        quantize_rs.sensitivity(digits, images[:0])


@pytest.mark.parametrize("name", ["residual_add", "two_towers", "transformer_block", "two_inputs"])
def test_models_of_other_shapes_are_looked_at_too(name: str) -> None:
    path, feeds = judge.model(name), [judge.feeds(name)]
    found = quantize_rs.sensitivity(path, feeds)
    assert found.layers
    assert all(layer.outputs for layer in found.layers)
    made = quantize_rs.quantize_with_calibration(path, None, feeds)
    assert made.model is not None
    errors = quantize_rs.layer_errors(path, made.model, feeds)
    assert errors.values


def test_accumulated_errors_are_those_of_onnx_runtime(digits: Path, images: Images) -> None:
    # Kernels that do not saturate: values that are looked at are computed by others.
    made = quantize_rs.quantize_with_calibration(digits, None, images, target="x86-avx2")
    assert made.model is not None
    errors = quantize_rs.layer_errors(digits, made.model, images)
    whole = quantize_rs.compare(digits, made.model, images, latency=False)
    rows = {value.name: value for value in errors.values}
    for output in whole.outputs:
        assert rows[output.name].accumulated.sqnr_db == pytest.approx(output.sqnr_db, abs=0.1)
    # What a value lost by itself is a part of what was lost until then.
    assert all(value.own.sqnr_db > value.accumulated.sqnr_db - 1 for value in errors.values)
    assert str(errors).startswith("value")
    assert repr(errors).startswith("<LayerErrors: ")
