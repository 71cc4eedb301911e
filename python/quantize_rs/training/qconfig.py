"""Types for the modules of a network, and the workflow prepare, observe, convert."""

from __future__ import annotations

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
from .._inputs.run import Run, warn_after_run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._options.option_dict import ModuleConfigDict
from .._options.resolve import by_name
from .._results.ranges import Ranges
from .._results.report import Report
from ..errors import OptionError

__all__ = ["CalibrationSession", "QConfig", "QConfigDict", "prepare"]

_FLOATS = (None, "float32", "fp32", "float")
_HALVES = ("float16", "fp16", "half", "bfloat16", "bf16")


@dataclass(frozen=True, slots=True)
class QConfig:
    """The types that a module is quantized to.

    Attributes
    ----------
    activation : str or None
        The type of the outputs of its operators, such as ``"uint8"``; None keeps them float.
    weight : str or None
        The type of its weights, such as ``"int8"``; None keeps them float.

    Examples
    --------
    >>> import quantize_rs
    >>> quantize_rs.QConfig(activation="uint8", weight="int8").weight
    'int8'
    """

    activation: str | None = None
    weight: str | None = "int8"

    def __post_init__(self) -> None:
        """Reject unknown types."""
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
    """The `QConfig` of modules: by name, by pattern, by operator type, and for all others.

    A name takes precedence over a pattern, and a pattern over an operator type. The name of a
    module includes everything in it: ``"features.0"`` matches the weight ``features.0.weight`` and
    the node ``/features/features.0/Conv``, as exporters name them. If several names match, the
    longest applies; of several patterns or types, the one that was set last. Each setter returns a
    new object.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs import QConfig, QConfigDict
    >>> digits = quantize_rs.examples.digits()
    >>> modules = (
    ...     QConfigDict()
    ...     .set_global(QConfig(activation="uint8", weight="int8"))
    ...     .set_module_type("Gemm", QConfig(activation="uint8", weight="uint8"))
    ...     .set_module_name("conv1", None)
    ... )
    >>> options = modules.options(quantize_rs.open(digits.model))
    >>> options["activations"], options["exclude"]
    ('uint8', ['conv1'])
    """

    _global: QConfig = field(default_factory=lambda: QConfig(None, None))
    _names: Mapping[str, QConfig] = field(default_factory=dict)
    _patterns: tuple[tuple[str, QConfig], ...] = ()
    _types: tuple[tuple[str, QConfig], ...] = ()

    def set_global(self, config: QConfig | None) -> QConfigDict:
        """Set the config of all modules that nothing else matches; None keeps them float."""
        return replace(self, _global=_config(config))

    def set_module_name(self, name: str, config: QConfig | None) -> QConfigDict:
        """Set the config of a module, or of all modules that match a pattern.

        Parameters
        ----------
        name : str
            The name, a pattern with ``*``, ``?`` and ``[...]``, or a regular expression after
            ``re:``.
        config : QConfig or None
            The config; None keeps the module float.
        """
        if name.startswith("re:") or any(sign in name for sign in "*?["):
            return replace(self, _patterns=(*self._patterns, (name, _config(config))))
        return replace(self, _names={**self._names, name: _config(config)})

    def set_module_type(self, op_type: str, config: QConfig | None) -> QConfigDict:
        """Set the config of an operator type, such as ``"Conv"``; None keeps them float."""
        return replace(self, _types=(*self._types, (op_type, _config(config))))

    def options(self, model: Model) -> dict[str, Any]:
        """Return the equivalent options of `Model.plan`.

        Parameters
        ----------
        model : Model
            The model with these modules.

        Returns
        -------
        dict
            ``weights``, ``activations``, ``layer_bits``, ``activation_types`` and ``exclude``.

        Raises
        ------
        OptionError
            A name, pattern or type matches nothing in the model, or the configs contradict each
            other: activations of some modules are quantized, but those of all others stay float.
        """
        modules = ModuleConfigDict(
            all=self._global,
            names=[*self._names.items(), *self._patterns],
            types=self._types,
        )
        return dict(model._model.module_options(modules))


@dataclass(slots=True, repr=False, eq=False)
class CalibrationSession:
    """A model that observes batches until you convert it. `prepare` returns it."""

    plan: Plan
    _method: str
    _run: Run
    _seen: Ranges | None = None

    def observe(self, batch: CalibrationData) -> None:
        """Run the model on samples and update the ranges of its activations.

        Earlier batches count as well, and their order does not matter: the statistics of all
        batches add up exactly, the second moments that weights are rounded with included. Warnings
        about the samples are logged by `convert`, which has seen all of them.

        Parameters
        ----------
        batch : array, dict of arrays, iterable, path, ...
            As `samples` of `Plan.calibrate`.

        Raises
        ------
        CalibrationError, OptionError
            As in `Plan.calibrate`.
        """
        source = sample_source(batch, "samples", self.plan._plan.model)
        # As a shard the batch keeps its second moments, which `convert` rounds weights with.
        seen = self.plan._calibrate(source, self._run, "minmax", shard=(1, 1), quiet=True)
        before = self._seen
        self._seen = seen if before is None else Ranges(before._ranges.merge(seen._ranges))

    @property
    def ranges(self) -> Ranges | None:
        """The ranges of all batches; None before the first batch."""
        if self._seen is None or self._method == self._seen.method:
            return self._seen
        return self._seen.using(self._method)

    def convert(self, output_path: str | os.PathLike[str] | None = None) -> Report:
        """Quantize the model with the observed ranges.

        Parameters
        ----------
        output_path : path or None
            The file to write. If None, ``report.model`` holds the bytes.

        Returns
        -------
        Report
            The report. The model is that of `Plan.calibrate` with all batches at once, and
            `Plan.apply`. With ``rounding_effort="best"`` that is not so: it runs samples again,
            and batches are not kept. Weights are then rounded as with less effort.

        Raises
        ------
        CalibrationError
            The plan quantizes activations, but no batch was observed.
        OSError
            The file cannot be written.
        """
        destination = writable(output_path)
        ranges = self.ranges
        if ranges is not None:
            warn_after_run(ranges._ranges.warnings)
        return delivered(self.plan.apply(ranges), destination)

    def __repr__(self) -> str:
        """Show how many samples were observed."""
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
    """Prepare a model to observe batches, and to be quantized afterwards.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or Model
        The model, which is not changed.
    config : QConfigDict, QConfig or None
        The config of its modules, or one config for all. By default uint8 activations and int8
        weights.
    method : str
        The calibration method, as in `Plan.calibrate`, except ``"auto"``.
    engine, threads
        As in `Plan.calibrate`.
    **options
        Other options of `Model.plan`, or their aliases: ``per_channel=True``. Lists and dicts are
        added to those of `config`.

    Returns
    -------
    CalibrationSession
        The session, with `observe` and `convert`.

    Raises
    ------
    OptionError
        As in `QConfigDict.options` and `Model.plan`.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> images = np.load(digits.calibration)
    >>> session = quantize_rs.prepare(digits.model, per_channel=True)
    >>> for batch in np.split(images, 4):
    ...     session.observe(batch)
    >>> session.convert("digits.int8.onnx").samples
    200
    """
    if method == "auto":
        what = "method is 'auto', which needs all samples at once: see Plan.calibrate"
        raise OptionError(what, option="method")
    opened = model if isinstance(model, Model) else open_model(model)
    if isinstance(config, (str, os.PathLike)):
        what = f"config is {config!r}, expected a QConfig: the output path belongs to convert"
        raise OptionError(what, option="config")
    if not isinstance(config, QConfigDict):
        whole = QConfig(activation="uint8") if config is None else config
        config = QConfigDict().set_global(whole)
    found = config.options(opened)
    for option, more in by_name(options).items():
        if more is None:
            continue
        if option in ("layer_bits", "activation_types"):
            found[option] |= more
        elif option == "exclude":
            found[option] += check.names(option, more)
        elif option in found:
            what = f"{option} is set by config: give one of them"
            raise OptionError(what, option=option)
        else:
            found[option] = more
    run = Run(engine, None, threads, None)
    return CalibrationSession(opened.plan(**found), method, run)


def _config(config: QConfig | None) -> QConfig:
    found = QConfig(None, None) if config is None else config
    if not isinstance(found, QConfig):
        raise OptionError(f"config is {config!r}, expected a QConfig", option="config")
    return found
