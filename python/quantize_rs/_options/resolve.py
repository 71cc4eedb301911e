"""One value for each option, from parameters, `options=` and keywords."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from .default import is_default
from .row import Needs, Row
from .table import ALIASES, OPTIONS, canonical, unknown

__all__ = ["Resolved", "by_name", "resolve", "with_aliases"]

# The functions, as errors call them, and the verb of the table that each of them is.
_VERBS = {"quantize": "quantize", "quantize_with_calibration": "calibrate"}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of each option, and what the caller gave.

    `given` has the name under which the caller gave an option another value than its default.
    `stated` also has the options that the caller gave their default.
    """

    function: str
    values: dict[str, Any]
    given: dict[str, str]
    stated: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def reject_unused(self, *, exempt: Collection[str] = ()) -> None:
        """Raise an `OptionError` for the first option that has no effect beside the others.

        What `exempt` names is checked elsewhere, and so is what depends on an option of the plan.
        """
        for name in self.given:
            needs = OPTIONS[name].needs
            if name in exempt or needs is None:
                continue
            if needs.option is not None and OPTIONS[needs.option].cls == "QuantizeOptions":
                continue
            if not self._holds(name, needs):
                what = f"{name} has no effect without {self._needed(needs)}"
                raise OptionError(what, option=name)

    def _holds(self, name: str, needs: Needs) -> bool:
        if needs.option is None:
            by_itself = needs.unless is not None and self.values[name] == needs.unless
            return by_itself or any(self.values[other] is not None for other in needs.given)
        value = self.values[needs.option]
        return isinstance(value, str) and value in needs.values

    def _needed(self, needs: Needs) -> str:
        if needs.option is None:
            taken = [name for name in needs.given if _takes(self.function, OPTIONS[name])]
            return " or ".join(taken)
        return needs.text.removeprefix("with ")


def resolve(
    function: str,
    parameters: Mapping[str, Any],
    options: object | None,
    keywords: Mapping[str, Any],
) -> Resolved:
    """Return the value of every option.

    `parameters` are those of the signature, where `default(...)` means "not given". None means so
    everywhere, and in `options`, a `QuantizeOptions`, any value that equals the default: an object
    does not know which of its fields were given. An option that is unknown, given twice, or not
    taken by `function` raises an `OptionError`.
    """
    values = {row.name: row.default for row in OPTIONS.values()}
    given: dict[str, str] = {}

    def take(name: str, value: Any, called: str) -> None:
        if name in given:
            what = f"{called} and {given[name]} are the same option: give one of them"
            if called == given[name]:
                what = f"{called} is given twice"
            raise OptionError(what, option=name)
        given[name] = called
        values[name] = value

    for name, value in _flat(options).items():
        if not OPTIONS[name].is_default(value):
            take(name, value, f"options.{name}")
    for called, value in [*parameters.items(), *keywords.items()]:
        name = canonical(called)
        if name not in OPTIONS:
            known = (row.name for row in OPTIONS.values() if _takes(function, row))
            raise OptionError(unknown(called, [*known, *ALIASES]), option=called)
        if not is_default(value) and (value is not None or not OPTIONS[name].is_default(value)):
            take(name, value, called)
    stated = frozenset(given)
    given = {
        name: said for name, said in given.items() if not OPTIONS[name].is_default(values[name])
    }
    for name in given:
        if not _takes(function, OPTIONS[name]):
            raise OptionError(_elsewhere(function, name), option=name)
    return Resolved(function, values, given, stated)


def with_aliases(keywords: Mapping[str, Any], **parameters: Any) -> tuple[Any, ...]:
    """Return the values of parameters, each of which may be given by an alias instead."""
    names = {canonical(name): name for name in parameters}
    given = {name: name for name, value in parameters.items() if value is not None}
    for called, value in keywords.items():
        name = names.get(canonical(called))
        if name is None and canonical(called) in OPTIONS:
            what = f"{called} has no effect here; it is an option of {_takers(canonical(called))}"
            raise OptionError(what, option=called)
        if name is None:
            aliases = (alias for alias in ALIASES if canonical(alias) in names)
            raise OptionError(unknown(called, [*names, *aliases]), option=called)
        if value is None:
            continue
        if name in given:
            what = f"{called} and {given[name]} are the same option: give one of them"
            raise OptionError(what, option=name)
        given[name] = called
        parameters[name] = value
    return tuple(parameters.values())


def by_name(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords by the names of their options; one that is given twice is an error."""
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    for called, value in keywords.items():
        name = canonical(called)
        if name in given:
            what = f"{called} and {given[name]} are the same option: give one of them"
            raise OptionError(what, option=name)
        given[name], found[name] = called, value
    return found


def _takes(function: str, row: Row) -> bool:
    verb = _VERBS.get(function)
    return row.cls == "QuantizeOptions" if verb is None else verb in row.verbs


def _elsewhere(function: str, name: str) -> str:
    return f"{name} has no effect in `{function}`; it is an option of {_takers(name)}"


def _takers(name: str) -> str:
    takers = [other for other in _VERBS if _takes(other, OPTIONS[name])]
    return f"`{'` and `'.join(takers)}`"


def _flat(options: object | None) -> dict[str, Any]:
    """Return the fields of an options object, including those of its parts."""
    if options is None:
        return {}
    # By name: the class is in `_flow`, because its fields have types of inputs and results, and
    # this package must not import `_flow`.
    is_options = any(cls.__name__ == "QuantizeOptions" for cls in type(options).__mro__)
    if not is_options or not dataclasses.is_dataclass(options):
        what = f"options is a {type(options).__name__}, expected a QuantizeOptions"
        raise OptionError(what, option="options")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in OPTIONS:
            found[field.name] = value
        elif dataclasses.is_dataclass(value):
            found |= {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
        else:
            what = f"options.{field.name} is {value!r}, expected one of the options classes"
            raise OptionError(what, option=field.name)
    return found
