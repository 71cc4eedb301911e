"""Try every number format in every operator set in ONNX Runtime, and say what it makes of it.

python tests/runtimes/runtimes.py            # what is not as docs/runtimes.md says
python tests/runtimes/runtimes.py --write    # docs/runtimes.md
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import onnx
import onnxruntime
from cells import OPERATORS, OPSETS, Way, outcome, quantized, ways

import quantize_rs

DOCUMENT = HERE.parents[1] / "docs" / "runtimes.md"

Row: TypeAlias = tuple[str, ...]

HEAD = """# ONNX Runtime's support for the number formats

The number formats of `qdq`, `matmul_nbits` and `dynamic`, tried in ONNX Runtime {version} on a CPU;
[formats](formats.md#operators-on-integers-qoperator) has the operators of `qoperator`. In short:

- 8-bit weights with 8-bit activations, and `dynamic`: MatMul, Gemm and Conv compute in integers.
- Integer weights alone, of 2, 4 or 8 bits: MatMul and Gemm become `MatMulNBits`. The weights of
  Conv, and those of int16, uint16 and float8, are dequantized at inference time, which is slower
  than float.
- `float4e2m1`, `mxfp4`, `mxfp8` and `nvfp4` do not load.

Each test model has one operator with a weight and a Relu, is quantized in the given format, and is
loaded with all optimizations and with none. Without optimizations, outputs agree with
`onnx.reference` to 60 dB. With them they agree to 30 dB, as ONNX Runtime may compute in integers
where the file has floats. `onnx.reference` does not implement `MatMulNBits`, which is compared with
the float model. `MatMulNBits` quantizes its input to 8 bits at accuracy level 4, which ONNX Runtime
takes for `qdq`, and multiplies floats otherwise.

| cell | meaning |
|---|---|
| an operator | it reads the integers in the optimized graph |
| `float` | weights are dequantized when the model is loaded, and everything computes in float |
| `float, dequantized at inference` | weights are dequantized at inference time |
| `without optimizations only` | the model loads with no or basic optimizations, not with all |
| – | the format does not support the operator |

`opset` is that of the result, from the first that has the format to the last that ONNX Runtime
loads. Weights in formats that do not load are written only for the targets `generic` or
`tensorrt`, and so are activations of `float8e4m3fn` and `float8e5m2`. This page is written by
`python tests/runtimes/runtimes.py --write`; a test compares it with ONNX Runtime.

ONNX Runtime Web runs the same kernels in WebAssembly. WebGPU has others:
[in a browser](choosing.md#in-a-browser).

"""


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    if parser.parse_args().write:
        DOCUMENT.write_text(document(), encoding="utf-8")
        return 0
    old, new = set(DOCUMENT.read_text("utf-8").splitlines()), set(document().splitlines())
    for sign, lines in (("-", old - new), ("+", new - old)):
        for line in sorted(lines):
            print(sign, line)
    return int(old != new)


def document() -> str:
    """The page, from what ONNX Runtime does."""
    text = HEAD.format(version=onnxruntime.__version__)
    titles = ["format", "weights", "scales", "activations", "opset", *OPERATORS]
    text += f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n"
    found = [row for way in ways() for row in rows(way)]
    for column in (titles.index("weights"), titles.index("activations"), titles.index("scales")):
        found = merged(found, column)
    return text + "".join(f"| {' | '.join(row)} |\n" for row in found)


def merged(found: list[Row], column: int) -> list[Row]:
    """The rows, with those that differ in one column alone as one row."""
    cells: dict[tuple[Row, Row], list[str]] = {}
    for row in found:
        cells.setdefault((row[:column], row[column + 1 :]), []).append(row[column])
    return [(*before, ", ".join(names), *after) for (before, after), names in cells.items()]


def rows(way: Way) -> list[Row]:
    """The rows of a way: one for all operator sets in which the same comes of it."""
    first = opset_of(quantized(way, "MatMul", OPSETS[0]))
    found = [(opset, cells(way, opset)) for opset in (first, *(o for o in OPSETS if o > first))]
    made = []
    for same, run in groupby(found, key=lambda pair: pair[1]):
        opsets = [opset for opset, _ in run]
        last = f"{opsets[0]}" if len(opsets) == 1 else f"{opsets[0]}–{opsets[-1]}"
        made.append((way.format, way.weights, way.scales, way.activations or "float", last, *same))
    return made


def cells(way: Way, opset: int) -> Row:
    """What comes of each operator."""
    return tuple(outcome(way, op_type, opset) or "–" for op_type in OPERATORS)


def opset_of(report: quantize_rs.Report) -> int:
    """The operator set of the written model."""
    assert report.model is not None
    imports = onnx.load_from_string(report.model).opset_import
    return next(entry.version for entry in imports if not entry.domain)


if __name__ == "__main__":
    sys.exit(main())
