"""What computing a prompt token takes here, measured from the host's own prefill steps.

A batch begins on the device when it was launched or when the batch before it landed, whichever is later, and ends when
its tokens are known on the host.  Of the last ``STEPS`` prefill steps that computed at least ``LEAST_TOKENS``, the pace
is the median of seconds per token, each step weighted with its tokens: a stall of one step or a row of tiny ones does
not move it.  What one more token takes is another figure, since a step takes its time however few tokens it computes:
the slope through the last ``STEPS_PER_SIZE`` steps of every size.  Where the host leaves its tokens on the device
nobody hears of the end, and nothing is measured.  Decode steps are measured alike where somebody asks for them.

Step thread: ``launch``.  The thread that samples, which is the same one without asynchronous scheduling: the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from mindie_kvpool_plugin.observability.cost_line import fit, typical
from mindie_kvpool_plugin.observability.counters import Counters

STEPS = 64
LEAST_TOKENS = 64
STEPS_PER_SIZE = 8
"""Of each power of two: where most prompts hit, steps are short, and long ones of a while ago still tell the slope."""
MAX_LAUNCHED = 16
"""Batches that are on their way at once are two; more are those the host gave up."""
MOST_BITS = 20


class PrefillClock:
    """One rank's.

    Args:
        counters: where the pace is told.
        clock: seconds, monotonic.
    """

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._clock = clock
        self._launched: dict[int, tuple[float, int]] = {}
        self._current: tuple[float, int] | None = None
        self._landed_s = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS)
        self._by_size = [deque[tuple[float, float]](maxlen=STEPS_PER_SIZE) for _ in range(MOST_BITS + 1)]
        self._token_s: float | None = 0.0
        self._decodes_s: deque[float] = deque(maxlen=STEPS)

    def launch(self, batch: object, tokens: int) -> None:
        """A batch that computes this many prompt tokens is about to run; 0: it decodes."""
        if len(self._launched) >= MAX_LAUNCHED:
            self._launched.clear()
        self._launched[id(batch)] = self._clock(), tokens

    def meet(self, batch: object) -> None:
        """This batch is sampled now."""
        self._current = self._launched.pop(id(batch), None)

    def land(self) -> None:
        """Its tokens are known."""
        now, current = self._clock(), self._current
        if current is not None and not current[1]:
            self._decodes_s.append(now - max(current[0], self._landed_s))
        elif current is not None and current[1] >= LEAST_TOKENS:
            seconds, tokens = now - max(current[0], self._landed_s), current[1]
            self._steps.append((seconds, tokens))
            self._by_size[min(tokens.bit_length(), MOST_BITS)].append((tokens, seconds))
            self._token_s = None
            self._counters.prefill_token_seconds = weighted_median(self._steps)
        self._current, self._landed_s = None, now

    def token_s(self) -> float:
        """Seconds that a prefill step takes longer for one more token; 0 until one was measured.  Step thread."""
        if self._token_s is None:
            self._token_s = fit([typical(steps) for steps in map(tuple, self._by_size) if steps]).each_s
        return self._token_s

    def decode_s(self) -> float:
        """Seconds of a decode step, the median of the last ``STEPS``; 0 until one was measured.  Any thread."""
        steps_s = sorted(self._decodes_s)  # copied in one go: no other thread runs in between
        return steps_s[len(steps_s) // 2] if steps_s else 0.0

    def lose_track(self) -> None:
        """Its tokens stay on the device, or the host forgot all batches."""
        self._current, self._landed_s = None, self._clock()


def weighted_median(steps: Iterable[tuple[float, int]]) -> float:
    """Seconds per token at which half of all tokens were computed faster.

    Args:
        steps: seconds and tokens of each.
    """
    paces = sorted((seconds / tokens, tokens) for seconds, tokens in steps)
    left = sum(tokens for _, tokens in paces) / 2
    for pace, tokens in paces:
        left -= tokens
        if left <= 0:
            return pace
    return 0.0
