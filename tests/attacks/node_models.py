"""Write the models of the tests of onnx's operators into a folder, as seeds of `make attack`.

    python tests/attacks/node_models.py FOLDER

Needs onnx, whose package makes these models; older versions of it contained them as files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx.backend.test.case.node import collect_testcases


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in collect_testcases(None) if case.model is not None]
    for case in cases:
        (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())
    print(f"{len(cases)} models of the tests of onnx in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
