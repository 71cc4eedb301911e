"""What the readers of Rust and of Python have in common: rooms and the imports between them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Import:
    """One import of an item that another room defines."""

    importer: str
    imported: str
    file: str
    line: int
    item: str


@dataclass
class Room:
    """A top-level module of a package, a folder or a file."""

    name: str
    file: str
    documented: bool = False


@dataclass
class Package:
    """The rooms of a package and the imports between different rooms."""

    name: str
    rooms: dict[str, Room]
    imports: list[Import] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    def arrows(self) -> dict[tuple[str, str], Import]:
        """Each ordered pair of rooms with an import, and the first of its imports."""
        found: dict[tuple[str, str], Import] = {}
        for one in sorted(self.imports, key=lambda one: (one.file, one.line)):
            found.setdefault((one.importer, one.imported), one)
        return dict(sorted(found.items()))

    def cycle(self) -> list[str]:
        """The largest set of rooms that all reach one another; one room where there is none."""
        arrows = self.arrows()
        reached = {
            room: {to for origin, to in arrows if origin == room} for room in sorted(self.rooms)
        }
        for middle in reached:
            for room in reached:
                if middle in reached[room]:
                    reached[room] |= reached[middle]
        cycles = [
            [other for other in reached if other == room or mutual(reached, room, other)]
            for room in reached
        ]
        return max(cycles, key=len, default=[])


def mutual(reached: dict[str, set[str]], one: str, other: str) -> bool:
    """Whether two rooms reach each other."""
    return other in reached[one] and one in reached[other]
