"""Samples that come one after the other: lists, generators, data loaders, readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from image_data import GOOD, Array, conv, resized
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader
from PIL import Image

import quantize_rs
from quantize_rs import CalibrationError, ImageFolder, Plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("form", ["arrays", "dicts", "reader"])
def test_a_buffer_may_be_filled_again(plan: Plan, form: str, threads: int) -> None:
    samples = np.random.default_rng(1).random((60, 3, 8, 6), np.float32)
    samples *= np.arange(1, 61, dtype=np.float32)[:, None, None, None]
    buffer = np.empty((1, 3, 8, 6), np.float32)

    def filled() -> Iterator[Array]:
        for sample in samples:
            buffer[0] = sample
            yield buffer
        buffer[:] = 1e9

    class Refilling:
        def __init__(self) -> None:
            self.items = filled()

        def get_next(self) -> dict[str, Array] | None:
            item = next(self.items, None)
            return None if item is None else {"x": item}

    data: dict[str, Any] = {
        "arrays": filled(),
        "dicts": ({"x": item} for item in filled()),
        "reader": Refilling(),
    }
    found = plan.calibrate(data[form], method="moving_average", threads=threads)
    assert found == plan.calibrate(samples, method="moving_average")


def recurrent() -> onnx.ModelProto:
    """A recurrent network."""
    rng = np.random.default_rng(0)
    weights = {"w": (1, 16, 10), "r": (1, 16, 4), "last": (4, 3)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["steps"], hidden_size=4),
        helper.make_node("MatMul", ["steps", "last"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq", 1, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
@pytest.mark.parametrize("named", [False, True])
def test_a_sequence_is_one_sample(engine: str, named: bool) -> None:
    plan = quantize_rs.open(recurrent()).plan(activations="uint8")
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(length, 1, 10)).astype(np.float32) for length in (5, 5, 9)]
    items: list[Any] = [{"x": one} if named else one for one in sequences]
    found = plan.calibrate(items, engine=engine)
    assert found.samples == 3
    steps = plan.calibrate([one[None] for whole in sequences for one in whole], engine=engine)
    assert steps.samples == 19
    assert steps.values != found.values, "what a step shows depends on those before it"


def test_items_that_are_no_numbers_are_numbered(plan: Plan) -> None:
    for item, message in [
        (np.array(["a"]), r"an array of <U1 holds no plain numbers \(item 1\)"),
        ({"x": np.array([None])}, r"`x`: an array of object holds .* but a null \(item 1\)"),
        ({"x": None}, r"^`x`: None is no array of numbers \(item 1\)"),
        ({"x": [[1.0], [1.0, 2.0]]}, r"^`x`: a list does not become an array: .* \(item 1\)"),
        ("a.png", r"'a\.png' is a path, and paths stand alone; a pattern names several \(item 1\)"),
        (GOOD[:1].astype(np.complex64), "complex64 cannot be converted to float32"),
    ]:
        with pytest.raises(CalibrationError, match=message):
            plan.calibrate([GOOD[:1], item])


def test_an_item_without_rows_is_named(plan: Plan) -> None:
    batch = np.ones((4, 3, 8, 6), np.float32)
    for data in ([*[batch] * 8, batch[:0]], iter([*[batch] * 8, {"x": batch[:0]}])):
        with pytest.raises(CalibrationError, match=r"^item 8 has no rows: leave it out"):
            plan.calibrate(data)


def test_arrays_without_names_are_not_guessed() -> None:
    plan = quantize_rs.open(oracle.model("two_inputs")).plan(activations="uint8")
    for item in [(GOOD, GOOD), [GOOD, GOOD]]:
        with pytest.raises(
            CalibrationError,
            match=r"the model has 2 inputs, .*: name the one that the array belongs to",
        ):
            plan.calibrate([item])


def test_no_sample_of_a_list_is_lost(plan: Plan) -> None:
    alike = (
        r"a list of 3 arrays of the same shape, .* stack them, or pass them one by one.*sample 0"
    )
    lists: list[list[Any]] = [list(GOOD[:3]), [Tensor(one) for one in GOOD[:3]]]
    for item in lists:
        with pytest.raises(CalibrationError, match=alike) as caught:
            plan.calibrate([item])
        assert caught.value.value == "x"
    firsts: list[Any] = [(GOOD, GOOD), [GOOD, np.arange(4)], (GOOD,), [GOOD]]
    for first in firsts:
        assert plan.calibrate([first]).samples == 4


class Tensor:
    """The part of the interface of a torch tensor that is used."""

    def __init__(self, values: Array) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values


class DataLoader:
    """Like that of torch: batches of images and labels, the last one short, any number of times."""

    def __init__(self, images: Array, batch_size: int) -> None:
        self.images, self.batch_size = images, batch_size

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        for start in range(0, len(self.images), self.batch_size):
            images = self.images[start : start + self.batch_size]
            yield [Tensor(images), Tensor(np.zeros(len(images), np.int64))]


class Dataset:
    """As a data set of torch: without an `__iter__`, and its items need not end."""

    def __init__(self, images: Array) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        assert index < len(self.images)
        return self.images[index], 3


class Streamed:
    """An iterable whose length is that of a class that has none."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Array]:
        return iter(GOOD)


def test_memory_is_an_array_and_a_length_need_not_be_known(plan: Plan) -> None:
    expected = plan.calibrate(GOOD)
    for samples in (GOOD.data, Streamed()):
        assert plan.calibrate(samples) == expected
        assert plan.calibrate(quantize_rs.Samples(samples, lambda image: image)) == expected


def test_a_data_set_without_an_iterator_is_taken_by_its_length(plan: Plan) -> None:
    images = np.random.default_rng(3).random((6, 3, 8, 6), np.float32)
    ranges = plan.calibrate(Dataset(images))
    assert ranges.samples == 6
    assert ranges == plan.calibrate(images)
    doubled = quantize_rs.Samples(Dataset(images), lambda image: image * 2)
    assert plan.calibrate(doubled) == plan.calibrate(images * 2)
    counts: list[tuple[int, int | None]] = []
    plan.calibrate(Dataset(images), progress=lambda *count: counts.append(count))
    assert counts[-1] == (6, 6)


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_a_data_loader_of_images_and_labels(plan: Plan, batch_size: int) -> None:
    loader = DataLoader(GOOD, batch_size)
    for _ in range(2):
        found = plan.calibrate(loader)
        assert found == plan.calibrate(GOOD)
        assert found.samples == 4


@pytest.mark.parametrize(
    ("data", "total"),
    [
        (list(GOOD), 4),
        (DataLoader(GOOD, 1), 4),
        (DataLoader(GOOD, 2), 4),
        (DataLoader(GOOD, 3), 6),  # the length of the last batch is unknown beforehand
        (iter(GOOD), None),
    ],
)
def test_the_samples_of_a_list_are_counted_beforehand(
    plan: Plan, data: Any, total: int | None
) -> None:
    calls: list[tuple[int, int | None]] = []
    found = plan.calibrate(data, progress=lambda done, total: calls.append((done, total)))
    assert found == plan.calibrate(GOOD)
    assert {total for _, total in calls} == {total}
    limited: list[int | None] = []
    if total is not None:
        plan.calibrate(data, limit=2, progress=lambda _, total: limited.append(total))
        assert set(limited) == {2}


class ImageReader(CalibrationDataReader):  # type: ignore[misc]
    """A typical reader for onnxruntime's own tool."""

    def __init__(self, folder: Path, batch_size: int = 1, input_size: tuple[int, int] = (8, 6)):
        self.paths = sorted(folder.glob("*.png"))
        self.batch_size, self.input_size = batch_size, input_size
        self.index = 0

    def preprocess(self, path: Path) -> Array:
        height, width = self.input_size
        with Image.open(path) as image:
            small = resized(image.convert("RGB"), width, height, "bilinear")
        scaled: Array = np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)
        return scaled

    def get_next(self) -> dict[str, Array] | None:
        if self.index >= len(self.paths):
            return None
        paths = self.paths[self.index : self.index + self.batch_size]
        self.index += len(paths)
        return {"x": np.stack([self.preprocess(path) for path in paths])}

    def rewind(self) -> None:
        self.index = 0


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_reader_of_onnxruntime_gives_what_the_folder_gives(
    plan: Plan, image_folder: Path, batch_size: int
) -> None:
    reader = ImageReader(image_folder, batch_size)
    expected = plan.calibrate(ImageFolder(image_folder))
    found = plan.calibrate(reader)
    assert found == expected
    assert found.samples == 40
    with pytest.raises(CalibrationError, match="no calibration samples"):
        plan.calibrate(reader)  # the reader is exhausted
    reader.rewind()
    assert plan.calibrate(reader) == expected


def test_what_a_reader_or_a_generator_raises_comes_out_as_it_is(
    plan: Plan, image_folder: Path
) -> None:
    class Failing(ImageReader):
        def preprocess(self, path: Path) -> Array:
            if self.index > 3:
                raise OSError("the disk is on fire")
            return super().preprocess(path)

    with pytest.raises(OSError, match="the disk is on fire"):
        plan.calibrate(Failing(image_folder))

    def samples() -> Iterator[Array]:
        yield GOOD[:1]
        raise StopIteration  # Python turns this mistake into a RuntimeError

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        plan.calibrate(samples())

    def interrupted() -> Iterator[Array]:
        yield GOOD[:1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.calibrate(interrupted())


def parsed(text: str, **constants: Array) -> onnx.ModelProto:
    made: onnx.ModelProto = onnx.parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return made


def calibrated(model: onnx.ModelProto, samples: list[dict[str, Array]], engine: str) -> float:
    """How far the outputs of the quantized model are from those of the float model."""
    data = model.SerializeToString()
    report = quantize_rs.quantize_with_calibration(data, None, samples, engine=engine)
    assert report.model is not None
    assert report.samples == len(samples), "an item is one sample"
    return min(
        oracle.sqnr(oracle.ort(data, sample), oracle.ort(report.model, sample))
        for sample in samples[:4]
    )


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
def test_rows_that_are_put_together_are_one_sample(engine: str) -> None:
    """A cloud of points and a graph, whose first axis is called as a batch would be."""
    rng = np.random.default_rng(3)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    points = parsed(
        """<ir_version: 8, opset_import: ["" : 17]> g(float[N, 3] points) => (float[1, 10] y) {
            h = Gemm <transB = 1> (points, w, b)
            r = Relu(h)
            s = ReduceSum <keepdims = 1> (r, axes)
            y = Gemm <transB = 1> (s, v, c)
        }""",
        w=floats(64, 3),
        b=floats(64),
        v=floats(10, 64),
        c=floats(10),
        axes=np.array([0]),
    )
    clouds = [{"points": floats(30 + i % 7, 3)} for i in range(32)]
    assert calibrated(points, clouds, engine) > 25
    graph = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g(float[N, 16] x, float[N, N] edges) => (float[N, 8] y) {
            h = MatMul(x, w)
            m = MatMul(edges, h)
            r = Relu(m)
            y = MatMul(r, v)
        }""",
        w=floats(16, 32),
        v=floats(32, 8),
    )
    graphs = [
        {"x": floats(9 + i % 5, 16), "edges": np.eye(9 + i % 5, dtype=np.float32)}
        for i in range(32)
    ]
    assert calibrated(graph, graphs, engine) > 25


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
@pytest.mark.parametrize("lengths", [(0, 4, 8), (4, 0, 8), (0, 0, 0)])
def test_a_cache_may_be_empty(engine: str, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((16, 16)).astype(np.float32) / 4
    model = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g(float[1, s, 16] x, float[1, p, 16] past) => (float[1, s, 16] y, float[1, t, 16] present) {
            k = MatMul(x, w)
            present = Concat <axis = 1> (past, k)
            kt = Transpose <perm = [0, 2, 1]> (present)
            scores = MatMul(x, kt)
            p = Softmax <axis = -1> (scores)
            y = MatMul(p, present)
        }""",
        w=weight,
    )
    samples = [
        {
            "x": rng.standard_normal((1, 4, 16)).astype(np.float32),
            "past": rng.standard_normal((1, lengths[i % 3], 16)).astype(np.float32),
        }
        for i in range(33)
    ]
    assert calibrated(model, samples, engine) > 20
