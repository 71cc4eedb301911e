"""The calls that both packages run, and how one of them is made.

An option whose text names a member of an enum, such as `QuantType.QInt8`, is that member of the
package that is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THEIRS, OURS = "onnxruntime.quantization", "quantize_rs.compat.onnxruntime"
ENUMS = ("QuantType", "QuantFormat", "CalibrationMethod")

Feed = dict[str, Any]
Write = Callable[[str, Path, Path, list[Feed], dict[str, Any]], None]


class Reader:
    """Samples one by one, as both packages take them."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next sample, or None after the last."""
        return next(self.feeds, None)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Feed:
        return next(self.feeds)


def static(package: str, model: Path, out: Path, feeds: list[Feed], options: Feed) -> None:
    """`quantize_static`."""
    importlib.import_module(package).quantize_static(str(model), str(out), Reader(feeds), **options)


def dynamic(package: str, model: Path, out: Path, _: list[Feed], options: Feed) -> None:
    """`quantize_dynamic`."""
    importlib.import_module(package).quantize_dynamic(str(model), str(out), **options)


def nbits(package: str, model: Path, out: Path, _: list[Feed], options: Feed) -> None:
    """`MatMulNBitsQuantizer`; the option `algorithm` names a configuration without fields."""
    module = importlib.import_module(f"{package}.matmul_nbits_quantizer")
    options = dict(options)
    algorithm = options.pop("algorithm", None)
    config = getattr(module, f"{algorithm}WeightOnlyQuantConfig")() if algorithm else None
    quantizer = module.MatMulNBitsQuantizer(str(model), **options, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(out), False)


def bnb4(package: str, model: Path, out: Path, _: list[Feed], options: Feed) -> None:
    """`MatMulBnb4Quantizer`, which takes a model in memory."""
    import onnx

    module = importlib.import_module(f"{package}.matmul_bnb4_quantizer")
    quantizer = module.MatMulBnb4Quantizer(onnx.load(model), **options)
    quantizer.process()
    quantizer.model.save_model_to_file(str(out), False)


@dataclass(frozen=True)
class Call:
    """A function and its options."""

    write: Write
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, package: str, model: Path, out: Path, feeds: list[Feed]) -> None:
        """Quantize a model with one of the packages."""
        enums = importlib.import_module(package)
        options = {name: member(enums, value) for name, value in self.options.items()}
        self.write(package, model, out, feeds, options)


def member(package: Any, value: Any) -> Any:
    """The member of an enum that a text names; any other value as it is."""
    enum, dot, name = value.partition(".") if isinstance(value, str) else ("", "", "")
    return getattr(package, enum)[name] if dot and enum in ENUMS else value


def types(activations: str, weights: str) -> dict[str, str]:
    """The options for the types of activations and weights."""
    return {
        "activation_type": f"QuantType.{activations}",
        "weight_type": f"QuantType.{weights}",
    }


U8S8, U8U8 = types("QUInt8", "QInt8"), types("QUInt8", "QUInt8")
CHANNEL = {"per_channel": True}
QOPERATOR = {"quant_format": "QuantFormat.QOperator"}


def method(name: str) -> dict[str, str]:
    """The option for the calibration method."""
    return {"calibrate_method": f"CalibrationMethod.{name}"}


def extra(**options: Any) -> dict[str, Any]:
    """The extra options."""
    return {"extra_options": options}


CALLS: dict[str, Call] = {
    "static s8s8": Call(static),
    "static s8s8 channel": Call(static, CHANNEL),
    "static u8s8": Call(static, U8S8),
    "static u8s8 channel": Call(static, U8S8 | CHANNEL),
    "static u8u8": Call(static, U8U8),
    "static u16s8 channel": Call(static, types("QUInt16", "QInt8") | CHANNEL),
    "static u8s4 channel": Call(static, types("QUInt8", "QInt4") | CHANNEL),
    "static u8s8 channel, 7 bits": Call(static, U8S8 | CHANNEL | {"reduce_range": True}),
    "static u8s8 channel, entropy": Call(static, U8S8 | CHANNEL | method("Entropy")),
    "static u8s8 channel, percentile": Call(static, U8S8 | CHANNEL | method("Percentile")),
    "static u8s8 channel, moving average": Call(
        static, U8S8 | CHANNEL | extra(CalibMovingAverage=True)
    ),
    "static s8s8 channel, symmetric": Call(static, CHANNEL | extra(ActivationSymmetric=True)),
    "static u8s8 channel, float biases": Call(static, U8S8 | CHANNEL | extra(QuantizeBias=False)),
    "static u8s8, products alone": Call(
        static, U8S8 | {"op_types_to_quantize": ["Conv", "Gemm", "MatMul"]}
    ),
    "static u8s8 channel, every operator": Call(
        static, U8S8 | CHANNEL | extra(ForceQuantizeNoInputCheck=True)
    ),
    "static QOperator u8s8": Call(static, U8S8 | QOPERATOR),
    "static QOperator u8s8 channel": Call(static, U8S8 | QOPERATOR | CHANNEL),
    "static QOperator s8s8": Call(static, QOPERATOR),
    "static QOperator u8u8": Call(static, U8U8 | QOPERATOR),
    "dynamic s8": Call(dynamic),
    "dynamic s8 channel": Call(dynamic, CHANNEL),
    "dynamic u8": Call(dynamic, {"weight_type": "QuantType.QUInt8"}),
    "dynamic s8 channel, 7 bits": Call(dynamic, CHANNEL | {"reduce_range": True}),
    "dynamic s8, MatMul alone": Call(dynamic, {"op_types_to_quantize": ["MatMul"]}),
    "4 bits, blocks of 32": Call(nbits, {"block_size": 32}),
    "4 bits, blocks of 32, symmetric": Call(nbits, {"block_size": 32, "is_symmetric": True}),
    "4 bits, blocks of 128": Call(nbits),
    "8 bits, blocks of 32": Call(nbits, {"bits": 8, "block_size": 32}),
    "4 bits, blocks of 32, RTN": Call(nbits, {"block_size": 32, "algorithm": "RTN"}),
    "4 bits, blocks of 32, k-quant": Call(nbits, {"block_size": 32, "algorithm": "KQuant"}),
    "4 bits, blocks of 32, QDQ": Call(
        nbits, {"block_size": 32, "quant_format": "QuantFormat.QDQ", "is_symmetric": True}
    ),
    "NF4, blocks of 64": Call(bnb4, {"quant_type": 1, "block_size": 64}),
    "FP4, blocks of 64": Call(bnb4, {"quant_type": 0, "block_size": 64}),
}
"""Every call by its name."""
