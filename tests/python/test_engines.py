"""Engines that run the model: built-in, installed, and objects of the user."""

from __future__ import annotations

import importlib.machinery
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Plan, Ranges

Arrays = dict[str, Any]


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8", per_channel=True)


class Session:
    """ONNX Runtime, through its own Python interface."""

    def __init__(self, change: Callable[[Arrays], Any] = lambda found: found) -> None:
        self.change, self.prepared, self.threads = change, 0, set[int]()

    def prepare(self, model: bytes, outputs: list[str]) -> None:
        self.session, self.outputs = oracle.session(model), outputs
        self.prepared += 1

    def run(self, feed: Arrays) -> Any:
        self.threads.add(threading.get_ident())
        found = self.session.run(self.outputs, feed)
        return self.change(dict(zip(self.outputs, found, strict=True)))


def near(a: Ranges, b: Ranges, part: float = 1e-4) -> bool:
    """Whether the ends of all ranges differ by less than a part of the range."""
    assert a.values.keys() == b.values.keys()
    return all(found.part < part for found in a.diff(b).differences)


@pytest.mark.parametrize("name", ["digits", "conv_depthwise", "transformer_block", "two_inputs"])
def test_the_engines_agree(digits: Path, images: Path, name: str) -> None:
    model: Path = digits if name == "digits" else oracle.model(name)
    data: Any = images if name == "digits" else [oracle.feeds(name) for _ in range(2)]
    plan = quantize_rs.open(model).plan(activations="uint8")
    found = {
        engine: plan.calibrate(data, engine=engine) for engine in ("tract", "onnxruntime", "auto")
    }
    assert found["tract"].engine == "tract"
    assert found["onnxruntime"].engine == "onnxruntime"
    for ranges in (*found.values(), plan.calibrate(data, engine=Session())):
        assert near(ranges, found["tract"])
    auto = found["auto"]
    assert auto.values == found[auto.engine].values
    assert auto.notes[0].startswith(f"run by {auto.engine}")


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("op_type", ["LogSoftmax", "ReduceLogSumExp", "Softplus"])
def test_exponentials_of_large_values_stay_finite(op_type: str, opset: int) -> None:
    """The first sample is tame: the engine is chosen with it."""
    rng = np.random.default_rng(7)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(16, 8)).astype(np.float32), "w")
    attributes: dict[str, Any] = {"ReduceLogSumExp": {"axes": [1]}}.get(op_type, {})
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(op_type, ["x"], ["l"], "op", **attributes),
            onnx.helper.make_node("MatMul", ["l", "w"], ["y"], "product"),
        ],
        "logarithms",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 6, 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = (rng.normal(size=(32, 6, 16)) * 60).astype(np.float32)
    data[0] *= 0.01
    plan = quantize_rs.open(model).plan(activations="uint8")
    expected = plan.calibrate(data, engine="onnxruntime")
    found = plan.calibrate(data)
    assert found.engine == ("onnxruntime" if op_type == "ReduceLogSumExp" else "tract")
    assert near(found, expected)
    if found.engine == "tract":
        assert near(plan.calibrate(data, engine="tract"), expected)


@pytest.mark.parametrize("second", ["MatMul", "Scan"])
def test_graphs_that_tract_would_change_without_end_are_run(second: str) -> None:
    """Its optimizer moves an axis to and fro behind a Scan over the second axis."""
    rng = np.random.default_rng(0)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT

    def constant(name: str, size: int) -> onnx.TensorProto:
        values = rng.normal(size=(size, size)).astype(np.float32)
        return onnx.numpy_helper.from_array(values, name)

    def scan(value: str, result: str) -> onnx.NodeProto:
        body = helper.make_graph(
            [helper.make_node("MatMul", [f"{value}_in", f"{value}_w"], [f"{value}_out"])],
            "body",
            [helper.make_tensor_value_info(f"{value}_in", kind, ["n", 16])],
            [helper.make_tensor_value_info(f"{value}_out", kind, ["n", 16])],
            [constant(f"{value}_w", 16)],
        )
        axes: dict[str, Any] = {"scan_input_axes": [1], "scan_output_axes": [1]}
        return helper.make_node("Scan", [value], [result], body=body, num_scan_inputs=1, **axes)

    last = scan("s", "y") if second == "Scan" else helper.make_node("MatMul", ["left", "s"], ["y"])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), scan("m", "s"), last],
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", 6, 16])],
        [helper.make_tensor_value_info("y", kind, ["n", 6, 16])],
        [constant("w", 16), constant("left", 6)],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = rng.normal(size=(8, 6, 16)).astype(np.float32)
    plan = quantize_rs.open(model).plan(activations="uint8")
    found = plan.calibrate(data, engine="tract")
    assert near(found, plan.calibrate(data, engine="onnxruntime"))


@pytest.mark.parametrize("read", ["int8", "uint8"])
@pytest.mark.parametrize("written", ["int8", "uint8"])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Relu", "Tanh", "Softplus"])
def test_the_engines_agree_on_what_lies_between_integers(
    op_type: str, read: str, written: str
) -> None:
    middle = {"int8": 0, "uint8": 128}
    constants = {
        "scale_x": np.float32(0.05),
        "zero_x": np.array(middle[read], read),
        "scale_y": np.float32(1 / 32),
        "zero_y": np.array(middle[written], written),
    }
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "scale_x", "zero_x"], ["integers_x"]),
        onnx.helper.make_node("DequantizeLinear", ["integers_x", "scale_x", "zero_x"], ["floats"]),
        onnx.helper.make_node(op_type, ["floats"], ["made"]),
        onnx.helper.make_node("QuantizeLinear", ["made", "scale_y", "zero_y"], ["integers_y"]),
        onnx.helper.make_node("DequantizeLinear", ["integers_y", "scale_y", "zero_y"], ["y"]),
    ]
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [4, 16]) for name in "xy")
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], stored)
    integers = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    nodes = [onnx.helper.make_node(op_type, ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    floats = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = np.random.default_rng(0).normal(size=(8, 4, 16)).astype(np.float32)
    ours, theirs = (
        quantize_rs.compare(floats, integers, data, engine=engine, latency=False).sqnr_db
        for engine in ("tract", "onnxruntime")
    )
    assert ours == pytest.approx(theirs, abs=0.1)


def test_auto_reports_the_engine_and_the_reason(digits: Path, images: Path) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images)
    assert report.engine == "tract"
    assert (
        report.notes[0] == "run by tract; onnxruntime computes the same values for the first sample"
    )


def looping() -> onnx.ModelProto:
    """A network with a Loop, which tract does not know, before what is quantized."""
    value = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["go"], ["go_on"]),
            onnx.helper.make_node("Add", ["state", "state"], ["next"]),
        ],
        "body",
        [value("step", 7, []), value("go", 9, []), value("state", 1, None)],
        [value("go_on", 9, []), value("next", 1, None)],
    )
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Loop", ["times", "", "x"], ["looped"], body=body),
            onnx.helper.make_node("MatMul", ["looped", "w"], ["y"]),
        ],
        "looping",
        [value("x", 1, ["n", 8])],
        [value("y", 1, ["n", 8])],
        [
            onnx.numpy_helper.from_array(np.array(3), "times"),
            onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"),
        ],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def test_auto_takes_onnxruntime_where_tract_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.linspace(-1, 1, 40 * 8, dtype=np.float32).reshape(40, 8)
    plan = quantize_rs.open(looping()).plan(activations="uint8")
    found = plan.calibrate(samples)
    assert found.engine == "onnxruntime"
    assert found.values["looped"] == (-8, 8)
    assert found.notes[0].startswith("run by onnxruntime, because tract fails: ")
    with pytest.raises(CalibrationError, match="operator Loop"):
        plan.calibrate(samples, engine="tract")
    # Without another engine, the error says why there is none.
    monkeypatch.setenv("ORT_DYLIB_PATH", "none.so")
    with pytest.raises(CalibrationError, match=r"operator Loop .*none\.so"):
        plan.calibrate(samples)


def test_a_model_that_no_engine_runs_is_refused_in_the_name_of_both() -> None:
    with pytest.raises(CalibrationError, match=r"Sparkle.*onnxruntime fails too.*Sparkle"):
        quantize_rs.quantize_with_calibration(
            oracle.model("custom_domain"), None, [oracle.feeds("custom_domain")]
        )


@pytest.mark.parametrize("engine", ["tract", "onnxruntime", "auto"])
def test_threads_and_order_change_nothing(plan: Plan, images: Path, engine: str) -> None:
    samples = np.load(images)
    expected = plan.calibrate(samples, engine=engine, threads=1)
    assert plan.calibrate(samples[::-1], engine=engine, threads=3) == expected


@pytest.mark.parametrize("engine", ["tract", "onnxruntime", "auto"])
def test_shapes_in_any_order_change_nothing(engine: str) -> None:
    plan = quantize_rs.open(oracle.model("dynamic_shape")).plan(activations="uint8")
    rng = np.random.default_rng(0)
    sides = [8, 9, 10, 12, 14, 16] * 4  # more shapes than the cache has entries
    samples = [rng.normal(size=(1, 3, side, side)).astype(np.float32) for side in sides]
    expected = plan.calibrate(samples, engine=engine, threads=1)
    assert expected.samples == 24
    for threads in (1, 3):
        assert plan.calibrate(samples[::-1], engine=engine, threads=threads) == expected


@pytest.mark.parametrize("engine", ["ort", "Tract", "", 3, None, object(), {"run": print}])
def test_an_engine_that_is_none_is_an_option_error(plan: Plan, images: Path, engine: Any) -> None:
    with pytest.raises(OptionError, match="engine is") as caught:
        plan.calibrate(images, engine=engine)
    assert caught.value.option == "engine"
    assert "onnxruntime" in str(caught.value)


def test_onnxruntime_that_is_not_installed_says_how_to(
    plan: Plan, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORT_DYLIB_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(OptionError, match="pip install -U onnxruntime") as caught:
        plan.calibrate(images, engine="onnxruntime")
    assert caught.value.option == "engine"
    alone = plan.calibrate(images, engine="auto")
    assert alone.engine == "tract"
    assert alone.notes[0] == "run by tract: no onnxruntime is installed"


def test_a_package_without_a_library_is_distinguished_from_none(
    plan: Plan, images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    spec = importlib.machinery.ModuleSpec("onnxruntime", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.delenv("ORT_DYLIB_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: spec)
    what = f"the onnxruntime in {package} brings no library, as those before 1.19 do not"
    with pytest.raises(OptionError, match=re.escape(what)):
        plan.calibrate(images, engine="onnxruntime")
    assert plan.calibrate(images, limit=1).notes[0] == f"run by tract: {what}"


def test_a_missing_library_is_an_error(
    plan: Plan, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that has already loaded ONNX Runtime cannot load another library.
    monkeypatch.setenv("ORT_DYLIB_PATH", "none.so")
    with pytest.raises(CalibrationError, match=r"none\.so"):
        plan.calibrate(images, engine="onnxruntime")
    alone = plan.calibrate(images, engine="auto")
    assert alone.engine == "tract"
    assert alone.notes[0].startswith("run by tract: ")
    assert "none.so" in alone.notes[0]


def test_onnxruntime_is_not_imported(digits: Path, images: Path) -> None:
    code = (
        "import sys, quantize_rs; report = quantize_rs.quantize_with_calibration(sys.argv[1], None,"
        "sys.argv[2], engine='onnxruntime', target='x86'); assert report.engine == 'onnxruntime';"
        "assert not {'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(digits), str(images)],
        capture_output=True,
        text=True,
        check=False,
    )
    # The check may find the model slower; that depends on the machine.
    said = [line for line in done.stderr.splitlines() if not line.startswith("slower than")]
    assert (done.returncode, done.stdout, said) == (0, "", [])


@pytest.mark.parametrize("threads", [None, 1, 4])
def test_an_object_runs_the_model(plan: Plan, images: Path, threads: int | None) -> None:
    engine = Session()
    found = plan.calibrate(images, engine=engine, threads=threads)
    assert near(found, plan.calibrate(images))
    assert found.engine == "Session"
    assert plan.apply(found).report.engine == "Session"
    assert engine.prepared == 1
    assert 1 <= len(engine.threads) <= (threads or 1)


def test_an_object_may_keep_something_in_itself(plan: Plan, images: Path) -> None:
    class Careless(Session):
        def run(self, feed: Arrays) -> Any:
            self.feed = feed
            time.sleep(0.001)
            assert self.feed is feed, "another thread was here"
            return super().run(feed)

    assert plan.calibrate(images, engine=Careless(), limit=40).samples == 40


def test_an_engine_object_evaluates_methods_too(plan: Plan, images: Path) -> None:
    engine = Session()
    found = plan.calibrate(images, engine=engine, method="auto", limit=128)
    assert found.chosen.keys() == found.values.keys()
    assert engine.prepared > 2
    comparison = plan.compare_methods(images, engine=Session(), limit=64)
    assert comparison.engine == "Session"
    assert {ranges.engine for ranges in comparison.ranges.values()} == {"Session"}


def test_an_object_may_know_the_model_already(digits: Path, plan: Plan, images: Path) -> None:
    proto = onnx.load(digits)
    names = [output for node in proto.graph.node for output in node.output]
    have = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    session = oracle.session(proto.SerializeToString())

    class Known:
        def run(self, feed: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, feed), strict=True))

    assert near(plan.calibrate(images, engine=Known()), plan.calibrate(images))
    with pytest.raises(OptionError, match=r"Known without prepare") as caught:
        plan.compare_methods(images, engine=Known())
    assert caught.value.option == "engine"


def test_missing_values_are_listed(plan: Plan, images: Path) -> None:
    def lose(found: Arrays) -> Arrays:
        return {n: value for n, value in found.items() if n not in ("relu1_out", "relu3_out")}

    with pytest.raises(CalibrationError, match="gave no `relu1_out`, `relu3_out`") as caught:
        plan.calibrate(images, engine=Session(lose))
    assert caught.value.value == "relu1_out"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: list(found.values()), "gave a list, expected a dict"),
        (lambda _: None, "gave a NoneType, expected a dict"),
        (lambda found: {n: v.astype(np.int32) for n, v in found.items()}, "int32, expected floats"),
        (lambda found: dict.fromkeys(found, "x"), "expected floats"),
        (lambda found: {n: v * np.nan for n, v in found.items()}, "NaN"),
    ],
)
def test_what_an_object_gives_is_checked(
    plan: Plan, images: Path, change: Callable[[Arrays], Any], message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        plan.calibrate(images, engine=Session(change))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_floats_of_other_kinds_are_converted(plan: Plan, images: Path, dtype: Any) -> None:
    engine = Session(lambda found: {n: np.asfortranarray(v, dtype) for n, v in found.items()})
    found = plan.calibrate(images, engine=engine)
    assert near(found, plan.calibrate(images), 1e-3 if dtype is np.float16 else 1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["prepare", "run"])
def test_what_an_object_raises_comes_out_as_it_is(
    plan: Plan, images: Path, where: str, threads: int
) -> None:
    class Broken(Session):
        def prepare(self, model: bytes, outputs: list[str]) -> None:
            super().prepare(model, outputs)
            if where == "prepare":
                raise LookupError("the fuse is blown")

        def run(self, feed: Arrays) -> Any:
            if float(feed["image"].sum()) > 20:
                raise LookupError("the fuse is blown")
            return super().run(feed)

    with pytest.raises(LookupError, match="the fuse is blown"):
        plan.calibrate(images, engine=Broken(), threads=threads)


def test_an_object_sees_the_types_of_the_inputs() -> None:
    seen: list[dict[str, str]] = []

    class Nosy(Session):
        def run(self, feed: Arrays) -> Any:
            seen.append({name: str(array.dtype) for name, array in feed.items()})
            return super().run(feed)

    plan = quantize_rs.open(oracle.model("two_inputs")).plan(activations="uint8")
    feeds = oracle.feeds("two_inputs", count=1)
    plan.calibrate([feeds], engine=Nosy())
    assert seen == [{name: str(array.dtype) for name, array in feeds.items()}]
