"""Inference times of several models in one process.

Their runs are interleaved, so that a busy machine troubles all of them alike.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import onnxruntime as ort
import samples

BLOCK_SECONDS = 0.005
"""The length of a timed block of calls: a single call of a small model is lost in the noise."""

Times = dict[str, list[tuple[float, float]]]


def latency(request: dict[str, Any]) -> dict[str, Any]:
    """Median wall and CPU milliseconds of each model on one thread, and the ratio of each pair."""
    feed = first_samples(request["samples"], request["batch"])
    sessions = {label: open_session(path) for label, path in request["models"].items()}
    times = interleaved(sessions, feed, request["rounds"])
    return {
        "batch": request["batch"],
        "models": {label: medians(pairs) for label, pairs in times.items()},
        "ratios": {
            f"{a} / {b}": paired(times[a], times[b]) for a, b in itertools.permutations(times, 2)
        },
    }


def first_samples(source: samples.Source, batch: int) -> samples.Feed:
    """The first held-out samples as one feed of the batch size."""
    feeds = list(samples.of(source).held_out(batch))
    return {name: np.concatenate([feed[name] for feed in feeds])[:batch] for name in feeds[0]}


def open_session(model: str) -> ort.InferenceSession:
    """A session that computes in the caller's thread alone."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def interleaved(
    sessions: dict[str, ort.InferenceSession], feed: samples.Feed, rounds: int
) -> Times:
    """Wall and CPU seconds per call: a block of calls of each model a round, the first rotating."""
    calls = {label: calls_per_block(session, feed) for label, session in sessions.items()}
    times: Times = {label: [] for label in sessions}
    labels = list(sessions)
    for turn in range(rounds):
        first = turn % len(labels)
        for label in labels[first:] + labels[:first]:
            times[label].append(block(sessions[label], feed, calls[label]))
    return times


def calls_per_block(session: ort.InferenceSession, feed: samples.Feed) -> int:
    """How many calls fill a block, after warming up."""
    block(session, feed, 5)
    return max(1, round(BLOCK_SECONDS / block(session, feed, 5)[1]))


def block(session: ort.InferenceSession, feed: samples.Feed, calls: int) -> tuple[float, float]:
    """Wall and CPU seconds of one call: the mean over `calls`."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        session.run(None, feed)
    return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls


def medians(times: list[tuple[float, float]]) -> dict[str, float]:
    """Median milliseconds."""
    return {
        "wall_ms": 1e3 * statistics.median(wall for wall, _ in times),
        "cpu_ms": 1e3 * statistics.median(cpu for _, cpu in times),
    }


def paired(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> dict[str, float]:
    """Median over the rounds of one model's time by the other's in the same round."""
    return {
        "wall": statistics.median(x[0] / y[0] for x, y in zip(a, b, strict=True)),
        "cpu": statistics.median(x[1] / y[1] for x, y in zip(a, b, strict=True)),
    }
