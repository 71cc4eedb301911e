"""Reads the imports between the top-level modules ("rooms") of a Python package.

An import counts for the room that defines the name, found through re-exports. Stubs (`.pyi`) are
no rooms: an extension module has no place in the order.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from imports import Import, Package, Room

Module: TypeAlias = tuple[str, ...]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Contents:
    """What one file says."""

    file: Path
    tree: ast.Module
    names: dict[str, Module] = field(default_factory=dict)
    globs: list[Module] = field(default_factory=list)
    paths: list[tuple[Module, int]] = field(default_factory=list)


class Modules:
    """The modules of a package by their path from its root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[Module, Contents] = {}
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            module = parts[:-1] if parts[-1] == "__init__" else parts
            tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
            self.modules[module] = Contents(file, tree)
        self.extensions = {
            file.relative_to(root).with_suffix("").parts
            for file in root.rglob("*.pyi")
            if not file.with_suffix(".py").exists()
        }
        for module, contents in self.modules.items():
            self.read(module, contents)

    def read(self, module: Module, contents: Contents) -> None:
        """Reads the imports of a file; those of other packages are left out."""
        for node in ast.walk(contents.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    path = self.inside(tuple(alias.name.split(".")))
                    if path is not None:
                        contents.paths.append((path, node.lineno))
                        if alias.asname:
                            contents.names[alias.asname] = path
            elif isinstance(node, ast.ImportFrom):
                base = self.base(module, contents, node)
                for alias in node.names if base is not None else []:
                    assert base is not None
                    if alias.name == "*":
                        contents.globs.append(base)
                        contents.paths.append((base, node.lineno))
                    else:
                        contents.names.setdefault(alias.asname or alias.name, (*base, alias.name))
                        contents.paths.append(((*base, alias.name), alias.lineno))

    def base(self, module: Module, contents: Contents, node: ast.ImportFrom) -> Module | None:
        """The path that the names of a `from … import` stand in."""
        said = tuple(node.module.split(".")) if node.module else ()
        if node.level == 0:
            return self.inside(said)
        package = module if contents.file.name == "__init__.py" else module[:-1]
        return (*package[: len(package) - (node.level - 1)], *said)

    def inside(self, path: tuple[str, ...]) -> Module | None:
        """An absolute path as one from the package's root; `None` for another package."""
        return path[1:] if path[:1] == (self.root.name,) else None

    def resolve(self, path: Module, seen: frozenset[Module] = frozenset()) -> Module | str | None:
        """The module that defines what a path names.

        `None` for an item of an extension module, the path as text where nothing is found.
        """
        if path in seen:
            return ".".join(path)
        seen |= {path}
        module: Module = ()
        for position, name in enumerate(path):
            if (*module, name) in self.extensions:
                return None
            contents = self.modules[module]
            target = contents.names.get(name)
            rest = path[position + 1 :]
            if (*module, name) in self.modules:
                module = (*module, name)
                continue
            if target is not None and target != path[: position + 1]:
                return self.resolve((*target, *rest), seen)
            for glob in contents.globs:
                inner = self.modules.get(glob)
                if inner is not None and name in defined(inner.tree):
                    return self.resolve((*glob, name, *rest), seen)
            return module if module or name in defined(contents.tree) else ".".join(path)
        return module

    def function(self, name: str) -> Function | None:
        """The function that a name at the root stands for."""
        module = self.resolve((name,))
        if module is None or isinstance(module, str):
            return None
        functions = [
            node
            for node in self.modules[module].tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        # The last is the implementation where others are overloads.
        return functions[-1] if functions else None


def defined(tree: ast.Module) -> set[str]:
    """The names that a module defines at its top level."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def read_package(name: str, root: Path, repository: Path) -> Package:
    """The rooms of a package in the folder `root`, and the imports between them."""
    found = Modules(root)
    modules = found.modules
    rooms = {}
    for module, contents in modules.items():
        if len(module) == 1:
            file = contents.file.relative_to(repository).as_posix()
            documented = bool((ast.get_docstring(contents.tree) or "").strip())
            rooms[module[0]] = Room(module[0], file, documented)
        elif module and module[0] not in rooms and (module[0],) not in modules:
            # A folder without `__init__.py`: a namespace package says nothing of itself.
            folder = (root / module[0]).relative_to(repository).as_posix()
            rooms[module[0]] = Room(module[0], folder, documented=False)
    package = Package(name, rooms)
    for module, contents in modules.items():
        if not module:
            continue
        file = contents.file.relative_to(repository).as_posix()
        for path, line in contents.paths:
            # What a room imports of itself is counted where the room imports it.
            target = None if path[:1] == module[:1] else found.resolve(path)
            if isinstance(target, str):
                package.unresolved.append(f"{file}:{line}: {'.'.join(path)}")
            elif target and target[0] != module[0]:
                package.imports.append(Import(module[0], target[0], file, line, path[-1]))
    return package


def parameters(function: Function) -> int:
    """How many parameters a function has; `*args` and `**kwargs` count as one each."""
    arguments = function.args
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def names_at_root(root: Path) -> int | None:
    """How many names `__all__` of a package lists; `None` where it is no list of literals."""
    tree = ast.parse((root / "__init__.py").read_text(encoding="utf-8"))
    lists: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = strings(node.value, lists)
            if value is not None:
                lists |= {one.id: value for one in targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = strings(node.value, lists)
            if value is not None:
                lists[node.target.id] = lists.get(node.target.id, []) + value
    return len(set(lists["__all__"])) if "__all__" in lists else None


def strings(node: ast.expr, lists: dict[str, list[str]]) -> list[str] | None:
    """The strings of a list that is written out, or a sum of such lists."""
    if isinstance(node, ast.Name):
        return lists.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = strings(node.left, lists), strings(node.right, lists)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.List | ast.Tuple):
        found: list[str] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = strings(element.value, lists)
            elif isinstance(element, ast.Constant) and isinstance(element.value, str):
                inner = [element.value]
            else:
                inner = None
            if inner is None:
                return None
            found += inner
        return found
    return None


def stub_functions(stub: Path) -> list[tuple[str, Function]]:
    """The functions and methods of a stub with their qualified names."""
    found: list[tuple[str, Function]] = []
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += [
                (f"{node.name}.{inner.name}", inner)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    return found
