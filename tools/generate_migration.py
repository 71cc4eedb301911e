"""Writes the tables of docs/migrating-from-onnxruntime.md that follow from the code of `compat`.

The prose around them is written by hand: a table stands between `<!-- generated: NAME -->` and
`<!-- end of NAME -->`. `--check` writes nothing and fails where the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from quantize_rs.compat.onnxruntime._choices import TYPES
from quantize_rs.compat.onnxruntime._extra import EXTRA

PAGE = Path(__file__).resolve().parents[1] / "docs" / "migrating-from-onnxruntime.md"


def extra_options() -> Iterator[str]:
    """The extra options: what each does in static and in dynamic quantization."""
    yield "| option | static | dynamic | quantize_rs |"
    yield "|---|---|---|---|"
    for name, row in EXTRA.items():
        yield f"| `{name}` | {row.static.mark} | {row.dynamic.mark} | {row.note} |"


def types() -> Iterator[str]:
    """The types: those of one width in a row."""
    yield "| `QuantType` | `weights=`, `activations=` |"
    yield "|---|---|"
    for _, found in groupby(TYPES.items(), key=lambda pair: pair[1].removeprefix("u")):
        pairs = list(found)
        theirs = ", ".join(f"`{name}`" for name, _ in pairs)
        own = ", ".join(f'`"{name}"`' for _, name in pairs)
        yield f"| {theirs} | {own} |"


TABLES = {"extra options": extra_options, "types": types}


def page() -> str:
    """The page with its tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{PAGE.name}: expected one `{begin}` and one `{end}`")
        lines = "\n".join([begin, *table(), end])
        before, after = text.split(begin)[0], text.split(end)[1]
        text = before + lines + after
    return text


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the page is stale")
    check = parser.parse_args().check
    text = page()
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.name}: stale: run tools/generate_migration.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
