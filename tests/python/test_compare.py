"""`compare` reports what ONNX Runtime and numpy compute for the two models."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import helper, numpy_helper

import quantize_rs
from quantize_rs import Comparison, OptionError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def original() -> Path:
    """A classifier of digits."""
    return EXAMPLES / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.float32]:
    """Digits."""
    found: npt.NDArray[np.float32] = np.load(EXAMPLES / "calibration.npy")[:64]
    return found


@pytest.fixture(scope="module")
def quantized(original: Path, images: npt.NDArray[np.float32]) -> bytes:
    """The classifier on integers."""
    made = quantize_rs.quantize_with_calibration(original, None, images, per_channel=True)
    assert made.model is not None
    return made.model


@pytest.fixture(scope="module")
def outputs(
    original: Path, quantized: bytes, images: npt.NDArray[np.float32]
) -> list[npt.NDArray[Any]]:
    """The outputs of both models in ONNX Runtime."""
    found = []
    for model in (original, quantized):
        session = oracle.session(model, saturates=True)
        name = session.get_inputs()[0].name
        found.append(np.concatenate([session.run(None, {name: one[None]})[0] for one in images]))
    return found


@pytest.fixture(scope="module")
def comparison(
    original: Path, quantized: bytes, images: npt.NDArray[np.float32], outputs: list[Any]
) -> Comparison:
    """The comparison; the labels are the predictions of the original, except one."""
    labels = outputs[0].argmax(-1)
    labels[0] = (labels[0] + 1) % 10
    return quantize_rs.compare(original, quantized, images, labels, runs=20)


def test_its_numbers_are_those_of_numpy(
    comparison: Comparison, outputs: list[npt.NDArray[Any]]
) -> None:
    x, y = (found.astype(np.float64) for found in outputs)
    noise = np.square(x - y)
    (row,) = comparison.outputs
    assert row.sqnr_db == pytest.approx(10 * np.log10(np.square(x).sum() / noise.sum()), abs=1e-3)
    cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
    assert row.cosine == pytest.approx(cosine, abs=1e-3)
    assert row.max_abs == pytest.approx(np.abs(x - y).max(), abs=1e-3)
    assert row.mse == pytest.approx(noise.mean(), abs=1e-3)
    assert row.top1_agreement == pytest.approx((x.argmax(-1) == y.argmax(-1)).mean(), abs=1e-3)
    assert comparison.sqnr_db == row.sqnr_db
    assert (comparison.samples, comparison.engine) == (64, "onnxruntime")


def test_accuracy_is_that_of_the_labels(
    comparison: Comparison, outputs: list[npt.NDArray[Any]]
) -> None:
    accuracy = comparison.accuracy
    assert accuracy is not None
    assert accuracy.labels == 64
    assert accuracy.original == pytest.approx(63 / 64)
    labels = outputs[0].argmax(-1)
    labels[0] = (labels[0] + 1) % 10
    assert accuracy.quantized == pytest.approx((outputs[1].argmax(-1) == labels).mean())
    assert accuracy.drop == pytest.approx(accuracy.original - accuracy.quantized)


def test_kernels_are_those_of_the_optimized_graph(comparison: Comparison, quantized: bytes) -> None:
    kernels = comparison.kernels
    assert kernels is not None
    assert collections.Counter(kernels.by_op_type) == oracle.kernels(quantized)
    assert kernels.on_integers > 0
    assert kernels.share == kernels.on_integers / (kernels.on_integers + kernels.on_floats)


def test_sizes_are_those_of_the_files(
    original: Path, quantized: bytes, comparison: Comparison
) -> None:
    assert comparison.bytes_original == original.stat().st_size
    assert comparison.bytes_quantized == len(quantized)
    assert comparison.ratio == comparison.bytes_original / comparison.bytes_quantized


def test_data_beside_a_model_counts() -> None:
    path = oracle.model("external_data")
    feeds = oracle.feeds("external_data")
    found = quantize_rs.compare(path, path, [feeds], latency=False)
    assert found.bytes_original == quantize_rs.model_info(path).bytes > path.stat().st_size


def test_latency_has_engine_runs_and_threads(comparison: Comparison) -> None:
    speed = comparison.speed
    assert speed is not None
    assert (speed.engine, speed.threads) == ("onnxruntime", 1)
    assert speed.original.runs == speed.quantized.runs == 20
    assert 0 < speed.original.median_ms <= speed.original.p95_ms
    assert speed.speedup == pytest.approx(speed.original.median_ms / speed.quantized.median_ms)


def test_a_model_and_itself_are_equal(original: Path, images: npt.NDArray[np.float32]) -> None:
    found = quantize_rs.compare(original, original, images, latency=False)
    assert (found.sqnr_db, found.outputs[0].top1_agreement) == (np.inf, 1.0)
    assert (found.speed, found.accuracy) == (None, None)
    assert any("not smaller" in warning for warning in found.warnings)


def test_a_model_with_inputs_in_16_bits_gets_the_samples_of_the_other(
    original: Path, images: npt.NDArray[np.float32]
) -> None:
    half = quantize_rs.convert_float16(original, None, keep_io=False).model
    assert half is not None
    there = quantize_rs.compare(original, half, images, runs=3)
    back = quantize_rs.compare(half, original, images.astype(np.float16), latency=False)
    feed = {"image": images[:1]}
    halves = {"image": images[:1].astype(np.float16)}
    outputs = [value.astype(np.float32) for value in oracle.ort(half, halves)]
    expected = oracle.sqnr(oracle.ort(original.read_bytes(), feed), outputs)
    for found in (there, back):
        assert found.sqnr_db == pytest.approx(expected, abs=6)
    assert there.speed is not None
    assert there.kernels is not None


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_and_order_make_no_difference(
    original: Path, quantized: bytes, images: npt.NDArray[np.float32], threads: int
) -> None:
    def found(rows: npt.NDArray[np.float32]) -> Comparison:
        return quantize_rs.compare(original, quantized, rows, latency=False, threads=threads)

    assert found(images).outputs == found(images).outputs
    assert found(images[::-1]).sqnr_db == pytest.approx(found(images).sqnr_db, abs=1e-9)


def test_tract_runs_it_too(
    original: Path, quantized: bytes, images: npt.NDArray[np.float32]
) -> None:
    found = quantize_rs.compare(original, quantized, images, engine="tract", runs=5)
    assert (found.engine, found.kernels) == ("tract", None)
    assert found.speed is not None
    assert found.speed.engine == "tract"
    assert found.sqnr_db is not None
    assert found.sqnr_db > 30


def test_what_cannot_be_compared_is_refused(
    original: Path, quantized: bytes, images: npt.NDArray[np.float32]
) -> None:
    with pytest.raises(OptionError, match="inputs"):
        quantize_rs.compare(original, oracle.model("gemm_plain"), images)
    with pytest.raises(OptionError, match="labels"):
        quantize_rs.compare(original, quantized, images, [1, 2, 3], latency=False)
    with pytest.raises(OptionError, match="scores"):
        quantize_rs.compare(original, quantized, images, scores="nothing", latency=False)
    with pytest.raises(OptionError, match="whole numbers"):
        quantize_rs.compare(original, quantized, images, [0.5] * 64)
    with pytest.raises(OptionError, match="engine"):
        quantize_rs.compare(original, quantized, images, engine=object())  # type: ignore[arg-type]


def test_the_result_is_the_same_as_text_json_and_dict(comparison: Comparison) -> None:
    assert comparison.to_dict()["outputs"][0]["name"] == comparison.outputs[0].name
    assert "SQNR dB" in str(comparison)
    assert repr(comparison).startswith("<Comparison: ")
    with pytest.raises(AttributeError):
        comparison.samples = 1  # type: ignore[misc]


def test_what_is_no_number_is_infinitely_far_and_said() -> None:
    """A logarithm of a value that becomes 0."""
    weight = np.ones((16, 4), np.float32)
    weight[:, 0], weight[0, 1] = 1e-3, 200
    text = """<ir_version: 8, opset_import: ["" : 17]> g(float[8, 16] x) => (float[8, 4] y) {
        a = Abs(x)
        b = MatMul(a, w)
        y = Log(b)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source = model.SerializeToString()
    data = np.random.default_rng(0).standard_normal((1, 8, 16)).astype(np.float32)
    report = quantize_rs.quantize(source, None, per_channel=False, symmetric=False, verify=data)
    assert report.model is not None
    assert report.accuracy_control is not None
    found = quantize_rs.compare(source, report.model, data)
    (output,) = found.outputs
    far = (-np.inf, -np.inf, np.inf, np.inf)
    assert (found.sqnr_db, output.sqnr_db, output.max_abs, output.mse) == far
    assert report.accuracy_control.sqnr_db == -np.inf
    for warnings in (found.warnings, report.warnings):
        assert any("`y`: infinity or NaN" in warning for warning in warnings)
    ranking = quantize_rs.sensitivity(source, data, per_channel=False)
    assert ranking.layers[0].score == -np.inf


def test_a_drop_of_0_has_no_minus(original: Path, images: npt.NDArray[np.float32]) -> None:
    found = quantize_rs.compare(
        original, original, images, np.zeros(len(images), int), latency=False
    )
    assert "(+0.00 points" in str(found)
    assert "-0.00" not in str(found)


@pytest.mark.parametrize("options", [{"bits": 4, "block_size": 16}, {"bits": 3}, {"bits": 5}])
def test_the_next_step_asks_for_more_than_there_is(
    original: Path, images: npt.NDArray[np.float32], options: dict[str, Any]
) -> None:
    report = quantize_rs.quantize(original, None, **options)
    assert report.model is not None
    found = quantize_rs.compare(original, report.model, images, latency=False)
    assert found.sqnr_db is not None
    assert found.sqnr_db < 30
    (step,) = (step for step in found.assessment.next if "min_sqnr=" in step)
    least = 20 if found.sqnr_db < 20 else 30
    assert f"with min_sqnr={least}:" in step


def test_numbers_that_processors_take_for_0_are_equal_to_it() -> None:
    """The scales of a matrix of zeros are tiny, and kernels leave numbers below the normal ones."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 32] x) => (float[n, 64] y) { h = MatMul(x, w) y = MatMul(h, zero) }""")
    weight = np.random.default_rng(0).normal(0, 0.2, (32, 64)).astype(np.float32)
    for name, values in (("w", weight), ("zero", np.zeros((64, 64), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    x = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
    report = quantize_rs.quantize(model, None, allow_larger=True)
    assert report.model is not None
    assert report.output_check is not None
    assert report.output_check.sqnr_db in (None, np.inf)
    found = quantize_rs.compare(model, report.model, x, latency=False)
    assert found.sqnr_db in (None, np.inf)
    assert found.outputs[0].cosine == 1


def detector() -> onnx.ModelProto:
    """Scores, and those above a threshold: how many these are depends on the values."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["scores"]),
        helper.make_node("Greater", ["scores", "threshold"], ["high"]),
        helper.make_node("NonZero", ["high"], ["places"]),
        helper.make_node("Transpose", ["places"], ["indices"], perm=[1, 0]),
        helper.make_node("GatherND", ["scores", "indices"], ["found"]),
    ]
    constants: dict[str, Any] = {
        "first": rng.normal(size=(32, 64)) * 0.2,
        "second": rng.normal(size=(64, 40)) * 0.2,
        "threshold": 0.5,
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 32])],
        [
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 40]),
            helper.make_tensor_value_info("found", onnx.TensorProto.FLOAT, ["k"]),
        ],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_outputs_whose_length_follows_from_values_are_compared() -> None:
    model = detector()
    x = np.random.default_rng(4).normal(size=(16, 1, 32)).astype(np.float32)
    samples = [{"x": rows} for rows in x]
    options: dict[str, Any] = {"bits": 4, "per_channel": False, "allow_larger": True}
    report = quantize_rs.quantize(model, None, calibration_data=samples, check="auto", **options)
    assert report.model is not None
    pairs = [
        (oracle.ort(model.SerializeToString(), feed), oracle.ort(report.model, feed))
        for feed in samples
    ]
    other = [a[1].shape != b[1].shape for a, b in pairs]
    assert 0 < sum(other) < 16
    # Of these, nothing is right.
    ours = [
        np.zeros_like(a[1]) if differs else b[1]
        for (a, b), differs in zip(pairs, other, strict=True)
    ]
    wanted = np.concatenate([a[1] for a, _ in pairs])
    expected = oracle.sqnr([wanted], [np.concatenate(ours)])

    found = quantize_rs.compare(model, report.model, samples, latency=False)
    scores, detected = found.outputs
    assert detected.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert scores.sqnr_db > 12
    text = "of 16 samples, outputs have another shape than in the original"
    assert any(w.startswith(text) and f"`found` in {sum(other)}" in w for w in found.warnings)
    assert any(warning.startswith("of 16 samples, outputs") for warning in report.warnings)

    assert len(quantize_rs.sensitivity(model, samples).layers) == 2
    assert quantize_rs.layer_errors(model, report.model, samples).values
    checked = quantize_rs.quantize(
        model, None, validation_data=samples, min_sqnr=0.5, calibration_data=samples, **options
    )
    assert checked.verified is not None
    assert checked.verified.attempts[-1].holds


@pytest.mark.parametrize(("level", "on_integers"), [(None, 0), (1, 0), (4, 2)])
def test_blocks_multiply_integers_at_level_4_alone(level: int | None, on_integers: int) -> None:
    model = detector()
    options: dict[str, Any] = {"bits": 4, "output_format": "matmul_nbits", "allow_larger": True}
    report = quantize_rs.quantize(model, None, accuracy_level=level, min_elements=1, **options)
    assert report.model is not None
    feed = {"x": np.ones((4, 32), np.float32)}
    kernels = quantize_rs.compare(model, report.model, [feed], latency=False).kernels
    assert kernels is not None
    assert kernels.by_op_type["MatMulNBits"] == 2
    assert (kernels.on_integers, kernels.on_floats) == (on_integers, 2 - on_integers)
