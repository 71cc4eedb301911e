"""`calibration_cache_path`: one file serves calls with other options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest
from onnx import helper
from onnxruntime.quantization import calibrate as their_calibrate
from readers import Reader

import quantize_rs
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import calibrate as ours_calibrate
from quantize_rs.errors import CalibrationError, OptionError

Options = dict[str, Any]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"nodes_to_exclude": ["conv1"]}, {}),
        ({}, {"nodes_to_exclude": ["conv2"]}),
        ({}, {"extra_options": {"ActivationSymmetric": True}}),
        ({"op_types_to_quantize": ["Conv"]}, {}),
        ({"activation_type": ours.QuantType.QUInt8}, {"per_channel": True}),
        ({}, {"extra_options": {"ForceQuantizeNoInputCheck": True}}),
        ({}, {"extra_options": {"DedicatedQDQPair": True}}),
    ],
)
def test_a_cache_serves_other_options_without_samples(
    digits: Path, images: Path, tmp_path: Path, first: Options, then: Options
) -> None:
    cache, out, anew = tmp_path / "c.json", tmp_path / "o.onnx", tmp_path / "anew.onnx"
    ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache, **first)
    ours.quantize_static(digits, out, None, calibration_cache_path=cache, **then)
    ours.quantize_static(
        digits, anew, Reader(images), calibration_cache_path=tmp_path / "anew.json", **then
    )
    assert out.read_bytes() == anew.read_bytes()


def test_a_cache_that_lacks_a_value_is_written_anew(
    digits: Path, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, out = tmp_path / "c.json", tmp_path / "o.onnx"
    less = quantize_rs.open(digits).plan(activations="int8", op_types=["Gemm"])
    less.calibrate(images, limit=4).save(cache)
    with pytest.raises(CalibrationError, match="lack a value"):
        ours.quantize_static(digits, out, None, calibration_cache_path=cache)
    report = ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache)
    assert report.samples == 40
    assert "is written anew" in caplog.text
    caplog.clear()
    assert ours.quantize_static(digits, out, None, calibration_cache_path=cache).samples == 40
    assert "anew" not in caplog.text


def test_a_cache_of_another_model_is_not_replaced(
    digits: Path, images: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "c.json"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = graphs.built(nodes, {"w": np.ones((64, 64))}, ["n", 64])
    other = quantize_rs.open(model).plan(activations="int8", allow_larger=True)
    other.calibrate("random", num_samples=2).save(cache)
    kept = cache.read_bytes()
    with pytest.raises(CalibrationError, match="another model"):
        ours.quantize_static(
            digits, tmp_path / "o.onnx", Reader(images), calibration_cache_path=cache
        )
    assert cache.read_bytes() == kept


class Counted(Reader):
    """Counts the samples that were read."""

    read = 0

    def get_next(self) -> Any:
        self.read += 1
        return super().get_next()


def test_the_folder_of_a_cache_is_made(digits: Path, images: Path, tmp_path: Path) -> None:
    cache, out = tmp_path / "new" / "folder" / "c.json", tmp_path / "o.onnx"
    ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache)
    assert ours.quantize_static(digits, out, None, calibration_cache_path=str(cache)).samples == 40
    assert list(cache.parent.iterdir()) == [cache]
    data = tmp_path / "other" / "folder" / "data.json"
    ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax, {}), data)
    assert not list(ours.load_tensors_data(data).keys())


@pytest.mark.parametrize(
    ("name", "error"), [("file/c.json", FileExistsError), ("folder", IsADirectoryError)]
)
def test_a_cache_that_cannot_be_written_is_found_before_samples(
    digits: Path, images: Path, tmp_path: Path, name: str, error: type[OSError]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    reader, out = Counted(images), tmp_path / "o.onnx"
    with pytest.raises(error):
        ours.quantize_static(digits, out, reader, calibration_cache_path=tmp_path / name)
    assert reader.read == 0


def test_a_folder_in_which_nothing_can_be_written(
    digits: Path, images: Path, tmp_path: Path
) -> None:
    folder = Path("/proc/self")  # not even root may
    if not folder.exists():
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o500)
    reader, out = Counted(images), tmp_path / "o.onnx"
    with pytest.raises(OSError, match=re.escape(str(folder))):
        ours.quantize_static(digits, out, reader, calibration_cache_path=folder / "c.json")
    assert reader.read == 0


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"data": 1}'])
def test_a_file_of_another_kind_is_no_cache(
    digits: Path, images: Path, tmp_path: Path, text: str
) -> None:
    cache, out = tmp_path / "c.json", tmp_path / "o.onnx"
    cache.write_text(text)
    kept, reader = cache.read_bytes(), Counted(images)
    with pytest.raises(CalibrationError, match="or delete this one") as caught:
        ours.quantize_static(digits, out, reader, calibration_cache_path=cache)
    assert str(cache) in str(caught.value)
    assert reader.read == 0
    assert cache.read_bytes() == kept
    with pytest.raises(OptionError, match="holds no data of values"):
        ours.load_tensors_data(cache)


def scales(path: Path) -> dict[str, bytes]:
    """The scales of a model; biases are corrected with samples alone."""
    found = {it.name: it.raw_data for it in onnx.load(path).graph.initializer}
    return {name: data for name, data in found.items() if name.endswith("_scale")}


METHODS = ["MinMax", "Entropy", "Percentile"]


@pytest.mark.parametrize("module", [ours, theirs])
@pytest.mark.parametrize("method", METHODS)
def test_saved_ranges_are_a_cache(
    digits: Path, images: Path, tmp_path: Path, module: Any, method: str
) -> None:
    saved, cache, out = tmp_path / "s.json", tmp_path / "c.json", tmp_path / "o.onnx"
    chosen = module.CalibrationMethod[method]
    made = module.create_calibrator(
        digits, None, tmp_path / "augmented.onnx", calibrate_method=chosen
    )
    made.collect_data(Reader(images))
    (module.calibrate if module is theirs else module).save_tensors_data(
        data := made.compute_data(), saved
    )
    report = ours.quantize_static(
        digits, out, None, calibrate_method=chosen, calibration_cache_path=saved
    )
    kept = saved.read_bytes()
    assert all(value.quantized for value in report.weights)
    if module is ours:
        anew = tmp_path / "anew.onnx"
        ours.quantize_static(
            digits, anew, Reader(images), calibrate_method=chosen, calibration_cache_path=cache
        )
        assert scales(out) == scales(anew)
        # And the other way round.
        loaded = ours.load_tensors_data(cache)
        assert loaded.calibration_method is chosen
        for name, value in loaded.items():
            assert value.range_value == data[name].range_value
    other = next(name for name in METHODS if name != method)
    with pytest.raises(CalibrationError, match=f"has ranges of {method}, which are not"):
        ours.quantize_static(
            digits,
            out,
            Reader(images),
            calibrate_method=module.CalibrationMethod[other],
            calibration_cache_path=saved,
        )
    assert saved.read_bytes() == kept


def test_a_cache_of_theirs_is_read(digits: Path, images: Path, tmp_path: Path) -> None:
    cache, out = tmp_path / "c.json", tmp_path / "o.onnx"
    theirs.quantize_static(digits, out, Reader(images), calibration_cache_path=cache)
    kept, reader = cache.read_bytes(), Counted(images)
    ours.quantize_static(digits, out, reader, calibration_cache_path=cache)
    assert reader.read == 0
    assert cache.read_bytes() == kept
    feeds = {"image": np.load(images)[:16]}
    assert oracle.sqnr(oracle.ort(digits, feeds), oracle.ort(out, feeds)) > 20


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": None}, "has no range of 'image'"),
        ({"image": (np.zeros(2, np.float32), np.ones(2, np.float32))}, "has no single range"),
        ({"image": (np.float32(0), np.float32(np.inf))}, "cannot have the range"),
    ],
)
def test_saved_ranges_that_do_not_fit_are_refused(
    digits: Path, images: Path, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    saved, out = tmp_path / "s.json", tmp_path / "o.onnx"
    made = ours.create_calibrator(digits)
    made.collect_data(Reader(images))
    data = {**made.compute_data().data, **changed}
    found = ours.TensorsData(
        ours.CalibrationMethod.MinMax,
        {name: value for name, value in data.items() if value is not None},
    )
    ours.save_tensors_data(found, saved)
    with pytest.raises(CalibrationError, match=said) as caught:
        ours.quantize_static(digits, out, None, calibration_cache_path=saved)
    assert caught.value.value == "image"
    assert not out.exists()


def test_ranges_of_a_smoothed_model_are_refused(digits: Path, images: Path, tmp_path: Path) -> None:
    made = ours.create_calibrator(digits)
    made.collect_data(Reader(images))
    data, saved, out = made.compute_data(), tmp_path / "s.json", tmp_path / "o.onnx"
    for smooth in (True, False):
        ours.save_tensors_data(data, saved, smooth_quant=smooth)
        found = json.loads(saved.read_text())
        assert found["smooth_quant"] == smooth
        assert found == json.loads(json.dumps(found, cls=ours_calibrate.CalibrationCacheEncoder))
        assert len(theirs.load_tensors_data(saved).data) == len(data)
    ours.save_tensors_data(data, saved, smooth_quant=True)
    with pytest.raises(CalibrationError, match="of a model that SmoothQuant changed"):
        ours.quantize_static(digits, out, None, calibration_cache_path=saved)


def test_the_encoder_writes_what_theirs_writes() -> None:
    content: Any = {"a": np.zeros(2, np.float32), "m": their_calibrate.CalibrationMethod.MinMax}
    own, other = ours_calibrate.CalibrationCacheEncoder, their_calibrate.CalibrationCacheEncoder
    written = [json.loads(json.dumps(content, cls=encoder)) for encoder in (own, other)]
    assert written[0] == written[1]
