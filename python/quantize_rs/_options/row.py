"""The type of a row of the table of options."""

from __future__ import annotations

from typing import Any, NamedTuple


class Needs(NamedTuple):
    """A condition: one of some options is given, or one option has one of some values.

    Where the option itself has the value `unless`, no other needs to be given.
    """

    text: str
    given: tuple[str, ...] = ()
    unless: str | None = None
    option: str | None = None
    values: tuple[str, ...] = ()


class Row(NamedTuple):
    """An option: its names, the class and group it belongs to, and when it has an effect.

    `nullable`: None means "not given". `empty`: so does a list or dict without entries.
    """

    name: str
    aliases: tuple[str, ...]
    cls: str
    group: str
    default: Any
    nullable: bool
    empty: bool
    verbs: tuple[str, ...]
    needs: Needs | None = None

    def is_default(self, value: object) -> bool:
        """Return whether a value is the default, and so counts as not given."""
        if value is None:
            return self.nullable or self.default is None
        if isinstance(value, list | tuple | dict | set | frozenset):
            return self.empty and not value
        if self.default is None or not isinstance(value, bool | int | float | str):
            return False
        return type(value) is type(self.default) and bool(value == self.default)
