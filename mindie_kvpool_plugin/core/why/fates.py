"""What became of blocks this rank had: a bounded memory, digest -> fate.  The judging thread's alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from mindie_kvpool_plugin.blocks import Digests
from mindie_kvpool_plugin.core.block_keys import DIGEST_BYTES
from mindie_kvpool_plugin.observability import causes

CAPACITY = 65_536
"""Blocks, about 250 bytes each: 16 MiB."""

SEEN = "seen"
"""A prompt had it; the sequence still runs."""
NOT_OFFERED = "not_offered"
"""The sequence ended, and the block was not offered to the pool."""
OFFERED = "offered"
"""On its way to the pool."""
STORED = "stored"
QUEUE_FULL = "queue_full"
WITHDRAWN = "withdrawn"
PUT_FAILED = "put_failed"
LEFT_ALONE = "left_alone"
UNADMITTED = "unadmitted"
"""Its tokens were seen for the first time (``core.admission``)."""
OVER_BUDGET = "over_budget"
"""The step that stores what it frees had no time left."""
UNCERTAIN = "uncertain"

CAUSE = {
    SEEN: causes.NOT_YET_STORED,
    OFFERED: causes.NOT_YET_STORED,
    NOT_OFFERED: causes.UNCERTAIN,
    UNCERTAIN: causes.UNCERTAIN,
    STORED: causes.EVICTED,
    QUEUE_FULL: causes.QUEUE_FULL,
    WITHDRAWN: causes.WITHDRAWN,
    PUT_FAILED: causes.PUT_FAILED,
    LEFT_ALONE: causes.LEFT_ALONE_SPILL,
    UNADMITTED: causes.NOT_ADMITTED,
    OVER_BUDGET: causes.OVER_BUDGET_SPILL,
}
"""Fate of a block that the pool does not have -> why it does not."""


_OUTLIVED = {
    # what was stored and is offered again is not on its way for the first time
    OFFERED: {STORED},
    # who hits a dropped block on the device cannot say what it is: that it was dropped is why
    UNCERTAIN: {STORED, QUEUE_FULL, WITHDRAWN, PUT_FAILED, LEFT_ALONE, UNADMITTED, OVER_BUDGET},
}
"""Fate -> earlier ones that say more."""


class Fate(NamedTuple):
    """What became of a block.

    Attributes:
        word: one of this file's.
        at_s: when, seconds since 1970.
    """

    word: str
    at_s: float


class Fates:
    """The latest fate of each of the blocks heard of last.

    Attributes:
        since_s: from when on nothing was forgotten, seconds since 1970.
    """

    def __init__(self, since_s: float, capacity: int = CAPACITY) -> None:
        self.since_s = since_s
        self._capacity = capacity
        self._fates: OrderedDict[bytes, Fate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fates)

    def of(self, digest: bytes) -> Fate | None:
        """The latest one, if it is remembered."""
        return self._fates.get(digest)

    def note(self, digests: Digests, word: str, at_s: float) -> None:
        """These had this fate."""
        for key in keys_of(digests):
            before = self._fates.get(key)
            if before is None or before.word not in _OUTLIVED.get(word, ()):
                self._fates[key] = Fate(word, at_s)
            self._fates.move_to_end(key)
        self._forget()

    def saw(self, digests: Digests, at_s: float) -> None:
        """A prompt has them: known from now on, and what was known already is kept longer."""
        for key in keys_of(digests):
            self._fates.setdefault(key, Fate(SEEN, at_s))
            self._fates.move_to_end(key)
        self._forget()

    def left(self, digests: Digests, at_s: float) -> None:
        """Their sequence ended: what is not offered after this was not offered at all."""
        for key in keys_of(digests):
            fate = self._fates.get(key)
            if fate is not None and fate.word == SEEN:
                self._fates[key] = Fate(NOT_OFFERED, at_s)

    def _forget(self) -> None:
        while len(self._fates) > self._capacity:
            _, fate = self._fates.popitem(last=False)
            self.since_s = max(self.since_s, fate.at_s)


def keys_of(digests: Digests) -> list[bytes]:
    """Each digest's bytes."""
    text = digests.tobytes()
    return [text[at : at + DIGEST_BYTES] for at in range(0, len(text), DIGEST_BYTES)]
