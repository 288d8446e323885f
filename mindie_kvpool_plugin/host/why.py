"""Why prompts of this worker hit as far as they did and no further: the last ones asked about, judged on a thread.

Off, none of this exists.  On, the step thread leaves one record per prompt and two per sequence that ends
(``core.why.notes``); the thread here takes them in order, judges prompts (``core.why.judge``) and keeps what it found.

Ownership: ``_ring`` is appended by the judging thread and copied by whoever answers a question.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Adapter, Digests, Prompt
from mindie_kvpool_plugin.core.why.judge import Judge, Verdict
from mindie_kvpool_plugin.core.why.notes import MarkNote, Note, Notes, PromptNote
from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.host.step_view import NewPrompt
from mindie_kvpool_plugin.observability import causes
from mindie_kvpool_plugin.observability.log import RateLimited

Lengths = npt.NDArray[np.int64]

MAX_TOLD = 1000
"""Requests in one answer, about 600 bytes each."""

CLOSE_S = 5.0
"""For the question that is being asked of the pool when the worker goes away."""


class Why:
    """One worker's prompts.

    Args:
        notes: where the walks leave records.
        judge: the rank's.
        capacity: prompts kept.
        is_disagreed: whether the ranks do not agree on hits any more.

    Attributes:
        notes: as given.
    """

    def __init__(self, notes: Notes, judge: Judge, capacity: int, is_disagreed: Callable[[], bool]) -> None:
        self.notes = notes
        self._judge = judge
        self._capacity = capacity
        self._is_disagreed = is_disagreed
        self._ring: deque[Verdict] = deque(maxlen=capacity)
        self._prompts: OrderedDict[int, Digests] = OrderedDict()  # by sequence, as many as the ring has
        self._log = RateLimited()
        self._thread = threading.Thread(target=self._run, name="kvpool-why", daemon=True)
        self._thread.start()

    # -- step thread -----------------------------------------------------------------------------------

    def prefilled(
        self,
        metadata: Any,
        own: Iterable[tuple[NewPrompt, Prompt]],
        sequences: SequenceTable,
        adapters: Mapping[int, Adapter | None],
        rows: Lengths,
        lengths: Lengths,
    ) -> None:
        """A batch's prompts are prepared.

        Args:
            metadata: the host's.
            own: this rank's prompts.
            sequences: where their digests are noted.
            adapters: by row.
            rows: int64 [hits], which rows had pool hits.
            lengths: int64 [batch], leading blocks that are used.
        """
        notes, now_s = self.notes, time.time()
        if self._is_disagreed():
            notes.trouble = causes.RANKS_DISAGREE
        names, are_whole = step_view.request_names(metadata), step_view.are_whole(metadata)
        arrived, is_left_out = lengths, np.zeros(len(lengths), dtype=np.bool_)
        if notes.arrived is not None and notes.asked is not None:
            arrived = lengths.copy()
            arrived[rows] = notes.arrived
            is_left_out[rows] = lengths[rows] == notes.asked  # a rank that got less knows another cause
        for new, prompt in own:
            left_out = notes.left_out if is_left_out[new.row] and lengths[new.row] < new.promised else ""
            notes.append(
                PromptNote(
                    at_s=now_s,
                    request_id=str(names[new.row]),
                    sequence_id=new.sequence_id,
                    tokens=new.tokens,
                    is_whole=bool(are_whole[new.row]),
                    indexes=prompt.indexes,
                    computed=new.computed,
                    promised=new.promised,
                    arrived=int(arrived[new.row]),
                    reused=int(lengths[new.row]),
                    hashed=sequences.hashed(new.sequence_id),
                    adapter=adapters.get(new.row),
                    adapter_name=new.adapter or "",
                    trouble=notes.trouble or left_out,
                )
            )

    def stumbled(self, metadata: Any, cache_ids: Any, dp_rank: int, lengths: Lengths) -> None:
        """Something unexpected cost a batch its pool hits, before the host hears of it."""
        names = step_view.request_names(metadata)
        for new in step_view.new_prompts(metadata, cache_ids, dp_rank):
            reused = int(lengths[new.row])
            if reused < new.promised:
                self.notes.append(
                    PromptNote(
                        at_s=time.time(),
                        request_id=str(names[new.row]),
                        sequence_id=new.sequence_id,
                        tokens=new.tokens,
                        is_whole=True,
                        indexes=np.zeros(0, dtype=np.int64),
                        computed=new.computed,
                        promised=new.promised,
                        arrived=reused,
                        reused=reused,
                        hashed=None,
                        adapter=None,
                        adapter_name=new.adapter or "",
                        trouble=causes.HOOK_ERROR,
                    )
                )

    # -- whoever asks ----------------------------------------------------------------------------------

    def told(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of one request, or of the last ones.  Any thread.

        Args:
            question: ``request``, the host's name for one or its sequence id; ``last``, how many are told.
        """
        request, last = question.get("request"), question.get("last")
        ring, count = list(self._ring), min(max(last, 0), MAX_TOLD) if isinstance(last, int) else MAX_TOLD
        found = [each for each in ring if request is None or str(request) in {each.request_id, str(each.sequence_id)}]
        return {
            "capacity": self._capacity,
            "kept": len(ring),
            "lost_records": self.notes.lost,
            "remembered_blocks": len(self._judge.fates),
            "remembered_since_s": self._judge.fates.since_s,
            "requests": [asdict(each) for each in found[len(found) - min(count, len(found)) :]],
        }

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything noted so far was judged; False when the time ran out."""
        return self.notes.mark().wait(timeout_s)

    def close(self) -> None:
        """End the thread."""
        self.notes.end()
        self._thread.join(CLOSE_S)

    # -- the judging thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while (note := self.notes.take()) is not None:
            try:
                self._handle(note)
            except Exception:  # noqa: BLE001 - the thread must outlive a mistake, and nobody else hears of it
                self._log.warning("something unexpected while judging a prompt (why_requests)", exc_info=True)

    def _handle(self, note: Note) -> None:
        if isinstance(note, MarkNote):
            note.is_reached.set()
        elif isinstance(note, PromptNote):
            verdict, digests = self._judge.verdict(note)
            self._prompts[note.sequence_id] = digests
            while len(self._prompts) > self._capacity:
                self._prompts.popitem(last=False)
            self._ring.append(verdict)
        else:
            self._judge.learn(note, self._leave)

    def _leave(self, sequence_id: int | None) -> list[Digests]:
        leaving = list(self._prompts) if sequence_id is None else [sequence_id]
        return [self._prompts.pop(each) for each in leaving if each in self._prompts]
