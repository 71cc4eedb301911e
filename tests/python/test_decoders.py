"""Language models with a cache of keys and values: weights, the cache, and generated tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoders import HEADS, KV_HEADS, LAYERS, SIZE, decoder, generated, prompts

import quantize_rs
from quantize_rs import OptionError

MODEL = decoder()
SAMPLES = prompts()
PROMPT = [1, 5, 9, 3]
STEPS = 64
FLOAT, _ = generated(MODEL, PROMPT, STEPS)

W4: dict[str, Any] = {"bits": 4, "block_size": 32, "output_format": "matmul_nbits"}


def quantized(model: bytes = MODEL, **given: Any) -> quantize_rs.Report:
    options: dict[str, Any] = {"calibration_data": SAMPLES, "allow_larger": True} | given
    return quantize_rs.quantize(model, None, **options)


def model_of(report: quantize_rs.Report) -> bytes:
    assert report.model is not None
    return report.model


def agreement(report: quantize_rs.Report) -> tuple[float, dict[str, Any]]:
    """Return the share of steps with the same best token, and the cache."""
    found, cache = generated(model_of(report), PROMPT, STEPS, forced=FLOAT)
    return float(np.mean(np.array(found) == np.array(FLOAT))), cache


def test_the_tokens_depend_on_all_before() -> None:
    other, _ = generated(MODEL, [2, 7, 8, 3], STEPS, forced=FLOAT)
    assert other != FLOAT


@pytest.mark.parametrize("float_type", [None, "float16"])
@pytest.mark.parametrize("mixed_layers", [None, "last", "sensitive"])
@pytest.mark.parametrize("kv_cache", [None, "int8", "int4"])
def test_tokens_stay_the_same(
    kv_cache: str | None, mixed_layers: str | None, float_type: str | None
) -> None:
    options = {"kv_cache": kv_cache, "mixed_layers": mixed_layers, "float_type": float_type}
    given: dict[str, Any] = {name: value for name, value in options.items() if value}
    report = quantized(**W4, **given)
    share, cache = agreement(report)
    assert share >= 0.95
    expected = {None: (np.float32, SIZE), "int8": (np.int8, SIZE), "int4": (np.uint8, SIZE // 2)}
    dtype, size = expected[kv_cache]
    assert len(cache) == 2 * LAYERS
    assert {value.dtype for value in cache.values()} == {np.dtype(dtype)}
    assert {value.shape[3] for value in cache.values()} == {size}
    validation = quantize_rs.validate(MODEL, model_of(report))
    assert validation.passed, validation
    assert report.output_check is not None
    assert report.output_check.failure is None


@pytest.mark.parametrize("kv_cache", ["int8", "int4"])
def test_a_cache_alone_is_measured(kv_cache: str) -> None:
    report = quantized(kv_cache=kv_cache, exclude=["*"])
    assert not report.quantized
    assert report.output_check is not None
    sqnr = report.output_check.sqnr_db
    assert sqnr is not None
    asked = quantized(kv_cache=kv_cache, exclude=["*"], validation_data=SAMPLES)
    assert asked.accuracy_control is not None
    assert sqnr == pytest.approx(asked.accuracy_control.sqnr_db, abs=6)
    assert "not measured" not in report.assessment.sentence.split(";")[0]


def test_chosen_layers_have_8_bits() -> None:
    def wide(**options: Any) -> set[str]:
        rows = quantized(**W4, **options).weights
        return {row.name for row in rows if row.qtype == "uint8"}

    assert wide() == {"embed"}
    assert wide(mixed_layers="last") == {"embed", "embed.T"}
    sensitive = wide(mixed_layers="sensitive")
    assert {"v0.weight", "v2.weight", "down0.weight", "embed.T"} <= sensitive


def test_a_tied_table_is_stored_once() -> None:
    report = quantized(decoder(tied=True), **W4)
    tables = [
        tensor
        for tensor in onnx.load_from_string(model_of(report)).graph.initializer
        if np.prod(tensor.dims) >= 96 * 32 and tensor.data_type == onnx.TensorProto.UINT8
    ]
    assert len([tensor for tensor in tables if tensor.name.startswith("embed")]) == 1
    assert quantize_rs.validate(decoder(tied=True), model_of(report)).passed
    generated(model_of(report), PROMPT, 8)


@pytest.mark.parametrize(("kv_cache", "largest"), [("int8", 127), ("int4", 7)])
def test_scales_are_those_of_the_largest_keys_and_values(kv_cache: str, largest: int) -> None:
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    runs = [dict(zip(names, session.run(None, sample), strict=True)) for sample in SAMPLES]
    proto = onnx.load_from_string(model_of(quantized(kv_cache=kv_cache)))
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    nodes = [node for node in proto.graph.node if node.op_type == "GroupQueryAttention"]
    assert len(nodes) == LAYERS
    for node in nodes:
        kinds = {found.name: onnx.helper.get_attribute_value(found) for found in node.attribute}
        assert kinds["k_quant_type"] == kinds["v_quant_type"] == b"PER_CHANNEL"
        assert kinds["kv_cache_bit_width"] == (8 if kv_cache == "int8" else 4)
        assert kinds["num_heads"] == HEADS
        for output, scale in ((1, 12), (2, 13)):
            most = np.max([np.abs(run[node.output[output]]).max(axis=2) for run in runs], axis=0)
            found = scales[node.input[scale]]
            assert found.shape == (1, KV_HEADS, 1, SIZE)
            assert np.allclose(found[0, :, 0], most[0] / largest, rtol=1e-5)


def test_activations_may_be_quantized_too() -> None:
    report = quantize_rs.quantize_with_calibration(
        MODEL, None, SAMPLES, kv_cache="int8", allow_larger=True
    )
    share, cache = agreement(report)
    assert share >= 0.9
    assert {value.dtype for value in cache.values()} == {np.dtype(np.int8)}


@pytest.mark.parametrize("static", [False, True])
def test_a_float16_cache_is_quantized_beside_activations(*, static: bool) -> None:
    """Integer kernels need float32 around them; the cache is not converted for that."""
    half = bytes(quantize_rs.convert_float16(MODEL, None, keep_io=False).model or b"")
    samples = [
        {k: x.astype(np.float16) if x.dtype == np.float32 else x for k, x in sample.items()}
        for sample in SAMPLES
    ]
    options: dict[str, Any] = {"kv_cache": "int8", "allow_larger": True}
    if static:
        report = quantize_rs.quantize_with_calibration(half, None, samples, **options)
    else:
        options |= {"calibration_data": samples, "output_format": "dynamic"}
        report = quantize_rs.quantize(half, None, **options)
    share, cache = agreement(report)
    assert share >= 0.9
    assert {value.dtype for value in cache.values()} == {np.dtype(np.int8)}


def test_ranges_keep_what_the_cache_needs(tmp_path: Path) -> None:
    plan = quantize_rs.open(MODEL).plan(weights="int4", kv_cache="int8", allow_larger=True)
    ranges = plan.calibrate(SAMPLES)
    ranges.save(tmp_path / "ranges.json")
    again = quantize_rs.Ranges.load(tmp_path / "ranges.json")
    made = [plan.apply(found).to_bytes() for found in (ranges, again)]
    assert made[0] == made[1]
    with pytest.raises(OptionError, match="kv_cache needs the largest keys and values"):
        plan.apply()


def changed(edit: Any) -> bytes:
    proto = onnx.load_from_string(MODEL)
    edit(proto.graph)
    return bytes(proto.SerializeToString())


def test_a_model_without_such_a_cache_is_refused() -> None:
    def used_twice(graph: onnx.GraphProto) -> None:
        for layer in range(LAYERS):
            name = f"past_key_values.{layer}.key"
            graph.node.append(onnx.helper.make_node("Abs", [name], [f"abs{layer}"]))
            graph.output.append(onnx.ValueInfoProto(name=f"abs{layer}"))

    for model in (changed(used_twice), quantize_rs.examples.digits().model):
        with pytest.raises(OptionError, match="no GroupQueryAttention of the model takes its past"):
            quantize_rs.quantize(model, None, calibration_data=SAMPLES, kv_cache="int8")
    with pytest.raises(OptionError, match="target is tensorrt"):
        quantized(target="tensorrt", kv_cache="int8")
    with pytest.raises(OptionError, match="kv_cache needs the largest keys and values"):
        quantize_rs.quantize(MODEL, None, kv_cache="int8")


def test_a_cache_alone_is_something() -> None:
    report = quantized(kv_cache="int8", exclude=["*"])
    assert not any("nothing was quantized" in said for said in report.warnings)


@pytest.mark.parametrize("length", [0, 1 << 40])
def test_impossible_numbers_of_heads_are_no_cache(length: int) -> None:
    def edit(graph: onnx.GraphProto) -> None:
        for value in graph.input:
            if value.name.startswith("past"):
                value.type.tensor_type.shape.dim[1].dim_value = length

    with pytest.raises(OptionError, match="no GroupQueryAttention"):
        quantize_rs.quantize(changed(edit), None, kv_cache="int8")


def test_a_cache_that_is_quantized_stays_as_it_is() -> None:
    model = model_of(quantized(kv_cache="int8"))
    with pytest.raises(OptionError, match="no GroupQueryAttention"):
        quantize_rs.quantize(model, None, kv_cache="int8")
    again = quantize_rs.quantize(model, None, **W4, allow_larger=True)
    share, _ = agreement(again)
    assert share >= 0.95


def test_wrong_scales_of_a_cache_are_found() -> None:
    proto = onnx.load_from_string(model_of(quantized(kv_cache="int8")))
    node = next(node for node in proto.graph.node if node.op_type == "GroupQueryAttention")
    tensor = next(found for found in proto.graph.initializer if found.name == node.input[12])
    scales = onnx.numpy_helper.to_array(tensor).copy()
    scales[0, 0, 0, 3] = -1
    tensor.CopyFrom(onnx.numpy_helper.from_array(scales, tensor.name))
    found = quantize_rs.validate(MODEL, proto.SerializeToString())
    assert "the scale -1 of its cache is not a positive number" in str(found)
    for attribute in node.attribute:
        if attribute.name == "num_heads":
            attribute.i = 2
    found = quantize_rs.validate(MODEL, proto.SerializeToString())
    assert "its attributes differ" in str(found)


def outputs_of(model: bytes, sample: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, sample), strict=True))


def continued(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the next step of a prompt, with its cache as the past."""
    made = outputs_of(MODEL, sample)
    names = [name for name in sample if name.startswith("past")]
    past = {name: made[name.replace("past_key_values", "present")] for name in names}
    length = sample["input_ids"].shape[1]
    mask = np.ones((1, length + 1), np.int64)
    return {"input_ids": sample["input_ids"][:, :1], "attention_mask": mask, **past}


def with_integers(model: bytes, sample: dict[str, Any]) -> dict[str, Any]:
    """Quantize the past of a sample as the operator does."""
    graph = onnx.load_from_string(model).graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = dict(sample)
    for node in graph.node:
        bits = {item.name: item.i for item in node.attribute}.get("kv_cache_bit_width")
        if bits is None:
            continue
        for past, scale in ((3, 12), (4, 13)):
            name = node.input[past]
            limit = 2 ** (bits - 1)
            scales = tensors[node.input[scale]].astype(np.float32)
            numbers = np.clip(np.round(sample[name] / scales), -limit, limit - 1)
            if bits == 4:
                shifted = (numbers + 8).astype(np.uint8)
                found[name] = shifted[..., ::2] | shifted[..., 1::2] << 4
            else:
                found[name] = numbers.astype(np.int8)
    return found


@pytest.mark.parametrize("float_type", [None, "float16"])
@pytest.mark.parametrize(("kv_cache", "least"), [("int8", 30), ("int4", 10)])
def test_the_error_is_that_of_the_quantized_cache(
    kv_cache: str, least: float, float_type: str | None
) -> None:
    steps = [continued(sample) for sample in SAMPLES]
    given: dict[str, Any] = {"float_type": float_type} if float_type else {}
    report = quantized(**given, kv_cache=kv_cache, calibration_data=SAMPLES + steps)
    model = model_of(report)
    compared = quantize_rs.compare(MODEL, model, steps)
    wanted = [outputs_of(MODEL, step) for step in steps]
    found = [outputs_of(model, with_integers(model, step)) for step in steps]
    error = sum(
        np.sum((a["logits"] - b["logits"]) ** 2) for a, b in zip(wanted, found, strict=True)
    )
    sqnr = 10 * np.log10(sum(np.sum(a["logits"] ** 2) for a in wanted) / error)
    rows = {row.name: row.sqnr_db for row in compared.outputs}
    assert rows["logits"] == pytest.approx(sqnr, abs=0.3)
    assert {row.name for row in compared.outputs} == set(wanted[0])
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    assert least < report.output_check.sqnr_db < (40 if kv_cache == "int8" else 20)
    assert quantize_rs.layer_errors(MODEL, model, steps).values


def test_a_quantized_cache_counts_for_the_criterion() -> None:
    with pytest.raises(quantize_rs.errors.AccuracyCriteriaError, match="kv_cache is int4"):
        quantized(kv_cache="int4", min_sqnr=25)
    report = quantized(kv_cache="int8", min_sqnr=25)
    assert report.accuracy_control is not None
    assert (report.accuracy_control.sqnr_db or 0) >= 25


def test_the_report_says_which_caches_are_quantized() -> None:
    report = quantized(**W4, kv_cache="int4")
    assert any("3 GroupQueryAttention nodes are int4" in note for note in report.notes)
