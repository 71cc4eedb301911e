"""Options that have no effect together with the others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import pytest
from onnx import helper

import quantize_rs
from quantize_rs import OptionError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_cnn.onnx"
SAMPLES = DIGITS.with_name("calibration.npy")

RUN: dict[str, Any] = {"engine": "tract", "threads": 2}
NOISE: dict[str, Any] = {"seed": 3}  # for random samples alone
SHAPE: dict[str, Any] = {"sample_shape": (1, 8, 8)}  # for samples
CLASSES: dict[str, Any] = {"labels": [1], "scores": "logits"}


def nothing(*_: object) -> float:
    return 0.0


def with_ranges(**options: Any) -> object:
    plan = quantize_rs.open(DIGITS).plan(activations="uint8")
    ranges = plan.calibrate(SAMPLES, limit=2)
    return quantize_rs.quantize_with_calibration(DIGITS, None, ranges=ranges, **options)


def of_plan(**options: Any) -> object:
    plan = quantize_rs.open(DIGITS).plan(activations="uint8")
    return quantize_rs.sensitivity(plan, SAMPLES, limit=2, **options)


Verb = Callable[..., object]
CASES: list[tuple[str, Verb, dict[str, Any]]] = [
    (
        "quantize without verify",
        lambda **options: quantize_rs.quantize(DIGITS, None, **options),
        RUN | {"scores": "logits", "limit": 3},
    ),
    (
        "quantize without samples",
        lambda **options: quantize_rs.quantize(DIGITS, None, **options),
        {
            "weight_algorithm": "gptq",
            "rounding_effort": "best",
            "memory_limit": 1000,
            "resume_rounding": "rounded.jsonl",
        },
    ),
    (
        "rounding to nearest",
        lambda **options: quantize_rs.open(DIGITS).plan(weight_algorithm="nearest", **options),
        {"rounding_effort": "best", "memory_limit": 1000, "resume_rounding": "rounded.jsonl"},
    ),
    (
        "rounding that another option decides",
        lambda **options: quantize_rs.open(DIGITS).plan(rounding="nearest", **options),
        {"rounding_effort": "best", "memory_limit": 1000, "resume_rounding": "rounded.jsonl"},
    ),
    (
        "scales alone",
        lambda **options: quantize_rs.open(DIGITS).plan(rounding_effort="fast", **options),
        {"weight_algorithm": "gptq"},
    ),
    (
        "calibration of samples",
        lambda **options: quantize_rs.open(DIGITS).plan().calibrate(SAMPLES, **options),
        NOISE | {"num_samples": 5},
    ),
    (
        "methods on samples",
        lambda **options: quantize_rs.open(DIGITS).plan().compare_methods(SAMPLES, **options),
        NOISE | {"num_samples": 5},
    ),
    (
        "16-bit floats with samples",
        lambda **options: quantize_rs.convert_float16(DIGITS, None, SAMPLES, **options),
        NOISE | {"num_samples": 5},
    ),
    (
        "16-bit floats without samples",
        lambda **options: quantize_rs.convert_float16(DIGITS, None, **options),
        RUN | NOISE | SHAPE | {"limit": 3, "num_samples": 5, "enough_sqnr": 40.0},
    ),
    (
        "variants without samples",
        lambda **options: quantize_rs.variants(DIGITS, "made", only=["fp16"], **options),
        RUN | {"limit": 3},
    ),
    (
        "calibration without accuracy criteria",
        lambda **options: quantize_rs.quantize_with_calibration(DIGITS, None, SAMPLES, **options),
        NOISE | {"scores": "logits"},
    ),
    ("ranges", with_ranges, RUN | NOISE | SHAPE | {"limit": 3, "num_samples": 5}),
    (
        "mixed_precision without data",
        lambda **options: quantize_rs.mixed_precision(DIGITS, target_size=0.5, **options),
        RUN | {"limit": 3},
    ),
    (
        "sensitivity without data",
        lambda **options: quantize_rs.sensitivity(DIGITS, **options),
        RUN | NOISE | SHAPE | {"limit": 3, "num_samples": 7, "activations": "uint8"} | CLASSES,
    ),
    (
        "sensitivity of a plan",
        of_plan,
        NOISE
        | {"num_samples": 5}
        | {"weights": "int4", "activations": "uint8", "per_channel": True, "exclude": ["Conv"]},
    ),
    (
        "compare without latency",
        lambda **options: quantize_rs.compare(DIGITS, DIGITS, SAMPLES, latency=False, **options),
        NOISE | {"num_samples": 5, "runs": 3, "latency_threads": 2},
    ),
    (
        "compare with a metric of the outputs alone",
        lambda **options: quantize_rs.compare(DIGITS, DIGITS, SAMPLES, metric="kl", **options),
        CLASSES,
    ),
    (
        "compare with a metric of your own",
        lambda **options: quantize_rs.compare(DIGITS, DIGITS, SAMPLES, metric=nothing, **options),
        CLASSES,
    ),
    (
        "accuracy criteria with a metric of the outputs alone",
        lambda **options: quantize_rs.quantize(
            DIGITS, None, verify=SAMPLES, metric="mae", **options
        ),
        CLASSES,
    ),
    (
        "layer_errors of samples",
        lambda **options: quantize_rs.layer_errors(DIGITS, DIGITS, SAMPLES, **options),
        NOISE | {"num_samples": 5},
    ),
    (
        "plan without activations",
        lambda **options: quantize_rs.open(DIGITS).plan(**options),
        {"activation_symmetric": True},
    ),
    (
        "insert_fake_quant without samples",
        lambda **options: quantize_rs.insert_fake_quant(DIGITS, **options),
        RUN | {"limit": 3, "method": "mse"},
    ),
]


@pytest.mark.parametrize(("said", "verb", "options"), CASES)
def test_an_option_without_effect_is_refused(
    said: str, verb: Verb, options: dict[str, Any]
) -> None:
    for name, value in options.items():
        with pytest.raises(OptionError, match=f"^{name} has no effect ") as refused:
            verb(**{name: value})
        assert refused.value.option == name, said


def test_a_metric_of_outputs_needs_data_even_if_it_is_the_default() -> None:
    with pytest.raises(OptionError, match=r"^metric: without data only weights") as refused:
        quantize_rs.sensitivity(DIGITS, metric="sqnr")
    assert refused.value.option == "metric"


def test_bits_beside_activations_are_refused_even_if_they_are_the_default() -> None:
    with pytest.raises(OptionError, match=r"^bits has no effect with activations"):
        quantize_rs.mixed_precision(
            DIGITS, SAMPLES, activations="uint8", min_sqnr=20, bits=(8, 4, 2)
        )


def test_nearest_needs_no_samples() -> None:
    plain = quantize_rs.quantize(DIGITS, None, weight_algorithm="nearest")
    assert plain.model == quantize_rs.quantize(DIGITS, None).model


@pytest.mark.parametrize("options", [{"bits": 16}, {"weights": "float8e4m3fn"}])
def test_rounding_that_no_weight_gets_is_a_warning(options: dict[str, Any]) -> None:
    made = quantize_rs.quantize(
        DIGITS,
        None,
        calibration_data=SAMPLES,
        limit=4,
        weight_algorithm="gptq",
        **options,
    )
    said = [text for text in made.warnings if "no weight of these types is rounded" in text]
    assert len(said) == 1, made.warnings


def matrices() -> bytes:
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    return graphs.built(nodes, {name: rng.normal(size=(64, 64)) for name in "wv"}, ["n", 64])


@pytest.mark.parametrize(
    ("idle", "options"),
    [
        ("rounding=preserve_sums", {"bits": 4, "block_size": 32}),
        ("rounding=preserve_sums", {"bits": 4, "output_format": "matmul_nbits"}),
        ("rounding=preserve_sums", {"weights": "float16"}),
        ("rounding=preserve_sums", {"weights": "nf4", "output_format": "matmul_bnb4"}),
        ("weight_method=hqq", {"bits": 4, "symmetric": True}),
        ("weight_method=hqq", {"weights": "float8e4m3fn"}),
        ("weight_method=mse", {"weights": "float16"}),
    ],
)
def test_a_way_of_rounding_or_scaling_that_no_weight_gets_is_a_warning(
    idle: str, options: dict[str, Any]
) -> None:
    name, value = idle.split("=")
    plain = quantize_rs.quantize(matrices(), None, **options)
    asked: dict[str, Any] = options | {name: value}
    made = quantize_rs.quantize(matrices(), None, **asked)
    assert made.model == plain.model
    assert [text for text in made.warnings if text.startswith(f"{idle} has no effect: ")]


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 4, "rounding": "preserve_sums"},
        {"bits": 4, "symmetric": False, "weight_method": "hqq"},
        {"bits": 4, "weight_method": "mse"},
    ],
)
def test_a_way_that_some_weight_gets_is_none(options: dict[str, Any]) -> None:
    made = quantize_rs.quantize(matrices(), None, **options)
    assert made.model != quantize_rs.quantize(matrices(), None, bits=4).model
    assert not [text for text in made.warnings if "no effect" in text]


FLOATS: dict[str, Any] = {"weights": "float16"}
BLOCKS: dict[str, Any] = {"bits": 4, "block_size": 16}


@pytest.mark.parametrize(
    ("others", "unused", "used"),
    [
        (FLOATS, {"block_size": 32}, BLOCKS),
        (FLOATS, {"per_channel": False}, {"per_channel": False}),
        ({"output_format": "matmul_nbits"}, {"per_channel": False}, {"per_channel": False}),
        ({"weights": "float8e4m3fn"}, {"symmetric": False}, {"symmetric": False}),
        ({}, {"narrow_range": True}, {"narrow_range": True, "symmetric": True}),
        (FLOATS, {"narrow_range": True, "symmetric": True}, {}),
        ({"output_format": "dynamic"}, {"dynamic_lstm": True}, {}),
    ],
    ids=str,
)
def test_an_option_that_changes_no_weight_is_a_warning(
    others: dict[str, Any], unused: dict[str, Any], used: dict[str, Any]
) -> None:
    def warned(options: dict[str, Any]) -> list[str]:
        found = quantize_rs.quantize(DIGITS, None, check="none", **options)
        return [text for text in found.warnings if "has no effect" in text]

    name, *_ = unused
    (said,) = warned(others | unused)
    assert said.startswith(name)
    assert warned(others) == warned(used) == []
