"""HTML tables for notebooks; all text is escaped, as names come from model files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

ROWS = 200  # more rows make a notebook slow; `to_dict` has all of them


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render a table with a caption; a long table is cut, with the number of further rows."""
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
    """Render preformatted text."""
    return f"<pre>{escape(lines)}</pre>"


def text(cell: object) -> str:
    """Format a cell: empty for None, three digits for a float."""
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.3g}"
        case _:
            return str(cell)


def shape(dims: Sequence[int | None] | None) -> str:
    """Format a shape, with ``?`` for a dynamic dimension."""
    if dims is None:
        return "?"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def scales(ends: tuple[float, float]) -> list[str]:
    """Format the smallest and the largest scale, once if they are equal."""
    return list(dict.fromkeys(text(end) for end in ends))
