"""Models with one thing in them that a pass is for, or that no pass may touch.

`DONE` has the name of the pass, the model, and how many nodes are left; `KEPT` what has to stay.
"""

from odd import Odd

from . import constants, idle, norms, others

DONE: dict[str, tuple[str, Odd, int]] = constants.DONE | idle.DONE | norms.DONE | others.DONE
KEPT: dict[str, Odd] = constants.KEPT | idle.KEPT | norms.KEPT | others.KEPT
