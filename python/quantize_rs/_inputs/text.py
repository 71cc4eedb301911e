"""Text as samples: lines become token ids by a file of the package `tokenizers`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._options import check
from ..errors import CalibrationError, MissingPackageError, OptionError
from .model_inputs import ModelInputs
from .rows import Row

__all__ = ["TextSamples"]

_PADDING = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True, slots=True)
class TextSamples:
    """Text to calibrate with, and the tokenizer that makes inputs of it.

    The model gets those of ``input_ids``, ``attention_mask`` and ``token_type_ids`` that it has.
    Needs ``pip install "quantization-rs[text]"``.

    Parameters
    ----------
    texts : path, or iterable of str or of dict
        A ``.txt`` file with a text on each line; a ``.jsonl``, Parquet or Arrow file with a column
        of texts; or the texts. Empty lines are skipped. A list is one of files if each of its
        items is a path object, has the ending of a known format, or names a file.
    tokenizer : path or tokenizers.Tokenizer
        A ``tokenizer.json``, its folder, or an object; also a fast tokenizer of `transformers`.
    max_length : int
        The number of tokens after which a text is cut off; a model with inputs of a fixed length
        gets that length.
    pad_to : int, optional
        Pad shorter texts to this length. By default they are padded only for a model with inputs
        of a fixed length.
    pad_token : str, optional
        The token to pad with; that of the tokenizer by default.
    add_special_tokens : bool
        Add tokens such as ``[CLS]`` as the tokenizer defines it.
    field : str
        The name of the column of texts.

    Raises
    ------
    OptionError
        An option is out of range.

    Examples
    --------
    >>> import quantize_rs
    >>> texts = quantize_rs.TextSamples("corpus.txt", "tokenizer.json", max_length=64)
    >>> texts.pad_to is None
    True

    Pass it wherever samples are accepted: ``plan.calibrate(texts)``.
    """

    texts: str | os.PathLike[str] | Iterable[Any]
    tokenizer: Any
    max_length: int = 128
    pad_to: int | None = None
    pad_token: str | None = None
    add_special_tokens: bool = True
    field: str = "text"

    def __post_init__(self) -> None:
        check.count("max_length", self.max_length, least=1)
        length = check.optional_count("pad_to", self.pad_to, least=1)
        if length is not None and length < self.max_length:
            what = f"pad_to is {length}, expected {self.max_length} (max_length) or more"
            raise OptionError(what, option="pad_to")


def lines(path: Path) -> Iterator[Row]:
    """Read a text file line by line, without the ends of lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            try:
                yield Row(place, line.decode("utf-8-sig").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                what = f"this is not UTF-8: {error}; save the file as UTF-8 ({place})"
                raise CalibrationError(what, category="data") from error


def not_empty(rows: Iterable[Row], field: str) -> Iterator[Row]:
    """Return the text of each row that has one."""
    texts = (Row(row.place, _text(row, field)) for row in rows)
    return (row for row in texts if row.values.strip())


def tokenized(rows: Iterable[Row], texts: TextSamples, inputs: ModelInputs) -> Iterator[Row]:
    """Return the token ids of each text, and what belongs to them."""
    encoder = _Encoder(texts, inputs)
    return (Row(row.place, encoder(row.values, row.place)) for row in rows)


def _text(row: Row, field: str) -> str:
    text = row.values
    if isinstance(text, Mapping):
        if field not in text:
            names = ", ".join(f"`{name}`" for name in text)
            what = f"there is no column `{field}`, there are {names}: give field= ({row.place})"
            raise CalibrationError(what, value=field, category="data")
        text = text[field]
    if not isinstance(text, str):
        what = f"expected a text, this is of type {type(text).__name__} ({row.place})"
        raise CalibrationError(what, category="data")
    return text


class _Encoder:
    def __init__(self, texts: TextSamples, inputs: ModelInputs) -> None:
        self._names = {one.name for one in inputs.all}
        self._special = texts.add_special_tokens
        fixed = next(
            (one.shape[-1] for one in inputs.all if one.name == "input_ids" and one.shape), None
        )
        self._tokenizer = _tokenizer(texts.tokenizer)
        padding = self._tokenizer.padding or {}
        self._tokenizer.no_padding()
        side = (self._tokenizer.truncation or {}).get("direction", "right")
        self._tokenizer.enable_truncation(fixed or texts.max_length, direction=side)
        if length := fixed or texts.pad_to:
            token = texts.pad_token or padding.get("pad_token")
            own = {key: padding[key] for key in ("direction", "pad_type_id") if key in padding}
            self._tokenizer.enable_padding(length=length, **own, **self._padding(token))

    def _padding(self, token: str | None) -> dict[str, Any]:
        """Return the token to pad with and its id."""
        for known in _PADDING if token is None else (token,):
            if (number := self._tokenizer.token_to_id(known)) is not None:
                return {"pad_token": known, "pad_id": number}
        what = "pad_token is None, and the tokenizer has no token to pad with: give one"
        if token is not None:
            what = f"pad_token is {token!r}, which is not a token of the tokenizer"
        raise OptionError(what, option="pad_token")

    def __call__(self, text: str, place: str) -> dict[str, Any]:
        found = self._tokenizer.encode(text, add_special_tokens=self._special)
        if not found.ids:
            what = f"the tokenizer finds no token in {text.strip()[:40]!r}: remove it ({place})"
            raise CalibrationError(what, category="data")
        fields = {
            "input_ids": found.ids,
            "attention_mask": found.attention_mask,
            "token_type_ids": found.type_ids,
        }
        return {
            name: np.array(numbers, np.int64)
            for name, numbers in fields.items()
            if name in self._names or name == "input_ids"
        }


def _tokenizer(given: Any) -> Any:
    """Return a tokenizer of its own, whose settings may be changed."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        what = 'TextSamples needs tokenizers: pip install "quantization-rs[text]"'
        raise MissingPackageError(what, name="tokenizers") from error
    given = getattr(given, "backend_tokenizer", given)
    if isinstance(given, Tokenizer):
        return Tokenizer.from_str(given.to_str())
    if not isinstance(given, str | os.PathLike):
        what = f"tokenizer is of type {type(given).__name__}, expected a path or a Tokenizer"
        raise OptionError(what, option="tokenizer")
    path = Path(given)
    text = (path / "tokenizer.json" if path.is_dir() else path).read_bytes()
    try:
        return Tokenizer.from_str(text.decode())
    except Exception as error:  # the package raises `Exception` itself
        what = f"{path} is not a file of the package tokenizers: {error}; give its tokenizer.json"
        raise CalibrationError(what, value=str(path), category="data") from error
