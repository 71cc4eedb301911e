"""Files of JSON lines as samples: an object on each line, with the names of inputs as keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import CalibrationError
from .rows import Row


def lines(path: Path) -> Iterator[Row]:
    """Read a file line by line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Row(f"{path}, line {number}", line)


def parsed(rows: Iterable[Row]) -> Iterator[Row]:
    """Return the object of each line."""
    return (Row(row.place, _parsed(row.values, row.place)) for row in rows)


def _parsed(line: bytes, place: str) -> dict[str, object]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        what = f"this is not a line of JSON: {error}; write one object a line ({place})"
        raise CalibrationError(what, category="data") from error
    if not isinstance(found, dict):
        what = (
            f"expected an object with the names of inputs, this is a {type(found).__name__}: "
            f'write {{"input_ids": [...]}} ({place})'
        )
        raise CalibrationError(what, category="data")
    return found
