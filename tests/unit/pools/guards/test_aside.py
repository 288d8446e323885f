"""Questions of the curious reach the backend, and the breaker never hears of them."""

import pytest

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.guards.aside import Aside
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool, State
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool
from tests.unit.core.parts import ScriptedPool


class Troubled(ScriptedPool):
    def __init__(self, trouble):
        super().__init__()
        self.trouble = trouble
        self.asked = 0

    def exists(self, keys):
        self.asked += 1
        if self.trouble == "raises":
            raise OSError("planted")
        if self.trouble == "too few":
            return [True] * (len(keys) - 1)
        return Answers([False] * len(keys), self.trouble or None)


def guarded(backend, failures=1):
    return GuardedPool(backend, "troubled", BreakerPolicy(failures=failures, retry_s=600.0), Counters())


@pytest.mark.parametrize("trouble", ["raises", "too few", "it said so"])
def test_a_question_that_fails_says_nothing_and_does_not_count(trouble):
    """A breaker that opens at the first failure stays closed, ten times over."""
    pool = guarded(Troubled(trouble))
    aside = Aside(pool)
    assert [aside.exists(["a", "b"]) for _ in range(10)] == [None] * 10
    assert (pool.state, pool.inner.asked) == (State.CLOSED, 10)
    pool.exists(["a"])
    assert pool.state is State.OPEN, "the same answer opens it where it counts"
    pool.close()


def test_a_pool_that_is_left_alone_is_not_asked():
    """Not even out of curiosity."""
    pool = guarded(Troubled("it said so"))
    pool.exists(["a"])
    asked = pool.inner.asked
    aside = Aside(pool)
    assert not aside.is_available
    assert aside.exists(["a"]) is None
    assert pool.inner.asked == asked
    pool.close()


def test_answers_come_through_all_guards_as_they_are():
    """Also where checksums stand around the breaker, and for a pool without guards."""
    pytest.importorskip("xxhash")
    backend = Troubled("")
    for pool in (backend, guarded(backend), CheckedPool(guarded(backend), Counters())):
        assert Aside(pool).exists(["a", "b"]) == [False, False]
        assert Aside(pool).exists([]) is None
    assert backend.asked == 3
