"""Finds retired words, from `retired_words.toml`, and lines over 100 columns.

Code is read with its comments, strings and identifiers, split at `_` and at capitals; documents
and the source of notebooks' cells as they stand.

    python tools/lint_words.py                  # every tracked file; exit status 1 on a finding
    python tools/lint_words.py docs README.md   # these files and folders
    python tools/lint_words.py --summary        # how often each word is found
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parent.parent
WORDS = "tools/retired_words.toml"
SUFFIXES = {".rs", ".py", ".pyi", ".md", ".toml", ".ipynb"}
MAX_COLUMNS = 100
CODE = {".rs", ".py", ".pyi"}
# Blocks of Markdown that are typed, not printed by a program.
TYPED = {"python", "rust", "sh", "toml", "yaml"}
SKIPPED_FOLDERS = {".git", ".venv", "target", "dist", "node_modules", "__pycache__"}
# A space of a pattern: also the end of a line of a comment, and the mark that begins the next.
SPACE = r"(?:[ \t]+|[ \t]*\n[ \t]*(?://[/!]?|\#|>)?[ \t]*)"
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Word:
    """A row of the table."""

    name: str
    say: str
    pattern: re.Pattern[str]
    files: list[str]
    allowed_text: list[re.Pattern[str]]
    allowed_paths: list[str]


@dataclass(frozen=True)
class Finding:
    """A line to change. `name` is the row of the table, `said` what the file says."""

    place: str
    name: str
    said: str
    say: str

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.said}: say {self.say}"
            if self.say
            else (f"{self.place}: {self.said}: break the line at {MAX_COLUMNS}")
        )


def compiled(pattern: str, case: bool) -> re.Pattern[str]:
    """A pattern of whole words whose spaces may be line breaks."""
    flexible = pattern.replace(" ", SPACE)
    return re.compile(rf"\b(?:{flexible})(?!\w)", 0 if case else re.IGNORECASE)


def read_words(file: Path) -> tuple[list[Word], list[str]]:
    """The rows of a table, and the paths that it skips."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    words = []
    for row in table.get("word", []):
        allowed = row.get("allowed", [])
        for context in allowed:
            if not context.get("reason") or not ({"text", "path"} & set(context)):
                sys.exit(f"{file}: `{row['pattern']}`: an allowed context needs a reason")
        case = bool(row.get("case", False))
        words.append(
            Word(
                name=row["pattern"],
                say=row["say"],
                pattern=compiled(row["pattern"], case),
                files=row.get("files", ["*"]),
                allowed_text=[
                    re.compile(one["text"].replace(" ", SPACE), re.IGNORECASE)
                    for one in allowed
                    if "text" in one
                ],
                allowed_paths=[one["path"] for one in allowed if "path" in one],
            )
        )
    return words, [row["path"] for row in table.get("skip", [])]


def split(text: str) -> str:
    """Text whose identifiers are words: `tensor_name` and `tensorName` become `tensor name`."""
    return HUMPS.sub(" ", text).replace("_", " ")


def words_in(text: str, path: str, words: list[Word]) -> Iterator[tuple[int, Word, str]]:
    """The retired words of a text: its line, counted from 1, the row, and what stands there."""
    spread = split(text)
    name = path.rsplit("/", 1)[-1]
    for word in words:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in word.files):
            continue
        if any(fnmatch.fnmatch(path, pattern) for pattern in word.allowed_paths):
            continue
        for match in word.pattern.finditer(spread):
            if not any(covers(allowed, spread, match) for allowed in word.allowed_text):
                line = spread.count("\n", 0, match.start()) + 1
                yield line, word, re.sub(r"[\s/!#>]+", " ", match.group())


def covers(allowed: re.Pattern[str], text: str, match: re.Match[str]) -> bool:
    """Whether an allowed context is found around a match."""
    start, end = max(0, match.start() - 200), match.end() + 200
    return any(
        one.start() <= match.start() and match.end() <= one.end()
        for one in allowed.finditer(text, start, end)
    )


def long_lines(text: str, suffix: str) -> Iterator[tuple[int, int]]:
    """The lines over the limit with their columns; what cannot be broken is left out."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if suffix == ".md":
            opened = re.match(r"\s*(`{3,}|~{3,})(.*)", line)
            if opened and not fence:
                fence = opened.group(1)
                typed = re.split(r"[\s,{]", opened.group(2).strip())[0] in TYPED
                continue
            if fence and line.strip().startswith(fence):
                fence = ""
                continue
            if (fence and not typed) or (not fence and line.lstrip().startswith("|")):
                continue
            if not fence:
                # The targets of links take no part.
                line = re.sub(r"\]\([^)]*\)", "]", line)
        if len(line) > MAX_COLUMNS and "noqa: E501" not in line and not is_address(line):
            yield number, len(line)


def is_address(line: str) -> bool:
    """Whether a line is over the limit only because of an address, which cannot be broken."""
    return len(re.sub(r"https?://\S+", "", line)) <= MAX_COLUMNS and "://" in line


def lint(file: Path, path: str, words: list[Word]) -> Iterator[Finding]:
    """The findings of one file, in the order of its lines."""
    text = file.read_text(encoding="utf-8")
    found: list[tuple[int, int, Finding]] = []
    if file.suffix == ".ipynb":
        for cell, source in enumerate(cells(text), 1):
            for line, word, said in words_in(source, path, words):
                place = f"{path}:cell {cell}:{line}"
                found.append((cell, line, Finding(place, word.name, said, word.say)))
    else:
        for line, word, said in words_in(text, path, words):
            found.append((line, 0, Finding(f"{path}:{line}", word.name, said, word.say)))
        if file.suffix in CODE or file.suffix == ".md":
            for line, columns in long_lines(text, file.suffix):
                name = f"over {MAX_COLUMNS} columns"
                place = f"{path}:{line}"
                found.append((line, 1, Finding(place, name, f"{columns} columns", "")))
    for _, _, finding in sorted(found, key=lambda one: one[:2]):
        yield finding


def cells(text: str) -> list[str]:
    """The source of each cell of a notebook."""
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


def files_of(root: Path) -> list[Path]:
    """The files of a repository that git knows or would add; all where there is no git."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [root / name for name in sorted(listed.stdout.split("\0")) if name]
    return sorted(
        file for file in root.rglob("*") if not SKIPPED_FOLDERS & set(file.relative_to(root).parts)
    )


def findings(root: Path, table: Path, chosen: list[Path]) -> list[Finding]:
    """All findings of a repository, or those of the chosen files and folders."""
    words, skipped = read_words(table)
    found: list[Finding] = []
    for file in files_of(root):
        path = file.relative_to(root).as_posix()
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        if any(fnmatch.fnmatch(path, pattern) for pattern in skipped):
            continue
        if chosen and not any(file == one or one in file.parents for one in chosen):
            continue
        found += lint(file, path, words)
    return found


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Finds retired words and long lines.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; all unless given")
    parser.add_argument("--summary", action="store_true", help="print counts, not places")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the repository to read")
    parser.add_argument("--words", type=Path, help=f"a table instead of {WORDS}")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    chosen = [path.resolve() for path in options.paths]
    if missing := [path for path in chosen if not path.exists()]:
        parser.error(f"no such file: {missing[0]}")
    found = findings(root, options.words or root / WORDS, chosen)
    if options.summary:
        counts = Counter(one.name for one in found)
        print("\n".join(f"{number:6} {name}" for name, number in counts.most_common()))
    else:
        print("\n".join(map(str, found)) if found else "lint_words: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
