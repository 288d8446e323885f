"""Which guards stand around a backend, and in which order."""

import sys

import pytest

from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolWrapper
from mindie_kvpool_plugin.pools.guards.stack import guarded
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from tests.conftest import Memory


def _stack(role, opened=None, **options):
    pool = guarded(opened or (lambda: LocalDram(1 << 20)), "embedded", role, KvPoolOptions(**options), Counters())
    names, inner = [type(pool).__name__], pool
    while isinstance(inner, PoolWrapper):
        inner = inner.inner
        names.append(type(inner).__name__)
    pool.close()
    return names


@pytest.mark.parametrize(
    ("role", "options", "expected"),
    [
        ("worker", {}, ["GuardedPool", "LocalDram"]),
        ("scheduler", {}, ["GuardedPool", "LocalDram"]),
        ("worker", {"verify_payload": True}, ["CheckedPool", "GuardedPool", "LocalDram"]),
        ("scheduler", {"verify_payload": True}, ["GuardedPool", "LocalDram"]),
        (
            "worker",
            {"verify_payload": True, "on_pool_unavailable": "run_without"},
            ["CheckedPool", "GuardedPool", "LatePool", "LocalDram"],
        ),
    ],
)
def test_options_choose_the_guards(role, options, expected):
    """Checksums where bytes are read, a late pool where the service may start without it, the breaker always."""
    assert _stack(role, **options) == expected


def test_pool_that_cannot_be_opened_refuses_unless_it_may_come_later():
    """As ``on_pool_unavailable`` says."""

    def fails():
        raise PoolError("planted")

    with pytest.raises(PoolError, match="planted"):
        _stack("worker", fails)
    assert _stack("worker", fails, on_pool_unavailable="run_without") == ["GuardedPool", "LatePool", "NoPool"]


def test_missing_package_is_told_before_a_pool_is_opened(monkeypatch):
    """Nobody would close it."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    opened = []
    with pytest.raises(ConfigError, match="verify_payload"):
        _stack("worker", lambda: opened.append("pool"), verify_payload=True)
    assert opened == []


def test_what_a_backend_raises_ends_in_the_stack():
    """Every call answers, whatever the library underneath does."""

    class Broken(LocalDram):
        def exists(self, keys):
            raise MemoryError("planted")

        def put(self, keys, buffers, groups=None):
            raise OSError("planted")

        def get(self, keys, buffers):
            raise KeyError("planted")

    pool = guarded(lambda: Broken(1), "broken", "worker", KvPoolOptions(), Counters())
    memory = Memory(1).buffers
    assert (pool.exists(["a"]), pool.put(["a"], memory), pool.get(["a"], memory)) == ([False], [False], [False])
    assert not pool.is_available, "three failed calls in a row"
    pool.close()
