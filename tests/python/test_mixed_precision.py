"""Bits for each layer, so that the model meets a size or an SQNR."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from onnx import TensorProto, helper

import quantize_rs
from quantize_rs import AccuracyCriteriaError, OptionError
from quantize_rs.errors import UnsupportedModelError

Images = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def images() -> Images:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    found: Images = np.load(folder / "calibration.npy")[:12]
    return found


@pytest.mark.parametrize("with_data", [False, True])
def test_a_size_is_met_by_the_model_that_the_bits_make(
    digits: Path, images: Images, with_data: bool
) -> None:
    data = images if with_data else None
    before = digits.stat().st_size
    sizes = []
    for part in (0.5, 0.27, 0.2, 0.15):
        found = quantize_rs.mixed_precision(digits, data, target_size=part, bits=(8, 4))
        report = quantize_rs.quantize(digits, None, layer_bits=found.layer_bits)
        assert report.bytes_after == found.bytes_after <= part * before
        assert (found.sqnr_db is not None) == with_data
        for layer in found.layers:
            assert layer.why.startswith("stays float: ") == (layer.bits is None), layer
        sizes.append(found.bytes_after)
    assert sizes == sorted(sizes, reverse=True)
    exact = quantize_rs.mixed_precision(digits, data, target_size=before // 2, bits=(8, 4))
    assert exact.bytes_after == sizes[0]
    percentage = quantize_rs.mixed_precision(digits, data, target_size="20%", bits=(8, 4))
    assert percentage.layer_bits
    assert percentage.bytes_after == sizes[2]


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("part", [0.2, 0.3])
def test_no_layer_that_would_fit_in_more_bits_is_left_in_fewer(
    digits: Path, images: Images, part: float, with_data: bool
) -> None:
    data = images if with_data else None
    found = quantize_rs.mixed_precision(digits, data, target_size=part, bits=(8, 4))
    quantized = [layer for layer in found.layers if layer.bits is not None]
    more_bits = [
        (layer, wider) for layer in quantized for wider in (8, "float32") if layer.bits != wider
    ]
    assert more_bits
    for layer, wider in more_bits:
        layer_bits = {**found.layer_bits, layer.name: wider}
        report = quantize_rs.quantize(digits, None, layer_bits=layer_bits, check="none")
        if report.bytes_after > part * found.bytes_before:
            continue
        # What fits in was measured, and is no gain.
        assert report.model is not None
        assert found.sqnr_db is not None, (layer, wider)
        more = quantize_rs.compare(digits, report.model, images, latency=False).sqnr_db
        assert more is not None
        assert more <= found.sqnr_db + 0.1, (layer, wider)


def test_no_other_choice_for_a_size_has_less_noise(digits: Path) -> None:
    noise: dict[tuple[str, Any], float] = {}
    for bits in (8, 4):
        alone = quantize_rs.quantize(digits, None, layer_bits={"*": bits}, check="none")
        for value in alone.quantized:
            assert value.sqnr_db is not None
            noise[value.name, bits] = 10 ** (-value.sqnr_db / 10)
            noise[value.name, "float32"] = 0.0
    names = sorted({name for name, _ in noise})
    made = []
    for widths in itertools.product((8, 4, "float32"), repeat=len(names)):
        layer_bits: dict[str, Any] = dict(zip(names, widths, strict=True))
        report = quantize_rs.quantize(digits, None, layer_bits=layer_bits, check="none")
        made.append((report.bytes_after, sum(noise[choice] for choice in layer_bits.items())))
    before = digits.stat().st_size
    for part in np.linspace(0.15, 0.95, 33):
        found = quantize_rs.mixed_precision(digits, target_size=part, bits=(8, 4))
        lost = sum(noise[layer.name, layer.bits or "float32"] for layer in found.layers)
        least = min(noise for size, noise in made if size <= part * before)
        assert lost <= least * 1.000001, part


def test_an_sqnr_is_met_and_no_byte_more_than_needed_is_kept(digits: Path, images: Images) -> None:
    sizes = []
    for least in (15.0, 25.0, 35.0):
        found = quantize_rs.mixed_precision(digits, images, min_sqnr=least, bits=(8, 4))
        report = quantize_rs.quantize(digits, None, layer_bits=found.layer_bits)
        assert report.model is not None
        measured = quantize_rs.compare(digits, report.model, images, latency=False).sqnr_db
        assert measured == found.sqnr_db
        assert measured is not None
        assert measured >= least
        sizes.append(found.bytes_after)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert "SQNR" in str(found)
    assert found.to_dict()["layer_bits"] == found.layer_bits


def test_what_cannot_be_met_is_refused(digits: Path, images: Images) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "target_size"),
        ({"target_size": 0.5, "max_accuracy_drop": 1}, "max_accuracy_drop"),
        ({"target_size": 0.5, "min_sqnr": 20}, "target_size"),
        ({"target_size": 0.01}, "target_size"),
        ({"target_size": -3}, "target_size"),
        ({"target_size": "150%"}, "target_size"),
        ({"min_sqnr": 20}, "min_sqnr"),
        ({"min_sqnr": float("nan"), "data": images}, "min_sqnr"),
        ({"target_size": 0.5, "bits": ()}, "bits"),
        ({"target_size": 0.5, "bits": (7,)}, "bits"),
    ]
    for options, option in cases:
        with pytest.raises(OptionError) as refused:
            quantize_rs.mixed_precision(digits, **options)
        assert refused.value.option == option, options
    with pytest.raises(
        AccuracyCriteriaError, match="no layer can be quantized with these bit widths: `"
    ) as raised:
        quantize_rs.mixed_precision(digits, images, min_sqnr=150, bits=(4,))
    plan = quantize_rs.open(digits).plan(weights="int4", layer_bits={"*": 4})
    alone = quantize_rs.sensitivity(plan, images)
    best = alone.layers[-1]
    assert raised.value.measured == pytest.approx(best.score)
    assert f"`{best.name}` alone in 4 bits" in str(raised.value)


def test_what_no_layer_bears_alone_is_not_among_the_steps(digits: Path, images: Images) -> None:
    """The layer that saves most is useless in few bits; the others are still quantized."""
    proto = onnx.load(digits)
    weights = [tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1]
    largest = max(weights, key=lambda tensor: int(np.prod(tensor.dims)))
    values = onnx.numpy_helper.to_array(largest).copy()
    values.flat[0] *= 3000
    largest.CopyFrom(onnx.numpy_helper.from_array(values, largest.name))
    bad = proto.SerializeToString()
    alone = quantize_rs.sensitivity(bad, images, activations=None)
    assert alone.layers[0].name == largest.name
    least = alone.layers[0].score + 3
    found = quantize_rs.mixed_precision(bad, images, min_sqnr=least, bits=(8,))
    assert found.sqnr_db is not None
    assert found.sqnr_db >= least
    widths = {layer.name: layer.bits for layer in found.layers}
    assert widths.pop(largest.name) is None
    assert 8 in widths.values()


def test_progress_counts_on_from_model_to_model(digits: Path, images: Images) -> None:
    seen: list[tuple[int, int | None]] = []
    quantize_rs.mixed_precision(
        digits,
        images,
        min_sqnr=25,
        bits=(8, 4),
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert done[-1] > 10 * len(images)
    assert {total for _, total in seen} == {None}


def test_bits_that_a_format_does_not_have_are_refused_by_that_name(digits: Path) -> None:
    with pytest.raises(
        OptionError, match="has 4, but output_format dynamic supports weights of 8 bits"
    ):
        quantize_rs.mixed_precision(digits, target_size=0.5, output_format="dynamic")
    with pytest.raises(OptionError, match="has 16, but output_format matmul_nbits") as refused:
        quantize_rs.mixed_precision(
            digits, target_size=0.5, bits=(16, 4), output_format="matmul_nbits"
        )
    assert refused.value.option == "bits"


def test_activations_get_16_bits_where_an_sqnr_needs_them(digits: Path) -> None:
    samples = np.load(quantize_rs.examples.digits().calibration)[:24]
    narrow = quantize_rs.quantize_with_calibration(
        digits, None, samples, engine="onnxruntime", check="none"
    )
    assert narrow.model is not None
    usual = quantize_rs.compare(
        digits, narrow.model, samples, latency=False, engine="onnxruntime"
    ).sqnr_db
    assert usual is not None
    counts = []
    for least in (usual - 2, usual + 2, 44.0):
        found = quantize_rs.mixed_precision(
            digits, samples, activations="uint8", min_sqnr=least, engine="onnxruntime"
        )
        wide = found.activation_types
        report = quantize_rs.quantize_with_calibration(
            digits, None, samples, activation_types=wide, engine="onnxruntime", check="none"
        )
        assert report.model is not None
        measured = quantize_rs.compare(
            digits, report.model, samples, latency=False, engine="onnxruntime"
        ).sqnr_db
        assert measured == found.sqnr_db
        assert measured is not None
        assert measured >= least
        assert {value.name for value in found.activations if value.qtype == "uint16"} == {*wide}
        assert len(found.activations) > len(wide)
        counts.append(len(wide))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0
    # Those that gain most come first, and with one fewer the goal is missed.
    gains = [value.sqnr_db or np.inf for value in found.activations]
    assert gains == sorted(gains, reverse=True)
    chosen = [value.name for value in found.activations[: len(wide)]]
    assert {*wide} == {*chosen}
    fewer = quantize_rs.quantize_with_calibration(
        digits,
        None,
        samples,
        activation_types=dict.fromkeys(chosen[:-1], "uint16"),
        engine="onnxruntime",
        check="none",
    )
    assert fewer.model is not None
    missed = quantize_rs.compare(
        digits, fewer.model, samples, latency=False, engine="onnxruntime"
    ).sqnr_db
    assert missed is not None
    assert missed < least
    text = str(found)
    assert "16 alone dB" in text
    assert found.activations[0].name in text
    assert "activations in 16 bits" in repr(found)
    with pytest.raises(
        AccuracyCriteriaError,
        match=r"the best that 16 bits for activations reach, with \d of 5, is 4\d\.",
    ):
        quantize_rs.mixed_precision(
            digits, samples, activations="uint8", min_sqnr=90, engine="onnxruntime"
        )


def wide_value(path: Path) -> npt.NDArray[np.float32]:
    """A network of which one value is far from 0, and only its differences count."""
    rng = np.random.default_rng(3)
    differences = np.zeros((16, 16), np.float32)
    for column in range(16):
        first, second = rng.choice(16, 2, replace=False)
        differences[[first, second], column] = 1, -1
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Add", ["a", "far"], ["wide"]),
        onnx.helper.make_node("MatMul", ["wide", "v"], ["c"]),
        onnx.helper.make_node("Relu", ["c"], ["d"]),
        onnx.helper.make_node("MatMul", ["d", "u"], ["y"]),
    ]
    tensors = {
        "w": rng.standard_normal((16, 16)).astype(np.float32) / 4,
        "far": np.full(16, 60, np.float32),
        "v": differences,
        "u": rng.standard_normal((16, 16)).astype(np.float32) / 4,
    }
    graph = onnx.helper.make_graph(
        nodes,
        "wide",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", 16])],
        [onnx.helper.make_tensor_value_info("y", 1, ["n", 16])],
        [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return rng.standard_normal((32, 1, 16)).astype(np.float32)


def test_the_wide_value_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    samples = wide_value(path)

    def error(outputs: Any, _samples: Any) -> float:
        return -float(np.square([one["y"] for one in outputs]).mean())

    found = quantize_rs.mixed_precision(
        path, samples, activations="int8", min_sqnr=34, engine="onnxruntime"
    )
    assert found.activation_types == {"wide": "int16"}
    with_metric = quantize_rs.mixed_precision(
        path,
        samples,
        activations="int8",
        max_accuracy_drop=0.01,
        metric=error,
        engine="onnxruntime",
    )
    assert with_metric.accuracy is not None
    assert with_metric.accuracy.drop <= 0.01


def without_saturation(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Weights of which no two neighbors have more than 127 steps together, on any processor."""
    values[0] = 2 * np.abs(values).max(axis=0)
    values[1] = 0
    return values.astype(np.float32)


def test_activations_are_ranked_on_samples_that_gave_no_range(tmp_path: Path) -> None:
    """One branch has larger values; in the other, half of the samples goes further."""
    path = tmp_path / "branches.onnx"
    rng = np.random.default_rng(5)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["even"]),
        onnx.helper.make_node("MatMul", ["z", "w"], ["uneven"]),
        onnx.helper.make_node("MatMul", ["even", "v"], ["a"]),
        onnx.helper.make_node("MatMul", ["uneven", "v"], ["b"]),
        onnx.helper.make_node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    weights = [
        onnx.numpy_helper.from_array(without_saturation(rng.standard_normal((16, 16)) / 4), name)
        for name in "wv"
    ]
    infos = [onnx.helper.make_tensor_value_info(name, 1, ["n", 16]) for name in "xzy"]
    graph = onnx.helper.make_graph(nodes, "branches", infos[:2], infos[2:], weights)
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    samples = [
        {
            "x": rng.standard_normal((4, 16)).astype(np.float32) * 3,
            "z": rng.standard_normal((4, 16)).astype(np.float32) * (1 + (at >= 16)),
        }
        for at in range(32)
    ]
    found = quantize_rs.mixed_precision(
        path, samples, activations="uint8", min_sqnr=39, engine="onnxruntime"
    )
    order = [value.name for value in found.activations]
    assert order[0] == "z", found


def test_a_choice_of_activations_has_options_of_its_own(digits: Path, images: Images) -> None:
    def chosen(**options: Any) -> None:
        given: dict[str, Any] = {"activations": "uint8", "min_sqnr": 30, **options}
        data = given.pop("data", images)
        quantize_rs.mixed_precision(digits, data, **given)

    for options, what in (
        ({"data": None}, "activations need data"),
        ({"target_size": 0.5}, "target_size has no effect on activations"),
        ({"bits": (8,)}, "bits has no effect with activations"),
        ({"activations": "uint16"}, "activations is uint16, expected uint8 or int8"),
        ({"max_accuracy_drop": 0.1}, "min_sqnr or max_accuracy_drop is required, but not both"),
        ({"min_sqnr": None}, "min_sqnr or max_accuracy_drop is required, but not both"),
        ({"min_sqnr": float("nan")}, "min_sqnr is NaN"),
    ):
        with pytest.raises(OptionError, match=what):
            chosen(**options)


def test_the_command_line_writes_the_model_with_wide_activations(
    digits: Path, tmp_path: Path
) -> None:
    samples = np.load(quantize_rs.examples.digits().calibration)[:24]
    np.save(tmp_path / "s.npy", samples)
    line = [sys.executable, "-m", "quantize_rs", "mixed-precision", str(digits)]
    line += ["--calibration-data", str(tmp_path / "s.npy"), "--activations", "uint8"]
    line += ["--min-sqnr", "44", "-o", str(tmp_path / "wide.onnx")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "uint16" in done.stdout
    found = quantize_rs.compare(digits, tmp_path / "wide.onnx", samples, latency=False)
    assert found.sqnr_db is not None
    assert found.sqnr_db >= 44


def test_a_quantized_model_is_not_blamed_on_layer_bits(digits: Path, images: Images) -> None:
    quantized = quantize_rs.quantize(digits, None, check="none").model
    assert quantized is not None
    with pytest.raises(AccuracyCriteriaError, match="no layer can be quantized"):
        quantize_rs.mixed_precision(quantized, images, min_sqnr=60, engine="tract")
    whole = quantize_rs.quantize_with_calibration(digits, None, images).model
    assert whole is not None
    goals: list[dict[str, Any]] = [{"min_sqnr": 60}, {"target_size": 0.5}]
    for goal in goals:
        with pytest.raises(UnsupportedModelError, match="nothing was quantized: the model holds"):
            quantize_rs.mixed_precision(whole, images, **goal)


@pytest.mark.parametrize("goal", [{"min_sqnr": 20.0}, {"target_size": 0.5}])
def test_a_model_with_nothing_to_quantize_is_refused_with_the_reason(goal: dict[str, Any]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }""")
    samples = np.ones((8, 4), np.float32)
    why = "nothing was quantized: no operator multiplies by a float constant"
    with pytest.raises(UnsupportedModelError, match=why):
        quantize_rs.mixed_precision(model, samples, **goal)
    # A size that the model has already needs no layer.
    assert quantize_rs.mixed_precision(model, samples, target_size=1e6).layers == ()


def labels(digits: Path) -> onnx.ModelProto:
    """The model with its best class alone as output."""
    proto = onnx.load(digits)
    scores = proto.graph.output[0].name
    proto.graph.node.append(helper.make_node("ArgMax", [scores], ["best"], "best", axis=1))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, None))
    return proto


def test_without_float_outputs_weights_decide(digits: Path, images: Images) -> None:
    found = quantize_rs.mixed_precision(labels(digits), images, target_size=0.3)
    bits = {layer.bits for layer in found.layers}
    assert bits != {2}, found
    with pytest.raises(OptionError, match="needs a float output"):
        quantize_rs.mixed_precision(labels(digits), images, min_sqnr=30)
    with pytest.raises(OptionError, match="needs a float output"):
        quantize_rs.mixed_precision(labels(digits), images, min_sqnr=30, activations="uint8")


def test_a_metric_gets_the_integers_of_a_model_without_float_outputs(
    digits: Path, images: Images
) -> None:
    model = labels(digits)
    small = quantize_rs.quantize(model, None).model
    assert small is not None
    seen = []

    def first(outputs: list[dict[str, Any]], _: Any) -> float:
        seen.extend(outputs)
        return float(len(outputs))

    found = quantize_rs.compare(model, small, images, metric=first)
    assert found.accuracy is not None
    assert [list(output) for output in seen] == [["best"]] * len(seen)
