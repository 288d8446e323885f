"""The scheduler's question: which blocks are in the pool?

Daemon process, on the scheduler's C++ thread, which holds the GIL while we answer.  The host asks with
``<hash>_<rank>_<ranks>_<model>`` for every block and rank; we ask the pool for one alias per block, the
first few and then the rest in one call, and stop at the first miss.  What was answered a moment ago is
not asked again: a request that waits is looked up at every step, and each question would also renew the
lease of blocks nobody reads yet.  Every answer is a plain ``bool``: pybind casts nothing else.  Nothing
is ever raised: the caller would keep the GIL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.core.block_keys import alias_keys
from mindie_kvpool_plugin.host.partners import scheduler_watch
from mindie_kvpool_plugin.host.recent_answers import RecentAnswers
from mindie_kvpool_plugin.host.slow_lookups import SlowLookups
from mindie_kvpool_plugin.host.why_lookups import Lookups, Outcome
from mindie_kvpool_plugin.native import native
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.log import RateLimited, logger
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.pools.base import PoolBackend

NO_HASH = "0"
"""What the host asks for a block that is not full."""

MAX_FIRST_BLOCKS = 1024
"""Of a first call, after it was doubled again and again: a miss then costs as much as a long prompt's hit."""

HASH_DIGITS = 32
"""A key that begins with more is no block's; 64 bits have 20."""


def build_lookup(backend: str, pool_file: PoolFile) -> SchedulerLookup:
    """Open the pool for lookups.

    Raises:
        ConfigError, PoolError: as ``pools.registry.open_pool``.
    """
    options = pool_file.chosen
    counters = Counters()
    pool = assemble.open_scheduler_pool(backend, pool_file, counters)
    logger.info("the scheduler looks blocks up in %s, namespace %s", backend, options.namespace)
    identity = Identity("scheduler", backend=backend, namespace=options.namespace, pool_file=str(pool_file.path))
    observed = observe(identity, counters, assemble.settings_of(options), scheduler_watch(counters).look)
    why = Lookups(options.why_requests, options.lookup_budget_s, f"{NO_HASH}_") if options.why_requests else None
    if why is not None:
        observed.tells["why"] = why.told
    return SchedulerLookup(
        pool,
        options.namespace,
        options.lookup_first_blocks,
        counters=counters,
        observed=observed,
        why=why,
        slow=SlowLookups(options.lookup_budget_s, pool.clock),
    )


class SchedulerLookup:
    """Stands where the host expects its own pool client.

    Args:
        pool: opened for the scheduler.
        namespace: first part of every key.
        first_blocks: blocks asked for in the first call; more while first calls hit.
        clock: seconds, monotonic.
        counters: where questions are counted.
        observed: what others see of these lookups.
        why: where answers are noted; None: nobody asks.
        slow: how long all of them may take; None: however long.
    """

    def __init__(
        self,
        pool: PoolBackend,
        namespace: str,
        first_blocks: int,
        clock: Callable[[], float] = time.monotonic,
        counters: Counters | None = None,
        observed: Part | None = None,
        why: Lookups | None = None,
        slow: SlowLookups | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self._observed = observed
        self._why = why
        self._pool = pool
        self._namespace = namespace
        self._first_blocks = self._first_part = first_blocks
        self._slow = slow
        self._recent = RecentAnswers(pool.answer_proof_s, f"{NO_HASH}_", clock)
        self._prefixes: dict[str, str] = {}  # by model name; a service has one
        self._log = RateLimited()

    def batch_exist(self, keys: Sequence[str]) -> list[bool]:
        """One bool per host key, in order."""
        began = time.perf_counter()
        try:
            found, outcome = self._answer(keys)
        except Exception:  # noqa: BLE001 - an exception here would leave the C++ caller with the GIL held
            self._log.warning("a pool lookup failed and is answered with no", exc_info=True)
            self.counters.lookup_errors += 1
            found, outcome = 0, "failed"
        seconds = time.perf_counter() - began
        self._count(len(keys), found, seconds)
        self._note(keys, found, seconds, outcome)
        return [True] * found + [False] * (len(keys) - found)

    def exists(self, key: str) -> bool:
        """The same for one key."""
        return self.batch_exist([key])[0]

    def close(self) -> None:
        """Close the pool; the host itself never calls this."""
        if self._observed is not None:
            self._observed.forget()
        self._pool.close()

    def _count(self, asked: int, found: int, seconds: float) -> None:
        counters = self.counters
        if found == 0:
            counters.answered_none += 1
        elif found == asked:
            counters.answered_all += 1
        else:
            counters.answered_some += 1
        counters.asked_keys += asked
        counters.found_keys += found
        counters.lookup_seconds.add(seconds)

    def _note(self, keys: Sequence[str], found: int, seconds: float, outcome: Outcome) -> None:
        if self._why is not None:
            try:
                self._why.note(keys, found, seconds, outcome)
            except Exception:  # noqa: BLE001 - the same caller, and it has its answer already
                self._log.warning("a pool lookup could not be noted (why_requests)", exc_info=True)

    def _answer(self, keys: Sequence[str]) -> tuple[int, Outcome]:
        """How many leading keys are hits, and how that came about."""
        self._recent.age_s = self._pool.answer_proof_s  # not known before the pool is open
        outcome: Outcome = "answered" if self._why is None or self._pool.is_available else "left_alone"
        known, is_final = self._recent.leading(keys)
        if is_final:
            self.counters.remembered_questions += 1
            return known, outcome
        if self._slow is not None and not self._slow.may_ask():
            self.counters.refused_keys += len(keys) - known
            return known, "left_alone"
        found = self._ask(keys, known) if self._slow is None else self._slow.watch(lambda: self._ask(keys, known))
        self._recent.note(keys, known, found)
        return found, outcome

    def _ask(self, keys: Sequence[str], found: int) -> int:
        """How many leading keys are hits, of which ``found`` are known to be."""
        parts = keys[0].split("_", 3) if keys else []
        if len(parts) != 4:
            return 0
        suffix = f"_{parts[2]}_{parts[3]}"
        width = int(parts[2]) if parts[2].isdecimal() else 1
        prefix = self._prefix(parts[3])
        names_of = native.block_names if native is not None and type(keys) is list else block_names_twin
        limit = len(keys) if found else self._first_part
        while found < len(keys):
            names, ends = names_of(keys, found, limit, width, prefix, suffix)
            answers = self._pool.exists(names) if names else []
            hits = len(names) if all(answers) else answers.index(False)
            if found == 0:
                self._learn(hits, len(names))
            if hits:
                found = ends[hits - 1]
            if not names or hits < len(names):
                break
            limit = len(keys)
        return found

    def _learn(self, hits: int, asked: int) -> None:
        """Prompts come in phases: where first parts hit, ask for more at once and save a call."""
        if hits == 0:
            self._first_part = self._first_blocks
        elif hits == asked == self._first_part:
            self._first_part = min(2 * self._first_part, MAX_FIRST_BLOCKS)

    def _prefix(self, model: str) -> str:
        prefix = self._prefixes.get(model)
        if prefix is None:
            prefix = self._prefixes[model] = alias_keys(self._namespace, model, [""])[0]
            if self._observed is not None:
                self._observed.learn_model(model)
        return prefix


def block_names_twin(
    keys: Sequence[str], first: int, limit: int, width: int, prefix: str, suffix: str
) -> tuple[list[str], list[int]]:
    """``_native.block_names`` in Python: the aliases of the next blocks, and the index behind each block's keys.

    The host names each block ``width`` times in a row; only the first and the last of them are read.
    """
    names: list[str] = []
    ends: list[int] = []
    while first < len(keys) and len(names) < limit:
        block = _hash_in(keys[first], suffix)
        if not block:
            break
        last = first + width - 1
        if width > 1 and last < len(keys) and _hash_in(keys[last], suffix) == block:
            first = last + 1
        else:
            first += 1
            while first < len(keys) and _hash_in(keys[first], suffix) == block:
                first += 1
        names.append(prefix + block)
        ends.append(first)
    return names, ends


def _hash_in(key: str, suffix: str) -> str:
    """The block's hash in a host key, or nothing if the key has another form or names no full block."""
    block, _, rest = key.partition("_")
    rank, _, _ = rest.partition("_")
    return block if rest == rank + suffix and block != NO_HASH and len(block) <= HASH_DIGITS else ""
