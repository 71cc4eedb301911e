"""Models to train on elsewhere, and what becomes of them afterwards; modules, prepare, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import oracle
import pytest
from onnx import numpy_helper

import quantize_rs
from quantize_rs import OptionError, QConfig, QConfigDict, errors

Array: TypeAlias = Any  # numpy's, of any type and shape


def trained(model: bytes, seed: int = 0) -> bytes:
    """Move all weights as training would; scales stay."""
    proto = onnx.load_from_string(model)
    random = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.name.endswith("_float"):
            w = numpy_helper.to_array(tensor)
            moved = (w * random.normal(1.0, 0.1, w.shape)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return bytes(proto.SerializeToString())


def stored(model: bytes) -> bytes:
    report = quantize_rs.optimize(model, passes=["store_integers"])
    assert report.model is not None
    return report.model


WAYS: list[dict[str, Any]] = [
    {},
    {"weights": "uint8", "symmetric": False, "per_channel": False},
    {"weights": "int4"},
    {"weights": "int4", "block_size": 16},
    {"weights": "int16"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("calibrated", [False, True])
def test_what_was_trained_is_stored_as_what_the_model_makes_of_it(
    digits: Path, images: Path, way: dict[str, Any], calibrated: bool
) -> None:
    if calibrated and "block_size" in way:
        pytest.skip("no blocks beside activations")
    feeds = {"image": np.load(images)[:16]}
    made = quantize_rs.insert_fake_quant(digits, None, images if calibrated else None, **way)
    assert made.model is not None
    onnx.checker.check_model(onnx.load_from_string(made.model), full_check=True)
    for model in (made.model, trained(made.model)):
        after = stored(model)
        assert len(after) < len(model) / 1.7
        graph = onnx.load_from_string(after).graph
        assert not any(tensor.name.endswith("_float") for tensor in graph.initializer)
        expected = oracle.ort(model, feeds, optimized=False)
        assert np.array_equal(oracle.ort(after, feeds, optimized=False)[0], expected[0])
        # Fused kernels round differently from the graph.
        assert oracle.sqnr(expected, oracle.ort(after, feeds)) > 25
    if not calibrated:
        # A second quantization only stores the integers.
        model = trained(made.model)
        again = quantize_rs.quantize(model, None)
        assert again.model is not None
        expected = oracle.ort(model, feeds, optimized=False)
        assert np.array_equal(oracle.ort(again.model, feeds, optimized=False)[0], expected[0])


def test_biases_stay_float_and_weights_keep_their_numbers(digits: Path, images: Path) -> None:
    before = {t.name: t for t in onnx.load(digits).graph.initializer}
    made = quantize_rs.insert_fake_quant(digits, None, images, optimize=False)
    after = {t.name: t for t in onnx.load_from_string(made.model).graph.initializer}
    weights = [value for value in made.values if value.role == "weight" and value.quantized]
    assert weights
    assert {value.format for value in weights} == {"fake_quant"}
    for value in weights:
        kept = numpy_helper.to_array(after[f"{value.name}_float"])
        assert np.array_equal(kept, numpy_helper.to_array(before[value.name]))
    assert not any(t.data_type == onnx.TensorProto.INT32 for t in after.values())
    unchanged = quantize_rs.quantize_with_calibration(digits, None, images, per_channel=True)
    assert unchanged.bytes_after < made.bytes_after


def test_bits_alone_are_the_type_of_weights(digits: Path) -> None:
    bits = quantize_rs.insert_fake_quant(digits, None, bits=4)
    assert bits.model == quantize_rs.insert_fake_quant(digits, None, weights="int4").model
    assert "int4" in {row.qtype for row in bits.quantized}


@pytest.mark.parametrize("name", sorted(oracle.FIXTURES))
def test_every_fixture_can_be_trained_on_and_stored(name: str) -> None:
    made = quantize_rs.insert_fake_quant(oracle.model(name))
    assert made.model is not None
    after = stored(made.model)
    try:
        expected = oracle.ort(made.model, oracle.feeds(name), optimized=False)
    except Exception:
        # A model that the runtime refuses is also refused with integers in the file.
        with pytest.raises(Exception):  # noqa: B017, PT011 - ONNX Runtime has many
            oracle.ort(after, oracle.feeds(name), optimized=False)
        return
    for whole, found in zip(
        expected, oracle.ort(after, oracle.feeds(name), optimized=False), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(whole))


def test_the_narrowest_of_what_was_set_counts(digits: Path) -> None:
    model = quantize_rs.open(digits)
    weights = [value.name for value in model.plan() if value.role == "weight"]
    conv, gemm = weights[0], weights[-1]

    def types(modules: QConfigDict) -> dict[str, str | None]:
        plan = model.plan(**modules.options(model))
        return {value.name: value.qtype for value in plan if value.name in weights}

    whole = QConfigDict().set_global(QConfig(weight="uint8"))
    assert set(types(whole).values()) == {"uint8"}
    of_type = whole.set_module_type("Gemm", QConfig(weight="int16"))
    assert types(of_type)[gemm] == "int16"
    assert types(of_type)[conv] == "uint8"
    pattern = of_type.set_module_name(f"{gemm[:2]}*", QConfig(weight="int4"))
    assert types(pattern)[gemm] == "int4"
    module = gemm.rpartition(".")[0] or gemm
    named = pattern.set_module_name(module, None)
    assert types(named)[gemm] is None
    # A setter does not change the original.
    assert types(whole)[gemm] == "uint8"
    assert set(types(QConfigDict()).values()) == {None}


@pytest.mark.parametrize(
    ("modules", "option", "said"),
    [
        (QConfigDict().set_module_name("conv9x", QConfig()), "set_module_name", "conv9x"),
        (
            QConfigDict().set_module_type("Conf", QConfig()),
            "set_module_type",
            "did you mean `Conv`",
        ),
        (QConfigDict().set_module_type("Conv", QConfig("uint8")), "activation", "set_global"),
    ],
)
def test_modules_that_are_not_there_are_refused(
    digits: Path, modules: QConfigDict, option: str, said: str
) -> None:
    with pytest.raises(errors.OptionError, match=said) as refused:
        modules.options(quantize_rs.open(digits))
    assert refused.value.option == option
    with pytest.raises(errors.OptionError, match=r"weight is 'int5'"):
        QConfig(weight="int5")


@pytest.mark.parametrize("given", ["digits.int8.onnx", Path("out"), 8, {"weights": 4}])
def test_what_is_no_config_is_refused(digits: Path, given: Any) -> None:
    with pytest.raises(OptionError, match="expected a QConfig") as refused:
        quantize_rs.prepare(digits, given)
    assert refused.value.option == "config"


def test_prepare_observe_convert_is_the_one_call(digits: Path, images: Path) -> None:
    data = np.load(images)
    whole = QConfig(activation="uint8", weight="int8")
    for method in ("minmax", "entropy"):
        once = quantize_rs.quantize_with_calibration(
            digits,
            None,
            data,
            per_channel=True,
            symmetric=True,
            method=method,
            excluded_layers=["Gemm"],
            check="none",
        )
        modules = QConfigDict().set_global(whole).set_module_type("Gemm", None)
        prepared = quantize_rs.prepare(
            digits, modules, method=method, per_channel=True, symmetric=True
        )
        assert prepared.ranges is None
        with pytest.raises(errors.CalibrationError):
            prepared.convert()
        for batch in np.array_split(data, 3):
            prepared.observe(batch)
        report = prepared.convert("three.onnx")
        assert report.samples == len(data)
        assert Path("three.onnx").read_bytes() == once.model
        assert prepared.ranges is not None
        assert "image" in prepared.ranges.values
        # The second moments of all batches add up: weights are rounded with them.
        assert any("weights rounded with samples" in note for note in report.notes)
    with pytest.raises(errors.OptionError, match="weights is set by config"):
        quantize_rs.prepare(digits, modules, weights="int4")


def test_aliases_of_options_are_known(digits: Path, images: Path) -> None:
    modules = QConfigDict().set_global(QConfig(weight="int8")).set_module_type("Gemm", None)
    expected = quantize_rs.prepare(digits, modules, exclude=["conv1.weight"])
    for name in ("excluded_layers", "exclude_layers"):
        left_out: dict[str, Any] = {name: ["conv1.weight"], "effort": "fast"}
        prepared = quantize_rs.prepare(digits, modules, **left_out)
        assert prepared.plan.values == expected.plan.values
    assert quantize_rs.prepare(digits, modules, exclude=None, layer_bits=None).plan.values
    with pytest.raises(OptionError, match="exclude and excluded_layers are the same option"):
        quantize_rs.prepare(digits, modules, excluded_layers=["conv1"], exclude=["conv2"])
    with pytest.raises(OptionError, match="weights is set by config"):
        quantize_rs.prepare(digits, modules, precision="int4")

    insert = quantize_rs.insert_fake_quant
    made = insert(digits, None, images, limit=8, weights="int16")
    for name in ("data", "samples"):
        data: dict[str, Any] = {name: images}
        given = data | {"calibration_samples": 8, "precision": "int16"}
        assert insert(digits, None, **given).model == made.model
        with pytest.raises(OptionError, match=f"{name} and calibration_data are the same option"):
            insert(digits, None, images, **data)
    with pytest.raises(OptionError, match="limit has no effect without calibration_data"):
        insert(digits, None, calibration_samples=8)


def test_an_unknown_type_of_activations_is_refused(digits: Path, images: Path) -> None:
    for data in (None, images):
        with pytest.raises(OptionError, match=r"activations .*`nonsense`") as refused:
            quantize_rs.insert_fake_quant(digits, None, data, activations="nonsense")
        assert refused.value.option == "activations"
    unused = quantize_rs.insert_fake_quant(digits, None, activations="uint16")
    assert unused.model == quantize_rs.insert_fake_quant(digits, None).model


def test_warnings_about_samples_are_logged_once_for_all_batches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    digits = quantize_rs.examples.digits()
    for count, said in ((160, False), (24, True)):
        caplog.clear()
        prepared = quantize_rs.prepare(digits.model)
        for batch in np.array_split(np.load(digits.calibration)[:count], 8):
            prepared.observe(batch)
        assert not caplog.records
        report = prepared.convert(None)
        logged = [record.getMessage() for record in caplog.records]
        found = [text for text in logged if f"only {count} samples" in text]
        assert len(found) == said
        assert not any("only" in text for text in logged if text not in found)
        # Each warning of the report is logged once.
        assert sorted(logged) == sorted(report.warnings)


def test_random_samples_are_said_to_be_random_once(
    digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = quantize_rs.prepare(digits)
    prepared.observe("random")
    prepared.convert(None)
    assert sum("random" in record.getMessage() for record in caplog.records) == 1
