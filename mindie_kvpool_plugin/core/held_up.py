"""How long a step has been held up, and how long it may be where the step thread stores blocks itself.

Fences, loads and such puts add to it.  What may be loaded is the load gate's to say (``load_gate``), which hears what
was held up before; puts stop at the budget, since nothing is lost but a later hit.

Step thread.  A transfer thread that waits at a fence adds to it, too; what that and a new step make of each other is
a little too much or too little, once.
"""

from __future__ import annotations

from collections.abc import Callable

BUDGET_STEPS = 25
"""Decode steps a step may be held up: about a second, and ten times what loading 32k tokens from DRAM takes."""
UNKNOWN_BUDGET_S = 5.0
"""While nobody has decoded, as at start and on prefill nodes."""
PIECE_SHARE = 0.1
"""Of it, one put: a step that needs a block of a put that has begun waits until that ends, and may meet several."""


class HeldUp:
    """One rank's.

    Args:
        budget_s: an operator's; 0: none.
        decode_s: seconds of a decode step, 0: not known.

    Attributes:
        seconds: so far, of the step that runs; whoever holds it up adds to it.
    """

    def __init__(self, budget_s: float = 0.0, decode_s: Callable[[], float] = lambda: 0.0) -> None:
        self.seconds = 0.0
        self._budget_s = budget_s
        self._decode_s = decode_s

    def left_s(self) -> float:
        """Seconds for which it may still be held up by puts."""
        return self._whole_s() - self.seconds

    def piece_s(self) -> float:
        """Seconds that one put may take, where it can be made smaller.  Any thread."""
        return PIECE_SHARE * self._whole_s()

    def _whole_s(self) -> float:
        return self._budget_s or BUDGET_STEPS * self._decode_s() or UNKNOWN_BUDGET_S
