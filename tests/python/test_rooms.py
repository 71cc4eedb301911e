"""The rooms of the package: folders and files of its root, whose imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quantize_rs

PACKAGE = Path(quantize_rs.__file__).parent

# From the lowest room to the highest: a room imports only rooms before it in this list.
ROOMS = [
    "errors",
    "_core",
    "_options",
    "_inputs",
    "metrics",
    "_results",
    "_transforms",
    "_flow",
    "_analysis",
    "distributed",
    "kernels",
    "observers",
    "training",
    "compat",
    "results",
    "examples",
    "__init__",
    "__main__",
]

MAX_ARROWS = 75

FOLDERS = [name for name in ROOMS if (PACKAGE / name).is_dir() and name != "examples"]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def targets(path: Path) -> set[str]:
    """The rooms that a file imports."""
    folder = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) + 1 - node.level]
            module = tuple(node.module.split(".")) if node.module else ()
            found |= {(*base, *module, name.name)[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "quantize_rs", path
        elif isinstance(node, ast.Import):
            assert all(name.name.split(".")[0] != "quantize_rs" for name in node.names), path
    return found - {room_of(path)}


def arrows() -> set[tuple[str, str]]:
    return {(room_of(path), target) for path in PACKAGE.rglob("*.py") for target in targets(path)}


def test_every_file_is_in_a_room_of_the_list() -> None:
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} <= set(ROOMS)


def test_imports_between_rooms_point_one_way() -> None:
    backwards = [
        (room, target)
        for room, target in arrows()
        if ROOMS.index(target) > ROOMS.index(room) and room != "__init__"
    ]
    assert not backwards


def test_rooms_have_few_arrows() -> None:
    assert len(arrows()) <= MAX_ARROWS


@pytest.mark.parametrize("room", FOLDERS)
def test_a_folder_says_what_it_may_import(room: str) -> None:
    module = ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8"))
    doc = " ".join((ast.get_docstring(module) or "").split())
    assert "come in" in doc or "comes in" in doc
    assert "go out" in doc or "goes out" in doc
    _, rule, allowed = doc.partition("may import")
    assert rule
    used = {target for source, target in arrows() if source == room}
    named = {name for name in ROOMS if f"`{name}`" in allowed}
    assert not used & named if "every other room" in allowed else used <= named
