"""The quantized model of `MatMulNBitsQuantizer`, with methods of onnxruntime's ``ONNXModel``."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from ..._flow.model import open as open_model
from ..._options import check
from ..._results.report import Report
from ._applied import Applied
from ._packages import onnx_package
from .onnx_model import ONNXModel

__all__ = ["SavedModel"]


class SavedModel(ONNXModel):
    """The quantized model of `MatMulNBitsQuantizer`.

    `model` is one object, and what you change in it is saved. The methods change it, too; all but
    `save_model_to_file` need the package onnx.
    """

    def __init__(self, done: Applied) -> None:
        """Wrap the quantized model."""
        self._done = done

    @cached_property
    def model(self) -> Any:
        """The ``onnx.ModelProto``.

        Raises
        ------
        MissingPackageError
            The package onnx is not installed.
        UnsupportedModelError
            The model has 2 GiB or more.
        """
        onnx = onnx_package("model as an onnx.ModelProto")
        return onnx.load_from_string(self._done.to_bytes())

    def save_model_to_file(
        self, output_path: str | os.PathLike[str], use_external_data_format: bool = False
    ) -> Report:
        """Write the model; weights as external data if that is asked for, or from 2 GiB on.

        Raises
        ------
        OSError
            The file cannot be written.
        UnsupportedModelError
            The model was edited, and has more than 2 GiB.
        """
        done = self._done
        if "model" in vars(self):  # it was handed out, and may have been changed
            self.topological_sort()
            edited = open_model(self.model)
            done = Applied(done._quantized.with_model(edited._model))
        target = check.path("output_path", output_path)
        return done.save(target, external_data=use_external_data_format)
