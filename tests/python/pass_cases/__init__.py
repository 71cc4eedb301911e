"""Models with one property that a pass handles, or that no pass may change.

`DONE` has the name of the pass, the model, and how many nodes are left. `KEPT` has the
models that must not change.
"""

from odd import Odd

from . import constants, idle, norms, others, shapes

PARTS = (constants, idle, norms, others, shapes)

DONE: dict[str, tuple[str, Odd, int]] = {k: v for part in PARTS for k, v in part.DONE.items()}
KEPT: dict[str, Odd] = {k: v for part in PARTS for k, v in part.KEPT.items()}
