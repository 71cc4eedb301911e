"""Markdown pages: their fenced blocks, links and headings, and a way to run a page.

``python tests/python/pages.py docs/quickstart.md`` does what the page says, from top to bottom, in
the working directory: its ``python`` blocks in one namespace, each line of its ``sh`` blocks as a
command. A command that ends in ``# exits with 1`` has to.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = r"^```.*?^```$"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for title in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)
        kept = re.sub(r"[^\w\- ]", "", plain.lower())
        anchor = kept.replace(" ", "-")
        again = 1
        while anchor in found:
            anchor, again = f"{kept.replace(' ', '-')}-{again}", again + 1
        found.add(anchor)
    return found


def links(page: Path) -> list[str]:
    """What a page links to, but for other sites."""
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"\w+:", link)]


def command(line: str) -> None:
    """Run a line of a ``sh`` block, as far as a test can."""
    line, _, said = line.partition("  # exits with ")
    words = shlex.split(line, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    match words:
        case []:
            return
        case ["quantize-rs", *rest]:
            done = subprocess.run(
                [sys.executable, "-m", "quantize_rs", *rest],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == int(said or 0), f"{line}\n{done.stdout}{done.stderr}"
        case ["make", target, *_]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), line
        case ["cargo", "test", "-p", crate, *_]:
            manifests = (path.read_text("utf-8") for path in ROOT.glob("rust/*/Cargo.toml"))
            assert any(f'name = "{crate}"' in text for text in manifests), line
        case ["cargo", "install", "--path", path]:
            assert (ROOT / path / "Cargo.toml").is_file(), line
        case ["pip", "install", "."]:
            assert (ROOT / "pyproject.toml").is_file(), line
        case ["pip", "install", wanted]:
            project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            parts = re.fullmatch(r"([\w-]+)(?:\[(\w+)\])?", wanted)
            assert parts, line
            name, extra = parts.groups()
            assert f'name = "{name}"' in project, line
            assert extra is None or f"\n{extra} = [" in project, line
        case ["python" | "git", *_]:
            pass
        case _:
            raise AssertionError(f"no rule to test `{line}`")


def run(page: Path) -> None:
    """Do what a page says."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)
        elif block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                command(line)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
