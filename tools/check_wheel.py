"""Check a built wheel as a user gets it: what it holds, and that it works where nothing else is.

    python tools/check_wheel.py dist/NAME.whl [--packages FOLDER] [--chroot FOLDER]

It has to be of at most 15 MB, with a bill of materials in CycloneDX that lists every crate of
Cargo.lock that is built. Then it is installed beside numpy alone, in an environment without
variables, where importing, quantizing a model and the command have to work. With `--packages`, pip
takes numpy from that folder and asks no index. With `--chroot`, the same has to work in a bare
Debian in that folder, which `bare_system.py` makes if it is not there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import bare_system

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLE = REPOSITORY / "examples" / "digits"
EXAMPLE_FILES = ("digits_cnn.onnx", "calibration.npy")
LARGEST = 15_000_000  # bytes
# Crates that the wheel cannot be without.
CRATES = ("quantize-rs", "quantize-rs-onnx", "pyo3", "tract-onnx", "serde_json")

PROGRAM = """
import sys, quantize_rs
model, samples = sys.argv[1:]
for name in ("onnx", "onnxruntime", "torch"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is installed, which this check is without")
report = quantize_rs.quantize(model, "weights.onnx")
assert report.ratio > 3, report
report = quantize_rs.quantize_with_calibration(model, "static.onnx", samples)
assert report.output_check.sqnr_db > 20, report
assert quantize_rs.validate(model, "static.onnx").passed
print("imported, quantized and validated by", quantize_rs.__version__)
"""


def materials(wheel: zipfile.ZipFile) -> list[str]:
    """What is wrong with the bill of materials of a wheel."""
    names = [name for name in wheel.namelist() if ".dist-info/sboms/" in name]
    if not names:
        return ["there is no bill of materials in *.dist-info/sboms"]
    faults, listed = [], set()
    for name in names:
        bill = json.loads(wheel.read(name))
        if bill.get("bomFormat") != "CycloneDX":
            faults.append(f"{name} is not in CycloneDX")
        for component in bill.get("components", []):
            listed.add(component["name"])
            if "purl" in component and "licenses" not in component:
                faults.append(f"{name}: {component['name']} has no licence")
        listed.add(bill.get("metadata", {}).get("component", {}).get("name"))
    faults += [f"the bill of materials lacks {crate}" for crate in CRATES if crate not in listed]
    print(f"bill of materials: {len(listed)} components in {', '.join(names)}")
    return faults


Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def works(bin_folder: str, run: Run) -> list[str]:
    """What does not work of an installed wheel, beside the files of `EXAMPLE_FILES`."""
    command = f"{bin_folder}/quantize-rs"
    checks = [
        [f"{bin_folder}/python", "-I", "-c", PROGRAM, *EXAMPLE_FILES],
        [command, "--version"],
        [command, "quantize", EXAMPLE_FILES[0], "-o", "command.onnx"],
        [command, "validate", EXAMPLE_FILES[0], "command.onnx"],
    ]
    faults = []
    for check in checks:
        done = run(check)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            faults.append(f"{' '.join(check[:2])} fails with {done.returncode}: {said}")
        else:
            print(done.stdout.strip().splitlines()[-1])
    return faults


def in_environment(wheel: Path, packages: Path | None) -> list[str]:
    """What does not work in an environment of its own without variables."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        python = folder / "env" / "bin" / "python"
        home = {"HOME": place, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, env=home)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if packages:
            pip += ["--no-index", "--find-links", str(packages)]
            subprocess.run([*pip, str(wheel)], check=True, env=home)
        else:
            # Where pip finds packages may be a setting of the user.
            subprocess.run([*pip, str(wheel)], check=True)
        copy_examples(folder)

        def run(check: list[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                check, cwd=folder, env={}, capture_output=True, text=True, check=False
            )

        return works(str(python.parent), run)


def in_system(root: Path, wheel: Path, packages: Path | None) -> list[str]:
    """What does not work in a bare Debian in a folder."""
    with bare_system.installed(root, wheel, packages) as place:
        copy_examples(place)
        folder = f"/{place.relative_to(root)}"
        return works("env/bin", lambda check: bare_system.inside(root, folder, check))


def copy_examples(folder: Path) -> None:
    """Copy the files that the checks quantize."""
    for name in EXAMPLE_FILES:
        shutil.copyfile(EXAMPLE / name, folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--packages", type=Path, help="a folder with a wheel of numpy")
    parser.add_argument("--chroot", type=Path, help="a folder with a bare Debian, or for one")
    args = parser.parse_args()
    if args.chroot:
        # Before the work begins that is in vain without it.
        try:
            bare_system.make(args.chroot.resolve())
        except bare_system.UnusableError as error:
            parser.error(str(error))
    wheel = args.wheel.resolve()
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB")
    faults = [f"it has {size} bytes, more than {LARGEST}"] if size > LARGEST else []
    with zipfile.ZipFile(wheel) as opened:
        faults += materials(opened)
        for entry in sorted(opened.infolist(), key=lambda entry: -entry.compress_size)[:3]:
            print(f"  {entry.filename}: {entry.compress_size / 1e6:.2f} MB")
    faults += in_environment(wheel, args.packages)
    if args.chroot:
        try:
            faults += in_system(args.chroot.resolve(), wheel, args.packages)
        except bare_system.UnusableError as error:
            faults.append(str(error))
    print("\n".join(faults) or "the wheel is as it has to be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
