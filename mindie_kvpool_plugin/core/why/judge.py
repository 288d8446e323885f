"""Says of a prompt which block ended its prefix, and why.

On a thread of its own, at leisure; the pool is asked for that one block, beside the breaker (``pools.guards.aside``).
What is said is known: from what this rank did with the block, or from the pool's answer.  Where neither tells, the
cause is ``unknown`` or another rank's to tell.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mindie_kvpool_plugin.blocks import Adapter, Digests, HashedTokens
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_keys import BlockKeys, Service
from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.core.why import fates
from mindie_kvpool_plugin.core.why.fates import Fate, Fates, keys_of
from mindie_kvpool_plugin.core.why.notes import FateNote, LeftNote, Note, Notes, OfferNote, PromptNote
from mindie_kvpool_plugin.core.why.services import Ask, Services
from mindie_kvpool_plugin.observability import causes

MAX_ADAPTERS = 8
"""Others under which a block is looked for: each takes a digest chain of its own."""


class AsksPool(Protocol):
    """What the judge may ask (``pools.guards.aside``)."""

    @property
    def is_available(self) -> bool:
        """False while the pool is left alone."""
        ...

    def exists(self, keys: Any) -> list[bool] | None:
        """One bool per key; None when the pool did not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a prompt's prefix on this rank.

    Attributes:
        at_s: when its batch began, seconds since 1970.
        request_id, sequence_id: the host's names for it.
        prompt_tokens: of the prompt, or of its first chunk.
        is_whole: false for a first chunk.
        full_blocks: of the prompt.
        computed: leading blocks found in device memory.
        promised: leading blocks in device memory or promised by the scheduler.
        arrived: leading blocks this rank could offer.
        reused: leading blocks used; the block behind them ended the prefix.
        cause: why, a word of ``observability.causes``.
        facts: what else is known about it: ``ago_s``, ``service``, ``adapter``, ``since_s``.
        last_hash: the host's hash of its last full block, as the scheduler asks for it; "" without one.
    """

    at_s: float
    request_id: str
    sequence_id: int
    prompt_tokens: int
    is_whole: bool
    full_blocks: int
    computed: int
    promised: int
    arrived: int
    reused: int
    cause: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    last_hash: str = ""


Found = tuple[str, Mapping[str, Any]]


class Judge:
    """One rank's judgements.  The judging thread's alone.

    Args:
        notes: where later records wait.
        keys: the rank's.
        replica: which blocks it stores.
        pool: what may be asked.
        adapters: LoRA adapters known now, by name.
        now_s: seconds since 1970.
        fates_capacity: blocks remembered.
    """

    def __init__(
        self,
        notes: Notes,
        keys: BlockKeys,
        replica: Replica,
        pool: AsksPool,
        adapters: Callable[[], Mapping[str, Adapter]],
        now_s: float,
        fates_capacity: int = fates.CAPACITY,
    ) -> None:
        self.fates = Fates(now_s, fates_capacity)
        self._notes = notes
        self._keys = keys
        self._replica = replica
        self._pool = pool
        self._adapters = adapters
        self._seen_adapters: OrderedDict[bytes, str] = OrderedDict()  # root -> name, of the latest prompts
        ask: Ask = pool.exists
        self._services = Services(keys.service, ask)

    def learn(self, note: Note, left: Callable[[int | None], list[Digests]]) -> None:
        """Note what became of blocks.

        Args:
            note: any but a prompt's.
            left: digests of the prompt of a sequence, or of all, as far as they are remembered.
        """
        if isinstance(note, OfferNote):
            self.fates.note(self._digests_of(note)[note.sequence.indexes[note.rows]], note.fate, note.at_s)
        elif isinstance(note, FateNote):
            self.fates.note(note.digests, note.fate, note.at_s)
        elif isinstance(note, LeftNote):
            for digests in left(note.sequence_id):
                self.fates.left(digests, note.at_s)

    def verdict(self, note: PromptNote) -> tuple[Verdict, Digests]:
        """Judge a prompt, and remember its blocks; their digests come with it."""
        size = self._keys.block_size
        is_named = not note.adapter_name or note.adapter is not None
        tokens = note.tokens if is_named else note.tokens[:0]
        # what a reload hashed is taken over; nothing is noted, as that would keep every running prompt's tokens twice
        known = HashedTokens(note.hashed.known) if note.hashed is not None else None
        digests = block_keys.digests_of(tokens, size, known, note.adapter)
        if note.adapter is not None:
            self._see(note.adapter, note.adapter_name)
        extra = note.adapter.extra_hash if note.adapter is not None else block_keys.NO_ADAPTER
        hashes = block_keys.host_hash_chain(tokens, size, extra=extra)
        full = len(note.tokens) // size
        cause, facts = self._cause(note, digests, hashes, full)
        self.fates.saw(digests, note.at_s)
        found = Verdict(
            note.at_s,
            note.request_id,
            note.sequence_id,
            len(note.tokens),
            note.is_whole,
            full,
            note.computed,
            note.promised,
            note.arrived,
            note.reused,
            cause,
            facts,
            str(hashes[-1]) if hashes else "",
        )
        return found, digests

    def _cause(self, note: PromptNote, digests: Digests, hashes: list[int], full: int) -> Found:
        if note.reused >= full:
            whole = causes.COMPLETE if note.is_whole else causes.FIRST_CHUNK
            return (whole if full else causes.TOO_SHORT), {}
        known = self._known_to_step(note)
        if known:
            return known, {"adapter": note.adapter_name} if known == causes.ADAPTER_UNNAMED else {}
        if note.reused not in note.indexes:
            return causes.ELSEWHERE, {}
        return self._of_block(note, note.reused, digests, hashes)

    def _known_to_step(self, note: PromptNote) -> str:
        """What the step thread knew already, or ""."""
        if note.trouble == causes.HOOK_ERROR:
            return note.trouble
        if note.adapter_name and note.adapter is None:
            return causes.ADAPTER_UNNAMED
        if note.reused < note.promised and note.trouble:
            return note.trouble
        return causes.OTHER_RANK if note.reused < min(note.promised, note.arrived) else ""

    def _of_block(self, note: PromptNote, index: int, digests: Digests, hashes: list[int]) -> Found:
        digest = digests[index : index + 1]
        fate = self.fates.of(keys_of(digest)[0])
        if not self._pool.is_available:
            return self._unasked(note, index, fate) or (causes.LEFT_ALONE, {})
        names = [*self._keys.data(block_keys.hex_digests(digest)), *self._keys.aliases(hashes[index : index + 1])]
        answers = self._pool.exists(names)
        if answers is None or (answers[0] and self._was_offered_since(digest)):
            return self._unasked(note, index, fate) or (causes.UNKNOWN, {})
        has_data, has_alias = answers
        if has_data:
            return self._of_present(note, index, fate, has_alias)
        return self._of_remembered(note, index, fate) or self._of_stranger(note, index, digest, has_alias)

    def _of_present(self, note: PromptNote, index: int, fate: Fate | None, has_alias: bool) -> Found:
        if index < note.promised:
            return causes.GET_FAILED, {}
        if fate is not None and fate.word in {fates.SEEN, fates.OFFERED}:
            return causes.NOT_YET_STORED, self._age(note, fate)  # it came between the prompt and our question
        age = self._age(note, fate) if fate is not None and fate.word == fates.STORED else {}
        return (causes.NOT_PROMISED if has_alias else causes.NOT_ANNOUNCED), age

    def _age(self, note: PromptNote, fate: Fate) -> Mapping[str, Any]:
        return {"ago_s": round(note.at_s - fate.at_s, 3)}

    def _unasked(self, note: PromptNote, index: int, fate: Fate | None) -> Found | None:
        """Without the pool's answer: what this rank never gave to the pool is not there, whoever is asked."""
        return None if fate is None or fate.word == fates.STORED else self._of_remembered(note, index, fate)

    def _of_remembered(self, note: PromptNote, index: int, fate: Fate | None) -> Found | None:
        """A block that is not in the pool, from what this rank did with it."""
        if fate is None:
            return None
        is_mine = index % self._replica.count == self._replica.index
        if not is_mine and fate.word in {fates.SEEN, fates.OFFERED}:
            return causes.ELSEWHERE, {}
        return fates.CAUSE[fate.word], self._age(note, fate)

    def _of_stranger(self, note: PromptNote, index: int, digest: Digests, has_alias: bool) -> Found:
        """A block that is not in the pool, and that this rank does not remember."""
        adapter = self._other_adapter(note, index)
        if adapter is not None:
            return causes.OTHER_ADAPTER, {"adapter": adapter, "is_former": adapter == note.adapter_name}
        service = self._other_service(digest)
        if service is not None:
            is_foreign = service.namespace != self._keys.service.namespace
            about = {"namespace": service.namespace, "fingerprint": service.fingerprint}
            return (causes.OTHER_NAMESPACE if is_foreign else causes.OTHER_FINGERPRINT), about
        return (causes.ALIAS_ONLY if has_alias else causes.NEVER_STORED), {"since_s": self.fates.since_s}

    def _was_offered_since(self, digest: Digests) -> bool:
        """Whether the block went to the pool after the prompt, so that the pool's answer says nothing of then."""
        return any(
            (self._digests_of(note) == digest).all(axis=1).any()
            for note in self._notes.waiting()
            if isinstance(note, OfferNote) and note.fate == fates.OFFERED
        )

    def _digests_of(self, note: OfferNote) -> Digests:
        sequence = note.sequence
        return block_keys.digests_of(sequence.tokens, self._keys.block_size, sequence.hashed, sequence.adapter)

    def _see(self, adapter: Adapter, name: str) -> None:
        self._seen_adapters[adapter.root] = name
        self._seen_adapters.move_to_end(adapter.root)
        if len(self._seen_adapters) > MAX_ADAPTERS:
            self._seen_adapters.popitem(last=False)

    def _other_adapter(self, note: PromptNote, index: int) -> str | None:
        """The adapter under which these tokens are known, ``""`` for none, or None.

        One that was loaded anew has other content than before, under the same name.
        """
        own = note.adapter.root if note.adapter is not None else block_keys.NO_ROOT
        names = {block_keys.NO_ROOT: "", **{each.root: name for name, each in self._adapters().items()}}
        others = [(root, name) for root, name in (names | dict(self._seen_adapters)).items() if root != own]
        others = others[:1] + others[1:][-MAX_ADAPTERS:]
        if not others:
            return None
        tokens = note.tokens[: (index + 1) * self._keys.block_size]
        lasts = [block_keys.digest_chain(tokens, self._keys.block_size, root)[-1:] for root, _ in others]
        remembered = [self.fates.of(keys_of(last)[0]) is not None for last in lasts]
        answers = self._pool.exists(self._keys.data(block_keys.hex_digests(np.concatenate(lasts))))
        known = [one or two for one, two in zip(remembered, answers or [False] * len(lasts), strict=True)]
        return next((name for (_, name), is_known in zip(others, known, strict=True) if is_known), None)

    def _other_service(self, digest: Digests) -> Service | None:
        """A service that stored these tokens under other keys."""
        own, others = self._keys.service, self._services.others()
        if not others:
            return None
        # of the same fingerprint every rank's shard has the same name there
        likely = [each._replace(shard=own.shard) if each.fingerprint == own.fingerprint else each for each in others]
        hexes = block_keys.hex_digests(digest)
        answers = self._pool.exists([block_keys.data_keys(each, hexes)[0] for each in likely])
        return next((each for each, is_there in zip(others, answers or [], strict=False) if is_there), None)
