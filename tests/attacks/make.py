"""Write the hostile files and the index of their expected results.

    python tests/attacks/make.py            writes files/* and index.json
    python tests/attacks/make.py --check    compares, and tries the honest ones in other readers

Needs numpy and onnx; --check needs onnxruntime. To add an attack, write one function in `forge/`.

An entry of the index:

    stage     `quantize`: quantize the model; `calibrate`: calibrate the digits net with the file
    error     class of the exception, itself or one derived from it; null: it has to work
    contains  the message contains all of these
    opens     `model_info` can read the model; the failure comes later
    may_work  success is accepted in place of the error; a crash is not
    make      what to set up first, in an empty folder with a copy of the file: `write` maps a path
              to a number of zero bytes, `symlink` a path to what it points at
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fixtures"))  # for `build.wire`

from forge import ATTACKS, Attack

FILES = HERE / "files"
LIMIT = 200_000  # bytes: these files are checked in


def all_files() -> dict[Path, bytes]:
    index = {attack.file: entry(attack) for _, attack in sorted(ATTACKS.items())}
    files = {FILES / attack.file: attack.build() for attack in ATTACKS.values()}
    files[HERE / "index.json"] = (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()
    return files


def entry(attack: Attack) -> dict[str, object]:
    return {
        "note": attack.note,
        "stage": "calibrate" if attack.calibrates else "quantize",
        "error": attack.error,
        "contains": list(attack.contains),
        "opens": attack.opens,
        "may_work": attack.may_work,
        "make": attack.make,
    }


def write() -> None:
    FILES.mkdir(exist_ok=True)
    files = all_files()
    for path in FILES.iterdir():
        if path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)
    print(f"{len(ATTACKS)} files, {sum(map(len, files.values())) / 1e3:.0f} kB")


def check() -> list[str]:
    """What is wrong, one line each."""
    files = all_files()
    faults = [f"{p.name}: belongs to no attack" for p in FILES.iterdir() if p not in files]
    for path, content in files.items():
        if not path.exists() or path.read_bytes() != content:
            faults.append(f"{path.name}: not what the script makes")
        if len(content) >= LIMIT:
            faults.append(f"{path.name}: {len(content)} bytes are too many")
    for attack in ATTACKS.values():
        if attack.error is None and (complaint := refusal(attack)):
            faults.append(f"{attack.file}: has to work, but {complaint}")  # noqa: PERF401
    return faults


def refusal(attack: Attack) -> str | None:
    """Why numpy or ONNX Runtime would not take a file that has to work."""
    import onnxruntime

    content = attack.build()
    try:
        if attack.calibrates:
            np.load(io.BytesIO(content), allow_pickle=False).astype(np.float32)
        else:
            onnx.checker.check_model(onnx.load_from_string(content))
            onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if not parser.parse_args().check:
        write()
        return 0
    faults = check()
    print("\n".join(faults) or f"{len(ATTACKS)} files are what the script makes")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
