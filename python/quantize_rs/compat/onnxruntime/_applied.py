"""A plan applied, with a report that has the names of options in onnxruntime."""

from __future__ import annotations

import json
import os

from ..._flow.plan import Plan, Quantized
from ..._inputs.run import warn
from ..._results.build import result
from ..._results.ranges import Ranges
from ..._results.report import Report
from ._choices import in_their_words

__all__ = ["Applied", "applied"]


class Applied(Quantized):
    """A quantized model whose report has the names of options in onnxruntime."""

    __slots__ = ()

    @property
    def report(self) -> Report:
        """The report so far; `save` completes it."""
        return _renamed(super().report)

    def save(self, path: str | os.PathLike[str], *, external_data: bool = False) -> Report:
        """Write the model, and return the complete report."""
        return _renamed(super().save(path, external_data=external_data))


def applied(plan: Plan, ranges: Ranges | None = None) -> Applied:
    """Apply a plan, and log its warnings with the names of options in onnxruntime.

    Raises
    ------
    UnsupportedModelError, CalibrationError
        As in `Plan.apply`.
    """
    done = Applied(plan._applied(ranges)._quantized)
    # Those of the calibration come first, and were logged then.
    logged = 0 if ranges is None else len(ranges._ranges.warnings)
    warn(in_their_words(text) for text in done._quantized.warnings[logged:])
    return done


def _renamed(report: Report) -> Report:
    """Return the same report with these names in its warnings, notes and suggestions."""
    said = (*report.warnings, *report.notes, *report.suggestions)
    renamed = {text: theirs for text in said if (theirs := in_their_words(text)) != text}
    if not renamed:
        return report
    as_json, as_text = report.to_json(), str(report)
    for text, theirs in renamed.items():
        as_json = as_json.replace(_quoted(text), _quoted(theirs))
        as_text = as_text.replace(text, theirs)
    # The extension module is imported in lower rooms of the package only.
    return result(Report, type(report._outcome).saved(as_json, as_text), model=None)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
