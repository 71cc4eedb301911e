"""Python and commands of the documents run, every link leads somewhere, every list is complete."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from image_data import sample_image

import quantize_rs
from quantize_rs.compat import onnxruntime as compat

REPOSITORY = pages.ROOT
SKIPPED = {".venv", "target", "dist", ".git", ".pytest_cache", "node_modules"}


def inside(root: Path) -> Iterator[str]:
    """The paths of all files and folders, without what a build makes."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (str((Path(folder) / name).relative_to(root)) for name in (*folders, *files))


def documents() -> list[str]:
    """Every Markdown file of the repository."""
    return sorted(path for path in inside(REPOSITORY) if path.endswith(".md"))


DOCUMENTS = documents()
# The reference that the package index shows: each of its blocks runs alone, see below.
REFERENCE = "README_PYTHON.md"
RUN = [
    name
    for name in DOCUMENTS
    if name != REFERENCE
    and any(block.language in ("python", "sh") for block in pages.blocks(REPOSITORY / name))
]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document."""
    found = pages.blocks(REPOSITORY / document)
    return [block.text for block in found if block.language == language]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a copy of the examples and a folder of images."""
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    (tmp_path / "images").mkdir()
    for number in range(40):
        sample_image(40, 40, number).save(tmp_path / "images" / f"{number:02}.png")
    return tmp_path


@pytest.mark.parametrize("document", RUN)
def test_what_a_document_says_runs_from_top_to_bottom(folder: Path, document: str) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tests/python/pages.py", REPOSITORY / document],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_readme_prints_what_it_shows(folder: Path) -> None:
    (example,), (shown,) = blocks("README.md", "python"), blocks("README.md", "text")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, check=True
    )
    *printed, decibels = done.stdout.splitlines()
    *expected, approximate = shown.splitlines()
    assert printed == expected
    assert abs(float(decibels.split()[0]) - float(approximate.split()[0])) < 1


# What may be imported beside numpy where the text before a block says so.
EXTRAS = {
    '`pip install "quantization-rs[onnx]"`': {"onnx"},
    '`pip install "quantization-rs[onnxruntime]"`': {"onnxruntime"},
    '`pip install "quantization-rs[plot]"`': {"matplotlib", "PIL"},
    '`pip install "quantization-rs[notebook]"`': {"ipywidgets", "tqdm"},
    "`pip install pillow`": {"PIL"},
}
OTHERS = {"IPython", "google", "onnx_ir", "onnxscript", "pandas", "scipy", "sklearn", "torch"}


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A block of Python: the packages it may import, and what it prints where that is shown."""

    line: int
    text: str
    allowed: set[str]
    output: str | None


def snippets() -> list[Snippet]:
    """The Python of the reference."""
    text = (REPOSITORY / REFERENCE).read_text(encoding="utf-8")
    block = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    rows = []
    for found in re.finditer(block, text, re.MULTILINE | re.DOTALL):
        before = re.split(r"^(?:```|#)", text[: found.start()], flags=re.MULTILINE)[-1]
        allowed = set().union(*(names for said, names in EXTRAS.items() if said in before))
        line = text.count("\n", 0, found.start()) + 2
        rows.append(Snippet(line, found[1], allowed, found[2]))
    return rows


@pytest.mark.parametrize("snippet", snippets(), ids=lambda snippet: f"line{snippet.line}")
def test_a_block_of_the_reference_runs_alone_in_an_empty_folder(
    tmp_path: Path, snippet: Snippet
) -> None:
    absent = sorted(set().union(OTHERS, *EXTRAS.values()) - snippet.allowed)
    without = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    done = subprocess.run(
        [sys.executable, "-c", without + snippet.text],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if snippet.output is not None:
        assert done.stdout == snippet.output


def test_a_block_of_the_reference_that_needs_a_package_names_it() -> None:
    assert len(snippets()) > 30
    for snippet in snippets():
        imported = set(re.findall(r"^(?:import|from) (\w+)", snippet.text, re.MULTILINE))
        assert imported <= {"logging", "numpy", "pathlib", "quantize_rs"} | snippet.allowed, (
            snippet.line
        )


def test_links_of_the_reference_into_the_repository_lead_somewhere() -> None:
    text = (REPOSITORY / REFERENCE).read_text(encoding="utf-8")
    here = r"https://github\.com/quantize-rs/quantize-rs/blob/main/([^\s)#]+)#?(\S*)"
    links = re.findall(here, text)
    assert len(links) > 5
    for path, anchor in links:
        assert (REPOSITORY / path).is_file(), path
        assert not anchor or anchor in pages.headings(REPOSITORY / path), f"{path}#{anchor}"
    for label in re.findall(r"\]\[([\w-]+)\]", text):
        assert f"\n[{label}]: " in text, label


def test_the_documents_are_found() -> None:
    assert {"README.md", "docs/quickstart.md"} <= set(RUN)
    assert REFERENCE in DOCUMENTS
    assert {"docs/cli.md", "bench/README.md"} <= set(DOCUMENTS)


def test_every_block_says_what_it_is() -> None:
    known = {"python", "sh", "text", "rust", "yaml", "toml", "json"}
    for document in DOCUMENTS:
        for block in pages.blocks(REPOSITORY / document):
            assert block.language in known, f"{document}:{block.line}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_resolves(document: str) -> None:
    page = REPOSITORY / document
    for link in pages.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{document}: {link}"
        if anchor:
            assert anchor in pages.headings(target), f"{document}: {link}"


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/adding-things.md", "docs/design.md"])
def test_files_that_a_document_names_exist(document: str) -> None:
    """A file or folder may be named by the end of its path."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    named = re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:rs|py|toml))`", text)
    assert named
    there = [f"/{path}" for path in inside(REPOSITORY)]
    for name in named:
        assert any(path.endswith("/" + name.rstrip("/")) for path in there), f"{document}: {name}"


def test_every_document_is_in_the_index() -> None:
    index = REPOSITORY / "docs" / "README.md"
    found = {(index.parent / link.partition("#")[0]).resolve() for link in pages.links(index)}
    there = {page.resolve() for page in index.parent.glob("*.md")} - {index.resolve()}
    assert there <= found, sorted(page.name for page in there - found)


def test_the_program_of_the_rust_page_is_the_example_that_the_rust_tests_run() -> None:
    example = REPOSITORY / "rust/runner/examples/static_int8.rs"
    assert blocks("docs/rust.md", "rust") == [example.read_text(encoding="utf-8")]


def sources(*endings: str) -> str:
    """All source text, with texts that go on in another line in one piece."""
    folders = ("rust", "python/quantize_rs")
    files = (path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*")))
    text = "\n".join(path.read_text("utf-8") for path in files if path.suffix in endings)
    return re.sub(r"\\\n\s*", "", text)


def test_messages_that_are_explained_are_those_of_the_program() -> None:
    text = (REPOSITORY / "docs/troubleshooting.md").read_text(encoding="utf-8")
    there = "\n".join(line for line in sources(".rs", ".py").splitlines() if '"' in line)
    messages = re.findall(r"``\s?(.+?)\s?``(?!`)", text)
    assert len(messages) > 40
    for message in messages:
        fragments = [re.escape(part) for part in message.split("…")]
        assert re.search(r'[^"\n]*?'.join(fragments), there), message


def test_code_in_adding_things_is_in_the_source() -> None:
    there = sources(".rs")
    for block in blocks("docs/adding-things.md", "rust"):
        assert block in there, block


def test_what_was_asked_for_is_where_the_table_says() -> None:
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", asked_for(), re.MULTILINE)
    assert len(rows) == len(dict(rows)) > 120
    folders = ("rust", "python", "tests", "bench", "examples")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    known = {".rs", ".py", ".toml"}
    texts = (path.read_text("utf-8") for path in files if path.suffix in known)
    there = {word for text in texts for word in re.findall(r"\w+", text)}
    for number, row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        if number.startswith("X"):
            assert len(cells) == 2, number
        else:
            assert cells[1] in ("yes", "partly", "not yet", "no"), number
        for name in re.findall(r"`([^`]+)`", cells[-1]):
            if "/" in name or (REPOSITORY / name).exists():
                assert (REPOSITORY / name).exists(), f"{number}: {name}"
            elif re.fullmatch(r"[A-Za-z]\w+", name):
                assert name in there, f"{number}: {name}"


def asked_for() -> str:
    return (REPOSITORY / "docs/requirements.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "thing", [quantize_rs.Report, quantize_rs.results.ReportRow, quantize_rs.Comparison]
)
def test_the_document_on_the_report_has_every_field(thing: type) -> None:
    text = (REPOSITORY / "docs/reading-the-report.md").read_text(encoding="utf-8")
    fields = [field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")]
    assert not [name for name in fields if f"`{name}`" not in text]


def test_the_migration_guide_has_every_option_of_onnxruntime() -> None:
    text = (REPOSITORY / "docs/migrating-from-onnxruntime.md").read_text(encoding="utf-8")
    theirs = pytest.importorskip("onnxruntime.quantization")
    for call in (theirs.quantize_static, theirs.quantize_dynamic):
        for option in list(inspect.signature(call).parameters)[3:]:
            assert f"`{option}`" in text or f"`{option}=" in text, option
    documented = re.findall(r"^\s+(\w+) = [^:\n]+:", theirs.quantize_static.__doc__, re.MULTILINE)
    assert "SmoothQuant" in documented
    for option in documented:
        assert f"`{option}`" in text, option
    for types in theirs.QuantType:
        assert f"`{types.name}`" in text, types


def test_the_migration_guide_names_the_functions_that_return_a_report() -> None:
    text = (REPOSITORY / "docs/migrating-from-onnxruntime.md").read_text(encoding="utf-8")
    [said] = [part for part in text.split("\n\n") if "return a `Report` instead" in part]
    calls = {name: getattr(compat, name) for name in compat.__all__}
    calls = {name: call for name, call in calls.items() if inspect.isfunction(call)}
    returns = {name: inspect.signature(call).return_annotation for name, call in calls.items()}
    for kind, sentence in zip(("Report", "None"), said.split(";"), strict=False):
        names = [name for name, found in returns.items() if found == kind]
        assert names
        assert not [name for name in names if f"`{name}`" not in sentence]


def test_the_reference_speaks_of_every_public_name() -> None:
    text = (REPOSITORY / "README_PYTHON.md").read_text(encoding="utf-8")
    public = [*quantize_rs.__all__, *quantize_rs.results.__all__]
    names = [name for name in public if not name.startswith("__")]
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing
    assert not [name for name in quantize_rs.kernels.__all__ if f"`{name}`" not in text]


def test_every_public_thing_has_its_members_in_the_reference() -> None:
    text = (REPOSITORY / "README_PYTHON.md").read_text(encoding="utf-8")
    things = [
        quantize_rs.ImageFolder,
        quantize_rs.ModelInfo,
        quantize_rs.Report,
        quantize_rs.results.ReportRow,
        quantize_rs.results.Timings,
        quantize_rs.Model,
        quantize_rs.Plan,
        quantize_rs.Ranges,
        quantize_rs.Quantized,
    ]
    for thing in things:
        members = [name for name in dir(thing) if not name.startswith("_")]
        missing = [name for name in members if not re.search(rf"\b{name}\b", text)]
        assert not missing, thing.__name__


def test_every_requirement_is_in_the_environment_file() -> None:
    done = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "tools/requirements.py",
            REPOSITORY / "pyproject.toml",
            "dev",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"numpy", "pytest", "onnxruntime"} <= {
        re.split(r"[<>=\[]", line)[0] for line in done.stdout.split()
    }
