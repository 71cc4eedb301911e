"""Options: one table, one function that resolves names, and what is generated from them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantize_rs
from quantize_rs import (
    AccuracyControl,
    CalibrationOptions,
    Match,
    OptionError,
    QuantizeOptions,
    RunOptions,
)
from quantize_rs._flow import keywords as typed
from quantize_rs._options import check
from quantize_rs._options.match import overrides
from quantize_rs._options.option_dict import OptionDict, option_dict
from quantize_rs._options.resolve import Resolved, resolve
from quantize_rs._options.table import ALIASES, OPTIONS, canonical

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits_cnn.onnx"
SAMPLES = DIGITS.with_name("calibration.npy")
TABLE: list[dict[str, Any]] = [
    row
    for row in json.loads((ROOT / "docs" / "options.json").read_text("utf-8"))
    if "python" in row["surfaces"]
]
VERBS = {"quantize": "quantize", "quantize_with_calibration": "calibrate"}
CLASSES = (QuantizeOptions, CalibrationOptions, AccuracyControl, RunOptions)

quantize: Any = quantize_rs.quantize
calibrate: Any = quantize_rs.quantize_with_calibration


def own(function: Any) -> set[str]:
    """The parameters that a function declares itself."""
    code = function.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def in_docstrings(text: str) -> str:
    text = text.replace("[…]", "[...]").replace("`calibrate`", "`quantize_with_calibration`")
    return re.sub(r"\b(true|false)\b", lambda found: found[0].capitalize(), text)


def test_generated_files_are_up_to_date() -> None:
    tool = ROOT / "tools" / "generate_options.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_row_is_in_the_table_of_the_package() -> None:
    assert [row["name"] for row in TABLE] == list(OPTIONS)
    for row in TABLE:
        found = OPTIONS[row["name"]]
        assert list(found.aliases) == row["aliases"]
        assert list(found.verbs) == row["verbs"]
        assert found.default == (row["default"] or None if found.empty else row["default"])
        assert all(canonical(alias) == row["name"] for alias in row["aliases"])


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (quantize_rs.quantize, typed.QuantizeKeywords),
        (quantize_rs.quantize_with_calibration, typed.CalibrateKeywords),
        (quantize_rs.Model.plan, typed.PlanKeywords),
    ],
)
def test_signatures_keywords_and_docstrings_are_complete(function: Any, keywords: Any) -> None:
    verb = VERBS.get(function.__name__)
    parameters = own(function)
    doc = " ".join((function.__doc__ or "").split())
    expected = set()
    for row in TABLE:
        takes = row["class"] == "QuantizeOptions" if verb is None else verb in row["verbs"]
        if not takes:
            continue
        expected |= {row["name"], *row["aliases"]}
        declared = parameters & {row["name"], *row["aliases"]}
        if not declared:
            assert f"- `{row['name']}`: {in_docstrings(row['summary'])}" in doc
    assert set(keywords.__annotations__) == expected - parameters
    assert len(parameters) <= 15


def test_every_option_is_a_field_of_one_class_with_its_default_and_help() -> None:
    for cls in CLASSES:
        rows = {row["name"]: row for row in TABLE if row["class"] == cls.__name__}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        assert set(rows) == set(fields) - {"calibration", "accuracy", "run"}
        doc = " ".join((cls.__doc__ or "").split())
        for name, row in rows.items():
            assert fields[name].default == OPTIONS[name].default
            assert in_docstrings(row["summary"]) in doc
    with pytest.raises(dataclasses.FrozenInstanceError):
        QuantizeOptions().bits = 4  # type: ignore[misc]


def test_types_of_the_classes_resolve() -> None:
    for cls in CLASSES:
        assert set(typing.get_type_hints(cls)) == {field.name for field in dataclasses.fields(cls)}
    for keywords in (typed.QuantizeKeywords, typed.CalibrateKeywords, typed.PlanKeywords):
        assert typing.get_type_hints(keywords)


def test_the_first_parameters_are_those_of_0_10() -> None:
    code = quantize.__code__
    assert code.co_varnames[: code.co_argcount] == (
        "input_path",
        "output_path",
        "bits",
        "per_channel",
        "excluded_layers",
        "min_elements",
        "layer_bits",
        "native_int4",
        "symmetric",
    )
    code = calibrate.__code__
    assert code.co_varnames[: code.co_argcount] == (
        "input_path",
        "output_path",
        "calibration_data",
        "bits",
        "per_channel",
        "method",
        "num_samples",
        "sample_shape",
        "native_int4",
        "symmetric",
        "excluded_layers",
        "min_elements",
        "layer_bits",
    )


def test_an_object_and_keywords_give_the_same_file() -> None:
    images = np.load(SAMPLES)[:32]
    one = calibrate(
        DIGITS,
        None,
        images,
        weights="int8",
        per_channel=True,
        method="entropy",
        exclude=["conv1"],
        optimize=False,
        verify=images,
        min_sqnr=10,
        threads=2,
    )
    options = QuantizeOptions(
        weights="int8",
        per_channel=True,
        exclude=["conv1"],
        passes=False,
        calibration=CalibrationOptions(calibration_data=images, method="entropy"),
        accuracy=AccuracyControl(validation_data=images, min_sqnr=10),
        run=RunOptions(threads=2),
    )
    other = calibrate(DIGITS, None, options=options)
    assert one.model == other.model
    assert one.accuracy_control is not None
    assert other.accuracy_control is not None
    plan = quantize_rs.open(DIGITS).plan(options=QuantizeOptions(bits=4, per_channel=True))
    # The kernel of the first convolution sums 9 elements, and gets 8 bits.
    assert [value.qtype for value in plan if value.role == "weight"] == ["int8", *["int4"] * 4]


@pytest.mark.parametrize(
    ("canonical_name", "value"),
    [
        ("exclude", ["conv1"]),
        ("include", ["conv1"]),
        ("layer_types", {"conv1": "float16"}),
        ("passes", ["fold_constants"]),
        ("passes", True),
        ("passes", []),
        ("calibration_data", SAMPLES),
        ("validation_data", SAMPLES),
        ("block_size", 32),
    ],
)
def test_every_alias_is_the_same_option(canonical_name: str, value: object) -> None:
    expected = quantize(DIGITS, None, **{canonical_name: value}).model
    assert OPTIONS[canonical_name].aliases
    for alias in OPTIONS[canonical_name].aliases:
        assert quantize(DIGITS, None, **{alias: value}).model == expected, alias


def test_analyses_take_the_aliases_too(tmp_path: Path) -> None:
    model = quantize_rs.open(DIGITS)
    for name in ("exclude", "excluded_layers", "exclude_layers"):
        selection: Any = {name: ["conv1"]}
        plan = model.plan(**selection)
        excluded = [value for value in plan if value.role == "weight" and not value.quantized]
        assert [value.name for value in excluded] == ["conv1.weight"]
        ranked = quantize_rs.sensitivity(model, **selection).layers
        assert "conv1.weight" not in {layer.name for layer in ranked}
        found = quantize_rs.mixed_precision(model, target_size=0.5, **selection)
        assert "conv1.weight" not in found.layer_bits
        pruned = quantize_rs.prune(DIGITS, tmp_path / "out.onnx", sparsity=0.5, **selection)
        assert "conv1.weight" not in {weight.name for weight in pruned.weights if weight.zeros}
    images = np.load(SAMPLES)[:4]
    for name in ("data", "samples", "calibration_data"):
        data: Any = {name: images}
        assert model.plan(activations="uint8").calibrate(**data).samples == 4
        assert quantize_rs.compare(model, model, latency=False, **data).samples == 4


def test_lists_of_types_have_what_is_taken() -> None:
    for option in ("weights", "activations"):
        with pytest.raises(OptionError, match=rf"^{option} is `no`, expected one of ") as caught:
            calibrate(DIGITS, None, SAMPLES, **{option: "no"})
        row = next(row for row in TABLE if row["name"] == option)
        taken = [choice["name"] for choice in row["kind"]["values"]]
        assert str(caught.value).split("expected one of ")[1].split(", ") == taken
    with pytest.raises(OptionError, match=r"^layer_types gives `conv1` int32, expected"):
        quantize(DIGITS, None, layer_types={"conv1": "int32"})
    with pytest.raises(OptionError, match=r"^layer_bits gives `conv1` int32, expected"):
        quantize(DIGITS, None, layer_bits={"conv1": "int32"})
    with pytest.raises(OptionError, match=r"metric is 'snr', expected top1, .*, sqnr, .*weight"):
        quantize_rs.sensitivity(DIGITS, SAMPLES, metric="snr")
    with pytest.raises(OptionError, match="memory_limit is -1, expected 0 or more"):
        quantize(DIGITS, None, data=SAMPLES, memory_limit=-1)
    most = next(row for row in TABLE if row["name"] == "threads")["at_most"]
    with pytest.raises(OptionError, match=f"threads is {most + 1:.0f}, expected 1 to {most:.0f}"):
        quantize(DIGITS, None, data=SAMPLES, threads=int(most) + 1)


def test_ranges_of_the_table_are_what_is_taken() -> None:
    rows = {row["name"]: row for row in TABLE}
    data: dict[str, Any] = {"limit": SAMPLES, "num_samples": "random"}
    for name, samples in data.items():
        least = int(rows[name]["at_least"])
        taken = calibrate(DIGITS, None, samples, check="none", **{name: least})
        assert taken.samples == least
        with pytest.raises(OptionError, match=f"^{name} is 0, expected 1 or more"):
            calibrate(DIGITS, None, samples, **{name: least - 1})
    least, most = (int(rows["block_size"][end]) for end in ("at_least", "at_most"))
    for size in (least, most):
        assert quantize(DIGITS, None, block_size=size, allow_larger=True).model
    for size in (least // 2, most * 2):
        with pytest.raises(OptionError, match=f"^block_size is {size}, expected {least} to {most}"):
            quantize(DIGITS, None, block_size=size)


def test_truth_values_of_numpy_are_taken() -> None:
    for value in (True, False):
        given = quantize(DIGITS, None, per_channel=np.bool_(value))
        assert given.model == quantize(DIGITS, None, per_channel=value).model


def test_an_unknown_keyword_has_a_suggestion() -> None:
    for call in (quantize, calibrate):
        with pytest.raises(
            OptionError, match=r"unknown option `per_chanel`; did you mean"
        ) as caught:
            call(DIGITS, None, per_chanel=True)
        assert "did you mean `per_channel`?" in str(caught.value)
        assert caught.value.option == "per_chanel"
    with pytest.raises(OptionError, match=r"unknown option `optimise`; did you mean `optimize`\?"):
        quantize(DIGITS, None, optimise=False)
    with pytest.raises(OptionError, match=r"^unknown option `frobnicate`$"):
        quantize_rs.open(DIGITS).plan(frobnicate=1)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r"unknown option `excluded_layer`; did you mean"):
        quantize_rs.sensitivity(DIGITS, excluded_layer=[])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "both"),
    [
        ({"exclude": ["conv1"], "excluded_layers": ["conv2"]}, ("exclude", "excluded_layers")),
        ({"passes": [], "optimize": True}, ("passes", "optimize")),
        ({"verify": "a.npy", "validation_data": "b.npy"}, ("verify", "validation_data")),
        (
            {"per_channel": True, "options": QuantizeOptions(per_channel=True)},
            ("per_channel", r"options\.per_channel"),
        ),
        (
            {"optimize": True, "options": QuantizeOptions(passes=False)},
            ("optimize", r"options\.passes"),
        ),
    ],
)
def test_an_option_given_twice_is_refused(given: dict[str, Any], both: tuple[str, str]) -> None:
    one, other = both
    expected = f"({one} and {other}|{other} and {one}) are the same option"
    with pytest.raises(OptionError, match=expected) as caught:
        quantize(DIGITS, None, **given)
    assert caught.value.option == canonical(one)


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        (QuantizeOptions(bits=4), {"bits": 8}),
        (QuantizeOptions(min_elements=10**6), {"min_elements": 0}),
        (QuantizeOptions(layer_bits={"*": 4}), {"layer_bits": {}}),
        (QuantizeOptions(output_format="qoperator"), {"output_format": "qdq"}),
        (QuantizeOptions(calibration=CalibrationOptions(method="entropy")), {"method": "auto"}),
        (QuantizeOptions(calibration=CalibrationOptions(num_samples=3)), {"num_samples": 100}),
    ],
)
def test_a_keyword_with_its_default_is_given_too(
    options: QuantizeOptions, keyword: dict[str, Any]
) -> None:
    (name,) = keyword
    with pytest.raises(OptionError, match=rf"^{name} and options\.{name} are the same") as caught:
        calibrate(DIGITS, None, SAMPLES, options=options, **keyword)
    assert caught.value.option == name
    # None is no value, and an object does not know what was given.
    assert quantize(DIGITS, None, options=QuantizeOptions(per_channel=False), per_channel=None)
    assert quantize(DIGITS, None, options=QuantizeOptions(bits=8), bits=4).model


def test_bits_contradict_a_type_even_if_they_are_8() -> None:
    with pytest.raises(OptionError, match=r"^bits is 8, but weights is int4") as caught:
        quantize(DIGITS, None, bits=8, weights="int4")
    assert caught.value.option == "bits"
    with pytest.raises(OptionError, match=r"^bits is 8, but weights is int4"):
        quantize_rs.open(DIGITS).plan("int4", bits=8)
    assert quantize(DIGITS, None, bits=8, weights="uint8").model


def test_signatures_show_the_value_of_a_default() -> None:
    for function, shown in (
        (quantize, "bits: 'int' = 8"),
        (calibrate, "method: 'str' = 'auto'"),
        (quantize_rs.sensitivity, "activations: 'str | None' = 'uint8'"),
    ):
        assert shown in str(inspect.signature(function))
    number = inspect.signature(quantize).parameters["bits"].default
    assert (number, type(pickle.loads(pickle.dumps(number)))) == (8, type(number))


def test_an_option_of_the_other_function_is_refused() -> None:
    for given in ({"method": "mse"}, {"options": QuantizeOptions(bias_correction=False)}):
        with pytest.raises(OptionError, match="has no effect in `quantize`"):
            quantize(DIGITS, None, **given)
    with pytest.raises(OptionError, match=r"it is an option of `quantize`$") as caught:
        calibrate(DIGITS, None, SAMPLES, block_size=32)
    assert caught.value.option == "block_size"
    nested = QuantizeOptions(calibration=CalibrationOptions(limit=3))
    with pytest.raises(OptionError, match=r"^limit has no effect in `Model.plan`"):
        quantize_rs.open(DIGITS).plan(options=nested)
    with pytest.raises(OptionError, match="options is a dict, expected a QuantizeOptions"):
        quantize(DIGITS, None, options={"bits": 4})


def test_conditions_come_from_the_table() -> None:
    with pytest.raises(OptionError, match=r"^limit has no effect without calibration_data$"):
        quantize(DIGITS, None, limit=3)
    with pytest.raises(OptionError, match=r"without validation_data or calibration_data$"):
        quantize(DIGITS, None, options=QuantizeOptions(run=RunOptions(threads=2)))


@pytest.mark.parametrize(
    ("value", "found"), [(0.01, 0.01), ("1%", 0.01), (" 2.5 %", 0.025), (0, 0)]
)
def test_an_accuracy_drop_is_a_fraction_or_a_percentage(value: Any, found: float) -> None:
    assert check.fraction("max_accuracy_drop", value) == pytest.approx(found)


def test_an_accuracy_drop_of_1_or_more_is_refused_with_the_fix() -> None:
    for value, expected in (
        (1, "max_accuracy_drop is 1, expected a fraction below 1: write 0.01 or '1%' for 1%"),
        (2.5, "write 0.025 or '2.5%' for 2.5%"),
        ("100%", "expected a fraction below 1"),
        ("0.01", "expected a percentage such as '1%', or a number"),
        ("much", "expected a number"),
    ):
        with pytest.raises(OptionError, match=expected) as caught:
            quantize(DIGITS, None, verify=SAMPLES, labels=[1], max_accuracy_drop=value)
        assert caught.value.option == "max_accuracy_drop"


def made(function: str, **keywords: Any) -> OptionDict:
    found = resolve(function, {}, None, keywords)
    assert isinstance(found, Resolved)
    return option_dict(found, bits=8, with_activations=False)


def test_overrides_are_passed_on_as_configuration_files_write_them() -> None:
    entries = [
        {"match": {"pattern": "head/*"}, "weights": "int16"},
        {"match": {"name": "conv1"}, "exclude": True},
        {"match": {"op_type": "Gemm"}, "weights": 4, "per_channel": True},
    ]
    given = [
        Match(pattern="head/*", weights="int16"),
        {"name": "conv1", "exclude": True},
        {"match": {"op_type": "Gemm"}, "bits": 4, "per_channel": True},
    ]
    assert overrides(given) == entries  # type: ignore[arg-type]
    assert made("quantize", overrides=given).get("overrides") == entries
    assert not made("quantize")["overrides"]
    assert not made("quantize", overrides=[])["overrides"]


@pytest.mark.parametrize(
    "row",
    [row for row in TABLE if row["class"] == "QuantizeOptions"],
    ids=lambda row: row["name"],
)
def test_the_example_of_every_option_reaches_the_plan(row: dict[str, Any]) -> None:
    name = row["name"]
    given = eval(f"dict({row['example']})", {"Match": Match})
    (function, *_) = (name for name, verb in VERBS.items() if verb in row["verbs"])
    passed = made(function, **given)
    if name != "bits":  # The functions pass it on themselves: weights take precedence over it.
        assert passed[name] not in (None, OPTIONS[name].default)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"weights": "int8"}, "0 of name, pattern and op_type"),
        ({"name": "a", "op_type": "Conv", "exclude": True}, "2 of name, pattern and op_type"),
        ({"name": "a"}, "says nothing"),
        ({"name": "a", "wieghts": "int8"}, "`wieghts`"),
        ({"match": "a", "exclude": True}, "expected a dict"),
        ("conv1", "expected a Match or a dict"),
    ],
)
def test_an_override_that_cannot_be_read_is_refused(entry: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as caught:
        quantize(DIGITS, None, overrides=[entry])
    assert caught.value.option == "overrides"


def test_old_names_in_errors_of_the_extension_module_become_those_of_the_table() -> None:
    for alias, name in ALIASES.items():
        with pytest.raises(OptionError, match=f"^{name} is bad$") as caught, check.rename_errors():
            raise OptionError(f"{alias} is bad", option=alias)
        assert caught.value.option == name
    renamed = check.rename_errors(exclude="nodes")
    with pytest.raises(OptionError, match=r"^nodes are bad") as caught, renamed:
        raise OptionError("excluded_layers are bad", option="excluded_layers")
    assert caught.value.option == "nodes"


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), 0.5, np.int8(2), 2])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    plan = quantize_rs.open(DIGITS).plan(activations="uint8", min_range=value)
    assert plan.to_dict()["config"]["min_range"] == float(value)


@pytest.mark.parametrize(
    ("value", "expected"), [("much", "much"), (-1, "is -1(.0)?, expected 0 or more"), ([1], "1")]
)
def test_a_number_of_another_type_or_out_of_range_is_refused(value: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=f"^min_range .*{expected}"):
        quantize_rs.open(DIGITS).plan(activations="uint8", min_range=value)


def test_an_option_of_another_verb_is_not_suggested_instead_of_itself(digits: Path) -> None:
    expected = r"^include has no effect here; it is an option of `quantize` and `quantize_with_cal"
    with pytest.raises(OptionError, match=expected) as raised:
        quantize_rs.sensitivity(digits, include=["*"])  # type: ignore[call-arg]
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_a_target_that_needs_zero_point_0_refuses_others(digits: Path, target: str) -> None:
    with pytest.raises(OptionError, match=f"{target} takes only weights with zero point 0"):
        quantize_rs.open(digits).plan(target=target, activations="int8", symmetric=False)
    plan = quantize_rs.open(digits).plan(target=target, activations="int8")
    assert all(value.symmetric for value in plan if value.role == "weight")


@pytest.mark.parametrize(
    "option",
    [{"dedicated_qdq_pairs": True}, {"float_outputs": ["Conv"]}, {"quantize_bias": False}],
    ids=str,
)
def test_options_of_activations_are_refused_without_activations(option: dict[str, Any]) -> None:
    digits = quantize_rs.examples.digits().model
    with pytest.raises(quantize_rs.OptionError, match="no effect"):
        quantize_rs.open(digits).plan(**option)
    quantize_rs.open(digits).plan(activations="uint8", **option)
