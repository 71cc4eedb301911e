"""What the commands of the modules share: ``python -m quantize_rs.compat.onnxruntime.…``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import QuantizeError

__all__ = ["model_parser", "quantize_weights", "reported_errors", "truth"]


def model_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all quantizers of weights have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--input_model", required=True, help="the model")
    parser.add_argument("--output_model", required=True, help="the file to write")
    parser.add_argument("--nodes_to_exclude", nargs="+", default=[], help="nodes to leave out")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the report")
    return parser


def quantize_weights(given: argparse.Namespace, make: Callable[[], Any]) -> None:
    """Quantize the model of a command, and write it with external data, as onnxruntime does."""
    with reported_errors():
        if Path(given.output_model).exists():
            sys.exit(f"error: {given.output_model} already exists")
        quantizer = make()
        quantizer.process()
        report = quantizer.model.save_model_to_file(given.output_model, True)
    if given.verbose:
        sys.stdout.write(f"{report}\n")


@contextmanager
def reported_errors() -> Iterator[None]:
    """End the command with one line that says what went wrong."""
    try:
        yield
    except (QuantizeError, OSError) as error:
        sys.exit(f"error: {error}")


def truth(text: str) -> bool:
    """Return what a text says, as the value of a flag."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
