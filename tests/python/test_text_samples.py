"""Text as samples, with tokenizers that are trained here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_models import VOCABULARY, token_model

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Plan, TextSamples
from quantize_rs._inputs import text
from quantize_rs._inputs.model_inputs import ModelInputs

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "rain"]


def corpus() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 13))) for _ in range(60)]


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tokenizer of words as BERT has it, whose file is in the working directory."""
    monkeypatch.chdir(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    )
    made.train_from_iterator(corpus(), trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    assert made.get_vocab_size() <= VOCABULARY
    made.save("tokenizer.json")
    Path("corpus.txt").write_text("\n\n".join(corpus()) + "\n", "utf-8")
    return made


def planned(**options: Any) -> Plan:
    return quantize_rs.open(token_model(**options)).plan(activations="uint8")


def calibrated(plan: Plan, samples: Any) -> quantize_rs.Ranges:
    return plan.calibrate(samples, method="moving_average", engine="tract")


def expected(tokenizer: Any, *names: str) -> list[dict[str, Any]]:
    found = [tokenizer.encode(text) for text in corpus()]
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return [
        {name: np.array([getattr(one, fields[name])], np.int64) for name in names} for one in found
    ]


@pytest.mark.parametrize("types", [False, True])
def test_lines_of_text_are_what_the_tokenizer_makes_of_them(tokenizer: Any, types: bool) -> None:
    plan = planned(types=types)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    found = calibrated(plan, TextSamples("corpus.txt", "tokenizer.json"))
    assert found.samples == 60
    assert found == calibrated(plan, expected(tokenizer, *names))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_end_of_a_line_is_no_part_of_its_text(tmp_path: Path, end: str) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(end.join([" a text ", "", "the last"]).encode())
    assert [row.values for row in text.lines(path)] == [" a text ", "", "the last"]


@pytest.mark.parametrize("shards", [2, 7])
@pytest.mark.usefixtures("tokenizer")
def test_parts_of_a_text_are_one_calibration(shards: int) -> None:
    plan = quantize_rs.open(token_model()).plan(activations="uint8", weight_algorithm="nearest")
    texts = TextSamples("corpus.txt", "tokenizer.json")
    parts = quantize_rs.distributed.split(plan, texts, shards, engine="tract")
    found = quantize_rs.distributed.merge(part() for part in parts)
    assert found == plan.calibrate(texts, engine="tract")


def test_parts_of_a_list_of_texts_are_one_calibration(tokenizer: Any) -> None:
    plan = quantize_rs.open(token_model()).plan(activations="uint8", weight_algorithm="nearest")
    texts = TextSamples(corpus(), tokenizer)
    parts = quantize_rs.distributed.split(plan, texts, 2, engine="tract")
    found = quantize_rs.distributed.merge(part() for part in parts)
    assert found == plan.calibrate(texts, engine="tract")


def test_long_texts_are_cut_off(tokenizer: Any) -> None:
    tokenizer.enable_truncation(5)
    plan = planned()
    found = calibrated(plan, TextSamples("corpus.txt", "tokenizer.json", max_length=5))
    assert found == calibrated(plan, expected(tokenizer, "input_ids", "attention_mask"))


@pytest.mark.parametrize("form", ["fixed", "pad_to"])
def test_texts_are_padded_to_the_length_of_the_model(tokenizer: Any, form: str) -> None:
    plan = planned(length="9") if form == "fixed" else planned()
    texts = TextSamples(
        "corpus.txt", "tokenizer.json", max_length=9, pad_to=None if form == "fixed" else 9
    )
    tokenizer.enable_truncation(9)
    tokenizer.enable_padding(length=9, pad_id=3, pad_token="[PAD]")
    samples = expected(tokenizer, "input_ids", "attention_mask")
    assert {one["input_ids"].shape for one in samples} == {(1, 9)}
    assert calibrated(plan, texts) == calibrated(plan, samples)


def test_texts_are_padded_and_cut_on_the_side_of_the_tokenizer(tokenizer: Any) -> None:
    found = {}
    for side in ("left", "right"):
        tokenizer.enable_truncation(5, direction=side)
        tokenizer.enable_padding(length=5, pad_id=3, pad_token="[PAD]", direction=side)
        encoder = text._Encoder(
            TextSamples("corpus.txt", tokenizer, max_length=5, pad_to=5),
            ModelInputs(quantize_rs.open(token_model())._model),
        )
        for words in ("the quick brown fox jumps over", "a"):
            found[side, words] = list(encoder(words, "")["input_ids"])
            assert found[side, words] == tokenizer.encode(words).ids
    assert len({tuple(ids) for ids in found.values()}) == 4


@pytest.mark.usefixtures("tokenizer")
def test_a_model_of_a_fixed_batch_gets_several_texts() -> None:
    plan = planned(batch="4", length="9")
    found = calibrated(plan, TextSamples("corpus.txt", "tokenizer.json"))
    assert found.samples == 15


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize(
    "form", ["list", "generator", "dicts", "jsonl", "parquet", "table", "files"]
)
def test_texts_come_from_anywhere(form: str) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"text": text, "label": 1} for text in corpus()]
    Path("s.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, "s.parquet")
    forms: dict[str, Any] = {
        "list": corpus(),
        "generator": iter(corpus()),
        "dicts": rows,
        "jsonl": "s.jsonl",
        "parquet": "s.parquet",
        "table": table,
        "files": ["first.txt", Path("second.txt")],
    }
    for path, part in zip(forms["files"], (corpus()[:20], corpus()[20:]), strict=True):
        Path(path).write_text("\n".join(part), "utf-8")
    plan = planned()
    found = calibrated(plan, TextSamples(forms[form], Path("tokenizer.json")))
    assert found == calibrated(plan, TextSamples("corpus.txt", "tokenizer.json"))


ABOUT_FILES = ["how is it read", "unpack data.tar", "a line of train.jsonl", "", "x" * 300]


def test_a_text_may_end_as_a_file_does(tokenizer: Any) -> None:
    plan = planned()
    found = calibrated(plan, TextSamples(ABOUT_FILES, tokenizer))
    assert found == calibrated(plan, TextSamples(iter(ABOUT_FILES), tokenizer))

    def encode(words: str) -> dict[str, Any]:
        ids = tokenizer.encode(words).ids
        return {"input_ids": np.array(ids), "attention_mask": np.ones(len(ids), np.int64)}

    given = quantize_rs.Samples([one for one in ABOUT_FILES if one], encode)
    assert calibrated(plan, given) == found


@pytest.mark.parametrize(
    "names", [["a.csv", "LICENSE"], ["a.png", "b.npy"], [Path("none"), "a.txt"]]
)
def test_names_of_other_files_are_no_texts(tokenizer: Any, names: list[Any]) -> None:
    for name in ("a.csv", "LICENSE"):
        Path(name).write_text("a lazy dog")
    with pytest.raises(OptionError, match=r"texts is a list of files, .*, expected \.txt, \.jsonl"):
        calibrated(planned(), TextSamples(names, tokenizer))


def test_the_tokenizer_may_be_an_object_and_is_not_changed(tokenizer: Any) -> None:
    class Fast:
        """As those of `transformers`."""

        backend_tokenizer = tokenizer

    plan = planned(length="9")
    found = calibrated(plan, TextSamples("corpus.txt", "tokenizer.json"))
    before = tokenizer.to_str()
    assert calibrated(plan, TextSamples("corpus.txt", tokenizer)) == found
    assert calibrated(plan, TextSamples("corpus.txt", Fast())) == found
    assert calibrated(plan, TextSamples("corpus.txt", ".")) == found, "the folder of the file"
    assert tokenizer.to_str() == before
    bare = calibrated(plan, TextSamples("corpus.txt", tokenizer, add_special_tokens=False))
    assert bare != found


class _Split:
    """As `datasets.Dataset`."""

    column_names = ("text",)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"text": ["a lazy dog"][index]}


def test_what_is_wrong_with_text_is_said_with_its_place(tokenizer: Any) -> None:
    plan = planned()
    Path("latin.txt").write_bytes("old\ncafé".encode("latin-1"))
    Path("other.json").write_text("{}")
    Path("empty.txt").write_text("\n \n")
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    silent = tokenizers.Tokenizer(tokenizers.models.BPE())
    cases: list[tuple[TextSamples, str]] = [
        (TextSamples("latin.txt", tokenizer), r"not UTF-8: .*\(latin\.txt, line 2\)"),
        (TextSamples("empty.txt", tokenizer), r"no calibration samples: .* none in empty\.txt"),
        (TextSamples("corpus.txt", "other.json"), r"other\.json is not a file of the package"),
        (TextSamples([{"txt": "a"}], tokenizer), r"no column `text`, there are `txt`: give field="),
        (TextSamples([3], tokenizer), r"expected a text, this is of type int \(text 0\)"),
        (TextSamples(["a"], silent), r"the tokenizer finds no token in 'a': remove it \(text 0\)"),
    ]
    for samples, message in cases:
        with pytest.raises(CalibrationError, match=message):
            calibrated(plan, samples)
    with pytest.raises(FileNotFoundError, match="none"):
        calibrated(plan, TextSamples("none.txt", tokenizer))
    with pytest.raises(FileNotFoundError, match="none"):
        calibrated(plan, TextSamples("corpus.txt", "none.json"))
    fixed = planned(length="9")
    with pytest.raises(OptionError, match="has no token to pad with: give one"):
        calibrated(fixed, TextSamples("corpus.txt", bare))
    with pytest.raises(OptionError, match=r"pad_token is '\[NO\]', which is not a token"):
        calibrated(fixed, TextSamples("corpus.txt", tokenizer, pad_token="[NO]"))
    with pytest.raises(OptionError, match="tokenizer is of type int"):
        calibrated(plan, TextSamples("corpus.txt", 3))
    with pytest.raises(OptionError, match=r"texts is 'corpus\.csv', expected a \.txt"):
        calibrated(plan, TextSamples("corpus.csv", tokenizer))
    splits = {"train": _Split(), "test": _Split()}
    with pytest.raises(OptionError, match="texts has several data sets, 'train', 'test': pass one"):
        calibrated(plan, TextSamples(splits, tokenizer))
    columns = {"text": corpus(), "label": [0] * 60}
    with pytest.raises(OptionError, match=r"a dictionary of 'text', 'label': pass one of its val"):
        calibrated(plan, TextSamples(columns, tokenizer))
    with pytest.raises(OptionError, match="max_length is 0"):
        TextSamples("corpus.txt", tokenizer, max_length=0)
    with pytest.raises(OptionError, match="pad_to is 5, expected 128"):
        TextSamples("corpus.txt", tokenizer, pad_to=5)


def test_a_model_with_other_inputs_says_which(tokenizer: Any) -> None:
    digits = quantize_rs.examples.digits()
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    with pytest.raises(CalibrationError, match=r"no array for input `image`; .*: `input_ids`"):
        calibrated(plan, TextSamples("corpus.txt", tokenizer))


@pytest.mark.usefixtures("tokenizer")
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(quantize_rs.MissingPackageError, match=r"quantization-rs\[text\]"):
        calibrated(planned(), TextSamples("corpus.txt", "tokenizer.json"))
