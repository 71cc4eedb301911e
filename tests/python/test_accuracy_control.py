"""Accuracy criteria: a model that misses them is reverted layer by layer, or refused."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import pytest
from graphs import built
from onnx import helper

import quantize_rs
from quantize_rs import AccuracyCriteriaError, OptionError

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def held_out() -> tuple[Images, Labels]:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    with np.load(folder / "test.npz") as found:
        return found["images"][:200], found["labels"][:200]


@pytest.fixture(scope="module")
def images() -> Images:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    found: Images = np.load(folder / "calibration.npy")[:24]
    return found


def spoilt(digits: Path, place: int, factor: float = 300) -> tuple[bytes, str]:
    """A model with an outlier in a weight, for which one scale is too coarse, and its name."""
    proto = onnx.load(digits)
    weights = [tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1]
    tensor = weights[place]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] *= factor
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return proto.SerializeToString(), tensor.name


@pytest.mark.parametrize("place", [0, 1])
def test_a_planted_bad_layer_falls_back_by_itself(digits: Path, images: Images, place: int) -> None:
    bad, name = spoilt(digits, place)
    options: dict[str, Any] = {"equalize": False, "symmetric": True, "include": ["*"]}
    measured = quantize_rs.quantize(bad, None, verify=images, **options).accuracy_control
    assert measured is not None
    assert measured.sqnr_db is not None
    assert len(measured.attempts) == 1
    assert measured.attempts[0].holds
    assert measured.held_out
    least = measured.sqnr_db + 3
    report = quantize_rs.quantize(bad, None, verify=images, min_sqnr=least, **options)
    verified = report.accuracy_control
    assert verified is not None
    assert verified.criteria.min_sqnr == least
    assert [layer.name for layer in verified.float_layers] == [name]
    assert [attempt.holds for attempt in verified.attempts] == [False, True]
    # `compare` measures the same SQNR, and the options alone give the same model.
    assert report.model is not None
    found = quantize_rs.compare(bad, report.model, images, latency=False)
    assert found.sqnr_db == verified.sqnr_db
    assert found.sqnr_db is not None
    assert found.sqnr_db >= least
    asked = quantize_rs.quantize(bad, None, layer_bits={name: "float32"}, **options)
    assert asked.model == report.model
    (row,) = (value for value in report.values if value.name == name)
    assert row.why == "not quantized: left float to meet min_sqnr"
    assert not row.quantized
    assert f"`{name}` left float" in str(report)
    assert name in report.html()
    assert json.loads(report.to_json())["verified"]["float_layers"][0]["name"] == name


def test_samples_of_the_calibration_are_not_held_out(
    digits: Path, images: Images, tmp_path: Path
) -> None:
    path, copy = tmp_path / "images.npy", tmp_path / "copy.npy"
    np.save(path, images)
    np.save(copy, images)
    more = np.concatenate([images, images])
    cases: list[tuple[Any, Any, bool]] = [
        (path, path, False),
        (path, str(tmp_path / "." / "images.npy"), False),
        (path, copy, True),
        (images, images, False),
        (more[:24], more[12:], False),
        (more[:24], more[24:], True),
        ({"image": images}, images, False),
        (path, images, True),
        ("random", "random", False),
    ]
    for data, verify, held_out in cases:
        report = quantize_rs.quantize_with_calibration(digits, None, data, verify=verify)
        assert report.accuracy_control is not None
        assert report.accuracy_control.held_out is held_out, (data, verify)
        said = any(
            "accuracy was measured on the calibration samples" in note for note in report.notes
        )
        assert said is not held_out


def test_the_result_does_not_depend_on_threads(digits: Path, images: Images) -> None:
    options: dict[str, Any] = {"verify": images, "min_sqnr": 22.0, "bits": 4}
    one, many = (quantize_rs.quantize(digits, None, threads=n, **options) for n in (1, 4))
    assert one.model == many.model
    assert one.accuracy_control == many.accuracy_control
    assert one.accuracy_control is not None
    assert len(one.accuracy_control.float_layers) > 0


def test_accuracy_falls_back_too(digits: Path, held_out: tuple[Images, Labels]) -> None:
    images, labels = held_out
    options: dict[str, Any] = {"verify": images, "labels": labels, "bits": 2}
    plain = quantize_rs.quantize(digits, None, **options).accuracy_control
    assert plain is not None
    assert plain.accuracy is not None
    assert plain.accuracy.drop > 0.1
    found = quantize_rs.quantize(digits, None, max_accuracy_drop=0.1, **options).accuracy_control
    assert found is not None
    assert found.accuracy is not None
    assert found.accuracy.drop <= 0.1
    assert len(found.float_layers) > 0


@pytest.mark.parametrize("name", ["labels.npy", "labels.txt", "labels.csv"])
def test_labels_come_from_a_file(digits: Path, held_out: tuple[Images, Labels], name: str) -> None:
    images, labels = held_out
    if name == "labels.npy":
        np.save(name, labels.astype(np.uint8))
    else:
        Path(name).write_text({"txt": "\n", "csv": ", "}[name[-3:]].join(map(str, labels)) + "\n")
    for metric in (None, "top5"):
        options: dict[str, Any] = {"verify": images, "metric": metric}
        expected = quantize_rs.quantize(digits, None, labels=labels, **options).accuracy_control
        for path in (name, Path(name)):
            found = quantize_rs.quantize(digits, None, labels=path, **options).accuracy_control
            assert found == expected
    measured = quantize_rs.compare(digits, digits, images, name, latency=False).accuracy
    assert measured is not None
    assert measured.labels == len(labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.txt", b"1\n2.5\n", r"'labels.txt': '2\.5' is no whole number"),
        ("labels.bin", b"\xff\xfe\x00", "'labels.bin' are no text"),
        ("labels.npy", b"\x93NUMPY", "'labels.npy' cannot be read"),
        ("labels.npy", None, "are of float64, expected whole numbers, or a path"),
    ],
)
def test_a_file_without_labels_is_refused(
    digits: Path, images: Images, name: str, content: bytes | None, message: str
) -> None:
    if content is None:
        np.save(name, np.full(24, 0.5))
    else:
        Path(name).write_bytes(content)
    with pytest.raises(OptionError, match=message) as refused:
        quantize_rs.compare(digits, digits, images, name, latency=False)
    assert refused.value.option == "labels"
    with pytest.raises(FileNotFoundError, match=r"none\.npy"):
        quantize_rs.compare(digits, digits, images, "none.npy", latency=False)


@pytest.mark.parametrize("kind", ["array", "generator", "reused", "reader"])
def test_the_samples_of_a_calibration_serve_and_the_report_says_so(
    digits: Path, images: Images, kind: str
) -> None:
    def one_by_one() -> Iterator[Images]:
        for image in images:
            yield image[None]

    def in_one_place() -> Iterator[Images]:
        place = np.empty_like(images[:1])
        for image in images:
            place[0] = image
            yield place

    class Reader:
        def __init__(self) -> None:
            self.left = one_by_one()

        def get_next(self) -> dict[str, Images] | None:
            image = next(self.left, None)
            return None if image is None else {"image": image}

    data: Any = {
        "array": images,
        "generator": one_by_one(),
        "reused": in_one_place(),
        "reader": Reader(),
    }[kind]
    options: dict[str, Any] = {"limit": 16}
    plain = quantize_rs.quantize_with_calibration(digits, None, images, **options)
    assert plain.accuracy_control is None
    report = quantize_rs.quantize_with_calibration(digits, None, data, min_sqnr=20, **options)
    assert report.model == plain.model
    found = report.accuracy_control
    assert found is not None
    assert not found.held_out
    assert (found.samples, report.samples) == (16, 16)
    assert any("accuracy was measured on the calibration samples" in note for note in report.notes)
    exact = quantize_rs.compare(digits, report.model or b"", images[:16], latency=False)
    assert exact.sqnr_db == found.sqnr_db
    # Separate evaluation data is used completely.
    own = quantize_rs.quantize_with_calibration(
        digits, None, images, verify=images * np.float32(0.9), min_sqnr=20, **options
    )
    assert own.accuracy_control is not None
    assert own.accuracy_control.held_out
    assert (own.accuracy_control.samples, own.samples) == (24, 16)


def test_saved_ranges_are_evaluated_on_other_data(digits: Path, images: Images) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    ranges = plan.calibrate(images)
    with pytest.raises(OptionError, match="validation_data is None, but min_sqnr needs data"):
        quantize_rs.quantize_with_calibration(digits, None, ranges=ranges, min_sqnr=20)
    options: dict[str, Any] = {"ranges": ranges, "verify": images, "target": "x86-avx2"}
    base = quantize_rs.quantize_with_calibration(digits, None, **options)
    assert base.accuracy_control is not None
    assert base.accuracy_control.sqnr_db is not None
    least = base.accuracy_control.sqnr_db + 1
    found = quantize_rs.quantize_with_calibration(
        digits, None, **options, min_sqnr=least
    ).accuracy_control
    assert found is not None
    assert found.sqnr_db is not None
    assert found.sqnr_db >= least
    assert len(found.float_layers) > 0


def test_what_is_missed_is_named_and_nothing_is_written(
    digits: Path, images: Images, tmp_path: Path
) -> None:
    output = tmp_path / "out.onnx"
    plain = quantize_rs.quantize(digits, None, verify=images, bits=4).accuracy_control
    assert plain is not None
    with pytest.raises(AccuracyCriteriaError, match="fall_back reverts layers to float") as refused:
        quantize_rs.quantize(digits, output, bits=4, verify=images, min_sqnr=30, fall_back=False)
    error = refused.value
    assert (error.criterion, error.measured, error.expected) == ("min_sqnr", plain.sqnr_db, 30)
    with pytest.raises(
        AccuracyCriteriaError, match="even with one of 5 layers quantized"
    ) as refused:
        quantize_rs.quantize(digits, output, verify=images, min_sqnr=150)
    assert refused.value.measured is not None
    assert refused.value.measured < 150
    assert not output.exists()


def test_the_error_has_the_candidate_that_comes_closest() -> None:
    """Products whose weights have the heavier tails the later they come: the first is the best."""
    rng = np.random.default_rng(3)
    nodes, constants, value = [], [], "x"
    sizes = [64, 64, 64, 64, 8]
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = rng.standard_normal((rows, columns))
        if index:
            weight *= np.exp(0.7 * index * rng.standard_normal(weight.shape))
        weight /= np.sqrt((weight**2).mean() * rows)
        constants.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
        nodes.append(onnx.helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"]))
        nodes.append(onnx.helper.make_node("Tanh", [f"m{index}"], [f"t{index}"]))
        value = f"t{index}"
    graph = onnx.helper.make_graph(
        nodes[:-1],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", 64])],
        [onnx.helper.make_tensor_value_info("m3", 1, ["n", 8])],
        constants,
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    data = rng.standard_normal((16, 64)).astype(np.float32)
    options: dict[str, Any] = {"bits": 4, "symmetric": True, "validation_data": data}
    alone = []
    for index in range(4):
        names = [f"w{index}"]
        report = quantize_rs.quantize(model, None, include=names, **options).accuracy_control
        assert report is not None
        assert report.sqnr_db is not None
        alone.append(report.sqnr_db)
    assert max(alone) > min(alone) + 5
    with pytest.raises(AccuracyCriteriaError) as refused:
        quantize_rs.quantize(model, None, min_sqnr=60, **options)
    assert refused.value.measured == pytest.approx(max(alone))
    assert f"SQNR is {max(alone):.2f} dB, expected 60" in str(refused.value)


def test_options_that_cannot_be_met_are_refused_before_the_work(
    digits: Path, images: Images
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"min_sqnr": 30}, "validation_data"),
        ({"require_faster": True}, "validation_data"),
        ({"labels": [1]}, "validation_data"),
        ({"verify": images, "max_accuracy_drop": 0.01}, "max_accuracy_drop"),
        ({"verify": images, "max_accuracy_drop": 1.5, "labels": [1]}, "max_accuracy_drop"),
        ({"verify": images, "min_sqnr": float("nan")}, "min_sqnr"),
        ({"verify": images, "labels": [0.5]}, "labels"),
        ({"verify": images, "labels": [1]}, "labels"),
        ({"verify": images, "labels": np.full(24, 10)}, "labels"),
        ({"verify": images, "labels": np.full(24, -1)}, "labels"),
        ({"verify": images, "min_sqnr": "much"}, "min_sqnr"),
        ({"verify": 3}, "validation_data"),
    ]
    for options, option in cases:
        with pytest.raises(OptionError) as refused:
            quantize_rs.quantize(digits, None, **options)
        assert refused.value.option == option, options


def test_a_result_that_is_not_smaller_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [1, 4]) for n in "xy")
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    tiny = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    with caplog.at_level(logging.WARNING, logger="quantize_rs"):
        report = quantize_rs.quantize(tiny, None)
    assert report.bytes_after >= report.bytes_before
    (warning,) = (text for text in report.warnings if "not smaller" in text)
    assert warning in caplog.text


def test_a_slower_result_has_a_suggestion(digits: Path, images: Images) -> None:
    """Convolutions whose activations are quantized at inference time are several times slower."""
    options: dict[str, Any] = {"verify": images, "require_faster": True, "engine": "onnxruntime"}
    with pytest.raises(
        AccuracyCriteriaError, match="calibrate, or keep the layers float"
    ) as refused:
        quantize_rs.quantize(digits, None, output_format="dynamic", **options)
    assert "output format dynamic" not in str(refused.value)


def with_bad_product() -> bytes:
    """Two convolutions, and a Mul between them: one scale rounds its small factors to 0.

    The factors are small where the first convolution is large, so that the product is even.
    """
    rng = np.random.default_rng(0)
    is_large = np.arange(32) < 6
    weights = rng.normal(0, 0.1, (32, 32, 3, 3))
    weights[:, ~is_large] *= 0.01
    constants = {
        "w0": rng.normal(0, 0.3, (32, 3, 3, 3)) * np.where(is_large, 50, 0.03)[:, None, None, None],
        "c": np.where(is_large, 0.02, 30)[:, None, None],
        "w1": weights,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Mul", ["r", "c"], ["m"]),
        helper.make_node("Conv", ["m", "w1"], ["y"], pads=[1] * 4),
    ]
    return built(nodes, constants, ["n", 3, 16, 16])


@pytest.mark.parametrize("name", ["scaling", ""])
def test_an_operator_without_weight_falls_back(name: str) -> None:
    proto = onnx.load_from_string(with_bad_product())
    proto.graph.node[2].name = name
    model = proto.SerializeToString()
    data = np.random.default_rng(1).normal(0, 1, (32, 3, 16, 16)).astype(np.float32)
    # An operator without a name is called by its output.
    name = name or "m"
    ranking = quantize_rs.sensitivity(model, data)
    assert ranking.layers[0].name == name
    assert (ranking.layers[0].op_type, ranking.layers[0].elements) == ("Mul", 0)
    plain = quantize_rs.quantize_with_calibration(model, None, data, check="none")
    assert plain.model is not None
    error = quantize_rs.compare(model, plain.model, data, latency=False).sqnr_db
    assert error is not None
    assert error < 10
    report = quantize_rs.quantize_with_calibration(model, None, data, min_sqnr=25)
    verified = report.accuracy_control
    assert verified is not None
    assert [layer.name for layer in verified.float_layers] == [name]
    # Both convolutions keep their integers, and the options alone give the same model.
    assert report.bytes_after < 1.05 * plain.bytes_after
    asked = quantize_rs.quantize_with_calibration(model, None, data, excluded_layers=[name])
    assert asked.model == report.model
    # Without a criterion, the check of the outputs finds the operator, where no sums saturate.
    options: dict[str, Any] = {"target": "x86-avx2"}
    checked = quantize_rs.quantize_with_calibration(model, None, data, **options)
    asked = quantize_rs.quantize_with_calibration(
        model, None, data, excluded_layers=[name], **options
    )
    assert checked.model == asked.model
    assert any(text.startswith(f"`{name}` stays float: ") for text in checked.warnings)


def test_layers_that_turn_out_not_to_be_needed_are_quantized_again() -> None:
    """The first layer of the ranking is of no use as long as the second is quantized."""
    rng = np.random.default_rng(0)
    is_large = np.arange(32) < 6
    weights = rng.normal(0, 0.1, (32, 32, 3, 3))
    weights[:, ~is_large] *= 0.01
    constants = {
        "w0": rng.normal(0, 0.3, (32, 3, 3, 3)),
        "c": np.where(is_large, 0.1, 32)[:, None, None],
        "w1": weights * np.where(is_large, 100, 0.3)[:, None, None],
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Mul", ["r", "c"], ["m"], name="scaling"),
        helper.make_node("Conv", ["m", "w1"], ["y"], pads=[1] * 4),
    ]
    model = built(nodes, constants, ["n", 3, 16, 16])
    data = rng.normal(0, 1, (32, 3, 16, 16)).astype(np.float32)
    report = quantize_rs.quantize_with_calibration(model, None, data, min_sqnr=25)
    verified = report.accuracy_control
    assert verified is not None
    assert [attempt.float_layers for attempt in verified.attempts] == [
        (),
        ("scaling",),
        ("w1",),
    ]


@pytest.mark.parametrize("target", ["qnn", "x86"])
def test_activations_get_16_bits_where_all_is_computed_in_integers(
    digits: Path, images: Images, target: str
) -> None:
    options: dict[str, Any] = {"target": target, "calibration_data": images, "verify": images}
    options["engine"] = "onnxruntime"
    before = quantize_rs.quantize_with_calibration(digits, None, **options).accuracy_control
    assert before is not None
    assert before.sqnr_db is not None
    least = before.sqnr_db + 3
    report = quantize_rs.quantize_with_calibration(digits, None, min_sqnr=least, **options)
    verified = report.accuracy_control
    assert verified is not None
    if target == "x86":
        # Operators with activations of 16 bits are no faster there than in float.
        assert verified.float_layers
        assert not verified.wide_layers
        return
    assert verified.wide_layers
    assert not verified.float_layers
    assert verified.attempts[-1].wide_layers == tuple(layer.name for layer in verified.wide_layers)
    assert "with activations of 16 bits" in str(report)
    assert report.model is not None
    wide = onnx.TensorProto.UINT16
    points = [
        tensor
        for tensor in onnx.load_from_string(report.model).graph.initializer
        if tensor.data_type == wide
    ]
    assert points
    found = quantize_rs.compare(digits, report.model, images, latency=False)
    assert found.sqnr_db is not None
    assert found.sqnr_db == verified.sqnr_db
    assert found.sqnr_db >= least


def test_an_engine_without_16_bits_reverts_layers_to_float(digits: Path, images: Images) -> None:
    options: dict[str, Any] = {"calibration_data": images, "verify": images, "engine": "tract"}
    options["target"] = "qnn"
    before = quantize_rs.quantize_with_calibration(digits, None, **options).accuracy_control
    assert before is not None
    assert before.sqnr_db is not None
    least = before.sqnr_db + 1
    report = quantize_rs.quantize_with_calibration(digits, None, min_sqnr=least, **options)
    verified = report.accuracy_control
    assert verified is not None
    assert verified.float_layers
    assert not verified.wide_layers


def test_a_layer_that_meets_the_criterion_alone_is_found() -> None:
    """The layer to be reverted last, which is the largest, need not be the most accurate one."""
    rng = np.random.default_rng(0)
    small = rng.normal(size=(32, 32)).astype(np.float32) / 6
    large = rng.standard_t(2, size=(32, 512)).astype(np.float32) / 6
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "small"], ["h"]),
            onnx.helper.make_node("MatMul", ["h", "large"], ["y"]),
        ],
        "two",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 32])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 512])],
        [
            onnx.numpy_helper.from_array(small, "small"),
            onnx.numpy_helper.from_array(large, "large"),
        ],
    )
    opset = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    samples = rng.normal(size=(16, 1, 32)).astype(np.float32)
    options: dict[str, Any] = {"bits": 4, "layer_bits": {"*": 4}, "symmetric": True}

    def alone(excluded: str) -> float:
        report = quantize_rs.quantize(model, None, exclude=[excluded], **options)
        assert report.model is not None
        return quantize_rs.compare(model, report.model, samples).outputs[0].sqnr_db

    of_small, of_large = alone("large"), alone("small")
    assert of_small > of_large + 1
    report = quantize_rs.quantize(
        model, None, validation_data=samples, min_sqnr=of_small - 0.5, **options
    )
    assert report.accuracy_control is not None
    assert [row.name for row in report.accuracy_control.float_layers] == ["large"]


def deep(layers: int) -> bytes:
    """A chain of convolutions that reads images of 3 channels."""
    rng = np.random.default_rng(0)
    constants, nodes, value = {}, [], "x"
    for i in range(layers):
        channels = 16 if i else 3
        constants[f"w{i}"] = rng.normal(0, np.sqrt(2 / 9 / channels), (16, channels, 3, 3))
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
        ]
        value = f"r{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["y"]))
    return built(nodes, constants, ["n", 3, 8, 8])


def test_a_float_layer_stays_float_whatever_else_does() -> None:
    """Whether the first convolution is quantized depends on no option for another layer."""
    model = deep(20)
    rng = np.random.default_rng(1)
    data = rng.normal(0, 0.05, (16, 3, 8, 8)).astype(np.float32)
    # One scale for all is too coarse for the other pixels.
    data[::4, :, 4, 4] = 20
    given: dict[str, Any] = {"calibration_data": data, "method": "minmax", "check": "none"}

    def first(**options: Any) -> bool:
        report = quantize_rs.quantize_with_calibration(model, None, **given, **options)
        return next(value.quantized for value in report.values if value.name == "w0")

    assert not first()
    assert not first(exclude=["conv10"])
    assert not first(exclude=["w1*"])
    assert not first(layer_bits={"w10": "float32"})
    assert not first(layer_bits={"w10": 4})
    # What is included is quantized.
    assert first(include=["conv0", "conv1"])
    report = quantize_rs.quantize_with_calibration(
        model, None, exclude=[f"conv{i}" for i in range(1, 19)], **given
    )
    assert report.model is not None
    reached = quantize_rs.compare(model, report.model, data, latency=False).sqnr_db
    assert reached is not None
    report = quantize_rs.quantize_with_calibration(model, None, min_sqnr=reached - 2, **given)
    assert report.accuracy_control is not None
    assert next(not value.quantized for value in report.values if value.name == "w0")
