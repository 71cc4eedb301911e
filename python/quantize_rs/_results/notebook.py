"""Tables for notebooks; every text is escaped, for names come out of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

ROWS = 200  # more make a notebook slow to open; all are in `to_dict`


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Give a table with a caption; of a long one the beginning, and how many rows follow."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    left = iter(rows)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text(cell))}</td>' for cell in row)}</tr>"
        for row in islice(left, ROWS)
    )
    more = sum(1 for _ in left)
    foot = f'<tfoot><tr><td colspan="{len(header)}">and {more} more</td></tr></tfoot>'
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot if more else ''}</table>"
    )


def plain(lines: str) -> str:
    """Give a text as it stands, column under column."""
    return f"<pre>{escape(lines)}</pre>"


def text(cell: object) -> str:
    """Give a cell as text: nothing for None, three digits for a float."""
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.3g}"
        case _:
            return str(cell)


def shape(lengths: Sequence[int | None] | None) -> str:
    """Give a shape as text, ``?`` for a length that varies."""
    if lengths is None:
        return "?"
    return f"[{', '.join('?' if length is None else str(length) for length in lengths)}]"


def scales(ends: tuple[float, float]) -> list[str]:
    """Give the smallest and the largest scale as text, once when they are equal."""
    return list(dict.fromkeys(text(end) for end in ends))
