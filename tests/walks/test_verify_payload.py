"""Bits flip on the way back: without checksums the model reads them, with checksums it never does."""

import ctypes
import json

import pytest

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.observability.prefill_clock import PrefillClock
from mindie_kvpool_plugin.pools.local_dram import forget_pool
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.neighbour import Neighbour, run_with_neighbour
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS, RunConfig, drive
from tests.walks.conftest import assert_right, assert_right_so_far, chat


@pytest.fixture
def flips(monkeypatch):
    """Every seventh block that any rank loads has one bit flipped."""
    counts = {"loaded": 0, "flipped": 0}
    open_pool = assemble.open_pool

    def open_flipping(backend, pool_file, role):
        pool = open_pool(backend, pool_file, role)
        get = getattr(pool, "honest_get", pool.get)
        pool.honest_get = get

        def get_and_flip(keys, buffers):
            arrived = get(keys, buffers)
            for row, ok in enumerate(arrived):
                counts["loaded"] += ok
                if ok and counts["loaded"] % 7 == 0:
                    counts["flipped"] += 1
                    (ctypes.c_uint8 * 1).from_address(int(buffers.addresses[row, 0]))[0] ^= 1
            return arrived

        pool.get = get_and_flip
        return pool

    monkeypatch.setattr(assemble, "open_pool", open_flipping)
    return counts


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("verify", [False, True], ids=["unchecked", "checked"])
def test_flipped_bits(tmp_path, flips, verify, tp):
    """The same traffic and the same damage."""
    path = tmp_path / "pool.json"
    section = {"load": "always", "reload_budget_ms": 60_000, "verify_payload": verify}
    path.write_text(json.dumps({"capacity": 64 << 20, "kv_pool": section}), encoding="utf-8")
    config = EngineConfig(tp=tp, hbm_blocks=48, plugins=POOL_PLUGINS, backend="local_dram", pool_file=str(path))
    try:
        with Engine(config) as engine:
            drive(engine, chat()(), concurrency=4)
            assert flips["flipped"] > 5
            if verify:
                assert_right_so_far(engine)
                counters = [engine.plugin("kv_pool", rank).counters for rank in range(tp)]
                assert sum(each.corrupt_blocks for each in counters) == flips["flipped"]
            else:
                assert engine.oracle.corruptions > 0, "the fault is real"
    finally:
        forget_pool(str(path))


def test_blocks_that_a_neighbour_holds_come_back_damaged(monkeypatch):
    """They lie in another process's part of the pool, and loads from there are judged apart from those of the own."""
    monkeypatch.setattr(PrefillClock, "token_s", lambda self: 0.1)  # so that every load pays
    section = {"verify_payload": True, "load": "auto", "reload_budget_ms": 60_000}
    faults = parse_spec("undetected_flip=0.5")
    run = RunConfig(EngineConfig(hbm_blocks=48), chat(8, 3), pool="mooncake", faults=faults, section=section)
    result, other = run_with_neighbour(run, Neighbour(chat(8, 3), ahead=60))
    assert result.faults["undetected_flip"] > 5
    for each in (result, other):
        assert_right(each)
        assert each.hook_errors == 0
        assert each.reloaded_blocks > 0
