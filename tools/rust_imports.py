"""Reads the imports between the top-level modules ("rooms") of a Rust crate.

The source is tokenized, not compiled: comments and strings are dropped, `use` trees and inline
`crate::`, `self::` and `super::` paths are resolved to the module that defines the item, through
re-exports of `lib.rs` and of other modules. Items behind `#[cfg(test)]` do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from imports import Import, Package, Room

Module: TypeAlias = tuple[str, ...]

TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>[bc]?r(?P<hashes>\#*)"(?s:.*?)"(?P=hashes))
    | (?P<string>[bc]?"(?:\\(?s:.)|[^"\\])*")
    | (?P<char>b?'(?:\\(?:u\{[^}]*\}|x[0-9A-Fa-f]{2}|.)|[^\\'\n])')
    | (?P<lifetime>'[A-Za-z_]\w*)
    | (?P<number>[0-9]\w*)
    | (?P<word>(?:r\#)?[A-Za-z_]\w*)
    | (?P<path>::)
    | (?P<mark>\S)
    """,
    re.VERBOSE,
)
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = set(OPENING.values())
# Items that end at a semicolon; all others end at their first block, or at a semicolon.
STATEMENTS = {"use", "const", "static", "type", "let", "extern"}
ITEMS = STATEMENTS | {"mod", "fn", "impl", "struct", "enum", "union", "trait", "macro_rules"}
MODIFIERS = {"pub", "async", "unsafe", "default"}
DEFINING = {"fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"}


@dataclass(frozen=True)
class Token:
    """One token of Rust source and its line, counted from 1."""

    kind: str
    text: str
    line: int


def tokens(source: str) -> list[Token]:
    """The tokens of Rust source without comments; a string is one token with no content."""
    found = []
    line, position, counted = 1, 0, 0
    while match := TOKEN.search(source, position):
        line += source.count("\n", counted, match.start())
        counted = match.start()
        kind = match.lastgroup or ""
        kind = "raw" if kind == "hashes" else kind
        position = match.end()
        if kind == "block":
            position = end_of_comment(source, match.start())
        elif kind in ("raw", "string", "char"):
            found.append(Token("string", '""', line))
        elif kind not in ("comment", "lifetime"):
            found.append(Token(kind, match.group().removeprefix("r#"), line))
    return found


def end_of_comment(source: str, start: int) -> int:
    """The position after a block comment, which may hold others."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(source, start):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return len(source)


@dataclass
class Named:
    """A path in source and its line."""

    segments: tuple[str, ...]
    line: int


@dataclass
class Contents:
    """What one module, a file or an inline `mod`, says."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    globs: list[tuple[str, ...]] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    paths: list[Named] = field(default_factory=list)
    children: set[str] = field(default_factory=set)
    test_children: set[str] = field(default_factory=set)


class Reader:
    """Reads the tokens of one file into the contents of its modules."""

    def __init__(self, source: str, module: Module) -> None:
        self.tokens = tokens(source)
        self.at = 0
        self.modules: dict[Module, Contents] = {module: Contents()}
        self.read(module, len(self.tokens))

    def text(self, at: int) -> str:
        """The text of a token; nothing beyond the ends."""
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def closing(self, opening: int) -> int:
        """The position of the mark that closes the one at `opening`."""
        depth = 0
        for at in range(opening, len(self.tokens)):
            text = self.tokens[at].text
            depth += (text in OPENING) - (text in CLOSING)
            if depth == 0:
                return at
        return len(self.tokens)

    def read(self, module: Module, end: int) -> None:
        """Reads tokens up to `end` as the contents of a module."""
        contents = self.modules[module]
        while self.at < end:
            at, text = self.at, self.text(self.at)
            if text == "#" and self.text(at + 1) == "!" and self.text(at + 2) == "[":
                self.at = self.closing(at + 2) + 1
                if self.only_in_tests(at + 2):
                    self.at = end
            elif text == "#" and self.text(at + 1) == "[":
                self.at = self.closing(at + 1) + 1
                if self.only_in_tests(at + 1):
                    self.skip_item(contents)
            elif text == "use" and self.text(at + 1) != "<":
                self.at += 1
                self.use(contents, ())
            elif text == "mod" and self.text(at + 2) == "{":
                name = self.text(at + 1)
                contents.children.add(name)
                inner = (*module, name)
                self.modules.setdefault(inner, Contents())
                self.at = at + 3
                self.read(inner, self.closing(at + 2))
            elif text == "mod" and self.text(at + 2) == ";":
                contents.children.add(self.text(at + 1))
                self.at += 3
            elif text == "pub" and self.text(at + 1) == "(":
                # `pub(in crate::room)` is no import.
                self.at = self.closing(at + 1) + 1
            elif text in ("crate", "self", "super") and self.text(at + 1) == "::":
                self.inline_path(contents)
            else:
                if text in DEFINING and self.tokens[at].kind == "word":
                    contents.defined.add(self.text(at + 1))
                if text == "macro_rules":
                    contents.defined.add(self.text(at + 2))
                self.at += 1

    def only_in_tests(self, opening: int) -> bool:
        """Whether the attribute in brackets at `opening` keeps an item for tests alone."""
        inside = [token.text for token in self.tokens[opening + 1 : self.closing(opening)]]
        return inside == ["test"] or (
            inside[:2] == ["cfg", "("]
            and (
                inside[2:] == ["test", ")"]
                or (inside[2] == "all" and "test" in top_level(inside[4:]))
            )
        )

    def skip_item(self, contents: Contents) -> None:
        """Moves past the item, field or arm that follows an attribute."""
        while self.text(self.at) == "#" and self.text(self.at + 1) == "[":
            self.at = self.closing(self.at + 1) + 1
        while self.text(self.at) in MODIFIERS:
            self.at += 1
            if self.text(self.at) == "(":
                self.at = self.closing(self.at) + 1
        kind = self.text(self.at)
        if kind == "const" and self.text(self.at + 1) in ("fn", "unsafe"):
            kind = "fn"
        if kind == "mod":
            contents.test_children.add(self.text(self.at + 1))
        while self.at < len(self.tokens):
            text = self.text(self.at)
            if text in CLOSING or (text == "," and kind not in ITEMS):
                return
            if text in OPENING:
                self.at = self.closing(self.at) + 1
                if text == "{" and kind not in STATEMENTS:
                    return
            else:
                self.at += 1
                if text == ";":
                    return

    def use(self, contents: Contents, prefix: tuple[str, ...]) -> None:
        """Reads one branch of a `use` tree; leaves the position after it."""
        segments = prefix
        line = self.tokens[self.at].line
        if self.text(self.at) == "::":
            segments = ("::",)
            self.at += 1
        while self.at < len(self.tokens):
            text = self.text(self.at)
            if text == "{":
                self.at += 1
                while self.text(self.at) not in ("}", ""):
                    if self.text(self.at) == ",":
                        self.at += 1
                    else:
                        self.use(contents, segments)
                self.at += 1
                return
            segments = (*segments, text)
            self.at += 1
            if self.text(self.at) == "::":
                self.at += 1
                continue
            break
        name = segments[-1]
        if name == "self" and len(segments) > 1:
            segments = segments[:-1]
            name = segments[-1]
        if self.text(self.at) == "as":
            name = self.text(self.at + 1)
            self.at += 2
        if self.text(self.at) == ";":
            self.at += 1
        if segments[-1] == "*":
            segments = segments[:-1]
            contents.globs.append(segments)
        else:
            contents.names.setdefault(name, segments)
        contents.paths.append(Named(segments, line))

    def inline_path(self, contents: Contents) -> None:
        """Reads a path that begins with `crate`, `self` or `super`."""
        line = self.tokens[self.at].line
        segments = [self.text(self.at)]
        self.at += 1
        while self.text(self.at) == "::" and self.tokens[self.at + 1].kind == "word":
            segments.append(self.text(self.at + 1))
            self.at += 2
        contents.paths.append(Named(tuple(segments), line))


def top_level(inside: list[str]) -> list[str]:
    """The words of a `cfg` list that stand in no inner parentheses."""
    depth, found = 0, []
    for text in inside:
        depth += (text == "(") - (text == ")")
        if depth == 0:
            found.append(text)
    return found


@dataclass
class Crate:
    """The modules of a crate by path, and the file of each."""

    modules: dict[Module, Contents] = field(default_factory=dict)
    files: dict[Module, Path] = field(default_factory=dict)
    missing: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, folder: Path, file: Path, module: Module) -> None:
        """Reads a file and the files of the modules that it declares."""
        read = Reader(file.read_text(encoding="utf-8"), module).modules
        for path, contents in read.items():
            self.modules[path] = contents
            self.files[path] = file
        for path, contents in read.items():
            inner = folder.joinpath(*path[len(module) :])
            for name in sorted(contents.children - contents.test_children):
                if (*path, name) in read:
                    continue
                for candidate in (inner / f"{name}.rs", inner / name / "mod.rs"):
                    if candidate.is_file():
                        self.add(inner / name, candidate, (*path, name))
                        break
                else:
                    self.missing.append((file, name))

    def absolute(self, module: Module, segments: tuple[str, ...]) -> Module | None:
        """A path of a module as one from the root; `None` for one of another crate."""
        first = segments[0] if segments else ""
        if first == "crate":
            return segments[1:]
        if first in ("self", "super"):
            base, rest = module, segments
            while rest and rest[0] in ("self", "super"):
                base = base[:-1] if rest[0] == "super" else base
                rest = rest[1:]
            return (*base, *rest)
        if (*module, first) in self.modules:
            return (*module, *segments)
        found = self.modules[module].names.get(first)
        if found is not None and found != segments and found[-1:] != segments[:1]:
            base_path = self.absolute(module, found)
            return None if base_path is None else (*base_path, *segments[1:])
        return None

    def resolve(self, path: Module, seen: frozenset[Module] = frozenset()) -> Module | str | None:
        """The module that defines what a path names.

        `None` for an item of another crate, the path as text where nothing is found.
        """
        if path in seen:
            return "::".join(path)
        seen |= {path}
        module: Module = ()
        for position, name in enumerate(path):
            if (*module, name) in self.modules:
                module = (*module, name)
                continue
            contents = self.modules[module]
            rest = path[position + 1 :]
            if name in contents.names and name not in contents.defined:
                target = self.absolute(module, contents.names[name])
                return None if target is None else self.resolve((*target, *rest), seen)
            if name in contents.defined:
                return module
            for glob in contents.globs:
                target = self.absolute(module, glob)
                if target is not None and self.says(target, name):
                    return self.resolve((*target, name, *rest), seen)
            return module or "::".join(path)
        return module

    def says(self, module: Module, name: str) -> bool:
        """Whether a module defines a name or imports it."""
        contents = self.modules.get(module)
        if contents is None:
            return False
        return name in contents.defined or name in contents.names or name in contents.children


def read_crate(name: str, root: Path, repository: Path) -> Package:
    """The rooms of a crate whose source is in `root`, and the imports between them."""
    crate = Crate()
    crate.add(root, root / "lib.rs", ())
    rooms = {
        path[0]: Room(path[0], crate.files[path].relative_to(repository).as_posix())
        for path in crate.modules
        if len(path) == 1 and crate.files[path] != root / "lib.rs"
    }
    package = Package(name, rooms)
    package.unresolved += [
        f"{file.relative_to(repository).as_posix()}:1: mod {name}" for file, name in crate.missing
    ]
    for room in rooms.values():
        room.documented = has_first_paragraph(crate.files[room.name,])
    for module, contents in crate.modules.items():
        if not module or module[0] not in rooms:
            continue
        file = crate.files[module].relative_to(repository).as_posix()
        for path in contents.paths:
            absolute = crate.absolute(module, path.segments)
            # What a room imports of itself is counted where the room imports it.
            own = absolute is not None and absolute[:1] == module[:1]
            target = None if absolute is None or own else crate.resolve(absolute)
            if isinstance(target, str):
                package.unresolved.append(f"{file}:{path.line}: {'::'.join(path.segments)}")
            elif target and target[0] != module[0] and target[0] in rooms:
                item = path.segments[-1]
                package.imports.append(Import(module[0], target[0], file, path.line, item))
    return package


def has_first_paragraph(file: Path) -> bool:
    """Whether a file begins with a `//!` paragraph."""
    lines = file.read_text(encoding="utf-8").splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    return first.startswith("//!") and len(first.removeprefix("//!").strip()) > 0


@dataclass(frozen=True)
class Function:
    """A function with a parameter that is looked for."""

    name: str
    file: str
    line: int


def functions_with_mutable(name: str, folder: Path, repository: Path) -> list[Function]:
    """The functions of a folder's files, tests left out, that have a parameter `&mut name`."""
    found = []
    for file in sorted(folder.rglob("*.rs")):
        source = without_tests(file.read_text(encoding="utf-8"))
        for at, token in enumerate(source):
            if token.text != "fn" or at + 1 == len(source):
                continue
            # The parameters end at the body or, for a method of a trait, at a semicolon.
            end = at
            while end < len(source) and source[end].text not in ("{", ";"):
                end += 1
            texts = [one.text for one in source[at:end]]
            runs = zip(texts, texts[1:], texts[2:], strict=False)
            if ("&", "mut", name) in runs:
                place = file.relative_to(repository).as_posix()
                found.append(Function(source[at + 1].text, place, token.line))
    return found


def without_tests(source: str) -> list[Token]:
    """The tokens of source without the items behind `#[cfg(test)]` and `#[test]`."""
    reader = Reader.__new__(Reader)
    reader.tokens, reader.at = tokens(source), 0
    kept = []
    while reader.at < len(reader.tokens):
        at = reader.at
        if reader.text(at) == "#" and reader.text(at + 1) == "[" and reader.only_in_tests(at + 1):
            reader.at = reader.closing(at + 1) + 1
            reader.skip_item(Contents())
        else:
            kept.append(reader.tokens[at])
            reader.at += 1
    return kept
