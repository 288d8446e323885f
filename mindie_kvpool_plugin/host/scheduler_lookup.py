"""The scheduler's question: which blocks are in the pool?

Daemon process, on the scheduler's C++ thread, which holds the GIL while we answer.  The host asks with
``<hash>_<rank>_<ranks>_<model>`` for every block and rank; we ask the pool for one alias per block, the
first few and then the rest in one call, and stop at the first miss.  Every answer is a plain ``bool``:
pybind casts nothing else.  Nothing is ever raised: the caller would keep the GIL.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.config.models import KvPoolOptions
from mindie_kvpool_plugin.config.pool_file import PoolFile
from mindie_kvpool_plugin.core.block_keys import alias_keys
from mindie_kvpool_plugin.observability.log import RateLimited, logger
from mindie_kvpool_plugin.pools.base import PoolBackend

NO_HASH = "0"
"""What the host asks for a block that is not full."""


def build_lookup(backend: str, pool_file: PoolFile) -> SchedulerLookup:
    """Open the pool for lookups.

    Raises:
        ConfigError, PoolError: as ``pools.registry.open_pool``.
    """
    options = pool_file.options or KvPoolOptions()
    pool = assemble.open_scheduler_pool(backend, pool_file)
    logger.info("the scheduler looks blocks up in %s, namespace %s", backend, options.namespace)
    return SchedulerLookup(pool, options.namespace, options.lookup_first_blocks)


class SchedulerLookup:
    """Stands where the host expects its own pool client.

    Args:
        pool: opened for the scheduler.
        namespace: first part of every key.
        first_blocks: blocks asked for in the first call.
    """

    def __init__(self, pool: PoolBackend, namespace: str, first_blocks: int) -> None:
        self._pool = pool
        self._namespace = namespace
        self._first_blocks = first_blocks
        self._log = RateLimited()

    def batch_exist(self, keys: Sequence[str]) -> list[bool]:
        """One bool per host key, in order."""
        try:
            return self._answer(keys)
        except Exception:  # noqa: BLE001 - an exception here would leave the C++ caller with the GIL held
            self._log.warning("a pool lookup failed and is answered with no", exc_info=True)
            return [False] * len(keys)

    def exists(self, key: str) -> bool:
        """The same for one key."""
        return self.batch_exist([key])[0]

    def close(self) -> None:
        """Close the pool; the host itself never calls this."""
        self._pool.close()

    def _answer(self, keys: Sequence[str]) -> list[bool]:
        blocks = [(name, len(list(same))) for name, same in itertools.groupby(keys, _block_of)]
        num_found = self._count_found([name for name, _ in blocks])
        answers: list[bool] = []
        for index, (_, asked) in enumerate(blocks):
            answers += [index < num_found] * asked
        return answers

    def _count_found(self, blocks: Sequence[tuple[str, str]]) -> int:
        """How many leading blocks the pool holds."""
        full = list(itertools.takewhile(lambda block: block[0] not in ("", NO_HASH), blocks))
        found = 0
        for part in (full[: self._first_blocks], full[self._first_blocks :]):
            if not part:
                break
            model = part[0][1]
            answers = self._pool.exists(alias_keys(self._namespace, model, [name for name, _ in part]))
            hits = sum(1 for _ in itertools.takewhile(bool, answers))
            found += hits
            if hits < len(part):
                break
        return found


def _block_of(key: str) -> tuple[str, str]:
    """(host hash, model name) of ``<hash>_<rank>_<ranks>_<model>``."""
    parts = key.split("_", 3)
    return (parts[0], parts[3]) if len(parts) == 4 else ("", "")
