"""Plots of results. Only this module imports matplotlib."""

from __future__ import annotations

import difflib
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from .. import _core
from .._inputs import files
from .._options import check
from ..errors import MissingPackageError, OptionError
from .comparison import Comparison
from .layer_errors import LayerErrors
from .method_comparison import MethodComparison
from .ranges import Ranges
from .report import Report
from .sensitivity import Sensitivity

try:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError as error:
    raise MissingPackageError(
        'plot() needs matplotlib, which is not installed: pip install "quantization-rs[plot]"',
        name="matplotlib",
    ) from error

Path_: TypeAlias = str | os.PathLike[str] | None

# The colours of the HTML report.
COLOURS = {
    "float": "#aab3c0",
    "integer": "#2166c2",
    "scale": "#e08a1e",
    "kept": "#8a6fc0",
    "rest": "#7d8894",
    "error": "#2a8f6a",
}
KINDS = {
    "float": "floats that were quantized",
    "integer": "integers",
    "scale": "scales and zero points",
    "kept": "floats that were kept",
    "rest": "graph, names, everything else",
}
FORMATS = (".png", ".svg", ".pdf")
MAX_BARS = 40  # more bars cannot be distinguished
MAX_HISTOGRAMS = 12
MAX_NAME_CHARS = 48
GOOD_DB = 50.0  # errors above this share one colour
DECIBELS = "SQNR (dB)"


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, which would keep it open."""

    def _repr_png_(self) -> bytes:
        return _drawn(self, ".png")


def of_report(report: Report, path: Path_) -> Figure:
    """Plot the size by kind of content, and the errors of weights."""
    lost = [(value.name, value.sqnr_db) for value in report.weights if value.sqnr_db is not None]
    lost.sort(key=lambda row: row[1])
    rows = min(len(lost), MAX_BARS)
    heights = [6.0, *([rows + 1.5] if rows else [])]
    figure = NotebookFigure(
        figsize=(9, 0.26 * sum(heights) + 1.4 * len(heights)), layout="constrained"
    )
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    _waterfall(grid[0, 0], report)
    if rows:
        colours = [COLOURS["error"]] * len(lost)
        _bars(grid[1, 0], lost, colours, DECIBELS, "{:.1f} dB")
        grid[1, 0].set_title(_first("Weights by error, the worst first", len(lost)), loc="left")
    return _done(figure, path)


def of_ranges(ranges: Ranges, value: str | None, path: Path_) -> Figure:
    """Plot histograms of the observed numbers, with the chosen ranges."""
    values = ranges.values
    if value is not None and value not in values:
        near = difflib.get_close_matches(value, values, n=1)
        hint = f": did you mean `{near[0]}`?" if near else ""
        raise OptionError(f"value is `{value}`, which has no range here{hint}", option="value")

    def outside(name: str) -> float:
        seen = found[name]
        return 0.0 if seen is None else seen.outside

    names = values if value is None else [value]
    found = {name: ranges._ranges.histogram(name) for name in names}
    # The sort is stable: values without clipping keep their order.
    order = sorted(found, key=outside, reverse=True)
    shown = order[:MAX_HISTOGRAMS]
    columns = min(3, max(len(shown), 1))
    rows = max(math.ceil(len(shown) / columns), 1)
    size = (8, 4.5) if columns == 1 else (4.2 * columns, 2.6 * rows)
    figure = NotebookFigure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for place in axes[len(shown) :]:
        place.set_axis_off()
    for place, name in zip(axes, shown, strict=False):
        _histogram(place, found[name], values[name])
        place.set_title(_short(name), loc="left", fontsize="medium", parse_math=False)
    if value is None:
        figure.suptitle(
            _first(f"{ranges.samples} samples, {ranges.method}", len(order), len(shown))
        )
    return _done(figure, path)


def of_sensitivity(found: Sensitivity, path: Path_) -> Figure:
    """Plot one bar for each layer, the most sensitive first."""
    whose = "of the weight itself" if found.metric == "weight" else "of the worst output"
    label, shown = {
        "sqnr": (f"SQNR {whose} (dB)", "{:.1f} dB"),
        "weight": (f"SQNR {whose} (dB)", "{:.1f} dB"),
        "cosine": (f"cosine {whose}", "{:.5f}"),
        "max_abs": ("largest error of any output", "{:.3g}"),
        "mse": (f"mean squared error {whose}", "{:.3g}"),
        "top1": (f"same top-1 as the float model, {whose}", "{:.4f}"),
    }[found.metric]
    rows = [(layer.name, layer.score) for layer in found.layers]
    figure = NotebookFigure(
        figsize=(9, 0.26 * min(len(rows), MAX_BARS) + 1.4), layout="constrained"
    )
    place = figure.add_subplot()
    _bars(place, rows, [COLOURS["integer"]] * len(rows), label, shown)
    how = "All layers but one quantized" if found.all_but_one else "Each layer quantized alone"
    place.set_title(_first(how, len(rows)), loc="left")
    return _done(figure, path)


def of_layer_errors(errors: LayerErrors, path: Path_) -> Figure:
    """Plot own and accumulated errors along the depth of the model."""
    values = errors.values
    figure = NotebookFigure(
        figsize=(min(max(0.32 * len(values) + 2.5, 6), 18), 4), layout="constrained"
    )
    place = figure.add_subplot()
    place.set_title("Own and accumulated errors, from the input to the output", loc="left")
    place.set_yticks([0, 1], labels=["own", "accumulated"])
    if not values:
        place.text(0.5, 0.5, "no value in common", transform=place.transAxes, ha="center")
        return _done(figure, path)
    rows = [[value.own.sqnr_db for value in values], [v.accumulated.sqnr_db for v in values]]
    drawn = [[_within(db, 2 * GOOD_DB) for db in row] for row in rows]
    colours = colormaps["OrRd_r"].with_extremes(bad="black")
    image = place.imshow(
        drawn, aspect="auto", cmap=colours, vmin=0, vmax=GOOD_DB, interpolation="nearest"
    )
    figure.colorbar(image, ax=place, label=DECIBELS, extend="both")
    each = math.ceil(len(values) / 60)
    ticks = range(0, len(values), each)
    names = [_short(values[tick].name) for tick in ticks]
    place.set_xticks(ticks, labels=names, rotation=90, fontsize="small", parse_math=False)
    if len(values) <= 24:
        for y, row in enumerate(rows):
            for x, db in enumerate(row):
                colour = "black" if db > GOOD_DB / 3 else "white"
                place.text(x, y, _decibels(db), ha="center", va="center", size=8, color=colour)
    return _done(figure, path)


def of_comparison(found: Comparison, path: Path_) -> Figure:
    """Plot both models side by side."""
    pair = [COLOURS["float"], COLOURS["integer"]]
    names = ["original", "quantized"]
    sizes = [float(found.bytes_original), float(found.bytes_quantized)]
    panels: list[tuple[str, list[tuple[str, float]], list[str], str, str]] = [
        (
            f"Size: {found.ratio:.2f} times smaller",
            list(zip(names, sizes, strict=True)),
            pair,
            "bytes",
            "bytes",
        )
    ]
    if (speed := found.speed) is not None:
        medians = [speed.original.median_ms, speed.quantized.median_ms]
        title = f"Latency: {speed.speedup:.2f} times as fast ({speed.engine})"
        rows = list(zip(names, medians, strict=True))
        panels.append((title, rows, pair, "median, with a mark at p95 (ms)", "{:.3g} ms"))
    if (accuracy := found.accuracy) is not None:
        rows = list(zip(names, [accuracy.original, accuracy.quantized], strict=True))
        title = f"Accuracy on {accuracy.labels} labels"
        panels.append((title, rows, pair, "accuracy", "{:.4f}"))
    if outputs := sorted((row.sqnr_db, row.name) for row in found.outputs):
        rows = [(name, db) for db, name in outputs]
        title = _first(f"Outputs on {found.samples} samples, the worst first", len(rows))
        panels.append((title, rows, [COLOURS["error"]] * len(rows), DECIBELS, "{:.1f} dB"))
    heights = [min(len(rows), MAX_BARS) + 1.5 for _, rows, *_ in panels]
    figure = NotebookFigure(
        figsize=(9, sum(0.26 * height + 0.8 for height in heights)), layout="constrained"
    )
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for place, (title, rows, colours, label, shown) in zip(grid.flat, panels, strict=True):
        _bars(place, rows, colours, label, shown)
        place.set_title(title, loc="left", parse_math=False)
    if speed is not None:
        late = [speed.original.p95_ms, speed.quantized.p95_ms]
        grid[1, 0].plot(late, [0, 1], "|", color="black", markersize=12)
        grid[1, 0].set_xlim(0, 1.25 * max(late))
    return _done(figure, path)


def of_methods(found: MethodComparison, path: Path_) -> Figure:
    """Plot one bar for each method."""
    best = found.best
    rows = [(row.method, math.nan if row.sqnr_db is None else row.sqnr_db) for row in found.rows]
    colours = [COLOURS["integer"] if name == best else COLOURS["float"] for name, _ in rows]
    figure = NotebookFigure(figsize=(9, 0.3 * len(rows) + 1.4), layout="constrained")
    place = figure.add_subplot()
    _bars(place, rows, colours, f"{DECIBELS} of the outputs", "{:.2f} dB")
    place.set_title(f"{best} is best on {found.evaluated} samples", loc="left")
    return _done(figure, path)


def _waterfall(place: Axes, report: Report) -> None:
    sizes = report.sizes
    left = sizes.before - sizes.floats
    whole = left + sizes.integers
    end = whole + sizes.scales
    before = [("float", sizes.floats), ("kept", sizes.kept), ("rest", sizes.rest_before)]
    after = [
        ("integer", sizes.integers),
        ("scale", sizes.scales),
        ("kept", sizes.kept),
        ("rest", sizes.rest_after),
    ]
    steps = [
        ("Before", _stacked(before), _size(sizes.before)),
        ("Floats that were quantized", [("float", left, sizes.floats)], _signed(-sizes.floats)),
        ("Integers", [("integer", left, sizes.integers)], _signed(sizes.integers)),
        ("Scales, zero points", [("scale", whole, sizes.scales)], _signed(sizes.scales)),
        (
            "Everything else",
            [("rest", min(end, sizes.after), abs(sizes.after - end))],
            _signed(sizes.after - end),
        ),
        ("After", _stacked(after), _size(sizes.after)),
    ]
    for row, (_, parts, text) in enumerate(steps):
        for kind, start, length in parts:
            place.barh(row, length, left=start, color=COLOURS[kind], height=0.7)
        reach = max((start + length for _, start, length in parts), default=0)
        place.annotate(text, (reach, row), (4, 0), textcoords="offset points", va="center")
    _rows(place, [label for label, *_ in steps])
    reach = max(sizes.before, sizes.after, end, 1)
    place.set_xlim(0, 1.15 * reach)
    place.set_xticks([])
    place.set_title(f"Size: {report.ratio:.2f} times smaller", loc="left")
    kinds = [Patch(color=COLOURS[kind], label=text) for kind, text in KINDS.items()]
    place.legend(
        handles=kinds,
        loc="upper right",
        bbox_to_anchor=(1, 0),
        ncols=2,
        fontsize="small",
        frameon=False,
    )


def _stacked(parts: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
    stack, at = [], 0
    for kind, length in parts:
        stack.append((kind, at, length))
        at += length
    return stack


def _bars(
    place: Axes, rows: Sequence[tuple[str, float]], colours: Sequence[str], label: str, shown: str
) -> None:
    """Plot bars with their numbers; an infinite bar is as long as the longest finite one."""
    rows = rows[:MAX_BARS]
    finite = [number for _, number in rows if math.isfinite(number)]
    longest = max([*finite, 0.0]) or 1.0
    lengths = [longest if n == math.inf else n if math.isfinite(n) else 0.0 for _, n in rows]
    bars = place.barh(range(len(rows)), lengths, color=colours[: len(rows)], height=0.7)
    texts = [_size(int(n)) if shown == "bytes" else _shown(n, shown) for _, n in rows]
    place.bar_label(bars, texts, padding=4)
    _rows(place, [name for name, _ in rows])
    place.set_xlim(min([*finite, 0.0]), 1.18 * longest)
    place.set_xlabel(label)
    if shown == "bytes":
        place.set_xlabel("")
        place.set_xticks([])


def _rows(place: Axes, names: Sequence[str]) -> None:
    """Label the rows, the first at the top; names are not parsed as math text."""
    place.set_yticks(range(len(names)), labels=[_short(name) for name in names], parse_math=False)
    if names:
        place.set_ylim(len(names) - 0.4, -0.6)
    place.spines[["top", "right"]].set_visible(False)


def _histogram(place: Axes, seen: _core.Histogram | None, ends: tuple[float, float]) -> None:
    low, high = ends
    place.axvspan(low, high, color=COLOURS["integer"], alpha=0.12)
    for end in ends:
        place.axvline(end, color=COLOURS["integer"])
    said = f"{low:.4g} to {high:.4g}"
    if seen is None:
        place.set_yticks([])
    else:
        counts, (start, end) = seen.counts, seen.ends
        width = (end - start) / len(counts)
        lefts = [start + width * bin_ for bin_ in range(len(counts))]
        place.bar(lefts, counts, width, align="edge", color=COLOURS["rest"])
        place.set_yscale("log")
        place.set_ylim(0.5, None)
        place.set_ylabel("count")
        if outside := seen.outside:
            said += f", {100 * outside:.2g} % outside"
    place.set_xlabel(said)
    place.spines[["top", "right"]].set_visible(False)


def _done(figure: Figure, path: Path_) -> Figure:
    """Write the figure to a file, if a path is given, and return it."""
    if path is not None:
        name = check.path("path", path)
        suffix = Path(name).suffix.lower()
        if suffix not in FORMATS:
            raise OptionError(
                f"path is `{name}`, expected a name in {', '.join(FORMATS)}", option="path"
            )
        files.write(path, _drawn(figure, suffix))
    return figure


def _drawn(figure: Figure, suffix: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], dpi=120)
    return buffer.getvalue()


def _short(name: str) -> str:
    """Shorten a name to fit beside a plot; the end of a long name is kept."""
    visible = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    return visible if len(visible) <= MAX_NAME_CHARS else "…" + visible[-MAX_NAME_CHARS:]


def _within(db: float, most: float) -> float:
    """Clamp decibels to the range of the colour map."""
    return db if math.isnan(db) else min(max(db, -most), most)


def _first(title: str, count: int, most: int = MAX_BARS) -> str:
    return title if count <= most else f"{title} ({most} of {count})"


def _shown(number: float, shown: str) -> str:
    """Format a number; infinite decibels are exact."""
    if math.isfinite(number):
        return shown.format(number)
    if math.isnan(number):
        return "NaN"
    if not shown.endswith("dB"):
        return "infinite"
    return "exact" if number > 0 else "all error"


def _decibels(db: float) -> str:
    return f"{db:.0f}" if math.isfinite(db) else "=" if db > 0 else "×"  # noqa: RUF001


def _size(count: int) -> str:
    """Format a size as the command line does, with two decimals."""
    size, units = float(count), iter(["bytes", "kB", "MB", "GB", "TB"])
    unit = next(units)
    while size >= 999.995 and unit != "TB":
        size, unit = size / 1e3, next(units)
    return f"{count} bytes" if unit == "bytes" else f"{size:.2f} {unit}"


def _signed(count: int) -> str:
    return f"{'−' if count < 0 else '+'}{_size(abs(count))}"  # noqa: RUF001
