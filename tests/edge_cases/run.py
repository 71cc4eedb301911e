"""Quantize every edge-case model in every way, and report the results.

python tests/edge_cases/run.py                 # every row, every way
python tests/edge_cases/run.py 'opset*'        # some rows
python tests/edge_cases/run.py --write         # docs/edge-cases.md, from the table alone
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import families  # noqa: F401 (fills the table)
import numpy as np
import onnx
import oracle
from census import census
from decode import decoded
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from rows import ROWS, Quantized, Refused, Row, Untouched
from table import DOCUMENT, document
from ways import WAYS, Feeds

import quantize_rs
from quantize_rs import QuantizeError, Report

CALIBRATED, EVALUATED = range(8), range(100, 104)
"""The numbers of the samples that calibration sees, and of those that outputs are evaluated on."""

BATCH, OTHER = 4, 12
"""The sizes of named dimensions."""


def main() -> int:
    """Print every row, and the number of those that differ from the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only this way")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    parser.add_argument("--trace", action="store_true", help="show where a row failed")
    options = parser.parse_args()
    if options.write:
        DOCUMENT.write_text(document(), encoding="utf-8")
        return 0
    wrong, before = 0, time.process_time()
    for name, way in cases():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.names):
            continue
        if options.way and way not in options.way:
            continue
        try:
            print(f"{name:34} {way:8} {run(ROWS[name], way)}", flush=True)
        except Exception as error:
            wrong += 1
            said = " ".join(str(error).split())[:300]
            print(f"{name:34} {way:8} WRONG: {type(error).__name__}: {said}", flush=True)
            if options.trace:
                traceback.print_exc()
    print(f"{wrong} wrong, {time.process_time() - before:.0f} CPU s")
    return int(wrong > 0)


def cases() -> list[tuple[str, str]]:
    """Every row, in every way that makes sense for it."""
    return [
        (row.name, way)
        for row in ROWS.values()
        for way in WAYS
        if row.outcomes.get(way, Quantized()) is not None
    ]


def run(row: Row, way: str) -> str:
    """Quantize the model and compare the result with the table; return a summary."""
    expected = row.expected(way)
    with source(row) as (model, before):
        target = model.with_name("quantized.onnx") if isinstance(model, Path) else None
        if row.read_only and isinstance(model, Path):
            target = model.parent.parent / "quantized.onnx"
        try:
            report = WAYS[way](model, target, lambda: samples(row, before))
        except QuantizeError as error:
            assert isinstance(expected, Refused), f"refused: {type(error).__name__}: {error}"
            assert type(error) is getattr(quantize_rs, expected.error), repr(error)
            assert expected.says in str(error), error
            assert target is None or not target.exists(), "refused, and yet a file was written"
            return f"refused: {error}"
        assert not isinstance(expected, Refused), f"was not refused: {report!r}"
        if isinstance(expected, Untouched):
            assert not report.quantized, report
            assert report.warnings, "nothing was done and nothing said"
            assert same(prepared(model, report), report.model or target), "changed"
            return "as it was"
        after = target or report.model
        assert after is not None
        return evaluated(row, way, expected, before, after, report)


@contextmanager
def source(row: Row) -> Iterator[tuple[Path | bytes, Path | bytes]]:
    """The model to be quantized, and the same to be compared with."""
    content, beside = row.files()
    if not beside and not row.read_only:
        yield content, content
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "models"
        for name, data in {f"{row.name}.onnx": content, **beside}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if row.read_only:
            folder.chmod(0o500)
        try:
            yield (folder / f"{row.name}.onnx",) * 2
        finally:
            if row.read_only:
                assert {path.name for path in folder.iterdir()} == {f"{row.name}.onnx", *beside}
            folder.chmod(0o700)


def asked_for(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs without a default value."""
    constant = {tensor.name for tensor in model.graph.initializer}
    return [end for end in model.graph.input if end.name not in constant]


def prepared(model: Path | bytes, report: quantize_rs.Report) -> Path | bytes:
    """The float model that the plan was made for."""
    if not report.steps:
        return model
    made = quantize_rs.optimize(model, passes=[step.name for step in report.steps]).model
    assert made is not None
    return made


def same(before: Path | bytes, after: Path | bytes | None) -> bool:
    """Whether nothing was changed: the bytes, or the model if it has external data, are equal."""
    if isinstance(before, bytes) and isinstance(after, bytes):
        return before == after
    models = [load(before), load(after)]  # type: ignore[list-item]
    for tensor in (tensor for model in models for tensor in model.graph.initializer):
        tensor.ClearField("data_location")  # onnx keeps this field when it loads the data
    return models[0] == models[1]


def load(model: Path | bytes) -> ModelProto:
    """The model, with all its data."""
    return onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)


def evaluated(
    row: Row,
    way: str,
    expected: Quantized,
    before: Path | bytes,
    after: Path | bytes,
    report: Report,
) -> str:
    """Check that the result is valid, small and accurate enough; return a summary."""
    old, new = load(before), load(after)
    weights = row.weights if expected.weights is None else expected.weights
    floor = WAYS[way].floor if expected.floor is None else expected.floor
    was, found = census(old), census(new)
    assert found.weights - was.weights == weights, (
        f"{found.weights - was.weights} weights are quantized, not {weights}: "
        + "; ".join(f"{v.name}: {v.why}" for v in report.weights)
    )
    if not row.copies:
        done = found.elements - was.elements
        left = found.floats - (was.floats - done)
        assert left <= 64 + done // 8, f"{left} floats more are left than there should be"
    assert asked_for(old) == asked_for(new)
    assert list(old.graph.output) == list(new.graph.output)
    assert accepted(before) == row.checked
    if row.checked:
        oracle.check(after if isinstance(after, bytes) else str(after))
    found_wrong = quantize_rs.validate(before, after).problems
    assert not found_wrong, "; ".join(map(str, found_wrong))
    if WAYS[way].decoded:
        new = decoded(new)
        after = new.SerializeToString()
    worst = near(row, old, new, before, after)
    assert worst >= floor, f"{worst:.1f} dB of {floor} dB"
    return f"{weights} weights, {worst:.1f} dB (at least {floor:g})"


def accepted(model: Path | bytes) -> bool:
    """Whether onnx.checker accepts the model itself."""
    try:
        oracle.check(model if isinstance(model, bytes) else str(model))
    except Exception:
        return False
    return True


def near(
    row: Row, old: ModelProto, new: ModelProto, before: Path | bytes, after: Path | bytes
) -> float:
    """Signal to noise of the worst output, optimized or not, over the held-out samples."""
    if row.workaround:
        for model in (old, new):
            row.workaround(model)
        before, after = old.SerializeToString(), new.SerializeToString()
    plain = oracle.session(before, optimized=False)
    exact = [plain.run(None, feed) for feed in feeds(row, old, EVALUATED)]
    worst = np.inf
    for optimized in (True, False):
        session = oracle.session(after, optimized=optimized)
        for at, _ in enumerate(exact[0]):
            pairs = [
                (wanted[at], session.run(None, feed)[at])
                for wanted, feed in zip(exact, feeds(row, old, EVALUATED), strict=True)
            ]
            found = sqnr(pairs)
            assert found == np.inf or old.graph.output[at].name not in row.exact, "not exact"
            worst = min(worst, found)
    return float(worst)


def sqnr(pairs: list[tuple[Any, Any]]) -> float:
    """SQNR of one output over several samples; values that are not finite floats must be equal."""
    noise = signal = 0.0
    for wanted, found in pairs:
        x, y = np.asarray(wanted), np.asarray(found)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.kind != "f":
            np.testing.assert_array_equal(x, y)
            continue
        x, y = x.astype(np.float64), y.astype(np.float64)
        odd = ~np.isfinite(x)
        np.testing.assert_array_equal(x[odd], y[odd])
        noise += float(np.sum((x[~odd] - y[~odd]) ** 2))
        signal += float(np.sum(x[~odd] ** 2))
    if noise == 0:
        return np.inf
    return 10 * np.log10(signal / noise) if signal > 0 else -np.inf


def samples(row: Row, model: Path | bytes) -> Feeds:
    """The samples for calibration."""
    structure = model if isinstance(model, bytes) else model.read_bytes()
    return feeds(row, onnx.load_from_string(structure), CALIBRATED)


def feeds(row: Row, model: ModelProto, numbers: Any) -> Feeds:
    """Valid inputs from fixed seeds."""
    made = []
    for number in numbers:
        rng = np.random.default_rng([zlib.crc32(row.name.encode()), number])
        feed = {}
        for end in asked_for(model):
            dims = end.type.tensor_type.shape.dim
            shape = [
                d.dim_value if d.HasField("dim_value") else size(row, d.dim_param, number)
                for d in dims
            ]
            dtype = helper.tensor_dtype_to_np_dtype(end.type.tensor_type.elem_type)
            if end.type.tensor_type.elem_type == TensorProto.STRING:
                feed[end.name] = np.array(["a", "b"] * size(row, "", number))
            elif dtype == np.bool_:
                feed[end.name] = rng.random(shape) < 0.5
            elif dtype.kind in "iu":
                low, high = row.ranges.get(end.name, (0, 9))
                feed[end.name] = rng.integers(low, high + 1, shape).astype(dtype)
            else:
                feed[end.name] = rng.normal(0, 1, shape).astype(dtype)
        made.append(feed)
    return made


def size(row: Row, name: str, number: int) -> int:
    """The length of a named dimension."""
    if name in row.varies:
        return row.varies[name][number % len(row.varies[name])]
    return row.sizes.get(name, BATCH if name == "batch" else OTHER)


if __name__ == "__main__":
    sys.exit(main())
