"""The command line: ``quantize-rs``, or ``python -m quantize_rs``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from . import _core
from ._inputs import engines


def main() -> int:
    """Run the command line with the arguments of this process, and return its exit code."""
    # Python runs signal handlers between bytecodes, and there are none until the command is done.
    # The command handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The command searches beside its executable, which a virtual environment only links to.
    if isinstance(library := engines.library(), Path):
        os.environ["ORT_DYLIB_PATH"] = os.fspath(library)
    return _core.run_cli(["quantize-rs", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
