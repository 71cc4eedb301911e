"""What a measured process does for `wild.py`: quantize a model, then evaluate the result."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import latency
import numpy as np
import quality
import wild_inputs
from jobs import Prepared, Request

SECONDS = 2.0
"""How long the two models of a pair are timed."""

ROUNDS = (5, 60)
"""The fewest and the most rounds in which they are timed."""


def quantize(request: Request) -> Prepared:
    """Our call of one way, with calibration samples where it takes any."""
    import quantize_rs

    model, output, options = request["model"], request["output"], request["options"]
    calibrated = request["calibrated"]
    data = wild_inputs.samples_of(Path(model)).calibration if calibrated else []

    def call() -> dict[str, Any]:
        if calibrated:
            report = quantize_rs.quantize_with_calibration(model, output, data, **options)
        else:
            report = quantize_rs.quantize(model, output, **options)
        quantized = [row.name for row in report.quantized]
        return {"warnings": list(report.warnings), "quantized": len(quantized)}

    return Prepared(call)


def evaluate(request: Request) -> Prepared:
    """The error of the outputs on held-out samples, and the time beside the float model."""
    found = wild_inputs.samples_of(Path(request["reference"]))
    feeds = found.held_out

    def call() -> dict[str, Any]:
        reference, model = request["reference"], request["model"]
        wanted = runs(reference, feeds, optimise=True)
        return {
            "inputs": found.source,
            "optimised": quality.attempt(lambda: worst(wanted, model, feeds, optimise=True)),
            "plain": quality.attempt(lambda: worst(wanted, model, feeds, optimise=False)),
            "time": quality.attempt(lambda: ratio(reference, model, feeds[0])),
        }

    return Prepared(call)


Outputs = dict[str, list[np.ndarray]]


def runs(model: str, feeds: list[wild_inputs.Feed], *, optimise: bool) -> Outputs:
    """Every output of the model on every feed."""
    session = quality.open_session(model, optimise=optimise)
    names = [output.name for output in session.get_outputs()]
    every = [session.run(None, feed) for feed in feeds]
    return {name: list(parts) for name, parts in zip(names, zip(*every, strict=True), strict=True)}


def worst(
    wanted: Outputs, model: str, feeds: list[wild_inputs.Feed], *, optimise: bool
) -> dict[str, Any]:
    """The output with the lowest SQNR, in decibels; None where every output is equal."""
    got = runs(model, feeds, optimise=optimise)
    errors = {name: sqnr(wanted[name], got[name]) for name in wanted}
    measured = {name: db for name, db in errors.items() if db is not None}
    name = min(measured, key=lambda name: measured[name], default=None)
    return {"output": name, "sqnr": None if name is None else measured[name]}


def sqnr(wanted: list[np.ndarray], got: list[np.ndarray]) -> float | None:
    """The SQNR of a float output over all its samples, in decibels.

    None if there is no noise, no signal, or no float. What is not finite in the float model is left
    out; what is not finite in the result alone, or of another shape, is as bad as can be.
    """
    if wanted[0].dtype.kind != "f":
        return None
    signal = noise = 0.0
    for a, b in zip(wanted, got, strict=True):
        if a.shape != b.shape:
            return -math.inf
        finite = np.isfinite(a)
        x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
        if not np.isfinite(y).all():
            return -math.inf
        signal += float(np.square(x).sum())
        noise += float(np.square(x - y).sum())
    return None if noise == 0 or signal == 0 else 10 * math.log10(signal / noise)


def ratio(reference: str, model: str, feed: wild_inputs.Feed) -> dict[str, float]:
    """CPU time of the result by that of the float model, one thread, interleaved."""
    sessions = {"float": latency.open_session(reference), "ours": latency.open_session(model)}
    begun = time.process_time()
    for session in sessions.values():
        session.run(None, feed)
    least, most = ROUNDS
    pair = max(time.process_time() - begun, 2 * latency.BLOCK_SECONDS)
    rounds = min(most, max(least, round(SECONDS / pair)))
    times = latency.interleaved(sessions, feed, rounds)
    return {"ratio": latency.paired(times["ours"], times["float"])["cpu"], "rounds": rounds}


JOBS = {"quantize": quantize, "evaluate": evaluate}
