"""A Debian with Python in a folder, without a compiler, /proc and /sys, and how to run in it.

`check_wheel.py --chroot FOLDER` installs the wheel there. debootstrap makes the folder once; what
a check puts into it is removed again. Both take root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SUITE = "bookworm"
COMPILERS = ("cc", "*gcc*", "*clang*", "rustc")


class UnusableError(Exception):
    """The folder cannot be made, or cannot be used: why, and what to do."""


def make(root: Path) -> None:
    """Let debootstrap write a Debian with Python into a folder, unless there is one."""
    if os.geteuid() != 0:
        raise UnusableError("--chroot needs root: run it with sudo, or leave it out")
    if (root / "debootstrap").exists():
        raise UnusableError(
            f"debootstrap did not finish in {root}: remove the folder and run again"
        )
    if not (root / "usr" / "bin" / "python3").exists():
        if root.exists() and any(root.iterdir()):
            raise UnusableError(
                f"{root} is neither empty nor a system with python3: name another folder"
            )
        if not shutil.which("debootstrap"):
            raise UnusableError(
                "debootstrap is missing: run `apt-get install debootstrap`, or name a folder"
                " that holds a Debian with python3-venv"
            )
        wanted = ["--variant=minbase", "--include=python3-venv"]
        done = subprocess.run(["debootstrap", *wanted, SUITE, str(root)], check=False)
        if done.returncode:
            raise UnusableError(
                f"debootstrap failed with {done.returncode}: remove {root} and run again"
            )
    programs = root / "usr" / "bin"
    found = sorted(path.name for name in COMPILERS for path in programs.glob(name))
    if found:
        raise UnusableError(
            f"{root} has a compiler ({', '.join(found)}): remove it, or name another folder"
        )
    if not (root / "tmp").is_dir():
        raise UnusableError(f"{root} has no folder tmp: name another folder")


def inside(root: Path, folder: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder of the system, with no variable but the path."""
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    start = [chroot, str(root), "/usr/bin/env", "-i", "-C", folder, "PATH=/usr/bin:/bin"]
    return subprocess.run([*start, *command], capture_output=True, text=True, check=False)


def _required(root: Path, folder: str, command: list[str]) -> str:
    done = inside(root, folder, command)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise UnusableError(f"in {root}, {' '.join(command)} fails with {done.returncode}: {said}")
    return done.stdout.strip()


@contextmanager
def installed(root: Path, wheel: Path, packages: Path | None) -> Iterator[Path]:
    """A folder of the system with an environment `env` in which the wheel and numpy are installed.

    The pip outside fetches numpy for the Python inside, which so needs no network.
    """
    make(root)
    with TemporaryDirectory(dir=root / "tmp") as place:
        folder = f"/{Path(place).relative_to(root)}"
        version = "import sys; print('%d.%d' % sys.version_info[:2])"
        python = _required(root, folder, ["python3", "-c", version])
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        fetch += ["--only-binary=:all:", "--no-deps", "--python-version", python]
        fetch += ["--no-index", "--find-links", str(packages)] if packages else []
        done = subprocess.run([*fetch, "--dest", place, "numpy"], check=False)
        if done.returncode:
            raise UnusableError(f"pip found no numpy for Python {python}: it fails as shown above")
        shutil.copy(wheel, place)
        _required(root, folder, ["python3", "-m", "venv", "env"])
        install = ["env/bin/python", "-m", "pip", "install", "--quiet", "--no-index"]
        _required(root, folder, [*install, "--find-links", folder, f"{folder}/{wheel.name}"])
        yield Path(place)
