"""What the step thread and the spill thread leave for the thread that judges: small records, nothing computed.

Tokens are kept by reference, so a record costs the same however long a prompt is.  The queue keeps the order in
which things happened, which is what a judgement rests on.  When the judge is ``CAPACITY`` records behind, further ones
are lost and counted.

Ownership: ``append`` and what calls it from both threads; ``names_due`` from the one that spills; ``asked``,
``arrived`` and ``trouble`` belong to the step thread and to one batch, ``take`` and ``waiting`` to the judge.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Adapter, BlockIds, Digests, FreedSequence, HashedTokens, Tokens
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.why import fates
from mindie_kvpool_plugin.core.why.services import Announcement

CAPACITY = 256
"""Records that may wait; each keeps the tokens of one sequence alive, 256 KiB of a prompt of 32,768."""


class PromptNote(NamedTuple):
    """A prompt that a batch begins, and what became of its prefix on this rank.

    Attributes:
        at_s: when, seconds since 1970.
        request_id, sequence_id: the host's names for it.
        tokens: int64, of the prompt or its first chunk, by reference.
        is_whole: false for a first chunk.
        indexes: int64, which of its blocks lie on this rank.
        computed: leading blocks found in device memory.
        promised: leading blocks in device memory or promised by the scheduler.
        arrived: leading blocks this rank could offer before the ranks agreed.
        reused: leading blocks used.
        hashed: where its digests are noted.
        adapter: its LoRA adapter, if it could be named.
        adapter_name: as asked for, or "".
        trouble: why nothing was loaded at all, a word of ``observability.causes``, or "".
    """

    at_s: float
    request_id: str
    sequence_id: int
    tokens: Tokens
    is_whole: bool
    indexes: BlockIds
    computed: int
    promised: int
    arrived: int
    reused: int
    hashed: HashedTokens | None
    adapter: Adapter | None
    adapter_name: str
    trouble: str


class OfferNote(NamedTuple):
    """Blocks of a freed sequence whose way to the pool begins, or ends at once.

    Attributes:
        at_s: when.
        sequence: what it left behind, by reference.
        rows: int64, which of its blocks.
        fate: a word of ``core.why.fates``.
    """

    at_s: float
    sequence: FreedSequence
    rows: BlockIds
    fate: str


class FateNote(NamedTuple):
    """Blocks whose way to the pool has ended.

    Attributes:
        at_s: when.
        digests: uint64 [n, 2].
        fate: a word of ``core.why.fates``.
    """

    at_s: float
    digests: Digests
    fate: str


class LeftNote(NamedTuple):
    """The host forgets a sequence.

    Attributes:
        at_s: when.
        sequence_id: the host's id; None: it forgets all.
    """

    at_s: float
    sequence_id: int | None


class MarkNote(NamedTuple):
    """Everything before it has been taken.

    Attributes:
        is_reached: set then.
    """

    is_reached: threading.Event


Note = PromptNote | OfferNote | FateNote | LeftNote | MarkNote


class Notes:
    """The queue between the threads that serve and the one that judges.

    Args:
        announcement: this service's name; None where another rank leaves it.
        capacity: records that may wait.

    Attributes:
        lost: records that found it full.
        asked: int64 [hits], what this rank asked the pool for of the current batch's hits.
        arrived: int64 [hits], what it could offer of them.
        left_out: why the pool was not asked for all of them.
        trouble: why nothing of the current batch was loaded, or "".
    """

    def __init__(self, announcement: Announcement | None = None, capacity: int = CAPACITY) -> None:
        self.lost = 0
        self.asked: npt.NDArray[np.int64] | None = None
        self.arrived: npt.NDArray[np.int64] | None = None
        self.left_out = self.trouble = ""
        self._announcement = announcement
        self._capacity = capacity
        self._queue: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._waiting: deque[Note | None] = deque()

    def begin(self) -> None:
        """A batch arrives."""
        self.asked = self.arrived = None
        self.trouble = ""

    def append(self, note: Note) -> None:
        """Leave a record, or lose it."""
        if self._queue.qsize() + len(self._waiting) >= self._capacity:
            self.lost += 1
        else:
            self._queue.put(note)

    def offered(self, sequence: FreedSequence, rows: BlockIds, fate: str) -> None:
        """These blocks of a freed sequence are about to go to the pool, or will not."""
        if len(rows):
            self.append(OfferNote(time.time(), sequence, rows, fate))

    def settled(
        self,
        digests: Digests,
        rows: BlockIds,
        valid: Mask,
        stored: Mask,
        withdrawn: Mask,
        admitted: Mask,
        has_time: Mask,
        refused: str,
    ) -> None:
        """What became of the rows of a spill.

        Args:
            digests: uint64 [blocks, 2].
            rows: int64, the blocks that were to go.
            valid, stored, withdrawn, admitted, has_time: bool [blocks]: content certain, in the pool, given up, worth
                storing, and reached while the step that stores them had time.
            refused: the fate of the others.
        """
        now_s = time.time()
        is_left = valid & ~stored & ~withdrawn
        for fate, mask in (
            (fates.STORED, stored),
            (fates.WITHDRAWN, withdrawn & ~stored),
            (fates.UNCERTAIN, ~valid & ~withdrawn),
            (fates.UNADMITTED, is_left & ~admitted),
            (fates.OVER_BUDGET, is_left & admitted & ~has_time),
            (refused, is_left & admitted & has_time),
        ):
            chosen = rows[mask[rows]]
            if len(chosen):
                self.append(FateNote(now_s, digests[chosen], fate))

    def left(self, sequence_id: int | None) -> None:
        """The host forgets a sequence, or all of them; what one leaves behind is offered next."""
        self.append(LeftNote(time.time(), sequence_id))

    def names_due(self) -> list[str]:
        """The keys that tell this service's name, when it is time to put them again."""
        return self._announcement.due() if self._announcement is not None else []

    def mark(self) -> threading.Event:
        """Set when everything noted so far was judged."""
        is_reached = threading.Event()
        self._queue.put(MarkNote(is_reached))
        return is_reached

    def end(self) -> None:
        """Nothing more will come: ``take`` answers None."""
        self._queue.put(None)

    def take(self) -> Note | None:
        """The oldest record; waits for one."""
        return self._waiting.popleft() if self._waiting else self._queue.get()

    def waiting(self) -> Iterator[Note]:
        """What was left since, and stays."""
        while not self._queue.empty():
            self._waiting.append(self._queue.get())
        return iter([note for note in self._waiting if note is not None])
