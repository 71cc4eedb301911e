"""Counts how the packages hang together, and checks the counts against `rooms.toml`.

A room is a top-level module of a package, a folder or a file; the root (`lib.rs`, `__init__.py`)
is none. An arrow is an ordered pair of rooms of which the first imports an item that the second
defines. An arrow to a later room of `rooms.toml` points backward.

    python tools/structure.py            # a table
    python tools/structure.py --json     # the same for scripts
    python tools/structure.py --check    # exit status 1 where a rule is broken
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import python_imports
import rust_imports
from imports import Import, Package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = "tools/rooms.toml"
MAX_BACKWARD = 5
MAX_CYCLE = 3
# Arrows that a message names.
MAX_LISTED = 12
VERBS = ("quantize", "quantize_with_calibration")
# The value that the planner's steps hand on and change.
SHARED_STATE = "Draft"
PLANNER = "plan"


@dataclass(frozen=True)
class Rules:
    """What `rooms.toml` says of one package."""

    name: str
    language: str
    root: str
    rooms: list[str]
    allowed: dict[tuple[str, str], str]


@dataclass
class Counted:
    """A package, its rules and its backward arrows."""

    rules: Rules
    package: Package
    backward: dict[tuple[str, str], Import] = field(default_factory=dict)


def rules_of(file: Path) -> list[Rules]:
    """The packages that a table of rooms lists."""
    found = []
    for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("package", []):
        allowed = {}
        for arrow in entry.get("backward", []):
            if not str(arrow.get("reason", "")).strip():
                sys.exit(f"{file}: {arrow['from']} -> {arrow['to']} has no `reason`")
            allowed[arrow["from"], arrow["to"]] = arrow["reason"]
        rooms = entry["rooms"]
        if twice := sorted({room for room in rooms if rooms.count(room) > 1}):
            sys.exit(f"{file}: {entry['name']} lists {', '.join(twice)} twice")
        found.append(Rules(entry["name"], entry["language"], entry["root"], rooms, allowed))
    return found


def count(rules: Rules, repository: Path) -> Counted:
    """Reads a package and finds its backward arrows; rooms that are not listed have none."""
    read = {"rust": rust_imports.read_crate, "python": python_imports.read_package}
    package = read[rules.language](rules.name, repository / rules.root, repository)
    place = {room: number for number, room in enumerate(rules.rooms)}
    backward = {
        arrow: first
        for arrow, first in package.arrows().items()
        if all(room in place for room in arrow) and place[arrow[0]] < place[arrow[1]]
    }
    return Counted(rules, package, backward)


def problems(counted: Counted, rooms: str) -> list[str]:
    """The rules that a package breaks, each with what to do."""
    rules, package = counted.rules, counted.package
    found = [
        f"{room.file}:1: the room `{room.name}` of {rules.name} is not listed: add it to {rooms}"
        for room in package.rooms.values()
        if room.name not in rules.rooms
    ]
    found += [
        f"{rooms}: {rules.name} has no room `{room}`: remove it from `rooms`"
        for room in rules.rooms
        if room not in package.rooms
    ]
    found += [
        f"{room.file}:1: the room `{room.name}` of {rules.name} has no first paragraph: say what "
        "comes in, what goes out and which rooms it may import"
        for room in package.rooms.values()
        if not room.documented
    ]
    found += [
        f"{first.file}:{first.line}: backward arrow {low} -> {high} ({first.item}): move "
        f"`{first.item}` to `{low}` or below it, or list the arrow with a reason in {rooms}"
        for (low, high), first in counted.backward.items()
        if (low, high) not in rules.allowed
    ]
    found += [
        f"{rooms}: {low} -> {high} is no backward arrow of {rules.name}: remove it from `backward`"
        for low, high in rules.allowed
        if (low, high) not in counted.backward
    ]
    if len(counted.backward) > MAX_BACKWARD:
        arrows = ", ".join(
            f"{low} -> {high} ({first.file}:{first.line})"
            for (low, high), first in counted.backward.items()
        )
        found.append(
            f"{rules.root}: {len(counted.backward)} backward arrows, at most {MAX_BACKWARD} are "
            f"allowed: move definitions to the lowest room that owns them: {arrows}"
        )
    cycle = package.cycle()
    if len(cycle) > MAX_CYCLE:
        found.append(
            f"{rules.root}: {len(cycle)} rooms import one another, at most {MAX_CYCLE} may: "
            f"{', '.join(cycle)}: remove one of {arrows_in(counted, cycle)}"
        )
    found += [
        f"{place}: the path resolves to no module: the count may miss an arrow"
        for place in package.unresolved
    ]
    return found


def arrows_in(counted: Counted, cycle: list[str]) -> str:
    """The arrows that hold a cycle together: the backward ones where the order knows them."""
    arrows = [
        (arrow, first)
        for arrow, first in counted.package.arrows().items()
        if arrow[0] in cycle and arrow[1] in cycle
    ]
    backward = [one for one in arrows if one[0] in counted.backward]
    listed = [
        f"{low} -> {high} ({first.file}:{first.line})" for (low, high), first in backward or arrows
    ]
    more = ["..."] if len(listed) > MAX_LISTED else []
    return ", ".join(listed[:MAX_LISTED] + more)


def numbers_of(counted: Counted) -> dict[str, object]:
    """The counts of a package."""
    rules, package = counted.rules, counted.package
    cycle = package.cycle()
    return {
        "rooms": len(package.rooms),
        "arrows": len(package.arrows()),
        "backward": len(counted.backward),
        "largest_cycle": len(cycle),
        "cycle": cycle if len(cycle) > 1 else [],
        "backward_arrows": [
            {
                "from": low,
                "to": high,
                "file": first.file,
                "line": first.line,
                "item": first.item,
                "reason": rules.allowed.get((low, high)),
            }
            for (low, high), first in counted.backward.items()
        ],
        "unlisted_rooms": sorted(set(package.rooms) - set(rules.rooms)),
        "unresolved": package.unresolved,
    }


def json_signatures(stub: Path) -> list[str]:
    """The functions of the extension that return a result as `(JSON, text)`."""
    return [
        name
        for name, function in python_imports.stub_functions(stub)
        if function.returns is not None and ast.unparse(function.returns) == "tuple[str, str]"
    ]


def json_functions(folder: Path) -> list[str]:
    """The exported functions of `folder`, `to_json` and `from_json` left out, that use JSON.

    Exported are `#[pyfunction]` and the functions of `#[pymethods]`; one uses JSON where its body,
    or that of a function of the same file that it calls, names `to_json`, `from_json`,
    `serde_json` or the helper `convert::json`.
    """
    found = []
    for file in sorted(folder.rglob("*.rs")):
        tokens = [token.text for token in rust_imports.without_tests(file.read_text("utf-8"))]
        bodies = functions(tokens)
        using = {
            name
            for _, name, _, body in bodies
            if {"to_json", "from_json", "serde_json"} & set(body) or calls_helper(body)
        }
        while more := {
            name for _, name, _, body in bodies if name not in using and calls(body, using)
        }:
            using |= more
        exported = exported_ranges(tokens)
        found += [
            f"{file.name}: {name}"
            for start, name, attributes, body in bodies
            if name not in ("to_json", "from_json")
            and ("pyfunction" in attributes or any(low < start < high for low, high in exported))
            and name in using
        ]
    return found


def calls_helper(body: list[str]) -> bool:
    """Whether a body calls `convert::json`."""
    return ("convert", "::", "json") in zip(body, body[1:], body[2:], strict=False)


def calls(body: list[str], names: set[str]) -> bool:
    """Whether a body calls one of some functions, free or as a method of `self`."""
    padded = ["", "", *body]
    return any(
        padded[at] in names
        and padded[at + 1] == "("
        and (padded[at - 1] not in (".", "::", "fn") or padded[at - 2] in ("self", "Self"))
        for at in range(2, len(padded) - 1)
    )


def functions(tokens: list[str]) -> list[tuple[int, str, list[str], list[str]]]:
    """The functions in tokens: position, name, the words of their attributes, and their body."""
    found = []
    for at, text in enumerate(tokens):
        if text != "fn" or at + 1 >= len(tokens) or not tokens[at + 1].isidentifier():
            continue
        start = at
        while start < len(tokens) and tokens[start] not in ("{", ";"):
            start += 1
        before = at
        while before > 0 and tokens[before - 1] not in ("}", ";", "{"):
            before -= 1
        end = closing(tokens, start) if tokens[start : start + 1] == ["{"] else start
        found.append((at, tokens[at + 1], tokens[before:at], tokens[start:end]))
    return found


def closing(tokens: list[str], opening: int) -> int:
    """The position of the brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at] == "{") - (tokens[at] == "}")
        if depth == 0:
            return at
    return len(tokens)


def exported_ranges(tokens: list[str]) -> list[tuple[int, int]]:
    """Where the blocks of `#[pymethods]` begin and end."""
    found = []
    for at, text in enumerate(tokens):
        if text == "pymethods":
            opening = at
            while opening < len(tokens) and tokens[opening] != "{":
                opening += 1
            found.append((opening, closing(tokens, opening)))
    return found


def numbers(packages: list[Counted], repository: Path) -> dict[str, object]:
    """All counts; those that a repository has nothing for are left out."""
    found: dict[str, object] = {one.rules.name: numbers_of(one) for one in packages}
    for one in packages:
        root = repository / one.rules.root
        if one.rules.language == "rust":
            steps = rust_imports.functions_with_mutable(SHARED_STATE, root / PLANNER, repository)
            found["mutable_planner_steps"] = {
                "files": len({step.file for step in steps}),
                "functions": len(steps),
            }
        else:
            modules = python_imports.Modules(root)
            verbs = {verb: modules.function(verb) for verb in VERBS}
            found["parameters"] = {
                verb: python_imports.parameters(function)
                for verb, function in verbs.items()
                if function is not None
            }
            found["names_at_root"] = python_imports.names_at_root(root)
            stub = root / "_core.pyi"
            if stub.is_file():
                found["json_signatures"] = len(json_signatures(stub))
    extension = repository / "rust/python/src"
    if extension.is_dir():
        found["json_functions"] = len(json_functions(extension))
    return found


def table(found: dict[str, object], packages: list[Counted]) -> str:
    """The counts as Markdown, then each backward arrow with the place of an import."""
    names = [one.rules.name for one in packages]
    lines = [
        "| count | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    labels = {
        "rooms": "rooms",
        "arrows": "arrows",
        "backward": "backward arrows",
        "largest_cycle": "rooms in the largest cycle",
    }
    for key, label in labels.items():
        values = [str(numbers_of(one)[key]) for one in packages]
        lines.append(f"| {label} | " + " | ".join(values) + " |")
    lines += ["", "| count | number |", "|---|---:|"]
    parameters = found.get("parameters")
    if isinstance(parameters, dict):
        lines += [f"| parameters of `{verb}` | {number} |" for verb, number in parameters.items()]
    single = {
        "names_at_root": "names in `quantize_rs.__all__`",
        "json_signatures": "signatures that return `(JSON, text)`",
        "json_functions": "exported functions that pass JSON, `to_json` and `from_json` left out",
    }
    lines += [f"| {label} | {found[key]} |" for key, label in single.items() if key in found]
    steps = found.get("mutable_planner_steps")
    if isinstance(steps, dict):
        lines.append(
            f"| planner functions with `&mut {SHARED_STATE}` "
            f"| {steps['functions']} in {steps['files']} files |"
        )
    for one in packages:
        lines += details(one)
    return "\n".join(lines)


def details(counted: Counted) -> list[str]:
    """The backward arrows, the largest cycle and the rooms that no order lists."""
    lines = []
    if counted.backward:
        lines += ["", f"Backward arrows of {counted.rules.name}:"]
    for (low, high), first in counted.backward.items():
        reason = counted.rules.allowed.get((low, high))
        note = f" - allowed: {reason}" if reason else ""
        lines.append(f"  {low} -> {high}  {first.file}:{first.line} ({first.item}){note}")
    cycle = counted.package.cycle()
    if len(cycle) > 1:
        lines += ["", f"Largest cycle of {counted.rules.name}: {', '.join(cycle)}"]
    unlisted = sorted(set(counted.package.rooms) - set(counted.rules.rooms))
    if unlisted:
        lines += ["", f"Rooms of {counted.rules.name} that are not listed: {', '.join(unlisted)}"]
    if counted.package.unresolved:
        lines += ["", "Paths that resolve to no module:", *counted.package.unresolved]
    return lines


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Counts rooms, arrows and cycles.")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--check", action="store_true", help="fail where a rule is broken")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the repository to read")
    parser.add_argument("--rooms", type=Path, help=f"a table of rooms instead of {ROOMS}")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    rooms = options.rooms or root / ROOMS
    packages = [count(rules, root) for rules in rules_of(rooms)]
    if options.check:
        found = [problem for one in packages for problem in problems(one, ROOMS)]
        print("\n".join(found) if found else "structure: no rule is broken")
        return 1 if found else 0
    found_numbers = numbers(packages, root)
    if options.json:
        print(json.dumps(found_numbers, indent=2))
    else:
        print(table(found_numbers, packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
