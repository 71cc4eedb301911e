"""Samples in tables and lines of JSON: the same ranges as from arrays, and what is wrong in one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from image_data import GOOD, Array, conv
from onnx import numpy_helper
from test_samples import safetensors
from token_models import as_arrays, sentences, token_model

import quantize_rs
from quantize_rs import CalibrationError, MissingPackageError, Plan

pa = pytest.importorskip("pyarrow")
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq

IMAGES = np.random.default_rng(0).random((70, 3, 8, 6), np.float32)
SENTENCES = sentences(70)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(token_model()).plan(activations="uint8")


def calibrated(plan: Plan, samples: Any, **options: Any) -> quantize_rs.Ranges:
    return plan.calibrate(samples, method="moving_average", engine="tract", **options)


def fixed(array: Array) -> Any:
    """Fixed-size lists in each other."""
    column = pa.array(array.reshape(-1))
    for size in array.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


# How a column of the images is stored.
COLUMNS: dict[str, Callable[[], Any]] = {
    "nested lists": lambda: pa.array(IMAGES.tolist(), pa.list_(pa.list_(pa.list_(pa.float32())))),
    "float64": lambda: pa.array(IMAGES.tolist()),
    "large lists": lambda: pa.array(
        IMAGES.tolist(), pa.large_list(pa.list_(pa.large_list(pa.float32())))
    ),
    "fixed-size lists": lambda: fixed(IMAGES),
    "tensors": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES),
}


def _parquet(table: Any) -> Any:
    pq.write_table(table, "s.parquet", row_group_size=30)
    return Path("s.parquet")


def _feather(table: Any) -> Any:
    feather.write_feather(table, "s.feather")
    return "s.feather"


def _stream(table: Any) -> Any:
    """As `datasets` stores its data."""
    with pa.ipc.new_stream("s.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=20)
    return "s.arrow"


def _folder(table: Any) -> Any:
    Path("folder").mkdir(exist_ok=True)
    for number, start in enumerate(range(0, table.num_rows, 30)):
        pq.write_table(table.slice(start, 30), f"folder/{number:02}.parquet")
    return "folder"


def _pattern(table: Any) -> Any:
    _folder(table)
    return "folder/*.parquet"


def _braces(table: Any) -> Any:
    _folder(table)
    return "folder/{00..02}.parquet"


def _dataset(table: Any) -> Any:
    _folder(table)
    return ds.dataset("folder")


FORMS: dict[str, Callable[[Any], Any]] = {
    "table": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(16),
    "dataset": _dataset,
    "parquet": _parquet,
    "feather": _feather,
    "stream": _stream,
    "folder": _folder,
    "pattern": _pattern,
    "braces": _braces,
    "list": lambda table: [_parquet(table)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_gives_the_ranges_of_the_array(plan: Plan, form: str) -> None:
    table = pa.table({"label": pa.array(range(70)), "x": COLUMNS["nested lists"]()})
    found = calibrated(plan, FORMS[form](table))
    assert found.samples == 70
    assert found == calibrated(plan, IMAGES)
    assert calibrated(plan, FORMS[form](table), limit=33) == calibrated(plan, IMAGES[:33])


def test_rows_get_a_first_axis_where_the_number_of_axes_is_unknown(tmp_path: Path) -> None:
    model = conv(["n", 3, 8, 6])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    plan = quantize_rs.open(model).plan(activations="uint8")
    lines = [json.dumps({"x": one.tolist()}) + "\n" for one in IMAGES]
    (tmp_path / "s.jsonl").write_text("".join(lines))
    safetensors(tmp_path / "s.safetensors", {"x": IMAGES})
    for samples in (
        tmp_path / "s.jsonl",
        pa.table({"x": IMAGES.tolist()}),
        quantize_rs.Samples(IMAGES, lambda row: row),
        quantize_rs.Samples(tmp_path / "s.safetensors", lambda fed: fed),
    ):
        found = plan.calibrate(samples, engine="onnxruntime")
        assert found == plan.calibrate(IMAGES, engine="onnxruntime")


@pytest.mark.parametrize("column", COLUMNS)
def test_every_kind_of_list_gives_the_shape(plan: Plan, column: str) -> None:
    table = pa.table({"x": COLUMNS[column]()})
    assert calibrated(plan, _parquet(table)) == calibrated(plan, IMAGES)
    assert calibrated(plan, table.slice(7, 50)) == calibrated(plan, IMAGES[7:57])


def test_a_parquet_file_is_never_in_memory_as_a_whole(plan: Plan) -> None:
    many = np.random.default_rng(0).random((20_000, 3, 8, 6), np.float32)
    pq.write_table(pa.table({"x": fixed(many)}), "s.parquet", row_group_size=len(many))
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        found = calibrated(plan, "s.parquet")
    finally:
        pa.set_memory_pool(before)
    assert found.samples == len(many)
    assert 0 < pool.max_memory() < Path("s.parquet").stat().st_size / 2


def test_a_half_float_column_is_as_a_half_float_array(plan: Plan) -> None:
    half = IMAGES.astype(np.float16)
    assert calibrated(plan, pa.table({"x": fixed(half)})) == calibrated(plan, half)


def test_files_are_read_by_every_function_that_takes_samples(plan: Plan) -> None:
    model = conv(["n", 3, 8, 6]).SerializeToString()
    path = _parquet(pa.table({"x": fixed(IMAGES)}))
    calls: list[Callable[[Any], Any]] = [
        lambda data: quantize_rs.quantize_with_calibration(model, None, data).model,
        lambda data: quantize_rs.quantize(model, None, calibration_data=data, min_sqnr=1).model,
        lambda data: (
            quantize_rs.quantize_with_calibration(
                model, None, IMAGES, validation_data=data, min_sqnr=1
            ).model
        ),
        lambda data: quantize_rs.compare(model, model, data, latency=False).outputs,
        lambda data: [row.own for row in quantize_rs.layer_errors(model, model, data).values],
        lambda data: [row.outputs for row in quantize_rs.sensitivity(model, data).layers],
        lambda data: quantize_rs.convert_float16(model, None, calibration_data=data).model,
        lambda data: plan.compare_methods(data).best,
    ]
    for call in calls:
        assert call(path) == call(IMAGES)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_of_tokens_may_differ_in_length(tokens: Plan, form: str) -> None:
    if form == "jsonl":
        lines = (json.dumps({"id": str(i), **one}) for i, one in enumerate(SENTENCES))
        Path("s.jsonl").write_text("\n\n".join(lines) + "\n", "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(SENTENCES), "s.parquet")
    found = calibrated(tokens, f"s.{form}")
    assert found.samples == 70
    assert found == calibrated(tokens, as_arrays(SENTENCES))


def test_lines_of_floats_are_those_of_the_array(plan: Plan) -> None:
    with Path("s.jsonl").open("w") as file:
        file.writelines(json.dumps({"x": image.tolist()}) + "\n" for image in IMAGES)
    assert calibrated(plan, "s.jsonl") == calibrated(plan, IMAGES)


def test_small_integers_and_dictionaries_fit_the_type_of_the_input(tokens: Plan) -> None:
    samples = sentences(20, length=5)
    table = pa.table(
        {
            "input_ids": fixed(np.array([one["input_ids"] for one in samples], np.uint8)),
            "attention_mask": fixed(np.array([one["attention_mask"] for one in samples]) == 1),
        }
    )
    assert calibrated(tokens, table) == calibrated(tokens, as_arrays(samples))


def test_a_column_of_numbers_is_an_input_with_one_feature() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g(float[N, 1] age, float[N, 2] place) => (float[N, 3] y) {
            x = Concat <axis = 1> (age, place)
            h = Relu (x)
            y = MatMul (h, w)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.eye(3, dtype=np.float32), "w"))
    plan = quantize_rs.open(model).plan(activations="uint8")
    rng = np.random.default_rng(0)
    ages, places = rng.random((40, 1), np.float32), rng.random((40, 2), np.float32)
    table = pa.table({"place": fixed(places), "age": ages[:, 0]})
    assert calibrated(plan, table) == calibrated(plan, {"age": ages, "place": places})


@pytest.mark.parametrize("batch", [1, 5])
def test_a_model_of_a_fixed_batch_gets_that_number_of_rows(batch: int) -> None:
    plan = quantize_rs.open(token_model(str(batch), "6")).plan(activations="uint8")
    samples = sentences(20, length=6)
    arrays = {name: np.array([one[name] for one in samples]) for name in samples[0]}
    table = pa.Table.from_pylist(samples)
    found = calibrated(plan, table)
    assert found.samples == 20 // batch
    assert found == calibrated(plan, arrays)
    if batch > 1:
        said = "takes 5 rows at a time, and the last 3 of the Table are left over: give a multiple"
        with pytest.raises(CalibrationError, match=said):
            calibrated(plan, table.slice(0, 18))
        for part in quantize_rs.distributed.split(plan, table.slice(0, 18), 2)[1:]:
            with pytest.raises(CalibrationError, match=said):
                part()
        last = quantize_rs.distributed.split(plan, table.slice(0, 15), 4)[3]
        with pytest.raises(CalibrationError, match=r"there are none in part 4/4 of the Table"):
            last()


def test_rows_of_different_lengths_fill_no_fixed_batch() -> None:
    plan = quantize_rs.open(token_model("2", "seq")).plan(activations="uint8")
    rows = [{name: ids[:n] for name, ids in sentences(1, length=6)[0].items()} for n in (3, 4)]
    message = r"takes 2 rows at a time, .* have the shapes \(3,\) and \(4,\): pad them to one"
    with pytest.raises(CalibrationError, match=message):
        calibrated(plan, pa.Table.from_pylist(rows))


def test_a_name_with_a_dot_is_the_name_of_a_column(tmp_path: Path) -> None:
    model = conv(["n", 3, 8, 6])
    model.graph.input[0].name = model.graph.node[0].input[0] = "input.1"
    plan = quantize_rs.open(model).plan(activations="uint8")
    table = pa.table({"input": fixed(GOOD), "input.1": fixed(GOOD + 1)})
    pq.write_table(table, tmp_path / "s.parquet")
    for data in (table, tmp_path / "s.parquet"):
        assert calibrated(plan, data) == calibrated(plan, GOOD + 1)


def test_columns_of_no_input_are_ignored_with_one_warning(
    plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"label": range(70), "x": fixed(IMAGES), "text": ["a"] * 70})
    calibrated(plan, _parquet(table))
    said = "ignoring `label`, `text`, which match no input of the model"
    assert caplog.text.count("ignoring") == caplog.text.count(said) == 1


def test_the_number_of_rows_is_known_beforehand(plan: Plan) -> None:
    calls: list[tuple[int, int | None]] = []
    calibrated(
        plan,
        _folder(pa.table({"x": fixed(IMAGES)})),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[-1] == (70, 70)


def nested(image: Any) -> Any:
    return pa.table({"x": [GOOD[0].tolist(), image]})


RAGGED = GOOD[0].tolist()
RAGGED[1][2] = [1.0, 2.0]
HOLED = GOOD[0].tolist()
HOLED[1][2][3] = None
INFINITE = GOOD[0].copy()
INFINITE[2, 0, 1] = np.inf

# A table that is no good, and what is said of it.
FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "name": (
        lambda: pa.table({"X_": fixed(GOOD)}),
        r"no array for input `x`; arrays that match no input: `X_`.*s\.parquet.*did you mean `x` ",
    ),
    "null": (lambda: nested(None), r"`x` is null: remove the row .*s\.parquet, row 1\)"),
    "hole": (lambda: nested(HOLED), r"`x` holds a null: remove the row .*s\.parquet, row 1\)"),
    "ragged": (lambda: nested(RAGGED), r"`x` has lists of 2 and 6 elements .*s\.parquet, row 1\)"),
    "text": (
        lambda: pa.table({"x": ["a", "b"]}),
        r"`x` is text, expected numbers \(s\.parquet, row 0\)",
    ),
    "texts": (lambda: pa.table({"x": [["a"], ["b"]]}), r"`x` is text, .*s\.parquet, row 0\)"),
    "bytes": (
        lambda: pa.table({"x": [b"\x89PNG", b"\xff\xd8"]}),
        r"`x` is bytes, expected numbers: decode them with .*transform=\) \(s\.parquet, row 0\)",
    ),
    "decimals": (
        lambda: pa.table({"x": [Decimal("1.5"), Decimal("2.5")]}),
        r"`x` has .* expected numbers: it holds decimals: cast them to float \(s\.parquet, row 0\)",
    ),
    "dates": (
        lambda: pa.table({"x": [date(2026, 1, 1)]}),
        r"`x` has elements of type object, .*: it holds objects of type date \(s\.parquet, row 0\)",
    ),
    "struct": (lambda: pa.table({"x": [{"a": 1}]}), r"`x` has .* a struct of `a`; .*transform"),
    "shape": (
        lambda: pa.table({"x": fixed(GOOD[..., :5])}),
        r"`x` has shape \[1, 3, 8, 5\], .* takes \[\?, 3, 8, 6\]: .*transform.*s\.parquet, row 0\)",
    ),
    "infinity": (
        lambda: nested(INFINITE.tolist()),
        r"`x` holds inf at \[0, 2, 0, 1\], samples must be finite \(s\.parquet, row 1\)",
    ),
    "no rows": (
        lambda: pa.table({"x": fixed(GOOD)}).slice(0, 0),
        r"no calibration samples: there are none in s\.parquet",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_a_table_is_said_with_its_place(plan: Plan, fault: str) -> None:
    make, message = FAULTS[fault]
    with pytest.raises(CalibrationError, match=message) as caught:
        calibrated(plan, _parquet(make()))
    assert caught.value.category in ("data", "input_mismatch", "no_samples", "non_finite")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"input_ids": [1, 2]', r"not a line of JSON: .*one object a line \(s\.jsonl, line 2\)"),
        (b"\xff{}", r"not a line of JSON: .*\(s\.jsonl, line 2\)"),
        (b"[" * 100_000, r"not a line of JSON: .*\(s\.jsonl, line 2\)"),
        (b"[1, 2]", r"expected an object with the names of inputs, this is a list: .*line 2\)"),
        (b'{"input_ids": [1]}', r"no array for input `attention_mask`; .*line 2\)"),
        (
            b'{"input_id": [1], "attention_mask": [1]}',
            r"`input_ids`; .*match no input: `input_id` .*line 2\); did you mean `input_ids` where",
        ),
        (b'{"input_ids": null, "attention_mask": [1]}', r"`input_ids` is null: .*line 2\)"),
        (b'{"input_ids": [1, null], "attention_mask": [1, 1]}', r"it holds a null .*line 2\)"),
        (b'{"input_ids": ["a"], "attention_mask": [1]}', r"`input_ids` is text, .*line 2\)"),
        (
            b'{"input_ids": [[1], [1, 2]], "attention_mask": [1]}',
            r"`input_ids` does not become an array of numbers: .*line 2\)",
        ),
        (
            b'{"input_ids": [1.5], "attention_mask": [1]}',
            r"`input_ids` holds 1\.5 at \[0, 0\], does not fit int64, .*line 2\)",
        ),
        (b'{"input_ids": [1e30], "attention_mask": [1]}', r"holds 1e\+30 .* does not fit int64"),
        (b'{"input_ids": [%d], "attention_mask": [1]}' % 2**63, r"does not fit int64"),
        (b'{"input_ids": [%d], "attention_mask": [1]}' % 2**70, r"integer beyond 64 bits"),
        (b'{"input_ids": [NaN], "attention_mask": [1]}', r"holds nan .* must be finite .*line 2\)"),
        (b'{"input_ids": {"a": 1}, "attention_mask": [1]}', r"`input_ids` has elements of type o"),
        (b'{"input_ids": 3, "attention_mask": [1]}', r"`input_ids` has shape \[\], .*line 2\)"),
    ],
)
def test_what_is_wrong_in_a_line_is_said_with_its_number(
    tokens: Plan, line: bytes, message: str
) -> None:
    good = json.dumps(SENTENCES[0]).encode()
    Path("s.jsonl").write_bytes(good + b"\n" + line + b"\n" + good)
    with pytest.raises(CalibrationError, match=message):
        calibrated(tokens, "s.jsonl")


@pytest.mark.parametrize("name", ["s.parquet", "s.feather", "s.arrow"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_named(plan: Plan, name: str, kept: float) -> None:
    make = {"s.parquet": _parquet, "s.feather": _feather, "s.arrow": _stream}[name]
    make(pa.table({"x": fixed(IMAGES)}))
    data = Path(name).read_bytes()
    Path(name).write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(CalibrationError, match=f"{name} cannot be read, it is damaged"):
        calibrated(plan, name)


def test_files_that_are_not_there_or_are_mixed(plan: Plan) -> None:
    for path in ("no.parquet", "no.jsonl", "no.arrow", "no.tar", "no-{0..3}.jsonl"):
        with pytest.raises(FileNotFoundError, match="no"):
            calibrated(plan, path)
    with pytest.raises(CalibrationError, match=r"no file matches '\*\.jsonl'; correct"):
        calibrated(plan, "*.jsonl")
    Path("s.jsonl").write_text("")
    with pytest.raises(CalibrationError, match=r"no calibration samples: .* none in s\.jsonl"):
        calibrated(plan, "s.jsonl")
    _parquet(pa.table({"x": fixed(IMAGES)}))
    with pytest.raises(CalibrationError, match=r"of several formats \(\.jsonl, \.parquet\)"):
        calibrated(plan, ["s.parquet", "s.jsonl"])


def test_a_missing_package_is_named(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _parquet(pa.table({"x": fixed(IMAGES)}))
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = r's\.parquet needs pyarrow: pip install "quantization-rs\[arrow\]"'
    with pytest.raises(MissingPackageError, match=message):
        calibrated(plan, path)
    assert calibrated(plan, IMAGES).samples == 70
