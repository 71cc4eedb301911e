"""The files and attributes of calibraters that scripts for onnxruntime use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as theirs
import pytest
from onnx import helper

import quantize_rs
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import calibrate
from quantize_rs.compat.onnxruntime._extra import EXTRA
from quantize_rs.compat.onnxruntime.execution_providers import qnn
from quantize_rs.errors import CalibrationError, OptionError

DIGITS = quantize_rs.examples.digits()


def samples() -> Iterator[dict[str, Any]]:
    return iter([{"image": image[None]} for image in np.load(DIGITS.calibration)[:4]])


class Reader:
    """Reads the name and the shape of the input from a model, as readers for TensorRT do."""

    def __init__(self, model: Path) -> None:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        [image] = session.get_inputs()
        self.name, self.shape = image.name, image.shape
        self.left = samples()

    def get_next(self) -> Any:
        sample = next(self.left, None)
        return sample and {self.name: sample["image"].reshape(1, *self.shape[1:])}


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_a_reader_finds_a_model_at_the_path_for_one(tmp_path: Path, method: str) -> None:
    path = tmp_path / "augmented.onnx"
    calibrater = ours.create_calibrator(
        DIGITS.model,
        augmented_model_path=str(path),
        calibrate_method=ours.CalibrationMethod[method],
    )
    assert calibrater.augmented_model_path == str(path)
    calibrater.collect_data(Reader(path))
    assert "image" in calibrater.compute_data()
    assert list(tmp_path.iterdir()) == [path]


def test_the_model_at_that_path_is_complete(tmp_path: Path) -> None:
    source, path = tmp_path / "source" / "model.onnx", tmp_path / "augmented.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(DIGITS.model), source, save_as_external_data=True, size_threshold=0)
    ours.create_calibrator(source, augmented_model_path=path)
    onnx.checker.check_model(path, full_check=True)
    feed = next(samples())
    expected, found = (onnxruntime.InferenceSession(one).run(None, feed) for one in (source, path))
    np.testing.assert_array_equal(found, expected)


def test_the_path_is_written_by_augment_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name that is the default, too.
    path = tmp_path / "augmented_model.onnx"
    monkeypatch.chdir(tmp_path)
    calibrater = ours.MinMaxCalibrater(DIGITS.model, augmented_model_path=path.name)
    assert not path.exists()
    calibrater.augment_graph()
    assert path.exists()


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ours.create_calibrator(DIGITS.model).augmented_model_path is None
    assert not list(tmp_path.iterdir())


def test_the_path_is_not_that_of_the_model(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    data = Path(DIGITS.model).read_bytes()
    model.write_bytes(data)
    with pytest.raises(OptionError, match="augmented_model_path would overwrite") as caught:
        ours.create_calibrator(model, augmented_model_path=model)
    assert caught.value.option == "augmented_model_path"
    assert model.read_bytes() == data
    with pytest.raises(FileNotFoundError):
        ours.create_calibrator(model, augmented_model_path=tmp_path / "no" / "augmented.onnx")


@pytest.mark.parametrize("model", [DIGITS.model, Path(DIGITS.model).read_bytes()])
def test_the_session_of_a_calibrater_tells_inputs(model: Any) -> None:
    calibrater = ours.create_calibrator(model)
    calibrater.set_execution_providers(["CPUExecutionProvider"])
    [image] = calibrater.infer_session.get_inputs()
    assert image.name == "image"
    assert calibrater.infer_session is calibrater.infer_session


OWN = ("MinMax", "moving_average", True), ("Percentile", "percentile", 90.0)
AS_USUAL = ("MinMax", "averaging_constant", 0.01), ("Entropy", "num_bins", 128)


@pytest.mark.parametrize(("method", "option", "value"), [*OWN, *AS_USUAL])
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_option_with_an_effect_and_a_usual_value_give_no_warning(
    caplog: pytest.LogCaptureFixture, method: str, option: str, value: Any, symmetric: bool
) -> None:
    chosen = ours.CalibrationMethod[method]
    options = {option: value, "symmetric": symmetric, "max_intermediate_outputs": None}
    ours.create_calibrator(DIGITS.model, calibrate_method=chosen, extra_options=options)
    assert not caplog.records


OF_ANOTHER = "has no effect, as calibrate_method is"


@pytest.mark.parametrize(
    ("method", "option", "value", "why"),
    [
        ("MinMax", "percentile", 50.0, f"{OF_ANOTHER} MinMax"),
        ("MinMax", "num_bins", 16, f"{OF_ANOTHER} MinMax"),
        ("Entropy", "moving_average", True, f"{OF_ANOTHER} Entropy"),
        ("Percentile", "max_intermediate_outputs", 8, f"{OF_ANOTHER} Percentile"),
    ],
)
def test_an_option_of_another_method_gives_a_warning(
    caplog: pytest.LogCaptureFixture, method: str, option: str, value: Any, why: str
) -> None:
    chosen = ours.CalibrationMethod[method]
    ours.create_calibrator(DIGITS.model, calibrate_method=chosen, extra_options={option: value})
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"extra_options[{option!r}] {why}")


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("Entropy", "num_bins", 16),
        ("Entropy", "num_quantized_bins", 8),
        ("Percentile", "num_bins", 16),
        ("MinMax", "averaging_constant", 0.5),
    ],
)
def test_an_argument_without_effect_gives_a_warning(
    caplog: pytest.LogCaptureFixture, method: str, option: str, value: Any, direct: bool
) -> None:
    if direct:
        getattr(calibrate, f"{method}Calibrater")(DIGITS.model, **{option: value})
    else:
        chosen = ours.CalibrationMethod[method]
        options = {option: value}
        ours.create_calibrator(DIGITS.model, calibrate_method=chosen, extra_options=options)
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"{option} has no effect here: ")


@pytest.mark.parametrize(
    ("kind", "given", "option"),
    [
        ("MinMax", {"averaging_constant": 3, "moving_average": True}, "averaging_constant"),
        ("Percentile", {"method": "bogus"}, "method"),
        ("Entropy", {"method": "percentile"}, "method"),
    ],
)
def test_a_value_that_a_calibrater_cannot_have_is_refused(
    kind: str, given: dict[str, Any], option: str
) -> None:
    with pytest.raises(OptionError, match=f"{option} is .*expected") as caught:
        getattr(calibrate, f"{kind}Calibrater")(DIGITS.model, **given)
    assert caught.value.option == option


def test_a_constant_is_checked_in_extra_options_too() -> None:
    options = {"averaging_constant": 3, "moving_average": True}
    with pytest.raises(OptionError, match="expected 0 to 1"):
        ours.create_calibrator(DIGITS.model, extra_options=options)


def test_providers_that_do_not_run_samples_give_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpu, other = ["CPUExecutionProvider"], ["CUDAExecutionProvider"]
    calibrater = ours.create_calibrator(DIGITS.model, providers=cpu)
    calibrater.set_execution_providers(cpu)
    calibrater.set_execution_providers()
    assert not caplog.records
    ours.create_calibrator(DIGITS.model, providers=other)
    calibrater.set_execution_providers(other)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["samples are run on the CPU, not by CUDAExecutionProvider"] * 2


@pytest.mark.parametrize("option", ["exclude_initializer_from_input", "fuse_layernorm"])
def test_an_argument_of_preparing_for_qnn_without_effect_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    given: dict[str, Any] = {option: True}
    qnn.qnn_preprocess_model(DIGITS.model, tmp_path / "o.onnx", **given)
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"{option} has no effect here: ")


@pytest.mark.parametrize(("fixed", "rows"), [(False, 1), (True, 4), (False, 4)])
def test_means_of_extremes_are_those_of_onnxruntime_as_documented(
    tmp_path: Path, fixed: bool, rows: int
) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "model.onnx"
    weights = {"w": rng.normal(size=(6, 4))}
    shape = [rows if fixed else "N", 6]
    path.write_bytes(graphs.built([helper.make_node("MatMul", ["x", "w"], ["y"])], weights, shape))
    values = rng.normal(size=(8, 6)).astype(np.float32)

    def ends(package: Any) -> list[float]:
        options = {"augmented_model_path": str(tmp_path / "augmented.onnx")}
        extra = {"moving_average": True}
        calibrater = package.create_calibrator(str(path), **options, extra_options=extra)
        feeds = iter([{"x": values[start : start + rows]} for start in range(0, 8, rows)])
        calibrater.collect_data(Feeds(feeds))
        return [float(np.ravel(end)[0]) for end in calibrater.compute_data()["x"].range_value]

    equal = ends(ours) == pytest.approx(ends(theirs))
    assert equal == (fixed or rows == 1)
    for text in (calibrate.MinMaxCalibrater.__doc__ or "", EXTRA["CalibMovingAverage"].note):
        assert "every batch has one row or the model fixes their" in text


class Feeds:
    """Samples, one by one."""

    def __init__(self, left: Iterator[Any]) -> None:
        self.left = left

    def get_next(self) -> Any:
        return next(self.left, None)


def test_samples_of_several_calls_count_together_in_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for count, said in ((24, True), (160, False)):
        caplog.clear()
        calibrater = ours.create_calibrator(DIGITS.model)
        for part in np.array_split(np.load(DIGITS.calibration)[:count], 4):
            calibrater.collect_data(part)
        assert not caplog.records
        calibrater.compute_data()
        expected = [f"only {count} samples"] if said else []
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == expected


def test_a_calibrater_has_the_attributes_of_theirs(tmp_path: Path) -> None:
    where = tmp_path / "augmented.onnx"
    found = [
        module.create_calibrator(
            Path(DIGITS.model), ["Conv"], where, extra_options={"symmetric": True}
        )
        for module in (ours, theirs)
    ]
    for name in ("op_types_to_calibrate", "augmented_model_path", "symmetric", "per_channel"):
        assert getattr(found[0], name) == getattr(found[1], name), name
    for name in ("use_external_data_format", "execution_providers"):
        assert getattr(found[0], name) == getattr(found[1], name), name
    own, other = (calibrater.model.graph for calibrater in found)
    # Theirs has further nodes, which find the ranges.
    assert {node.name for node in own.node} <= {node.name for node in other.node}
    assert {value.name for value in other.value_info} <= {it.name for it in own.value_info}
    found[0].set_execution_providers(["CUDAExecutionProvider"])
    assert found[0].execution_providers == ["CUDAExecutionProvider"]


@pytest.mark.parametrize("cached", [False, True])
def test_no_samples_are_a_value_error_as_in_theirs(tmp_path: Path, cached: bool) -> None:
    calibrater = ours.create_calibrator(DIGITS.model)
    with pytest.raises(ValueError, match="no calibration samples") as caught:
        calibrater.collect_data(iter([]))
    assert isinstance(caught.value, CalibrationError)
    assert caught.value.category == "no_samples"
    cache = tmp_path / "c.json" if cached else None
    with pytest.raises(ValueError, match="no calibration samples"):
        ours.quantize_static(
            DIGITS.model, tmp_path / "o.onnx", iter([]), calibration_cache_path=cache
        )
    with pytest.raises(CalibrationError, match="expects float32") as other:
        calibrater.collect_data(np.zeros((1, 3), np.float32))
    assert not isinstance(other.value, ValueError)
