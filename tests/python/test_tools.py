"""The scripts in `tools/`, on small packages written for each test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

import lint_words
import python_imports
import rust_imports
import structure


def write(root: Path, files: dict[str, str]) -> Path:
    """Files below a folder, by path."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def crate(root: Path, files: dict[str, str]) -> dict[tuple[str, str], tuple[str, int]]:
    """The arrows of a crate with the file and line of the first import of each."""
    package = rust_imports.read_crate("crate", write(root / "src", files), root)
    assert package.unresolved == []
    return {pair: (one.file, one.line) for pair, one in package.arrows().items()}


def package(root: Path, files: dict[str, str]) -> dict[tuple[str, str], tuple[str, int]]:
    """The arrows of a Python package with the file and line of the first import of each."""
    found = python_imports.read_package("pack", write(root / "pack", files), root)
    assert found.unresolved == []
    return {pair: (one.file, one.line) for pair, one in found.arrows().items()}


LIB = "mod low;\nmod high;\nmod top;\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("use crate::low::Thing;", 1),
        ("use crate::{top::Other as _, low::{self, Thing as T}};", 1),
        ("use crate::{\n    top::*,\n    low::*,\n};", 3),
        ("use super::low;", 1),
        ("pub(crate) use super::{low as renamed};", 1),
        ("mod inner { use super::super::low::Thing; }", 1),
        ("\nfn f(x: &crate::low::Thing<'_>) {}", 2),
        ("fn f() {\n    let _ = super::low::thing('\"', b'\\'', r#\"\"\"#);\n}", 2),
        ("fn f<'a>() -> impl Iterator + use<'a> { crate::low::thing() }", 1),
        ("#[cfg(any(test, unix))]\nuse crate::low::Thing;", 2),
        ("#[cfg(not(test))]\nuse crate::low::Thing;", 2),
        ("struct S { #[cfg(test)] a: u8, b: crate::low::Thing }", 1),
        ("#[cfg(test)]\nconst A: [u8; 2] = { [1, 2] };\nuse crate::low::Thing;", 3),
        ("/* /* nested */ crate::top::Other */ use crate::low::Thing;", 1),
    ],
)
def test_an_import_of_rust_is_an_arrow(tmp_path: Path, source: str, line: int) -> None:
    found = crate(tmp_path, {"lib.rs": LIB, "low.rs": "", "high.rs": source, "top/mod.rs": ""})
    assert found.pop(("high", "low")) == ("src/high.rs", line)
    assert set(found) <= {("high", "top")}


@pytest.mark.parametrize(
    "source",
    [
        "// use crate::low::Thing;",
        "//! [`Thing`]: crate::low::Thing",
        '/* crate::low::Thing */ const A: &str = "crate::low::Thing";',
        'const A: &str = "\\\\"; const B: &str = r##"" crate::low::Thing "# "##;',
        "use std::fmt;\nuse low::Thing;",
        "use crate::high::Own;\npub struct Own;",
        "#[cfg(test)]\nmod tests {\n    use crate::low::Thing;\n}",
        "#[cfg(test)]\nmod tests;",
        "#[cfg(all(test, unix))]\npub(crate) fn f() { crate::low::thing() }",
        "#[test]\n#[ignore]\nfn f() { crate::low::thing() }",
        "#[cfg(test)]\nuse crate::{low::Thing, top::{Other}};",
        "#![cfg(test)]\nuse crate::low::Thing;",
        "pub(in crate::low) fn f() {}",
        "use crate::Outside;",
        "use crate::{HERE, here};",
    ],
)
def test_what_is_no_import_of_rust_is_no_arrow(tmp_path: Path, source: str) -> None:
    files = {
        "lib.rs": LIB + "pub use outside::Outside;\nconst HERE: u8 = 1;\nfn here() {}\n",
        "low.rs": "",
        "high/mod.rs": source,
        "high/tests.rs": "use crate::low::Thing;",
        "top.rs": "",
    }
    assert crate(tmp_path, files) == {}


def test_a_name_of_the_root_of_a_crate_counts_for_the_room_that_defines_it(tmp_path: Path) -> None:
    files = {
        "lib.rs": LIB + "pub use top::{Thing, Own};\npub use top::shared::*;\n",
        "low.rs": "pub struct Thing;",
        "high.rs": "use crate::Thing;\nuse crate::Own;\nuse crate::Globbed;",
        "top/mod.rs": "pub mod shared;\npub use shared::Thing;\npub struct Own;",
        "top/shared.rs": "pub use crate::low::Thing;\npub enum Globbed {}",
    }
    assert crate(tmp_path, files) == {
        ("high", "low"): ("src/high.rs", 1),
        ("high", "top"): ("src/high.rs", 2),
        ("top", "low"): ("src/top/shared.rs", 1),
    }


def test_a_path_that_resolves_to_nothing_is_reported(tmp_path: Path) -> None:
    files = {"lib.rs": "mod high;\nmod gone;", "high.rs": "use crate::Missing;"}
    root = write(tmp_path, files)
    found = rust_imports.read_crate("crate", root, root)
    assert found.unresolved == ["lib.rs:1: mod gone", "high.rs:1: crate::Missing"]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("from ._low import Thing", 1),
        ("from . import _low", 1),
        ("from pack._low import Thing", 1),
        ("import pack._low", 1),
        ("from . import Thing", 1),
        ("from ._folder import Again", 1),
        ("def f() -> None:\n    from ._low import Thing", 2),
        ("if TYPE_CHECKING:\n    from ._low import (\n        Thing,\n    )", 3),
        ("from ._low import *", 1),
    ],
)
def test_an_import_of_python_is_an_arrow(tmp_path: Path, source: str, line: int) -> None:
    files = {
        "__init__.py": "from ._low import Thing",
        "_low.py": "class Thing: ...",
        "_folder/__init__.py": "from .inner import Again",
        "_folder/inner.py": "from .._low import Thing as Again",
        "high.py": source,
    }
    assert package(tmp_path, files) == {
        ("_folder", "_low"): ("pack/_folder/inner.py", 1),
        ("high", "_low"): ("pack/high.py", line),
    }


@pytest.mark.parametrize(
    "source",
    ["import os\nfrom json import dumps", "from ._core import f", "from . import VERSION", "x = 1"],
)
def test_what_is_no_import_of_python_is_no_arrow(tmp_path: Path, source: str) -> None:
    files = {
        "__init__.py": "VERSION = '1'",
        "_core.pyi": "from .high import T",
        "high.py": source,
        "_low.py": "",
    }
    assert package(tmp_path, files) == {}


ORDER = """
[[package]]
name = "demo"
language = "rust"
root = "src"
rooms = [{rooms}]
"""


def check(
    root: Path, order: list[str], files: dict[str, str], more: str = "", *arguments: str
) -> int:
    """Exit status of `structure.py` on a crate with these files and this order of rooms."""
    mods = "".join(f"mod {name.split('.')[0]};\n" for name in files)
    files = {f"src/{name}": text for name, text in files.items()}
    table = ORDER.format(rooms=", ".join(f'"{room}"' for room in order)) + more
    write(root, {"src/lib.rs": mods, "tools/rooms.toml": table, **files})
    return structure.main([*(arguments or ("--check",)), "--root", str(root)])


DOC = "//! Says what it is.\n"


def test_arrows_to_lower_rooms_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.rs": DOC, "b.rs": DOC + "use crate::a::T;"}
    assert check(tmp_path, ["a", "b"], files) == 0
    assert capsys.readouterr().out == "structure: no rule is broken\n"


def test_a_backward_arrow_needs_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.rs": DOC + "use crate::b::T;", "b.rs": DOC}
    assert check(tmp_path, ["a", "b"], files) == 1
    assert capsys.readouterr().out == (
        "src/a.rs:2: backward arrow a -> b (T): move `T` to `a` or below it, or list the arrow "
        "with a reason in tools/rooms.toml\n"
    )
    reason = '[[package.backward]]\nfrom = "a"\nto = "b"\nreason = "a trait needs it"\n'
    assert check(tmp_path, ["a", "b"], files, reason) == 0
    with pytest.raises(SystemExit, match="a -> b has no `reason`"):
        check(tmp_path, ["a", "b"], files, reason.replace("a trait needs it", " "))


def test_a_reason_for_an_arrow_that_is_gone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = '[[package.backward]]\nfrom = "a"\nto = "b"\nreason = "it was so"\n'
    assert check(tmp_path, ["a", "b"], {"a.rs": DOC, "b.rs": DOC}, reason) == 1
    assert "a -> b is no backward arrow of demo" in capsys.readouterr().out


def test_more_than_five_backward_arrows_are_refused_even_with_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "abcdefg"
    for most, status in ((6, 0), (7, 1)):
        some = names[:most]
        uses = "".join(f"use crate::{name}::T;\n" for name in some[1:])
        files = {f"{name}.rs": DOC + (uses if name == "a" else "") for name in some}
        reasons = "".join(
            f'[[package.backward]]\nfrom = "a"\nto = "{name}"\nreason = "why"\n'
            for name in some[1:]
        )
        assert check(tmp_path, list(some), files, reasons) == status
    assert "6 backward arrows, at most 5 are allowed" in capsys.readouterr().out


def test_a_cycle_of_more_than_three_rooms_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rooms, status in (("abc", 0), ("abcd", 1)):
        # Each room imports the one before it, and the first imports the last.
        files = {
            f"{room}.rs": f"{DOC}use crate::{rooms[number - 1]}::T{number};"
            for number, room in enumerate(rooms)
        }
        last = rooms[-1]
        reason = f'[[package.backward]]\nfrom = "a"\nto = "{last}"\nreason = "why"\n'
        assert check(tmp_path, list(rooms), files, reason) == status
    assert (
        "src: 4 rooms import one another, at most 3 may: a, b, c, d: remove one of "
        "a -> d (src/a.rs:2)"
    ) in capsys.readouterr().out


def test_rooms_are_listed_and_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.rs": "//!\n", "b.rs": DOC, "c.rs": "// No documentation.\n"}
    assert check(tmp_path, ["a", "c", "gone"], files) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "src/b.rs:1",
        "tools/rooms.toml",
        "src/a.rs:1",
        "src/c.rs:1",
    ]
    assert "add it to tools/rooms.toml" in lines[0]
    assert "demo has no room `gone`" in lines[1]
    assert "the room `a` of demo has no first paragraph" in lines[2]


def test_the_table_and_the_json_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "a.rs": DOC + "use crate::b::T;",
        "b.rs": DOC + "use crate::a::S;",
        "plan.rs": DOC,
        "plan/steps.rs": (
            "fn one<'a>(x: u8, draft: &mut Draft<'a>) {}\nfn two(draft: &'static mut Draft) {}\n"
            "fn three(draft: &Draft, n: &mut u8) {}\n"
            "#[cfg(test)]\nmod tests { fn four(draft: &mut Draft) {} }\n"
        ),
    }
    assert check(tmp_path, ["a", "b", "plan"], files, "", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["demo"] == {
        "rooms": 3,
        "arrows": 2,
        "backward": 1,
        "largest_cycle": 2,
        "cycle": ["a", "b"],
        "backward_arrows": [
            {"from": "a", "to": "b", "file": "src/a.rs", "line": 2, "item": "T", "reason": None}
        ],
        "unlisted_rooms": [],
        "unresolved": [],
    }
    assert found["mutable_planner_steps"] == {"files": 1, "functions": 2}
    assert check(tmp_path, ["a", "b", "plan"], files, "", "--root", str(tmp_path)) == 0
    table = capsys.readouterr().out
    assert "| rooms in the largest cycle | 2 |" in table
    assert "  a -> b  src/a.rs:2 (T)" in table


def test_parameters_and_names_are_counted_where_they_are_defined(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from ._verbs import quantize\n__all__ = ['quantize', *['a', 'b']]\n"
        "__all__ += ['c']\n",
        "_verbs/__init__.py": "from .one import quantize",
        "_verbs/one.py": "@overload\ndef quantize(a): ...\n"
        "def quantize(model, /, output, *, options=None, **kwargs): ...\n",
    }
    root = write(tmp_path / "pack", files)
    function = python_imports.Modules(root).function("quantize")
    assert function is not None
    assert python_imports.parameters(function) == 4
    assert python_imports.names_at_root(root) == 4


def test_signatures_that_pass_json_are_counted(tmp_path: Path) -> None:
    files = {
        "_core.pyi": "class A:\n    def report(self) -> tuple[str, str]: ...\n"
        "    def name(self) -> str: ...\ndef f() -> tuple[str, str]: ...\n",
        "a.rs": """
            fn written(a: &A) -> (String, String) { (a.to_json(), a.to_string()) }
            #[pymethods]
            impl A {
                fn report(&self) -> (String, String) { written(&self.a) }
                fn to_json(&self) -> String { self.a.to_json() }
                fn report_of(&self) -> B { self.a.written() }
            }
            impl A { fn hidden(&self) -> String { serde_json::to_string(self) } }
            #[pyfunction]
            fn page(text: &str) -> PyResult<String> { Report::from_json(text)?.html() }
        """,
    }
    root = write(tmp_path, files)
    assert structure.json_signatures(root / "_core.pyi") == ["A.report", "f"]
    assert structure.json_functions(root) == ["a.rs: report", "a.rs: page"]


def test_the_rooms_of_the_repository_are_read() -> None:
    packages = [
        structure.count(rules, REPOSITORY)
        for rules in structure.rules_of(REPOSITORY / structure.ROOMS)
    ]
    assert [one.rules.language for one in packages] == ["rust", "python"]
    for one in packages:
        assert len(one.package.rooms) > 10
        assert len(one.package.arrows()) > 20
        assert one.package.unresolved == []
    found = structure.numbers(packages, REPOSITORY)
    assert set(structure.VERBS) == set(found["parameters"])  # type: ignore[call-overload]
    assert isinstance(found["names_at_root"], int)


TABLE = """
[[skip]]
path = "skipped/*"
reason = "not ours"

[[word]]
pattern = "flurbs?"
say = "signal"
allowed = [
    { text = "flurb lamp", reason = "the device" },
    { path = "old/*", reason = "history" },
]

[[word]]
pattern = "hands over"
say = "passes"

[[word]]
pattern = "Zap"
say = "Pulse"
case = true
files = ["*.rs"]
"""


def lint(root: Path, *arguments: str) -> int:
    """Exit status of `lint_words.py` in a folder with the table above."""
    write(root, {"tools/retired_words.toml": TABLE})
    return lint_words.main([*arguments, "--root", str(root)])


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("a.py", "x = 1\n# A flurb.\n", "a.py:2: flurb"),
        ("a.py", "flurb_count = 1\n", "a.py:1: flurb"),
        ("a.pyi", "class MyFlurbs: ...\n", "a.pyi:1: Flurbs"),
        ("a.rs", "fn hands_over() {}\n", "a.rs:1: hands over"),
        ("a.rs", "\n/// It hands\n/// over what it has.\n", "a.rs:2: hands over"),
        ("a.py", "# It hands\n# over what it has.\n", "a.py:1: hands over"),
        ("a.md", "It hands\nover.\n", "a.md:1: hands over"),
        ("a.toml", 'flurb = "x"\n', "a.toml:1: flurb"),
        ("a.rs", "struct MyZap;\n", "a.rs:1: Zap"),
        ("deep/in/a.md", "`FLURB`\n", "deep/in/a.md:1: FLURB"),
    ],
)
def test_a_retired_word_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, place: str
) -> None:
    write(tmp_path, {file: text})
    assert lint(tmp_path, str(tmp_path / file)) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{place}: say ")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", "flurbish = 1\n"),
        ("a.py", "a_flurb_lamp = 1\n"),
        ("a.md", "A flurb\nlamp.\n"),
        ("old/a.md", "A flurb.\n"),
        ("skipped/a.md", "A flurb.\n"),
        ("a.txt", "A flurb.\n"),
        ("a.py", "class Zap: ...\n"),
        ("a.rs", "// To zap.\n"),
        ("a.md", "It hands\n\nover.\n"),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path: Path, file: str, text: str) -> None:
    write(tmp_path, {file: text})
    assert lint(tmp_path, str(tmp_path / file)) == 0


def test_cells_of_notebooks_are_read_and_their_outputs_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["Words.\n", "A flurb."]},
            {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "flurb"}]},
        ]
    }
    write(tmp_path, {"a.ipynb": json.dumps(notebook)})
    assert lint(tmp_path, str(tmp_path / "a.ipynb")) == 1
    assert capsys.readouterr().out == "a.ipynb:cell 1:2: flurb: say signal\n"


LONG = "word " * 20 + "w"  # 101 columns


@pytest.mark.parametrize(
    ("file", "text", "lines"),
    [
        ("a.rs", f"// {LONG}\n", [1]),
        ("a.rs", f"{LONG[:100]}\n", []),
        ("a.py", f"\n# {LONG}\n", [2]),
        ("a.py", f"# {LONG}  # noqa: E501\n", []),
        ("a.rs", f"/// <https://example.org/{'x' * 90}>\n", []),
        ("a.md", f"{LONG}\n", [1]),
        ("a.md", f"| {LONG} |\n", []),
        ("a.md", f"See [this]({'x' * 100}).\n", []),
        ("a.md", f"```text\n{LONG}\n```\n{LONG}\n", [4]),
        ("a.md", f"```python\n{LONG}\n```\n", [2]),
        ("a.toml", f"# {LONG}\n", []),
    ],
)
def test_lines_over_the_limit_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, lines: list[int]
) -> None:
    write(tmp_path, {file: text})
    assert lint(tmp_path, str(tmp_path / file)) == bool(lines)
    said = capsys.readouterr().out.splitlines()
    found = [int(line.split(":")[1]) for line in said if "columns" in line]
    assert found == lines


def test_the_summary_counts_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"docs/a.md": f"A flurb, two flurbs.\n\n{LONG}\n"})
    assert lint(tmp_path, str(tmp_path / "docs"), "--summary") == 1
    assert capsys.readouterr().out == "     2 flurbs?\n     1 over 100 columns\n"


def test_an_allowed_context_needs_a_reason(tmp_path: Path) -> None:
    table = '[[word]]\npattern = "a"\nsay = "b"\nallowed = [{ text = "a c" }]\n'
    file = write(tmp_path, {"words.toml": table}) / "words.toml"
    with pytest.raises(SystemExit, match="needs a reason"):
        lint_words.read_words(file)


def test_the_table_of_the_repository_is_read() -> None:
    words, skipped = lint_words.read_words(REPOSITORY / lint_words.WORDS)
    assert len(words) > 20
    assert all(word.say for word in words)
    assert skipped == ["tools/retired_words.toml"]
