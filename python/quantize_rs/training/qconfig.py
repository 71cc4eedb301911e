"""Types for the modules of a network, and the flow prepare, observe, convert."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _core
from .._flow.model import Model
from .._flow.model import open as open_model
from .._flow.plan import Plan, delivered
from .._inputs.engines import Engine
from .._inputs.files import writable
from .._inputs.model_source import ModelSource
from .._inputs.samples import CalibrationData
from .._options import check
from .._results.ranges import Ranges
from .._results.report import Report
from ..errors import OptionError

__all__ = ["CalibrationSession", "QConfig", "QConfigDict", "prepare"]

_FLOATS = (None, "float32", "fp32", "float")
_HALVES = ("float16", "fp16", "half", "bfloat16", "bf16")


@dataclass(frozen=True, slots=True)
class QConfig:
    """To what a module is quantized.

    Attributes
    ----------
    activation : str or None
        The type of what its operators make: ``"uint8"``; None leaves it float.
    weight : str or None
        The type of its weights: ``"int8"``; None leaves them float.

    Examples
    --------
    >>> import quantize_rs
    >>> quantize_rs.QConfig(activation="uint8", weight="int8").weight
    'int8'
    """

    activation: str | None = None
    weight: str | None = "int8"

    def __post_init__(self) -> None:
        """Refuse types that there are none of."""
        for option in ("activation", "weight"):
            found = getattr(self, option)
            if found in _FLOATS:
                object.__setattr__(self, option, None)
            elif found not in _HALVES:
                try:
                    _core.dtype_of(found)
                except OptionError as error:
                    what = f"{option} is {found!r}: {error}"
                    raise OptionError(what, option=option) from None


@dataclass(frozen=True, slots=True)
class QConfigDict:
    """What is to become of modules: by name, by pattern, by type of operator, and of all others.

    A name goes before a pattern, that before a type of operator. The name of a module means what is
    called so and all in it: ``"features.0"`` the weight ``features.0.weight`` and the node
    ``/features/features.0/Conv``, as exporters call them; of several, the longest. Of patterns and
    types, the one that was set last. Setting gives a new object.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs import QConfig, QConfigDict
    >>> modules = (
    ...     QConfigDict()
    ...     .set_global(QConfig(activation="uint8", weight="int8"))
    ...     .set_module_type("Gemm", QConfig(activation="uint8", weight="uint8"))
    ...     .set_module_name("conv1", None)
    ... )
    >>> options = modules.options(quantize_rs.open("examples/digits/digits_cnn.onnx"))
    >>> options["activations"], options["exclude"]
    ('uint8', ['conv1'])
    """

    _global: QConfig = field(default_factory=lambda: QConfig(None, None))
    _names: Mapping[str, QConfig] = field(default_factory=dict)
    _patterns: tuple[tuple[str, QConfig], ...] = ()
    _types: tuple[tuple[str, QConfig], ...] = ()

    def set_global(self, config: QConfig | None) -> QConfigDict:
        """Say what becomes of modules that nothing else is said of; None leaves them float."""
        return replace(self, _global=_config(config))

    def set_module_name(self, name: str, config: QConfig | None) -> QConfigDict:
        """Say what becomes of a module, or of all that fit a pattern.

        Parameters
        ----------
        name : str
            Its name, a pattern with ``*``, ``?`` and ``[...]``, or a regular expression behind
            ``re:``.
        config : QConfig or None
            None leaves it float.
        """
        if name.startswith("re:") or any(sign in name for sign in "*?["):
            return replace(self, _patterns=(*self._patterns, (name, _config(config))))
        return replace(self, _names={**self._names, name: _config(config)})

    def set_module_type(self, op_type: str, config: QConfig | None) -> QConfigDict:
        """Say what becomes of operators of a type, such as ``"Conv"``; None leaves them float."""
        return replace(self, _types=(*self._types, (op_type, _config(config))))

    def options(self, model: Model) -> dict[str, Any]:
        """Give the options of `Model.plan` that this comes to.

        Parameters
        ----------
        model : Model
            The model whose modules are meant.

        Returns
        -------
        dict
            ``weights``, ``activations``, ``layer_bits``, ``activation_types`` and ``exclude``.

        Raises
        ------
        OptionError
            A name, pattern or type that fits nothing in the model, or what cannot be together:
            activations of some modules where those of all others stay float.
        """
        modules = {
            "global": _types_of(self._global),
            "names": {name: _types_of(config) for name, config in self._names.items()},
            "patterns": [(text, _types_of(config)) for text, config in self._patterns],
            "types": [(op_type, _types_of(config)) for op_type, config in self._types],
        }
        found = model._model.module_options(json.dumps(modules))
        keys = ("weights", "activations", "layer_bits", "activation_types", "exclude")
        return dict(zip(keys, found, strict=True))


@dataclass(slots=True, repr=False, eq=False)
class CalibrationSession:
    """A model that observes batches until it is converted. `prepare` makes it."""

    plan: Plan
    _method: str
    _run: Mapping[str, Any]
    _seen: Ranges | None = None

    def observe(self, batch: CalibrationData) -> None:
        """Run the model on samples and remember where its activations live.

        What was seen before stays; the order of batches does not matter.

        Parameters
        ----------
        batch : array, dict of arrays, iterable, path, ...
            As `samples` of `Plan.calibrate`.

        Raises
        ------
        CalibrationError, OptionError
            As `Plan.calibrate`.
        """
        seen = self.plan.calibrate(batch, **self._run)
        self._seen = seen if self._seen is None else self._seen.merge(seen)

    @property
    def ranges(self) -> Ranges | None:
        """What was seen of each value; None before anything was."""
        if self._seen is None or self._method == self._seen.method:
            return self._seen
        return self._seen.using(self._method)

    def convert(self, output_path: str | os.PathLike[str] | None = None) -> Report:
        """Quantize the model with what was seen.

        Parameters
        ----------
        output_path : path or None
            Where to write it. None gives it as ``report.model``, in bytes.

        Returns
        -------
        Report
            As `quantize_with_calibration` gives it for all batches in one.

        Raises
        ------
        CalibrationError
            Activations are to be quantized, and nothing was observed.
        OSError
            The file cannot be written.
        """
        destination = writable(output_path)
        return delivered(self.plan.apply(self.ranges), destination)

    def __repr__(self) -> str:
        """Show what was observed."""
        samples = 0 if self._seen is None else self._seen.samples
        return f"<CalibrationSession: {samples} samples observed, {self._method}>"


def prepare(
    model: ModelSource | Model,
    config: QConfigDict | QConfig | None = None,
    *,
    method: str = "minmax",
    engine: Engine = "auto",
    threads: int | None = None,
    **options: Any,
) -> CalibrationSession:
    """Make a model ready to observe batches, and to be converted afterwards.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or Model
        The model, which is not changed.
    config : QConfigDict, QConfig or None
        What is to become of its modules; one for all of them. By default uint8 and int8.
    method : str
        How ranges follow from what is seen, as in `Plan.calibrate`, but ``"auto"``.
    engine, threads
        As in `Plan.calibrate`.
    **options
        Other options of `Model.plan`: ``per_channel=True``. Lists and dicts there are added to
        those that `config` comes to.

    Returns
    -------
    CalibrationSession
        With `observe` and `convert`.

    Raises
    ------
    OptionError
        As `QConfigDict.options` and `Model.plan`.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> images = np.load("examples/digits/calibration.npy")
    >>> prepared = quantize_rs.prepare("examples/digits/digits_cnn.onnx", per_channel=True)
    >>> for batch in np.split(images, 4):
    ...     prepared.observe(batch)
    >>> prepared.convert("digits.int8.onnx").samples
    200
    """
    if method == "auto":
        what = "method is 'auto', which needs all samples at once: see Plan.calibrate"
        raise OptionError(what, option="method")
    opened = model if isinstance(model, Model) else open_model(model)
    if not isinstance(config, QConfigDict):
        whole = QConfig(activation="uint8") if config is None else config
        config = QConfigDict().set_global(whole)
    found = config.options(opened)
    for option, more in options.items():
        if option in ("layer_bits", "activation_types"):
            found[option] |= more
        elif option == "exclude":
            found[option] += check.names(option, more)
        elif option in found:
            what = f"{option} is said by config: give one of them"
            raise OptionError(what, option=option)
        else:
            found[option] = more
    run = {"engine": engine, "threads": threads}
    return CalibrationSession(opened.plan(**found), method, run)


def _config(config: QConfig | None) -> QConfig:
    return QConfig(None, None) if config is None else config


def _types_of(config: QConfig) -> dict[str, str | None]:
    return {"weight": config.weight, "activation": config.activation}
