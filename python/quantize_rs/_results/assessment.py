"""The evaluation of a result in one sentence, and where the result comes from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Assessment", "Origin"]


@dataclass(frozen=True, slots=True)
class Assessment:
    """The evaluation of a result, with which texts and HTML reports begin.

    Attributes
    ----------
    grade : str
        ``"good"``: the criteria are met or, without criteria, the SQNR is 30 dB or more;
        ``"fair"``: the SQNR is 10 to 30 dB or, whatever it is, the result is slower than the float
        model, hardly smaller, or finds other classes; ``"poor"``: a criterion is missed, the SQNR
        is less than 10 dB, or fewer than half of the rows keep their class; ``"unknown"``: nothing
        was measured.
    sentence : str
        The size, the SQNR of the outputs and the speed, and what they were measured on.
    next : tuple of str
        What to do next, the most promising first.
    """

    grade: str
    sentence: str
    next: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a result comes from.

    Attributes
    ----------
    version, date : str
        The version of this package, and the time in UTC.
    models : tuple of str
        The paths of the models; empty for a `Report`, which has `input` and `output`.
    samples : str or None
        What the samples were read from.
    command : str or None
        The call, or the command line.
    """

    version: str
    date: str
    models: tuple[str, ...]
    samples: str | None
    command: str | None
