"""The command ``python -m quantize_rs.compat.onnxruntime.preprocess``, as onnxruntime has it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ._command import reported_errors, truth
from .shape_inference import quant_pre_process

__all__ = ["quant_pre_process"]

_FLAGS = (
    "skip_optimization",
    "skip_onnx_shape",
    "skip_symbolic_shape",
    "auto_merge",
    "guess_output_rank",
    "save_as_external_data",
    "all_tensors_to_one_file",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Preprocess a model; the flags are the arguments of `quant_pre_process`."""
    parser = argparse.ArgumentParser(description="Simplify a model and write shapes into it.")
    parser.add_argument("--input", required=True, help="the model")
    parser.add_argument("--output", required=True, help="the file to write")
    for flag in _FLAGS:
        # onnxruntime takes both `--flag` and `--flag True`.
        parser.add_argument(f"--{flag}", nargs="?", type=truth, const=True, default=False)
    parser.add_argument("--int_max", type=int, default=2**31 - 1)
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--external_data_location")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024)
    given = vars(parser.parse_args(arguments))
    with reported_errors():
        quant_pre_process(given.pop("input"), given.pop("output"), **given)


if __name__ == "__main__":
    main()
