"""Metrics of outputs, for `compare` and for the accuracy criteria of `quantize`.

A metric is a function ``metric(outputs, samples) -> float``. `outputs` is a list with a dict of
float32 arrays for each sample, by output name: the float outputs, and for a model without any those
of integers and booleans, as floats. `samples` is a list with the inputs. It is called with the
outputs of the float model and with those of the quantized one. A higher score is better, unless
the function is in a `Metric` with ``higher_is_better=False``, or has an attribute of that name.
Functions of this module make the usual ones; some have names: ``metric="top5"``.

>>> import numpy as np
>>> import quantize_rs
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_rs.quantize(digits.model, "digits.int8.onnx")
>>> def confidence(outputs, samples):
...     return float(np.mean([next(iter(output.values())).max() for output in outputs]))
>>> found = quantize_rs.compare(
...     digits.model, "digits.int8.onnx", digits.calibration, metric=confidence
... )
>>> found.accuracy.metric, abs(found.accuracy.drop) < 1
('confidence', True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._inputs.arrays import as_feed
from ._inputs.labels import labels_of
from .errors import OptionError

__all__ = [
    "Metric",
    "MetricLike",
    "cosine",
    "kl_divergence",
    "mean_absolute_error",
    "mean_average_precision",
    "perplexity",
    "top_k",
    "word_error_rate",
]

Floats: TypeAlias = NDArray[np.float32]
Outputs: TypeAlias = list[dict[str, Floats]]
Samples: TypeAlias = list[dict[str, NDArray[Any]]]
Box: TypeAlias = Sequence[float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with a name, and whether a higher score is better.

    Attributes
    ----------
    function : callable
        ``function(outputs, samples) -> float``; with `against_original`, ``function(outputs,
        original_outputs) -> float``.
    name : str
        Its name in reports.
    higher_is_better : bool
        Whether a higher score is better.
    against_original : bool
        Whether it compares with the outputs of the float model instead of reading the samples.
        Positions that an input ``attention_mask`` marks as padding are left out of both, so that
        the first two axes of an output become one.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs.metrics import Metric
    >>> def largest(outputs, samples):
    ...     return max(float(np.abs(output["y"]).max()) for output in outputs)
    >>> Metric(largest, "largest output", higher_is_better=False).name
    'largest output'
    """

    function: Callable[[Any, Any], float]
    name: str
    higher_is_better: bool = True
    against_original: bool = False


MetricLike: TypeAlias = str | Metric | Callable[[Any, Any], float]


def top_k(labels: ArrayLike, k: int = 5, *, output: str | None = None) -> Metric:
    """Return the share of rows whose label is among the `k` highest scores.

    Parameters
    ----------
    labels : array of int
        The class of every row of every sample, or an array of them for each sample; negative ones
        are left out.
    k : int
        How many of the highest scores count.
    output : str, optional
        The output with the scores, along its last axis; by default the first.
    """
    if k < 1:
        raise OptionError(f"k is {k}, expected 1 or more", option="k")
    wanted = np.array(labels_of(labels), dtype=np.int64)

    def score(outputs: Outputs, _: Samples) -> float:
        rows, classes = _labelled(outputs, output, wanted)
        highest = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        return float((highest == classes[:, None]).any(axis=1).mean())

    return Metric(score, f"top-{k} accuracy")


def perplexity(labels: ArrayLike, *, output: str | None = None) -> Metric:
    """Return the exponential of the mean negative log-likelihood of the labels; lower is better.

    Parameters
    ----------
    labels : array of int
        The next token of every row of every sample, or an array of them for each sample; negative
        ones are left out.
    output : str, optional
        The output with the logits, along its last axis; by default the first.
    """
    wanted = np.array(labels_of(labels), dtype=np.int64)

    def score(outputs: Outputs, _: Samples) -> float:
        found, tokens = _labelled(outputs, output, wanted)
        rows = found.astype(np.float64)
        top = rows.max(axis=1)
        total = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
        return float(np.exp(np.mean(total - rows[np.arange(len(tokens)), tokens])))

    return Metric(score, "perplexity", higher_is_better=False)


def cosine(*, output: str | None = None) -> Metric:
    """Return the mean cosine between the outputs of both models, one for each sample."""

    def score(outputs: Outputs, original: Outputs) -> float:
        return float(np.mean([_cosine(*pair) for pair in _pairs(outputs, original, output)]))

    return Metric(score, "cosine", against_original=True)


def kl_divergence(*, output: str | None = None) -> Metric:
    """Return the mean Kullback-Leibler divergence of the softmax of rows; lower is better."""

    def score(outputs: Outputs, original: Outputs) -> float:
        found = [
            _divergence(log_p, log_q)
            for log_q, log_p in (
                (_log_softmax(a), _log_softmax(b)) for a, b in _pairs(outputs, original, output)
            )
        ]
        return float(np.mean(np.concatenate([np.ravel(rows) for rows in found])))

    return Metric(score, "KL divergence", higher_is_better=False, against_original=True)


def mean_absolute_error(*, output: str | None = None) -> Metric:
    """Return the mean absolute difference to the outputs of the float model; lower is better."""

    def score(outputs: Outputs, original: Outputs) -> float:
        found = [_difference(a, b).ravel() for a, b in _pairs(outputs, original, output)]
        return float(np.mean(np.concatenate(found)))

    return Metric(score, "mean absolute error", higher_is_better=False, against_original=True)


def word_error_rate(
    references: Sequence[Sequence[Any]],
    decode: Callable[[dict[str, Floats]], Sequence[Any]] | None = None,
) -> Metric:
    """Return the word error rate: edits per word of the references; lower is better.

    Parameters
    ----------
    references : sequence of sequences
        The words (or tokens) of each sample.
    decode : callable, optional
        The words of the outputs of a sample. By default the highest score of each step of the first
        output, without repetitions and without token 0, as for networks that were trained with CTC.
    """
    read = _greedy if decode is None else decode

    def score(outputs: Outputs, _: Samples) -> float:
        _same_count("references", len(references), len(outputs))
        edits = sum(
            _edits(list(read(found)), list(wanted))
            for found, wanted in zip(outputs, references, strict=True)
        )
        return edits / max(sum(map(len, references)), 1)

    return Metric(score, "word error rate", higher_is_better=False)


def mean_average_precision(
    truths: Sequence[Iterable[tuple[Any, Box]]],
    decode: Callable[[dict[str, Floats]], Iterable[tuple[Any, float, Box]]],
    *,
    iou: float = 0.5,
) -> Metric:
    """Return the mean over classes of the average precision of detections.

    The average precision is the area under the curve of precision over recall, where the precision
    at a recall is the largest at that recall or a higher one (Everingham et al., "The PASCAL Visual
    Object Classes Challenge: A Retrospective", IJCV 2015, section 4.2).

    Parameters
    ----------
    truths : sequence
        For each sample, a class and a box ``(x1, y1, x2, y2)`` for each object.
    decode : callable
        The detections in the outputs of a sample: class, score and box.
    iou : float
        The intersection over union from which on a detection matches an object.
    """
    wanted = [list(objects) for objects in truths]

    def score(outputs: Outputs, _: Samples) -> float:
        _same_count("truths", len(wanted), len(outputs))
        found = [list(decode(output)) for output in outputs]
        kinds = {kind for objects in wanted for kind, _ in objects}
        precisions = [_average_precision(kind, found, wanted, iou) for kind in kinds]
        return float(np.mean(precisions)) if precisions else 0.0

    return Metric(score, "mean average precision")


_ALONE: Mapping[str, Callable[[], Metric]] = {
    "cosine": cosine,
    "kl": kl_divergence,
    "mae": mean_absolute_error,
}


_NAMES = ("top1", "top5", "perplexity", *_ALONE)


def metric_of(
    wanted: MetricLike | None,
    labels: Any,
    scores: str | None,
    *,
    others: Iterable[str] = (),
    decides: bool = True,
) -> _Adapter | None:
    """Return the adapter that the extension module calls.

    `others` are names that the caller takes besides, for errors. A metric that `decides` must have
    a finite score for the float model.

    Raises
    ------
    OptionError
        The name is unknown, the metric of this name needs labels, or has no use for them.
    """
    if isinstance(wanted, str):
        return _Adapter(_named(wanted, labels, scores, others), decides)
    if wanted is not None:
        _reject_unused("a metric of your own, which brings what it needs", labels, scores)
    match wanted:
        case None:
            return None
        case Metric():
            return _Adapter(wanted, decides)
        case _ if callable(wanted):
            name = getattr(wanted, "__name__", type(wanted).__name__)
            better = bool(getattr(wanted, "higher_is_better", True))
            return _Adapter(Metric(wanted, name, better), decides)
    what = f"metric is of type {type(wanted).__name__}, expected a function, a Metric or a name"
    raise OptionError(what, option="metric")


def _named(name: str, labels: Any, scores: str | None, others: Iterable[str]) -> Metric:
    if name in _ALONE:
        _reject_unused(f"metric={name!r}", labels, scores)
        return _ALONE[name]()
    count = name.removeprefix("top").lstrip("-")
    ranked = name.startswith("top") and count.isdecimal() and int(count) > 0
    if not ranked and name != "perplexity":
        known = ", ".join(dict.fromkeys([*_NAMES, *others]))
        what = f"metric is {name!r}, expected {known}, a function, or one of quantize_rs.metrics"
        raise OptionError(what, option="metric")
    if labels is None:
        raise OptionError(f"metric is {name!r}, which needs labels", option="metric")
    wanted = labels_of(labels) or []
    if ranked:
        return top_k(wanted, int(count), output=scores)
    return perplexity(wanted, output=scores)


def _reject_unused(what: str, labels: Any, scores: str | None) -> None:
    for option, value in (("labels", labels), ("scores", scores)):
        if value is not None:
            raise OptionError(f"{option} has no effect with {what}", option=option)


class _Adapter:
    """Scores both models with a metric."""

    def __init__(self, metric: Metric, decides: bool) -> None:
        self.name = metric.name
        self.higher_is_better = metric.higher_is_better
        self._metric = metric
        self._decides = decides

    def __call__(self, names: list[str], rows: list[tuple[Any, Any]]) -> tuple[float, float]:
        """Return the scores of the float model and of the quantized one."""
        original, quantized = (
            [dict(zip(names, sides[side], strict=True)) for _, sides in rows] for side in (0, 1)
        )
        samples = [as_feed(inputs) for inputs, _ in rows]
        if self._metric.against_original:
            original, quantized = (_tokens(side, samples) for side in (original, quantized))
        others: Any = original if self._metric.against_original else samples
        found = self._score(original, others)
        if self._decides and not math.isfinite(found):
            what = (
                f"metric {self.name!r} is {found} for the float model, expected a finite number: "
                "correct the metric, or leave out the samples that it has no score for"
            )
            raise OptionError(what, option="metric")
        return found, self._score(quantized, others)

    def _score(self, outputs: Outputs, others: Any) -> float:
        found = self._metric.function(outputs, others)
        try:
            return float(found)
        except (TypeError, ValueError):
            what = f"metric {self.name!r} returned a {type(found).__name__}, expected a number"
            raise OptionError(what, option="metric") from None


def _tokens(outputs: Outputs, samples: Samples) -> Outputs:
    """Return the outputs without the positions of padding."""
    return [_of_tokens(*both) for both in zip(outputs, samples, strict=True)]


def _of_tokens(outputs: dict[str, Floats], sample: dict[str, NDArray[Any]]) -> dict[str, Floats]:
    masks = (value for name, value in sample.items() if name.lower().endswith("attention_mask"))
    mask = next(masks, None)
    if mask is None or mask.ndim != 2 or not mask.any():
        return outputs
    return {
        name: value[mask != 0] if value.ndim > 2 and value.shape[:2] == mask.shape else value
        for name, value in outputs.items()
    }


def _chosen(outputs: Outputs, name: str | None) -> list[Floats]:
    first = next(iter(outputs[0])) if outputs and name is None else name
    if outputs and first not in outputs[0]:
        known = ", ".join(outputs[0])
        raise OptionError(f"there is no output {first!r}, only {known}", option="metric")
    return [output[str(first)] for output in outputs]


def _pairs(
    outputs: Outputs, original: Outputs, name: str | None
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the same output of both models for each sample; all outputs without a name."""
    names = list(outputs[0]) if name is None else [name]
    return [
        (a.astype(np.float64), b.astype(np.float64))
        for name in names
        for a, b in zip(_chosen(outputs, name), _chosen(original, name), strict=True)
    ]


def _labelled(
    outputs: Outputs, name: str | None, labels: NDArray[Any]
) -> tuple[Floats, NDArray[Any]]:
    """Return the rows of scores of all samples that have a label, and the labels."""
    found = [value.reshape(-1, value.shape[-1]) for value in _chosen(outputs, name)]
    rows = np.concatenate(found)
    _same_count("labels", len(labels), len(rows))
    known = labels >= 0
    if not known.any():
        raise OptionError("every label is negative, which leaves none", option="metric")
    classes = rows.shape[-1]
    if labels.max() >= classes:
        at = int(labels.argmax())
        what = f"label {labels[at]} of row {at} is no class: the output has {classes}, from 0 on"
        raise OptionError(what, option="metric")
    return rows[known], labels[known]


def _same_count(what: str, given: int, expected: int) -> None:
    if given != expected:
        raise OptionError(f"{what} are {given}, expected {expected}", option="metric")


#: From here on float32 represents no fractions: masks are beyond, such as -1e9 and infinity.
_LARGEST = 2.0**24


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    masks = ((a == b) | (np.isnan(a) & np.isnan(b))) & ~(np.abs(b) < _LARGEST)
    a, b = a[~masks], b[~masks]
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.sum(a * b)) / norms if norms else float(np.array_equal(a, b))


def _difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute differences, which is 0 for infinities of the same sign."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape))
    return np.abs(np.subtract(a, b, out=found, where=a != b))


def _divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum over `p · (log p - log q)` of each row, whose terms are 0 where `p` is 0."""
    ratio = np.zeros(log_p.shape)
    np.subtract(log_p, log_q, out=ratio, where=log_p > -np.inf)
    found: NDArray[np.float64] = np.sum(np.exp(log_p) * ratio, axis=-1)
    return found


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = rows - rows.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return found


def _greedy(outputs: dict[str, Floats]) -> list[int]:
    scores = next(iter(outputs.values()))
    best = scores.reshape(-1, scores.shape[-1]).argmax(axis=1).tolist()
    kept = [token for token, before in zip(best, [None, *best], strict=False) if token != before]
    return [token for token in kept if token]


def _edits(found: list[Any], wanted: list[Any]) -> int:
    """Return the edit distance (Levenshtein, 1966)."""
    row = list(range(len(wanted) + 1))
    for index, word in enumerate(found, 1):
        before, row[0] = row[0], index
        for at, other in enumerate(wanted, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1]


def _overlap(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return shared / (areas - shared) if areas > shared else 0.0


def _average_precision(
    kind: Any,
    found: list[list[tuple[Any, float, Box]]],
    wanted: list[list[tuple[Any, Box]]],
    iou: float,
) -> float:
    objects = [[box for other, box in each if other == kind] for each in wanted]
    detected = [
        (score, sample, box)
        for sample, each in enumerate(found)
        for other, score, box in each
        if other == kind
    ]
    detected.sort(key=lambda detection: -detection[0])
    taken: set[tuple[int, int]] = set()
    hits = []
    for _, sample, box in detected:
        overlaps = [(_overlap(box, other), at) for at, other in enumerate(objects[sample])]
        best, at = max(overlaps, default=(0.0, -1))
        hit = best >= iou and (sample, at) not in taken
        hits.append(hit)
        if hit:
            taken.add((sample, at))
    total = sum(map(len, objects))
    right = np.cumsum(hits)
    precision = right / np.arange(1, len(hits) + 1)
    ceiling = np.maximum.accumulate(precision[::-1])[::-1] if len(hits) else precision
    return math.fsum(ceiling[np.array(hits, dtype=bool)]) / total
