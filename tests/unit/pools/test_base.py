"""What wraps a pool says of it what the pool says of itself."""

import time

import pytest

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import PoolBackend, PoolWrapper
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool
from mindie_kvpool_plugin.pools.guards.late import LatePool
from mindie_kvpool_plugin.simulator.faults import FaultRecord, FaultyPool, parse_spec
from tests.contract.conftest import UnderPrefix


class Peculiar(PoolBackend):
    """A pool whose figures are nobody's default."""

    clock = time.perf_counter
    put_proof_s = 7.0
    answer_proof_s = 3.0
    is_available = False
    has_own_part = True

    def exists(self, keys):
        return [True] * len(keys)

    put = get = lambda self, keys, *_: [True] * len(keys)

    def register(self, regions):
        self.regions = regions

    def close(self):
        self.is_closed = True


WRAPPERS = {
    "breaker": lambda inner: GuardedPool(inner, "peculiar", BreakerPolicy(), Counters()),
    "late": lambda inner: LatePool(lambda: inner, "peculiar"),
    "checked": lambda inner: CheckedPool(inner, Counters()),
    "faulty": lambda inner: FaultyPool(inner, FaultRecord(parse_spec(""), "peculiar")),
    "under a prefix": lambda inner: UnderPrefix(inner, "prefix"),
    "nothing changed": PoolWrapper,
}
FIGURES = [name for name, member in vars(PoolBackend).items() if isinstance(member, property)]


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=list(WRAPPERS))
def test_wrapper_reports_the_figures_of_its_pool(wrap, figure):
    """All of them: what the walks and the scheduler believe depends on these."""
    assert getattr(wrap(Peculiar()), figure) == getattr(Peculiar, figure) != getattr(PoolBackend, figure).fget(None)


def test_wrapper_forwards_everything_the_contract_has():
    """A member added to the contract and not to the wrapper would answer with its default."""
    contract = {name for name in vars(PoolBackend) if not name.startswith("_")}
    assert contract <= set(vars(PoolWrapper))


def test_what_a_wrapper_does_not_change_reaches_its_pool():
    """Calls, regions and the end."""
    inner = Peculiar()
    pool = PoolWrapper(inner)
    pool.register([])
    pool.close()
    assert (pool.exists(["a"]), inner.regions, inner.is_closed) == ([True], [], True)
