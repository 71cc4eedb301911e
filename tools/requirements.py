"""Prints what a project needs at run time and for some of its extras, one requirement a line."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def requirements(text: str, extras: list[str]) -> list[str]:
    """The requirements in the text of a ``pyproject.toml``.

    Python 3.10 has no TOML reader, and this runs before anything is installed: lists of strings
    are all that is looked at.
    """
    names = ["dependencies", *extras]
    found: list[str] = []
    for name in names:
        block = re.search(
            rf"^{re.escape(name)}\s*=\s*\[(.*?)\]\s*$", text, re.MULTILINE | re.DOTALL
        )
        if block is None:
            sys.exit(f"no list `{name}` in pyproject.toml")
        found += re.findall(r'"([^"]+)"', block.group(1))
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(), sys.argv[2:])))
