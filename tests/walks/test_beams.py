"""Beam search: beams take over each other's history between two batches, and in the last step of all.

Blocks hold four tokens, so that beams differ in full blocks.
"""

from functools import partialmethod

import pytest

from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.walks.conftest import assert_right_so_far, chat

SEARCHES, BEAMS = 24, 6
PROMPT_BLOCKS = 5
PROMPT = range(10, 10 + 4 * PROMPT_BLOCKS)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "naive"])
@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
def test_of_a_beam_only_the_prompt_is_stored(monkeypatch, async_write, is_guarded):
    """In the last step a beam's tokens become another's, while its blocks still hold its own."""
    if not is_guarded:
        monkeypatch.setattr(SequenceTable, "enter", partialmethod(enter_as_if_certain, SequenceTable.enter))
    config = EngineConfig(block_size=4, hbm_blocks=128, async_write=async_write)
    with opened_pool(RunConfig(config, chat())) as pooled, Engine(pooled) as engine:
        answers = [search(engine, [first, *PROMPT[1:]]) for first in range(SEARCHES)]
        assert engine.plugin("kv_pool").drain(30.0)
        assert engine.scheduler.moved_beams > SEARCHES
        for answer in answers:
            engine.drop_hbm()
            next_turn = engine.submit(answer, 2)
            engine.run()
            if is_guarded:
                assert next_turn.pool_blocks == PROMPT_BLOCKS
        if is_guarded:
            assert_right_so_far(engine)
        else:
            assert engine.oracle.corruptions > 0


def enter_as_if_certain(table, enter, *args, certain=None, **rest):
    del certain
    return enter(table, *args, **rest)


def search(engine, prompt):
    """What the client says next: the prompt and the answer of the sequence that computed the prompt."""
    request = engine.submit(prompt, 13, n=BEAMS, beams=True)
    engine.run()
    return prompt + request.answer
