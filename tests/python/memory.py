"""How much anonymous memory a call takes, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="RssAnon is read from /proc"
)

ANONYMOUS = """
import quantize_rs
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
# What the first call loads.
quantize_rs.quantize(quantize_rs.examples.digits().model, None)
"""

PEAK = """
import threading, time
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.001)
stop, peak, before = threading.Event(), [0], anonymous()
thread = threading.Thread(target=watch, daemon=True)
thread.start()
{call}
stop.set()
thread.join()
print(peak[0] - before)
"""


def printed(code: str) -> int:
    """The last number that `code` prints; `anonymous()` is what its process takes, in bytes."""
    command = [sys.executable, "-W", "ignore", "-c", ANONYMOUS + code]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(run.stdout.split()[-1])


def growth(call: str, before: str = "") -> int:
    """The bytes by which `call` raises the peak; `before` runs first and does not count."""
    return printed(before + PEAK.format(call=call))
